"""WMT 2014, English to German (Bojar et al., 2014): validation is newstest2013, test newstest2014.

The source is wmt/wmt14 of Hugging Face. The metric is the BLEU of the whole corpus by sacrebleu
(Post, 2018), between 0 and 100. The prompt is that of preprocessors.translate in Google's t5.
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
