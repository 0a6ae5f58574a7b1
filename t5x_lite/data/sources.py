"""Where text comes from. A source is one line of a config; it yields documents, as they lie there, in a fixed order.

python_docs                      the text that every Python installation carries
PATH, a glob, or a directory     .txt .jsonl .json .parquet, also .gz .bz2 .xz .zst; any fsspec address (gs://…, s3://…)
tfds:NAME?split=…&data_dir=…     a data set of TensorFlow Datasets
hf:NAME_OR_PATH?name=…&split=…   a data set of Hugging Face, on disk or by name
python:module.function           a function of your own that returns an iterable of texts
"""

import ast
import hashlib
import os
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from urllib.parse import parse_qsl

from t5x_lite.data import files
from t5x_lite.errors import BAD_DATA, NO_FILE, Refusal, imported, refusing
from t5x_lite.settings import own

_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "__pycache__"}


def documents(source: str, document: str = "file", field: str = "text", key: str = "data.source") -> Iterator:
    """The documents of a source, in a fixed order: bytes, or str where the source holds decoded text.

    document: what one document of a text file is: the "file", a "line" or a "block" between blank lines. field: the
    column of JSON lines, parquet and data sets. key: the setting the source comes from, named in what is refused.
    Raises Refusal for what cannot be read.
    """
    kind, _, rest = source.partition(":")
    if source == "python_docs":
        yield from python_docs()
    elif kind in SCHEMES:
        yield from SCHEMES[kind](rest, field, f"{key}={source}")
    else:
        for file in _files(source, key):
            yield from files.read(file, document, field, key)


def fingerprint(source: str, key: str = "data.source") -> str:
    """A line that changes when the text does: the Python version, or names, sizes and times of the files. Of a function
    it is its file; of a data set that lies elsewhere its name alone.
    """
    kind, _, rest = source.partition(":")
    if source == "python_docs":
        return "python_docs of " + sys.version.split()[0]
    if kind == "python":
        path = getattr(sys.modules[own(rest, f"{key}={source}").__module__], "__file__", None)
        return f"{path} {hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]}" if path else source
    if kind in SCHEMES:
        directory = _directory(kind, rest)
        found = [path for path in sorted(directory.rglob("*")) if path.is_file()] if directory else []
        found = "; ".join([source, *(f"{path.name} {path.stat().st_size} {path.stat().st_mtime}" for path in found)])
    else:
        found = "; ".join(files.fingerprint(file, key) for file in _files(source, key))
    return found if len(found) < 1000 else hashlib.sha256(found.encode()).hexdigest()[:16]


def _directory(kind: str, rest: str) -> Path | None:
    """Where a data set lies, if it lies on this machine and its address says so."""
    name, options = _query(rest)
    path = Path(options.get("data_dir", os.devnull)) / name.replace(":", "/") if kind == "tfds" else Path(name)
    return path if path.is_dir() else None


def size(source: str, key: str = "data.source") -> int:
    """Bytes of text; 0 where that is not known before it is read."""
    if source == "python_docs" or source.partition(":")[0] in SCHEMES:
        return 0
    sizes = [files.size(file, key) for file in _files(source, key)]
    return sum(sizes) if all(sizes) else 0


def _files(source: str, key: str) -> list:
    found = files.find(source, key) if source else []
    if not found:
        raise Refusal(
            NO_FILE,
            f"{key}={source}: no such text; expected python_docs, an existing file, glob, or directory with "
            f"{' '.join(files.SUFFIXES)} files, or one of {' '.join(name + ':…' for name in SCHEMES)}",
        )
    return found


def _query(rest: str) -> tuple[str, dict]:
    name, _, query = rest.partition("?")
    return name, dict(parse_qsl(query.replace("+", "%2B")))  # split=train+validation


def _tfds(rest: str, field: str, where: str) -> Iterator:
    """array_record without TensorFlow; tfrecord where TensorFlow is installed."""
    name, options = _query(rest)
    split = options.pop("split", "train")
    with redirect_stdout(None), redirect_stderr(None):  # it says that TensorFlow is missing, which is meant
        tfds = imported("tensorflow_datasets", "tfds", where)
        imported("tensorflow_datasets.text", "tfds", where)  # c4, glue and others register only so
    with refusing(NO_FILE, f"{where}: cannot be read"):
        builder = tfds.builder(name, **options)
        if builder.info.file_format.value == "array_record":
            records = iter(builder.as_data_source(split))
        else:
            records = tfds.as_numpy(builder.as_dataset(split))
        for record in records:
            yield from files.text_of(record, field, where)


def _huggingface(rest: str, field: str, where: str) -> Iterator:
    name, options = _query(rest)
    datasets = imported("datasets", "hf", where)
    with refusing(NO_FILE, f"{where}: cannot be read"):
        if (Path(name) / "dataset_info.json").exists():
            known, records = set(), datasets.load_from_disk(name)
        elif (Path(name) / "dataset_dict.json").exists():
            known, records = {"split"}, datasets.load_from_disk(name)[options.get("split", "train")]
        else:
            known, records = options, datasets.load_dataset(name, streaming=True, **{"split": "train", **options})
        if unknown := set(options) - set(known):
            raise Refusal(BAD_DATA, f"{where}: a data set on disk, it takes no {', '.join(unknown)}; leave that out")
        for record in records:
            yield from files.text_of(record, field, where)


def _python(rest: str, field: str, where: str) -> Iterator:
    function = own(rest, where)
    with refusing(BAD_DATA, f"{where}: failed"):
        texts = function()
        if isinstance(texts, str | bytes):
            raise TypeError("returned one text, expected an iterable of texts")
        for text in texts:
            if not isinstance(text, str | bytes):
                raise TypeError(f"yielded {type(text).__name__}, expected str or bytes")
            yield text


SCHEMES = {"tfds": _tfds, "hf": _huggingface, "python": _python}


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
