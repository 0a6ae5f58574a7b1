"""Tasks made from the text that comes with every Python: see t5x_lite/data/tasks/offline.py. They
are for tests, the tour and compare/python_docs; they are easy and not a benchmark.
"""

TASKS = {
    "which_module": {
        "source": "offline:which_module",
        "test": "test",
        "text": "passage",
        "label": "module",
        "labels": (
            "asyncio",
            "email",
            "http",
            "importlib",
            "logging",
            "typing",
            "unittest",
            "xml",
        ),
        "question": "{passage}\n\nThis is from the module",
        "answer_words": (
            " asyncio",
            " email",
            " http",
            " importlib",
            " logging",
            " typing",
            " unittest",
            " xml",
        ),
    },
    "next_passage": {
        "source": "offline:next_passage",
        "test": "test",
        "text": "first",
        "text_pair": "second",
        "label": "follows",
        "labels": ("elsewhere", "next"),
    },
    "prose_or_code": {
        "source": "offline:prose_or_code",
        "test": "test",
        "text": "text",
        "label": "kind",
        "labels": ("prose", "code"),
    },
}
