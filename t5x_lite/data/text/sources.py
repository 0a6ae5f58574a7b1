"""Sources of text. A source is one line of a config, and yields documents in a fixed order.

python_docs                      the documentation that comes with every Python installation
PATH, a glob, or a directory     .txt .jsonl .json .parquet .csv .tsv, also .gz .bz2 .xz .zst;
                                 any address that fsspec supports (gs://…, s3://…)
tfds:NAME?split=…&data_dir=…     a data set of TensorFlow Datasets
hf:NAME_OR_PATH?name=…&split=…   a data set of Hugging Face, on disk or by name
python:module.function           your own function that returns an iterable of texts
world:facts?seed=…               a generated language: see worlds.py
"""

import ast
import hashlib
import os
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from t5x_lite.config.grammar import is_generated
from t5x_lite.config.permission import check_place
from t5x_lite.data.text import files
from t5x_lite.data.text.files import Document, DocumentUnit
from t5x_lite.data.text.schemes import SCHEMES
from t5x_lite.errors import BAD_DATA, NO_FILE, UserError

if TYPE_CHECKING:
    from fsspec.core import OpenFile


def documents(
    source: str,
    document: DocumentUnit = "file",
    field: str = "text",
    key: str = "data.source",
    part: Sequence["OpenFile"] | None = None,
) -> Iterator[Document]:
    """Yield the documents of a source in a fixed order, as bytes, or as str if the source holds
    decoded text.

    Args:
        document: what one document of a text file is: the "file", a "line", or a "block" between
            blank lines.
        field: column of JSON lines, parquet and data sets that holds the text.
        key: setting that names the source, for errors.
        part: files to read, if the source consists of files; None: all of them.

    Raises:
        UserError: for a source that cannot be read, or that is not permitted.
    """
    _check_permitted(source, key)
    scheme, _, address = source.partition(":")
    if source == "python_docs":
        yield from python_docs()
    elif scheme in SCHEMES:
        yield from SCHEMES[scheme].documents(address, field, f"{key}={source}")
    else:
        for file in _find_files(source, key) if part is None else part:
            yield from files.read(file, document, field, key)


def _check_permitted(source: str, key: str) -> None:
    """Reject a source that settings may not name. Text that this package generates is always
    permitted. A user's function is checked when it is imported.
    """
    is_own = source in ("", "python_docs") or source.partition(":")[0] in SCHEMES
    if not (is_own and is_generated(source)):
        check_place(source, key)


def find_files(source: str, key: str = "data.source") -> list["OpenFile"] | None:
    """Return the files of a source, sorted by name, or None if it does not consist of files."""
    _check_permitted(source, key)
    if source == "python_docs" or source.partition(":")[0] in SCHEMES:
        return None
    return _find_files(source, key)


def fingerprint(source: str, key: str = "data.source") -> str:
    """Return a line that changes when the text does.

    It holds the Python version, or paths, sizes and times of files. For a function or a generated
    language, it holds a hash of the file with the code. For a data set that is not on this machine,
    it holds only the name.
    """
    _check_permitted(source, key)
    scheme, _, address = source.partition(":")
    if source == "python_docs":
        return "python_docs, each paragraph once, of " + sys.version.split()[0]
    if scheme in SCHEMES:
        changing = SCHEMES[scheme].fingerprint(address, f"{key}={source}")
        parts = [source, changing] if changing else [source]
    else:
        parts = [files.fingerprint(file, key) for file in _find_files(source, key)]
    line = "; ".join(parts)
    return line if len(line) < 1000 else _short_hash(os.fsencode(line))


def _short_hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def size(source: str, key: str = "data.source") -> int:
    """Return the size of the text in bytes; 0 if it is not known before the text is read."""
    found = find_files(source, key)
    sizes = [files.size(file, key) for file in found or []]
    return sum(sizes) if all(sizes) else 0


def _find_files(source: str, key: str) -> list["OpenFile"]:
    existing = files.find(source, key) if source else []
    if not existing:
        suffixes = " ".join(files.SUFFIXES)
        schemes = " ".join(f"{scheme}:…" for scheme in SCHEMES)
        raise UserError(
            NO_FILE,
            f"{key}={source}: no such text; expected python_docs, an existing file, glob, "
            f"or directory with {suffixes} files, or one of {schemes}",
        )
    return existing


# Directories in the standard library that are not part of its documentation.
_NOT_LIBRARY = {"site-packages", "dist-packages", "__pycache__", "test", "tests"}
_NOT_LIBRARY |= {"idlelib", "lib2to3", "turtledemo"}


def python_docs() -> Iterator[str]:
    """Yield about 2 MB of English that every machine with Python has.

    First come the docstrings of the standard library, one module per document. They are read with
    `ast`, and nothing is imported. Then come the reference topics of `pydoc_data`, one topic per
    document. Topics contain each other, so paragraphs of earlier documents are left out. Otherwise,
    held-out text would also occur in the training text.
    """
    yield from _each_paragraph_once(_python_docs())


def _python_docs() -> Iterator[str]:
    for path in library_modules():
        yield "\n\n".join(module_docstrings(path))
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        reason = "this Python has no pydoc_data; name a text file"
        raise UserError(BAD_DATA, f"data.source=python_docs: {reason}") from error
    for name in sorted(topics):
        yield topics[name]


def _each_paragraph_once(documents: Iterable[str]) -> Iterator[str]:
    """Yield documents without the paragraphs that an earlier document contains. Short paragraphs
    are kept.

    >>> long = "This paragraph is longer than forty letters."
    >>> list(_each_paragraph_once([f"One.\\n\\n{long}", f"One.\\n\\n{long}\\n\\nTwo.", long]))
    ['One.\\n\\nThis paragraph is longer than forty letters.', 'One.\\n\\nTwo.']
    """
    seen: set[str] = set()
    for document in documents:
        paragraphs = document.split("\n\n")
        new = [text for text in paragraphs if len(text) < 40 or text.strip() not in seen]
        seen.update(text.strip() for text in paragraphs)
        if any(new):
            yield "\n\n".join(new)


@cache  # the walk takes a fifth of a second
def library_modules() -> dict[Path, str]:
    """Return the files of the standard library, sorted, with the module or package that each
    belongs to.
    """
    root = Path(sysconfig.get_path("stdlib"))
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if _NOT_LIBRARY.isdisjoint(parts):
            found[path] = parts[0].removesuffix(".py")
    return found


@cache  # the text is read for the tokenizer, for the store and for tasks
def module_docstrings(path: Path) -> tuple[str, ...]:
    """Return the docstrings of a module, its classes and functions; none if the file is not valid
    Python.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # invalid escapes in old modules
            module = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return ()
    docstrings = (
        ast.get_docstring(node)
        for node in ast.walk(module)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return tuple(filter(None, docstrings))
