"""Tasks that every Python installation can make, from the text that it carries: for tests, the tour
and the quickstart. They are small and easy; what is learned from them is that everything works.

A passage is a paragraph of a docstring of the standard library. Which split it is in follows from a
hash of its text: 80 % train, 10 % validation, 10 % test.
"""

import hashlib
import sysconfig
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from t5x_lite.data.text.sources import library_modules, module_docstrings

# The packages of the standard library with the most text, that every installation has.
MODULES = ("asyncio", "email", "http", "importlib", "logging", "typing", "unittest", "xml")

_SHORTEST, _LONGEST = 80, 400  # characters of a passage


def which_module(split: str) -> Iterator[dict[str, Any]]:
    """Which module does this passage come from? One of MODULES."""
    for path in library_modules():
        module = _module_name(path)
        if module in MODULES:
            for passage in _passages(path):
                if _split_of(passage) == split:
                    yield {"passage": passage, "module": module}


def next_passage(split: str) -> Iterator[dict[str, Any]]:
    """Do these two passages follow each other? The second is the next one, or one from another
    module, in turn.
    """
    passages_of_files = [_passages(path) for path in library_modules()]
    by_file = [passages for passages in passages_of_files if len(passages) > 1]
    for number, passages in enumerate(by_file):
        for first, second in zip(passages[::2], passages[1::2], strict=False):
            digest = _hash(first)
            follows = digest % 2 == 0
            if not follows:
                shift = 1 + digest // 2 % (len(by_file) - 1)  # to any file but this one
                others = by_file[(number + shift) % len(by_file)]
                second = others[digest % len(others)]
            if _split_of(first) == split:
                yield {"first": first, "second": second, "follows": int(follows)}


def prose_or_code(split: str) -> Iterator[dict[str, Any]]:
    """Is this text prose, or code? Passages, and runs of lines between them in the same files."""
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


def _module_name(path: Path) -> str:
    root = Path(sysconfig.get_path("stdlib"))
    return path.relative_to(root).parts[0].removesuffix(".py")


@cache
def _passages(path: Path) -> list[str]:
    """The paragraphs of a file's docstrings that are neither short nor long, each once."""
    passages = {}
    for docstring in module_docstrings(path):
        for paragraph in docstring.split("\n\n"):
            passage = " ".join(paragraph.split())
            if _SHORTEST <= len(passage) <= _LONGEST and ">>>" not in passage:
                passages[passage] = None
    return list(passages)


def _code(path: Path) -> list[str]:
    """The blocks of a file between blank lines that hold no text of their own."""
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
    share = _hash(text) // 2 % 10
    return {0: "validation", 1: "test"}.get(share, "train")
