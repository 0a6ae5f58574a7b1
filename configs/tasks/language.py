"""Tasks for language models without fine-tuning: LAMBADA (Paperno et al., 2016), the last word of a
passage, and BLiMP (Warstadt et al., 2020), the more acceptable of two sentences.

LAMBADA is the text that GPT-2 and GPT-3 were tested on, EleutherAI/lambada_openai on Hugging Face,
so that scores can be compared with theirs. The original, cimec/lambada, is tokenized, with
punctuation split off ("do n't"). There is only a test split. The metric is the share of passages
whose last word the model writes with greedy decoding.

BLiMP is nyu-mll/blimp on Hugging Face, which has a directory for each of its 67 paradigms; all of
them are read as one split. The metric is the mean of their accuracies. The authors' .jsonl files
work, too: --task='blimp(blimp/data/*.jsonl)'.
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
