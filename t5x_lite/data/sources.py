"""Where text comes from. A source is one line of a config; it yields documents, as they lie there, in a fixed order.

python_docs                      the text that every Python installation carries
PATH, a glob, or a directory     .txt .jsonl .json .parquet, also .gz .bz2 .xz .zst; any fsspec address (gs://…, s3://…)
tfds:NAME?split=…&data_dir=…     a data set of TensorFlow Datasets
hf:NAME_OR_PATH?name=…&split=…   a data set of Hugging Face, on disk or by name
python:module.function           a function of your own that returns an iterable of texts
"""

import ast
import hashlib
import importlib
import io
import json
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from itertools import groupby
from pathlib import Path
from urllib.parse import parse_qsl

import zstandard

from t5x_lite.errors import BAD_CONFIG, BAD_DATA, NO_FILE, Refusal

_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "__pycache__"}
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
_SUFFIXES = (".txt", ".jsonl", ".json", ".parquet")
LONGEST = 1 << 25  # bytes: a longer document of a text file is read as several, and counted


def documents(source: str, document: str = "file", field: str = "text", key: str = "data.source") -> Iterator:
    """The documents of a source, in a fixed order: bytes, or str where the source holds decoded text.

    document: what one document of a text file is: the "file", a "line" or a "block" between blank lines. field: the
    column of JSON lines, parquet and data sets. key: the setting the source comes from, named in what is refused.
    Raises Refusal for what cannot be read.
    """
    kind, _, rest = source.partition(":")
    if source == "python_docs":
        return python_docs()
    if kind in SCHEMES:
        return SCHEMES[kind](rest, field, key)
    return _of_files(source, document, field, key)


def fingerprint(source: str, key: str = "data.source") -> str:
    """A line that changes when the text does: the Python version, or names, sizes and times of the files."""
    if source == "python_docs":
        return "python_docs of " + sys.version.split()[0]
    kind, _, rest = source.partition(":")
    if kind == "python":  # the function's module is known, what it reads is not
        file = getattr(sys.modules[own(rest, f"{key}={source}").__module__], "__file__", None)
        return f"{file} {hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]}" if file else source
    if kind in SCHEMES:
        return source
    found = []
    for file in _files(source, key):
        info = _info(file, key)
        changed = next((info[name] for name in ("mtime", "etag", "ETag", "md5Hash", "updated") if info.get(name)), "")
        found.append(f"{file.path} {info.get('size')} {changed}")
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:16] if len(found) > 9 else "; ".join(found)


def size(source: str, key: str = "data.source") -> int:
    """Bytes of text in plain files; 0 where that is not known before it is read."""
    if source == "python_docs" or source.partition(":")[0] in SCHEMES:
        return 0
    files = _files(source, key)
    packed = any(file.path.endswith((".parquet", *_COMPRESSED)) for file in files)
    return 0 if packed else sum(_info(file, key).get("size") or 0 for file in files)


def _info(file, key: str) -> dict:
    try:
        return file.fs.info(file.path)
    except OSError as error:
        raise Refusal(NO_FILE, f"{key}: cannot read {file.path}: {error.strerror or error}") from error


def _files(source: str, key: str) -> list:
    """The files of a path, a directory or a glob, as fsspec's OpenFile, sorted by name."""
    import fsspec
    from fsspec.core import url_to_fs

    endings = tuple(suffix + packed for suffix in _SUFFIXES for packed in ("", *_COMPRESSED))
    try:
        system, path = url_to_fs(source)
        if not source:
            found = []
        elif system.isdir(path):
            found = sorted(name for name in system.find(path) if name.endswith(endings))
        elif system.exists(path):
            found = [path]
        else:
            found = sorted(name for name in system.glob(path) if not system.isdir(name))
    except (OSError, ValueError, ImportError) as error:
        raise Refusal(NO_FILE, f"{key}={source}: cannot be reached ({error})") from error
    if not found:
        raise Refusal(
            NO_FILE,
            f"{key}={source}: no such text; expected python_docs, an existing file, glob, or directory with "
            f"{' '.join(_SUFFIXES)} files, or one of {' '.join(name + ':…' for name in SCHEMES)}",
        )
    return [fsspec.core.OpenFile(system, name, compression=_compression(name)) for name in found]


