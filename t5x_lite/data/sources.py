"""Where text comes from: an iterator of documents (str), the same ones in the same order every time."""

import ast
import glob
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from t5x_lite.errors import BAD_DATA, NO_FILE, Refusal

_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "__pycache__"}


def documents(source: str, document: str = "file", key: str = "data.source") -> Iterator[str]:
    """The documents of a source, in a fixed order. key: the setting it comes from, named in what is refused.

    source: "python_docs", or a text file, a directory (all .txt below it) or a glob.
    document: what one document of a text file is: the "file", a "line" or a "block" between blank lines.
    Empty documents are passed over. Bytes that are not UTF-8 become U+FFFD. Raises Refusal for files it cannot read.
    """
    if source == "python_docs":
        yield from python_docs()
        return
    for path in _files(source, key):
        try:
            text = path.read_bytes().decode("utf-8-sig", errors="replace")
        except OSError as error:
            raise Refusal(NO_FILE, f"{key}: cannot read {path}: {error.strerror}") from error
        yield from (piece for piece in _cut(text, document) if piece.strip())


def fingerprint(source: str, key: str = "data.source") -> str:
    """A line that changes when the text does: the Python version, or names, sizes and times of the files."""
    if source == "python_docs":
        return "python_docs of " + sys.version.split()[0]
    try:
        return "; ".join(f"{p} {p.stat().st_size} {p.stat().st_mtime_ns}" for p in _files(source, key))
    except OSError as error:
        raise Refusal(NO_FILE, f"{key}: cannot read {error.filename}: {error.strerror}") from error


def _files(source: str, key: str) -> list[Path]:
    path = Path(source)
    if path.is_dir():
        found = sorted(p for p in path.rglob("*.txt") if p.is_file())
        wanted = "a directory with .txt files"
    else:
        found = [path] if path.is_file() else sorted(Path(p) for p in glob.glob(source, recursive=True))
        wanted = "python_docs, or an existing file, directory or glob"
    if not source or not found:
        raise Refusal(NO_FILE, f"{key}={source}: no such text; expected {wanted}")
    return found


def _cut(text: str, document: str) -> list[str]:
    if document == "line":
        return text.splitlines()
    if document == "block":
        return re.split(r"\r?\n(?:[ \t]*\r?\n)+", text)
    return [text]


def python_docs() -> Iterator[str]:
    """About 2 MB of English on every machine with Python: the docstrings of the standard library, one module a
    document (read with `ast`; nothing is imported), then the reference topics of `pydoc_data`, one topic a document.
    """
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        if not _NOT_LIBRARY.isdisjoint(path.relative_to(root).parts):
            continue
        try:
            with warnings.catch_warnings(action="ignore"):  # invalid escapes in old modules
                tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue  # templates that are not Python
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        found = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, documented))
        if text := "\n\n".join(filter(None, found)):
            yield text
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise Refusal(BAD_DATA, "data.source=python_docs: this Python has no pydoc_data; name a text file") from error
    yield from (topics[name] for name in sorted(topics))
