"""Summaries of news: CNN/DailyMail (Hermann et al., 2015; See et al., 2017), several sentences, and
XSum (Narayan et al., 2018), one.

The sources are abisee/cnn_dailymail and EdinburghNLP/xsum of Hugging Face; of the second the copy
in parquet, as it was made by a script that datasets 4 does not run. Metrics are the F1 of ROUGE;
rougeLsum compares sentence by sentence. T5's prompt (preprocessors.summarize) serves both; the
question is GPT-2's (Radford et al., 2019, §3.6).
"""

TASKS = {
    "cnn_dailymail": {
        "kind": "generate",
        "source": "hf:abisee/cnn_dailymail?name=3.0.0",
        "test": "test",
        "id": "id",
        "text": "article",
        "label": "highlights",
        "prompt": "summarize: {article}",
        "question": "{article}\nTL;DR:",
        "metrics": ("rouge1", "rouge2", "rougeLsum"),
    },
    "xsum": {
        "kind": "generate",
        "source": "hf:EdinburghNLP/xsum?revision=refs/convert/parquet",
        "test": "test",
        "id": "id",
        "text": "document",
        "label": "summary",
        "prompt": "summarize: {document}",
        "question": "{document}\nTL;DR:",
        "metrics": ("rouge1", "rouge2", "rougeL"),
    },
}
