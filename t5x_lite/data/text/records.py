"""Records in files: the lines of a table, the objects of JSON lines, the rows of parquet. Text and
tasks read them by the same rules.

A byte order mark is no part of the text. A table's first line names its columns. Cells between tabs
hold quotes as ordinary characters (GLUE); cells between commas may be quoted.
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, NamedTuple

from t5x_lite.errors import BAD_DATA, UserError, optional_import, user_errors

Record = dict[str, Any]
csv.field_size_limit(2**31 - 1)  # a cell may hold a long document
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass
class BadLines:
    """Lines that hold no record: skipped and counted, or rejected.

    Attributes:
        policy: "stop" or "skip".
        fix: what to do about one, for errors.
    """

    policy: str = "stop"
    fix: str = "fix or remove it"
    skipped: int = 0

    def meet(self, reason: str) -> None:
        """Count a bad line, or raise UserError."""
        if self.policy == "stop":
            raise UserError(BAD_DATA, f"{reason}; {self.fix}")
        self.skipped += 1


class Reading(NamedTuple):
    """Options for reading records.

    Attributes:
        columns: names of the columns of a table whose first line does not name them.
        bad_lines: what to do with a line that holds no record.
        invalid_utf8: "strict" rejects bytes that are no UTF-8; with "surrogateescape" they become
            lone surrogates, which text cleaning counts.
        wanted: the one column that is needed, if it is one; others need not be read.
    """

    bad_lines: BadLines
    columns: Sequence[str] = ()
    invalid_utf8: Literal["strict", "surrogateescape"] = "strict"
    wanted: str = ""


def read_records(
    stream: BinaryIO, suffix: str, reading: Reading, where: str
) -> Iterator[tuple[Record, str]]:
    """Yield (record, where it stands) of a file.

    Args:
        suffix: ending of its name, one of READERS.
        where: names the file in errors.

    Raises:
        UserError: for a file that holds no records.
    """
    yield from READERS[suffix](stream, reading, where)


def _parquet(stream: BinaryIO, reading: Reading, where: str) -> Iterator[tuple[Record, str]]:
    file = optional_import("pyarrow.parquet", "hf", where).ParquetFile(stream)
    columns = file.schema_arrow.names
    if reading.wanted in columns:
        columns = [reading.wanted]
    number = 0
    for batch in file.iter_batches(256, columns=columns):
        for record in batch.to_pylist():
            yield record, f"{where}, row {number}"
            number += 1


def _json(stream: BinaryIO, reading: Reading, where: str) -> Iterator[tuple[Record, str]]:
    """Yield one object per line, or those of one list in the whole file."""
    for number, line in enumerate(stream, 1):
        if number == 1:
            line = line.removeprefix(_BYTE_ORDER_MARK)
            if line.lstrip().startswith(b"["):
                yield from _json_list(line + stream.read(), reading, where)
                return
        if not line.strip():
            continue
        here = f"{where}, line {number}"
        try:
            record = json.loads(line.decode(errors=reading.invalid_utf8))
        except ValueError as error:
            reading.bad_lines.meet(f"{here}: is no JSON ({error})")
            continue
        if isinstance(record, dict):
            yield record, here
        else:
            reading.bad_lines.meet(f"{here}: {_no_object(record)}")


def _json_list(content: bytes, reading: Reading, where: str) -> Iterator[tuple[Record, str]]:
    with user_errors(BAD_DATA, f"{where}: is no JSON"):
        records = json.loads(content.decode(errors=reading.invalid_utf8))
    for number, record in enumerate(records):
        here = f"{where}, number {number}"
        if isinstance(record, dict):
            yield record, here
        else:
            reading.bad_lines.meet(f"{here}: {_no_object(record)}")


def _no_object(value: Any) -> str:
    return f"is of type {type(value).__name__}, expected an object"


def _table(
    stream: BinaryIO, reading: Reading, where: str, **dialect: Any
) -> Iterator[tuple[Record, str]]:
    wrapped = io.TextIOWrapper(stream, "utf-8-sig", reading.invalid_utf8, newline="")
    with wrapped as text, user_errors(BAD_DATA, f"{where}: cannot be read"):
        lines = csv.reader(text, **dialect)
        names = list(reading.columns) or next(lines, [])
        twice = [name for name, count in Counter(filter(None, names)).items() if count > 1]
        if twice:
            reason = f"two columns are called {twice[0]!r}; rename one"
            raise UserError(BAD_DATA, f"{where}: {reason}")
        for cells in lines:
            here = f"{where}, line {lines.line_num}"
            if len(cells) == len(names):
                yield dict(zip(names, cells, strict=True)), here
            elif cells:
                got = f"has {len(cells)} cells, expected {len(names)}"
                reading.bad_lines.meet(f"{here}: {got} ({', '.join(names)})")


def _tsv(stream: BinaryIO, reading: Reading, where: str) -> Iterator[tuple[Record, str]]:
    return _table(stream, reading, where, delimiter="\t", quoting=csv.QUOTE_NONE)


def _csv(stream: BinaryIO, reading: Reading, where: str) -> Iterator[tuple[Record, str]]:
    return _table(stream, reading, where)


READERS: dict[str, Callable[[BinaryIO, Reading, str], Iterator[tuple[Record, str]]]] = {
    ".jsonl": _json,
    ".json": _json,
    ".parquet": _parquet,
    ".csv": _csv,
    ".tsv": _tsv,
}
