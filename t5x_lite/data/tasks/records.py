"""Records: the lines of a table, the objects of JSON lines, or the examples of a data set, each
read as a dict of columns.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from t5x_lite.config import Task
from t5x_lite.config.grammar import has_scheme
from t5x_lite.config.permission import import_code
from t5x_lite.data.tasks.offline import OFFLINE
from t5x_lite.data.text import files, sources
from t5x_lite.errors import BAD_DATA, NO_FILE, UserError, nearest, optional_import, user_errors

if TYPE_CHECKING:
    from fsspec.core import OpenFile

Record = dict[str, Any]

SUFFIXES = (".tsv", ".csv", ".jsonl", ".json", ".parquet", ".txt")


@dataclass
class BadLines:
    """Lines that hold no record: skipped and counted, or rejected, as task.bad_lines says."""

    policy: str
    skipped: int = 0

    def meet(self, reason: str) -> None:
        """Count a bad line, or raise UserError."""
        if self.policy == "stop":
            fix = "fix or remove it, or set task.bad_lines=skip"
            raise UserError(BAD_DATA, f"{reason}; {fix}")
        self.skipped += 1


def read_split(task: Task, split: str, bad_lines: BadLines) -> Iterator[Record]:
    """Yield the records of one split of a task, as they are in its source.

    Args:
        split: name of the split in the source.

    Raises:
        UserError: for a source that cannot be read.
    """
    for record in _read_source(task, split, bad_lines):
        yield {str(name): _plain(value) for name, value in record.items()}


def _plain(value: Any) -> Any:
    """Convert a value to a type that JSON has: bytes to text, numpy values to numbers and lists."""
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    if isinstance(value, np.generic | np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    is_json = value is None or isinstance(value, str | bool | int | float)
    return value if is_json else str(value)


def _read_source(task: Task, split: str, bad_lines: BadLines) -> Iterator[Record]:
    source = source_of_split(task.source, split)
    where = f"task.source={source}"
    scheme, _, address = source.partition(":")
    if scheme == "offline":
        yield from _read_offline(address, split, where)
    elif scheme == "python":
        yield from _read_function(address, split, where)
    elif scheme in ("hf", "tfds"):
        yield from sources.records(source, where)
    else:
        for file in _find_files(source, where):
            yield from _read_file(file, task.columns, where, bad_lines)


def source_of_split(source: str, split: str) -> str:
    """Return the source of one split.

    >>> source_of_split("hf:nyu-mll/glue?name=sst2", "validation")
    'hf:nyu-mll/glue?name=sst2&split=validation'
    >>> source_of_split("glue/SST-2/{split}.tsv", "dev")
    'glue/SST-2/dev.tsv'
    """
    if "{split}" in source:
        return source.replace("{split}", split)
    if source.startswith(("hf:", "tfds:")):
        return f"{source}{'&' if '?' in source else '?'}split={split}"
    if not has_scheme(source) and Path(source).is_dir():
        return f"{source.rstrip('/')}/{split}.*"
    return source


def has_splits(source: str) -> bool:
    """Return True if a source holds several splits, False if it is one file with all examples."""
    is_named = source.startswith(("hf:", "tfds:", "offline:", "python:")) or "{split}" in source
    return is_named or Path(source).is_dir()


def _find_files(source: str, where: str) -> list["OpenFile"]:
    found = files.find(source, where, SUFFIXES)
    found = [file for file in found if files.suffix(file) in SUFFIXES]
    if not found:
        expected = f"expected a file, directory or glob with {' '.join(SUFFIXES)} files"
        raise UserError(
            NO_FILE, f"{where}: no such examples; {expected}, or one of hf:… tfds:… python:…"
        )
    return found


def _read_file(
    file: "OpenFile", columns: tuple, where: str, bad_lines: BadLines
) -> Iterator[Record]:
    suffix = files.suffix(file)
    with files.opened(file, where) as stream:
        if suffix == ".parquet":
            table = optional_import("pyarrow.parquet", "hf", where).ParquetFile(stream)
            for batch in table.iter_batches(256):
                yield from batch.to_pylist()
            return
        # utf-8-sig removes a byte order mark, which is not part of the first column's name.
        text = io.TextIOWrapper(stream, "utf-8-sig", newline="")
        yield from _READERS[suffix](text, columns, f"{where}: {file.path}", bad_lines)


def _read_table(
    text: TextIO, columns: tuple, where: str, bad_lines: BadLines, **dialect: Any
) -> Iterator[Record]:
    """Read lines of cells. The first line holds the names of the columns, unless they are given."""
    lines = csv.reader(text, **dialect)
    names = list(columns) or next(lines, [])
    with user_errors(BAD_DATA, f"{where}: cannot be read"):
        for cells in lines:
            if len(cells) == len(names):
                yield dict(zip(names, cells, strict=True))
            elif cells:
                got = f"has {len(cells)} cells, expected {len(names)}"
                bad_lines.meet(f"{where}, line {lines.line_num}: {got} ({', '.join(names)})")


def _read_tsv(text: TextIO, columns: tuple, where: str, bad_lines: BadLines) -> Iterator[Record]:
    """Read cells between tabs, in which a quote is an ordinary character (GLUE)."""
    return _read_table(text, columns, where, bad_lines, delimiter="\t", quoting=csv.QUOTE_NONE)


def _read_csv(text: TextIO, columns: tuple, where: str, bad_lines: BadLines) -> Iterator[Record]:
    return _read_table(text, columns, where, bad_lines)


def _read_json(text: TextIO, columns: tuple, where: str, bad_lines: BadLines) -> Iterator[Record]:
    """Read one object per line, or one list of objects in the whole file."""
    first = text.read(1)
    if first == "[":
        with user_errors(BAD_DATA, f"{where}: no JSON"):
            records = json.loads(first + text.read())
        for number, record in enumerate(records):
            if isinstance(record, dict):
                yield record
            else:
                bad_lines.meet(f"{where}, number {number}: is {type(record).__name__}, no object")
        return
    for number, line in enumerate(text, 1):
        line = first + line if number == 1 else line
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            bad_lines.meet(f"{where}, line {number}: no JSON ({error})")
            continue
        if isinstance(record, dict):
            yield record
        else:
            bad_lines.meet(f"{where}, line {number}: is {type(record).__name__}, no object")


def _read_text(text: TextIO, columns: tuple, where: str, bad_lines: BadLines) -> Iterator[Record]:
    """Read each line as the column "text", and skip blank lines."""
    for line in text:
        if line.strip():
            yield {"text": line.rstrip("\r\n")}


_READERS: dict[str, Callable[[TextIO, tuple, str, BadLines], Iterator[Record]]] = {
    ".tsv": _read_tsv,
    ".csv": _read_csv,
    ".jsonl": _read_json,
    ".json": _read_json,
    ".txt": _read_text,
}


def _read_offline(name: str, split: str, where: str) -> Iterator[Record]:
    if name not in OFFLINE:
        raise UserError(NO_FILE, f"{where}: no such task; {nearest(name, OFFLINE)}")
    return OFFLINE[name](split)


def _read_function(address: str, split: str, where: str) -> Iterator[Record]:
    """Yield the records that the user's own `function(split)` returns."""
    function = import_code(address, where)
    with user_errors(BAD_DATA, f"{where}: failed"):
        for record in function(split):
            if not isinstance(record, dict):
                raise TypeError(f"yielded {type(record).__name__}, expected a dict of columns")
            yield record


def lookup(record: Record, field: str, where: str) -> Any:
    """Return a field of a record: a column, a column within a nested one, or a template of several.

    >>> record = {"a": "x", "b": {"c": ["y"]}}
    >>> lookup(record, "b.c", "here"), lookup(record, "{a}: {b.c}", "here")
    (['y'], "x: ['y']")
    """
    if "{" not in field:
        return _column(record, field, where)
    text = ""
    for part in field.split("{"):
        name, brace, rest = part.partition("}")
        text += f"{_column(record, name, where)}{rest}" if brace else part
    return text


def _column(record: Record, name: str, where: str) -> Any:
    value: Any = record
    if name in record:
        return record[name]
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            raise UserError(BAD_DATA, f"{where}: has no field {name!r}; {nearest(name, record)}")
        value = value[part]
    return value
