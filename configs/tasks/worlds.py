"""Questions about generated languages, to models whose text is of the same world: see
t5x_lite/data/text/worlds.py.

All are answered in words, and chance is known: a land or a town by guessing, 1 in 64; the verb, 1
in 2; a list of n words, 1 in 24 to the power of n. All can be answered without a mistake.
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
