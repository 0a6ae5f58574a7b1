"""Records in files: lines of a table, objects in JSON lines, or rows of a parquet file. Sources of
text and tasks read them by the same rules.

A byte order mark is not part of the text. The first line of a table names its columns. In a .tsv
file, a quote is an ordinary character (as in GLUE). In a .csv file, cells may be quoted.
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
    """The policy for lines that hold no record: skip and count them, or raise an error.

    Attributes:
        policy: "stop" or "skip".
        fix: advice in the error message.
        skipped: number of lines skipped so far.
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
        invalid_utf8: "strict" rejects bytes that are not UTF-8; "surrogateescape" turns them into
            lone surrogates, which text cleaning counts.
        wanted: the only column that is needed, so that the others need not be read; empty: all are.
    """

    bad_lines: BadLines
    columns: Sequence[str] = ()
    invalid_utf8: Literal["strict", "surrogateescape"] = "strict"
    wanted: str = ""


def read_records(
    stream: BinaryIO, suffix: str, reading: Reading, where: str
) -> Iterator[tuple[Record, str]]:
    """Yield each record of a file, with its location for error messages.

    Args:
        suffix: extension of the file name, one of READERS.
        where: name of the file in error messages.

    Raises:
        UserError: if the file cannot be read as records.
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
    """Yield one object per line or, if the whole file is one list, the objects in it."""
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
