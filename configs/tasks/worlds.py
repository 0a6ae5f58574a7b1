"""Questions about generated languages, for models that have read text of the same world: see
t5x_lite/data/text/worlds.py.

All questions are answered in words, and all can be answered without a mistake. The chance of
guessing right is 1 in 64 for a land or a town, or 1 in 19 without those of other splits; 1 in 2 for
the verb; and 1 in 24 to the power of n for a list of n words.
"""


def _asked(source: str) -> dict:
    return {
        "kind": "generate",
        "source": f"world:{source}",
        "test": "test",
        "text": "question",
        "label": "answer",
        "prompt": "{question}",
        "metrics": ("exact_match",),
    }


TASKS = {name: _asked(name) for name in ("which_town", "which_land", "which_verb", "which_list")}