def _compression(name: str) -> str | None:
    from fsspec.utils import infer_compression

    if not name.endswith((*_COMPRESSED, ".zip", ".tar", ".tgz")):
        return None
    if ".tar" in name or not name.endswith(_COMPRESSED):
        raise Refusal(BAD_DATA, f"{name}: is an archive of several files; unpack it and name the directory")
    return infer_compression(name)


def _of_files(source: str, document: str, field: str, key: str) -> Iterator:
    for file in _files(source, key):
        name = file.path
        for packed in _COMPRESSED:
            name = name.removesuffix(packed)
        try:
            with file as stream:
                if file.path.endswith(".zst"):
                    stream = io.BufferedReader(_Zst(file.fs.open(file.path)))
                if name.endswith(".parquet"):
                    yield from _parquet(stream, file.path, field, key)
                elif name.endswith((".jsonl", ".json")):
                    yield from _json_lines(stream, file.path, field, key)
                else:
                    yield from _CUTS[document](_lines(stream))
        except Refusal:
            raise
        except Exception as error:  # missing rights, packed data cut off: each packer has errors of its own
            raise Refusal(
                NO_FILE, f"{key}: cannot read {file.path}: {getattr(error, 'strerror', 0) or error}"
            ) from error


class _Zst(io.RawIOBase):
    """The text of a .zst file, of one frame or several; EOFError where it is cut off, which zstandard passes over."""

    def __init__(self, packed):
        self._packed, self._text, self._frame = packed, b"", None

    def readable(self) -> bool:
        return True

    def readinto(self, into) -> int:
        while not self._text:
            read = self._packed.read(1 << 16) if self._frame is None or not self._frame.unused_data else b""
            read = (self._frame.unused_data if self._frame and self._frame.eof else b"") + read
            if not read:
                if self._frame and not self._frame.eof:
                    raise EOFError("it is cut off")
                return 0
            if self._frame is None or self._frame.eof:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            self._text = self._frame.decompress(read)
        size = min(len(into), len(self._text))
        into[:size], self._text = self._text[:size], self._text[size:]
        return size


class Continued(bytes):
    """What follows of a document that is longer than LONGEST."""


def _lines(stream) -> Iterator[bytes]:
    """The lines of a file; one longer than LONGEST in several, cut between characters."""
    held = b""
    while line := held + stream.readline(LONGEST):
        held = b""
        if len(line) >= LONGEST and not line.endswith(b"\n"):
            back = next((i for i in range(1, 5) if line[-i] & 0xC0 != 0x80), 0)  # to where the last character begins
            line, held = line[: len(line) - back], line[len(line) - back :]
        yield line


def _whole(lines: Iterable[bytes]) -> Iterator[bytes]:
    held, size, kind = [], 0, bytes
    for line in lines:
        if held and size + len(line) > LONGEST:
            yield kind(b"".join(held))
            held, size, kind = [], 0, Continued
        held.append(line)
        size += len(line)
    yield kind(b"".join(held))


def _by_line(lines: Iterable[bytes]) -> Iterator[bytes]:
    kind = bytes
    for line in lines:
        yield kind(line[:-1].removesuffix(b"\r") if line.endswith(b"\n") else line)
        kind = bytes if line.endswith(b"\n") else Continued


def _by_block(lines: Iterable[bytes]) -> Iterator[bytes]:
    for blank, block in groupby(lines, key=lambda line: not line.strip()):
        if not blank:
            yield from (piece if kept else piece.rstrip(b"\r\n") for piece, kept in _last(_whole(block)))


