"""Questions with several answers: HellaSwag (Zellers et al., 2019), how a description goes on; PIQA
(Bisk et al., 2020), how a goal is reached; ARC (Clark et al., 2018), science at school.

The sources are Rowan/hellaswag, ybisk/piqa and allenai/ai2_arc of Hugging Face; of the second the
copy in parquet, as it was made by a script that datasets 4 does not run. The metric is accuracy.
T5 was not trained on these; prompts have the form of its COPA. Labels of the test splits are
withheld, but for ARC.
"""

_ARC = {
    "kind": "choose",
    "test": "test",
    "prepare": "arc",
    "id": "id",
    "text": "question",
    "label": "answer",
    "choices": ("choices.text",),
    "question": "Question: {question}\nAnswer:",
}

TASKS = {
    "hellaswag": {
        "kind": "choose",
        "source": "hf:Rowan/hellaswag",
        "test": "test",
        "prepare": "hellaswag",
        "id": "ind",
        "text": "context",
        "choices": ("endings",),
        "question": "{question}",
    },
    "piqa": {
        "kind": "choose",
        "source": "hf:ybisk/piqa?revision=refs/convert/parquet",
        "test": "test",
        "text": "goal",
        "choices": ("sol1", "sol2"),
        "question": "Question: {goal}\nAnswer:",
    },
    "arc_easy": _ARC | {"source": "hf:allenai/ai2_arc?name=ARC-Easy"},
    "arc_challenge": _ARC | {"source": "hf:allenai/ai2_arc?name=ARC-Challenge"},
}
