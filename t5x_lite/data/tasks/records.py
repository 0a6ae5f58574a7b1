"""Read the records of a task from its files, a data set, or a user's function. Each record is a
dict of columns.
"""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from t5x_lite.config import Task
from t5x_lite.config.grammar import has_scheme, is_generated
from t5x_lite.config.permission import check_place
from t5x_lite.data.tasks.offline import OFFLINE
from t5x_lite.data.text import files
from t5x_lite.data.text.records import READERS, BadLines, Reading, Record, read_records
from t5x_lite.data.text.schemes import SCHEMES, Scheme
from t5x_lite.errors import BAD_DATA, NO_FILE, UserError, nearest

if TYPE_CHECKING:
    from fsspec.core import OpenFile


def bad_lines_of(task: Task) -> BadLines:
    """Return how to treat lines of a task's files that hold no record."""
    return BadLines(task.bad_lines, "fix or remove it, or set task.bad_lines=skip")


def read_split(task: Task, split: str, bad_lines: BadLines) -> Iterator[Record]:
    """Yield the records of one split of a task, before task.prepare changes them.

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


class Offline(Scheme):
    """offline:NAME, a task made from the text that comes with Python: see offline.py."""

    def records(self, address: str, split: str, where: str) -> Iterator[Record]:
        """Yield the examples of the task with this name."""
        if address not in OFFLINE:
            raise UserError(NO_FILE, f"{where}: no such task; {nearest(address, OFFLINE)}")
        return OFFLINE[address](split)


TASK_SCHEMES = {**SCHEMES, "offline": Offline()}


def _read_source(task: Task, split: str, bad_lines: BadLines) -> Iterator[Record]:
    if not is_generated(task.source):
        check_place(task.source, "task.source")
    source = source_of_split(task.source, split)
    where = f"task.source={source}"
    scheme, _, address = source.partition(":")
    if scheme in TASK_SCHEMES:
        yield from TASK_SCHEMES[scheme].records(address, split, where)
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
    scheme, _, address = source.partition(":")
    if "{split}" in source:
        return source.replace("{split}", split)
    if scheme in TASK_SCHEMES:
        return f"{scheme}:{TASK_SCHEMES[scheme].with_split(address, split)}"
    if not has_scheme(source) and Path(source).is_dir():
        return f"{source.rstrip('/')}/{split}.*"
    return source


def has_splits(source: str) -> bool:
    """Return True if a source holds several splits, False if it is one file with all examples."""
    is_named = source.partition(":")[0] in TASK_SCHEMES or "{split}" in source
    return is_named or Path(source).is_dir()


def _find_files(source: str, where: str) -> list["OpenFile"]:
    found = files.find(source, where)
    found = [file for file in found if files.suffix(file) in files.SUFFIXES]
    if not found:
        expected = f"expected a file, directory or glob with {' '.join(files.SUFFIXES)} files"
        schemes = " ".join(f"{scheme}:…" for scheme in TASK_SCHEMES)
        raise UserError(NO_FILE, f"{where}: no such examples; {expected}, or one of {schemes}")
    return found


def _read_file(
    file: "OpenFile", columns: tuple, where: str, bad_lines: BadLines
) -> Iterator[Record]:
    with files.opened(file, where) as stream:
        here = f"{where}: {file.path}"
        if files.suffix(file) in READERS:
            reading = Reading(bad_lines, columns)
            for record, _ in read_records(stream, files.suffix(file), reading, here):
                yield record
        else:
            with io.TextIOWrapper(stream, "utf-8-sig") as text:
                yield from _read_lines(text)


def _read_lines(text: TextIO) -> Iterator[Record]:
    """Yield each line as a record with the column "text", skipping blank lines."""
    for line in text:
        if line.strip():
            yield {"text": line.rstrip("\r\n")}


def lookup(record: Record, field: str, where: str) -> Any:
    """Return a field of a record: a column, a nested column, or a template of several columns.

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
