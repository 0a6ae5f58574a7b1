"""Questions about generated languages, to models whose text is of the same world: see
t5x_lite/data/text/worlds.py.

All are answered in words, and all can be answered without a mistake. By chance: a land or a town, 1
in 64, or 1 in 19 without those of other splits; the verb, 1 in 2; a list of n words, 1 in 24 to the
power of n.
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
