"""WMT 2014, English to German (Bojar et al., 2014), with newstest2013 for validation and
newstest2014 for testing.

The source is wmt/wmt14 on Hugging Face. The metric is corpus BLEU from sacrebleu (Post, 2018),
between 0 and 100. The prompt is as in preprocessors.translate of Google's t5.
"""

TASKS = {
    "wmt_en_de": {
        "kind": "generate",
        "source": "hf:wmt/wmt14?name=de-en",
        "test": "test",
        "text": "translation.en",
        "label": "translation.de",
        "prompt": "translate English to German: {translation.en}",
        "question": "English: {translation.en}\nGerman:",
        "metrics": ("bleu",),
    },
}
