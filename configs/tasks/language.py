"""What a language model knows without being trained on a task: LAMBADA (Paperno et al., 2016), the
last word of a passage, and BLiMP (Warstadt et al., 2020), which of two sentences is the better.

LAMBADA is the text that GPT-2 and GPT-3 were tested on, EleutherAI/lambada_openai of Hugging Face,
so that scores can be compared with theirs; cimec/lambada has the original, in words apart from
their punctuation ("do n't"). It is a test split alone. The metric is the share of passages whose
last word the model writes, each token the likeliest.

BLiMP is nyu-mll/blimp of Hugging Face, which has a directory for each of its 67 paradigms; all of
them are read as one split. The metric is the mean of their accuracies. The .jsonl files of the
authors serve too: --task='blimp(blimp/data/*.jsonl)'.
"""

TASKS = {
    "lambada": {
        "kind": "complete",
        "source": "hf:EleutherAI/lambada_openai?name=default",
        "train": "",
        "validation": "test",
        "test": "test",
        "prepare": "last_word",
        "text": "context",
        "label": "word",
        "question": "{context}",
    },
    "blimp": {
        "kind": "prefer",
        "source": "hf:nyu-mll/blimp?data_files=*/train-*.parquet",
        "train": "",
        "validation": "train",
        "prepare": "sentences",
        "text": "",
        "choices": ("pair",),
        "group": "UID",
        "metrics": ("grouped_accuracy", "accuracy"),
    },
}