def _last(pieces: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Each with whether another follows."""
    pieces = iter(pieces)
    piece = next(pieces)
    for following in pieces:
        yield piece, True
        piece = following
    yield piece, False


_CUTS = {"file": _whole, "line": _by_line, "block": _by_block}


def _json_lines(stream, path, field, key) -> Iterator[str]:
    for number, line in enumerate(stream, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line.removeprefix(b"\xef\xbb\xbf").decode(errors="surrogateescape"))
            if isinstance(record, dict) and record.get(field, "") is None:
                record[field] = ""  # null is no text: an empty document
        except ValueError as error:
            raise Refusal(BAD_DATA, f"{key}: {path}, line {number} is no JSON ({error}); mend or remove it") from error
        yield _text_of(record, field, f"{key}: {path}, line {number}")


def _text_of(record, field: str, where: str):
    if not isinstance(record, dict) or not isinstance(record.get(field), str | bytes):
        known = ", ".join(record) if isinstance(record, dict) else type(record).__name__
        raise Refusal(BAD_DATA, f"{where}: has no text {field!r}; set data.field to one of {known}")
    return record[field]


def _parquet(stream, path, field, key) -> Iterator[str]:
    parquet = imported("pyarrow.parquet", "hf", f"{key}: {path}")
    file = parquet.ParquetFile(stream)
    if field not in file.schema_arrow.names:
        raise Refusal(
            BAD_DATA,
            f"{key}: {path}: has no column {field!r}; set data.field to one of {', '.join(file.schema_arrow.names)}",
        )
    for batch in file.iter_batches(256, columns=[field]):
        for text in batch.column(0).to_pylist():  # null is no text: an empty document
            yield _text_of({field: "" if text is None else text}, field, f"{key}: {path}")


def imported(module: str, extra: str, what: str):
    """An optional package's module, or a Refusal that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Refusal(NO_FILE, f"{what}: needs the package of {module}: pip install 't5x_lite[{extra}]'") from error


def _query(rest: str) -> tuple[str, dict]:
    name, _, query = rest.partition("?")
    return name, dict(parse_qsl(query))


def _tfds(rest: str, field: str, key: str) -> Iterator[bytes]:
    """array_record without TensorFlow; tfrecord where TensorFlow is installed."""
    name, options = _query(rest)
    split = options.pop("split", "train")
    with redirect_stdout(None), redirect_stderr(None):  # it says that TensorFlow is missing, which is meant
        tfds = imported("tensorflow_datasets", "tfds", f"{key}=tfds:{rest}")
        imported("tensorflow_datasets.text", "tfds", f"{key}=tfds:{rest}")  # c4, glue and others register only so
    try:
        builder = tfds.builder(name, **options)
        if builder.info.file_format.value == "array_record":
            records = iter(builder.as_data_source(split))
        else:
            records = tfds.as_numpy(builder.as_dataset(split))
    except Refusal:
        raise
    except Exception as error:  # its errors are of many kinds, ImportErrors of TensorFlow among them
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise Refusal(NO_FILE, f"{key}=tfds:{rest}: cannot be opened ({reason})") from error
    return (_text_of(record, field, f"{key}=tfds:{rest}") for record in records)


def _huggingface(rest: str, field: str, key: str) -> Iterator[str]:
    name, options = _query(rest)
    datasets = imported("datasets", "hf", f"{key}=hf:{rest}")
    split = options.pop("split", "train")
    try:
        if Path(name).is_dir() and (Path(name) / "dataset_info.json").exists():
            found = datasets.load_from_disk(name)
        elif Path(name).is_dir() and (Path(name) / "dataset_dict.json").exists():
            found = datasets.load_from_disk(name)[split]
        else:
            found = datasets.load_dataset(name, split=split, streaming=True, **options)
    except Exception as error:  # as above
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise Refusal(NO_FILE, f"{key}=hf:{rest}: cannot be opened ({reason})") from error
    return (_text_of(record, field, f"{key}=hf:{rest}") for record in found)


def _python(rest: str, field: str, key: str) -> Iterator:
    made = own(rest, f"{key}=python:{rest}")
    try:
        texts = made()
        if isinstance(texts, str | bytes):
            raise TypeError("returned one text, expected an iterable of texts")
        for text in texts:
            if not isinstance(text, str | bytes):
                raise TypeError(f"yielded {type(text).__name__}, expected str or bytes")
            yield text
    except Exception as error:  # a user's program: whatever it raises is bad data
        raise Refusal(BAD_DATA, f"{key}=python:{rest}: failed with {type(error).__name__}: {error}") from error


def own(name: str, where: str):
    """What `module.name` of the user's own is. Raises Refusal, whatever importing it raises."""
    module, _, attribute = name.rpartition(".")
    if "" not in sys.path:
        sys.path.append("")  # as for `python -m`, the directory the command is given in
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a user's program
        reason = f"{type(error).__name__}: {error}"
        raise Refusal(BAD_CONFIG, f"{where}: {reason}; expected module.function of your own") from error


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
