"""Multiple-choice questions: HellaSwag (Zellers et al., 2019), how a description continues; PIQA
(Bisk et al., 2020), how to reach a goal; ARC (Clark et al., 2018), school science.

The sources are Rowan/hellaswag, ybisk/piqa and allenai/ai2_arc on Hugging Face. PIQA is read from
its Parquet copy, because the original needs a script that datasets 4 does not run. The metric is
accuracy. T5 was not trained on these tasks, so the prompts follow its COPA prompt. Labels of the
test splits are withheld, except for ARC.
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
