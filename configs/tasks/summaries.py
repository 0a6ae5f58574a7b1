"""News summaries: several sentences in CNN/DailyMail (Hermann et al., 2015; See et al., 2017), and
one in XSum (Narayan et al., 2018).

The sources are abisee/cnn_dailymail and EdinburghNLP/xsum on Hugging Face. XSum is read from its
Parquet copy, because the original needs a script that datasets 4 does not run. The metrics are F1
of ROUGE; rougeLsum compares sentence by sentence. Both use T5's prompt (preprocessors.summarize);
the question is GPT-2's (Radford et al., 2019, §3.6).
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
