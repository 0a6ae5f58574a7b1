"""Tasks that are made from the text of any Python installation, for tests, the tour and
compare/python_docs. They are small and easy; a good score only shows that everything works.

A passage is a paragraph of a docstring in the standard library. A hash of its text decides its
split: 80 % train, 10 % validation, 10 % test.
"""

import hashlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from t5x_lite.data.text.sources import library_modules, module_docstrings

# The packages of the standard library with the most text, which every installation has.
MODULES = ("asyncio", "email", "http", "importlib", "logging", "typing", "unittest", "xml")

_SHORTEST, _LONGEST = 80, 400  # characters in a passage


def which_module(split: str) -> Iterator[dict[str, Any]]:
    """Yield passages to classify: which module does this passage come from? One of MODULES."""
    for path, module in library_modules().items():
        if module in MODULES:
            for passage in _passages(path):
                if _split_of(passage) == split:
                    yield {"passage": passage, "module": module}


def next_passage(split: str) -> Iterator[dict[str, Any]]:
    """Yield pairs of passages: does the second follow the first? The second is the next passage, or
    one from another file. A hash of the first decides which.
    """
    passages_of_files = [_passages(path) for path in library_modules()]
    by_file = [passages for passages in passages_of_files if len(passages) > 1]
    for number, passages in enumerate(by_file):
        for first, second in zip(passages[::2], passages[1::2], strict=False):
            digest = _hash(first)
            follows = digest % 2 == 0
            if not follows:
                shift = 1 + digest // 2 % (len(by_file) - 1)  # to any other file
                others = by_file[(number + shift) % len(by_file)]
                second = others[digest % len(others)]
            if _split_of(first) == split:
                yield {"first": first, "second": second, "follows": int(follows)}


def prose_or_code(split: str) -> Iterator[dict[str, Any]]:
    """Yield texts to classify: is this prose or code? Prose is a passage; code is a block of lines
    from the same files.
    """
    for path in library_modules():
        passages = _passages(path)
        texts = [(passage, "prose") for passage in passages]
        texts += [(code, "code") for code in _code(path)[: len(passages)]]
        for text, kind in texts:
            if _split_of(text) == split:
                yield {"text": text, "kind": kind}


OFFLINE: dict[str, Callable[[str], Iterator[dict[str, Any]]]] = {
    function.__name__: function for function in (which_module, next_passage, prose_or_code)
}


@cache
def _passages(path: Path) -> list[str]:
    """Return the paragraphs of a file's docstrings, each once, without doctests and without
    paragraphs that are too short or too long.
    """
    passages = {}
    for docstring in module_docstrings(path):
        for paragraph in docstring.split("\n\n"):
            passage = " ".join(paragraph.split())
            if _SHORTEST <= len(passage) <= _LONGEST and ">>>" not in passage:
                passages[passage] = None
    return list(passages)


def _code(path: Path) -> list[str]:
    """Return the blocks of a file between blank lines that contain an equals sign, but no
    docstrings, comments or doctests.
    """
    blocks = path.read_text("utf-8", errors="replace").split("\n\n")
    kept = []
    for block in blocks:
        text = " ".join(block.split())
        has_prose = '"""' in text or "'''" in text or "#" in text or ">>>" in text
        if _SHORTEST <= len(text) <= _LONGEST and not has_prose and "=" in text:
            kept.append(text)
    return kept


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _split_of(text: str) -> str:
    """Return the split of a text, by its hash."""
    share = _hash(text) // 2 % 10
    return {0: "validation", 1: "test"}.get(share, "train")
