"""BERT, T5 and GPT of similar size on the same documents in the same order: the text that every
Python carries.

About five minutes on two CPU cores.

python -m t5x_lite compare --config=configs/compare/quickstart.py --workdir=/tmp/quickstart
"""

import t5x_lite
from t5x_lite.config import CompareConfig, default


def get_config():
    config = default(CompareConfig)
    config.title = "BERT, T5 and GPT on the documentation of Python"
    config.members = {name: t5x_lite.get_config(f"{name}_tiny") for name in ("bert", "t5", "gpt")}
    for member in config.members.values():
        member.training.update(steps=700, eval_every=175, checkpoint_every=350, log_every=25)
    config.blanks = (
        "Return the ___ of the object.",
        "This method is called when the ___ is closed.",
    )
    config.spans = ("Return the ___ of the object.", "If the file ___, an exception is raised.")
    config.prompts = ("Return a new", "This module provides")
    return config
