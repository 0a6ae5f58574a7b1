"""Documents in files, compressed or not, on any file system that fsspec supports.

A text file is one document, or one per line, or one per block between blank lines. JSON lines,
parquet files and tables hold one document per record.
"""

import io
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from t5x_lite.data.text.records import READERS, BadLines, Reading, read_records
from t5x_lite.errors import BAD_DATA, NO_FILE, UserError, user_errors

if TYPE_CHECKING:
    from fsspec.core import OpenFile

Document = bytes | str  # str if the file holds decoded text
DocumentUnit = Literal["file", "line", "block"]  # what one document of a text file is

SUFFIXES = (".txt", *READERS)
# Endings of compressed files, and fsspec's name for the compression; .zst is read by _ZstdReader.
_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": None}
_ARCHIVES = (".zip", ".tar", ".tgz", *(".tar" + ending for ending in _COMPRESSIONS))

# A document with more bytes (or characters, if decoded) is counted and read as several documents.
LONGEST = 1 << 25


class Continuation:
    """Marks a document that continues the one before, which was longer than LONGEST.

    Instances are bytes or str as well.
    """


class _BytesContinuation(Continuation, bytes):
    pass


class _TextContinuation(Continuation, str):
    pass


def find(source: str, key: str, suffixes: tuple[str, ...] = SUFFIXES) -> list["OpenFile"]:
    """Return the files of a path, a directory or a glob, sorted by name; empty if there are none.

    Args:
        key: setting that names the source, for errors.
        suffixes: endings of the files to read in a directory, compressed or not.

    Raises:
        UserError: if the location cannot be reached, or a file is an archive.
    """
    import fsspec

    # Reject a whole file system, and the system's virtual directories.
    scheme, _, path = source.rpartition("://")
    here = f"{os.path.abspath(path)}/"
    is_virtual = scheme in ("", "file", "local") and here.startswith(_VIRTUAL)
    is_virtual = is_virtual and not here.startswith("/dev/shm/")  # files in memory
    if is_virtual or not path.strip("/"):
        reason = "is a whole file system, or one of the system's own"
        raise UserError(NO_FILE, f"{key}={source}: {reason}; name a directory of text")
    with user_errors(NO_FILE, f"{key}={source}: cannot be reached"):
        file_system, path = fsspec.core.url_to_fs(source)
        if file_system.isdir(path):
            readable = tuple(suffix + end for suffix in suffixes for end in ("", *_COMPRESSIONS))
            names = [name for name in file_system.find(path) if name.lower().endswith(readable)]
        elif file_system.exists(path):
            names = [path]
        else:
            names = [name for name in file_system.glob(path) if not file_system.isdir(name)]

    files = []
    for name in sorted(names):
        if name.lower().endswith(_ARCHIVES):
            fix = "unpack it and name the directory"
            raise UserError(BAD_DATA, f"{key}: {name}: is an archive of several files; {fix}")
        compression = _COMPRESSIONS.get(_compressed_ending(name))
        files.append(fsspec.core.OpenFile(file_system, name, compression=compression))
    return files


# Directories in which Linux shows processes and devices as files.
_VIRTUAL = ("/proc/", "/sys/", "/dev/")


def _is_local(file_system: Any) -> bool:
    return "file" in file_system.protocol


def _compressed_ending(name: str) -> str:
    """Return the ending that says how a file is compressed; empty if it is not."""
    for ending in _COMPRESSIONS:
        if name.lower().endswith(ending):
            return ending
    return ""


def fingerprint(file: "OpenFile", key: str) -> str:
    """Return name, size and time (or ETag) of a file, a string that changes when its text does."""
    info = _info(file, key)
    version = ""
    for name in ("mtime", "etag", "ETag", "md5Hash", "updated"):
        if info.get(name):
            version = info[name]
            break
    return f"{file.path} {info.get('size')} {version}"


def size(file: "OpenFile", key: str) -> int:
    """Return the size of the text in bytes; 0 if it is not known before the file is read."""
    if _compressed_ending(file.path) or file.path.lower().endswith(".parquet"):
        return 0
    return size_on_disk(file, key)


def size_on_disk(file: "OpenFile", key: str) -> int:
    """Return the size of the file itself in bytes; 0 if it is not known."""
    return _info(file, key).get("size") or 0


def _info(file: "OpenFile", key: str) -> dict[str, Any]:
    with user_errors(NO_FILE, f"{key}: cannot read {file.path}"):
        check_regular(file, key)
        return file.fs.info(file.path)


def check_regular(file: "OpenFile", key: str) -> None:
    """Reject a pipe or a device, which may never end and can be read only once."""
    if _is_local(file.fs) and not stat.S_ISREG(os.stat(file.path).st_mode):
        reason = "is a pipe or a device; write its text to a file"
        raise UserError(NO_FILE, f"{key}: {file.path}: {reason}")


def read(file: "OpenFile", document: DocumentUnit, field: str, key: str) -> Iterator[Document]:
    """Yield the documents of one file.

    Args:
        document: what one document of a text file is.
        field: column of records that holds the text.
        key: setting that names the source, for errors.

    Raises:
        UserError: for a file that cannot be read, or has no such column.
    """
    where = f"{key}: {file.path}"
    with opened(file, key) as stream:
        if suffix(file) in READERS:
            # Invalid UTF-8 becomes lone surrogates, which text cleaning counts.
            reading = Reading(BadLines(), invalid_utf8="surrogateescape", wanted=field)
            for record, here in read_records(stream, suffix(file), reading, where):
                yield from text_of(record, field, here)
        else:
            yield from _CUTTERS[document](_lines(stream))


def suffix(file: "OpenFile") -> str:
    """Return the ending of a file name in lower case, without the compression's ending: `.txt`."""
    name = file.path.lower().removesuffix(_compressed_ending(file.path))
    return name[name.rfind(".") :] if "." in name else ""


@contextmanager
def opened(file: "OpenFile", key: str) -> Iterator[BinaryIO]:
    """Open a file and decompress it. Any error while it is read becomes a UserError.

    Raises:
        UserError: for a file whose first bytes show that it is not text but, for example, a PDF.
    """
    with user_errors(NO_FILE, f"{key}: cannot read {file.path}"):
        check_regular(file, key)
    with user_errors(NO_FILE, f"{key}: cannot read {file.path}"), file as raw_stream:
        if _compressed_ending(file.path) == ".zst":
            raw_stream = _ZstdReader(raw_stream)
        # Buffer here: files that fsspec opens in a bucket ignore the limit of readline.
        stream = io.BufferedReader(raw_stream, 1 << 20)
        if suffix(file) != ".parquet":
            problem = is_no_text(stream.peek(_HEAD)[:_HEAD])
            if problem:
                raise UserError(BAD_DATA, f"{key}: {file.path}: {problem}")
        yield stream


_HEAD = 4096  # bytes at the start of a file that show what it is
_KINDS = {
    b"%PDF-": "a PDF",
    b"PK\x03\x04": "a zip archive, as .docx, .xlsx and .epub are",
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": "an old Office document",
    b"\x89PNG\r\n\x1a\n": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"GIF87a": "a GIF image",
    b"GIF89a": "a GIF image",
    b"PAR1": "a parquet file; let its name end in .parquet",
    b"\x1f\x8b": "compressed; let its name end in .gz",
    b"\xfd7zXZ\x00": "compressed; let its name end in .xz",
    b"\x28\xb5\x2f\xfd": "compressed; let its name end in .zst",
    b"BZh91AY&SY": "compressed; let its name end in .bz2",
    b"\x7fELF": "a program",
    b"\x93NUMPY": "an array of numpy",
    b"SQLite format 3\x00": "a database",
    b"\xff\xfe\x00\x00": "UTF-32; convert it: iconv -f UTF-32 -t UTF-8",
    b"\x00\x00\xfe\xff": "UTF-32; convert it: iconv -f UTF-32 -t UTF-8",
    b"\xff\xfe": "UTF-16; convert it: iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "UTF-16; convert it: iconv -f UTF-16 -t UTF-8",
}


def is_no_text(head: bytes) -> str:
    """Describe a file whose first bytes show that it is not UTF-8 text; empty if it may be.

    >>> is_no_text(b"%PDF-1.7"), is_no_text("The café".encode())
    ('is a PDF, expected text in UTF-8', '')
    """
    for start, kind in _KINDS.items():
        if head.startswith(start):
            what, semicolon, fix = kind.partition(";")
            return f"is {what}, expected text in UTF-8{semicolon}{fix}"
    if len(head) >= 64 and head.count(0) > len(head) / 5:
        fix = "if it is UTF-16 without a byte order mark, convert it: iconv -f UTF-16LE -t UTF-8"
        return f"has {head.count(0)} zero bytes among its first {len(head)}, expected text; {fix}"
    return ""


class _ZstdReader(io.RawIOBase):
    """Decompresses a .zst file of one or more frames.

    Raises EOFError if the file is cut off, which the reader of `zstandard` does not notice.
    """

    def __init__(self, compressed: BinaryIO):
        import zstandard

        self._compressed = compressed
        self._new_frame = zstandard.ZstdDecompressor().decompressobj
        self._frame = self._new_frame()  # decompressor of the current frame
        self._between_frames = True
        self._text = b""  # decompressed but not returned yet

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._text:
            # First use what the last frame left over, then the next bytes of the file.
            compressed = self._frame.unused_data or self._compressed.read(1 << 16)
            if not compressed:
                if self._between_frames:
                    return 0
                raise EOFError("it is cut off")
            if self._frame.eof:
                self._frame = self._new_frame()
            self._text = self._frame.decompress(compressed)
            self._between_frames = self._frame.eof
        count = min(len(buffer), len(self._text))
        buffer[:count] = self._text[:count]
        self._text = self._text[count:]
        return count


# Text files: lines, and documents made of lines.


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file, each with its newline.

    A line that is longer than LONGEST comes in pieces, cut between characters.
    """
    rest = b""  # beginning of the next piece of a long line
    while line := rest + stream.readline(LONGEST - len(rest)):
        rest = b""
        if len(line) >= LONGEST and not line.endswith(b"\n"):
            # The last character may be incomplete, so it goes into the next piece.
            end = _last_character(line)
            rest = line[end:]
            line = line[:end]
        yield line


def _last_character(text: bytes) -> int:
    """Return the index where the last UTF-8 character begins, or the end of the text if none begins
    within the last four bytes.
    """
    for position in range(len(text) - 1, len(text) - 5, -1):
        is_continuation_byte = text[position] & 0xC0 == 0x80
        if not is_continuation_byte:
            return position
    return len(text)


def _without_newline(line: bytes) -> bytes:
    if line.endswith(b"\n"):
        return line[:-1].removesuffix(b"\r")
    return line


def _whole_file(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield all lines as one document, or as several if it is longer than LONGEST."""
    held = []
    held_bytes = 0
    kind = bytes
    for line in lines:
        if held and held_bytes + len(line) > LONGEST:
            yield kind(b"".join(held))
            held = []
            held_bytes = 0
            kind = _BytesContinuation
        held.append(line)
        held_bytes += len(line)
    yield kind(b"".join(held))


def _by_line(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield each line as a document."""
    kind = bytes
    for line in lines:
        yield kind(_without_newline(line))
        kind = bytes if line.endswith(b"\n") else _BytesContinuation


def _by_block(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield each block between blank lines as a document."""
    for is_blank, group in groupby(_mark_blank(lines), key=itemgetter(0)):
        if not is_blank:
            block = (line for _, line in group)
            yield from _whole_file(_without_last_newline(block))


def _mark_blank(lines: Iterable[bytes]) -> Iterator[tuple[bool, bytes]]:
    """Yield (True if the whole line is blank, line) for each line or piece of a long line."""
    held = []  # pieces of a line that is blank so far
    is_blank = True
    for piece in lines:
        held.append(piece)
        ends_line = piece.endswith(b"\n")
        is_blank = is_blank and not piece.strip()
        if ends_line or not is_blank:
            for held_piece in held:
                yield is_blank, held_piece
            held = []
        if ends_line:
            is_blank = True
    for held_piece in held:
        yield True, held_piece


def _without_last_newline(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Move each newline to the start of the next line, so that the last one is dropped."""
    newline = b""
    for line in lines:
        text = _without_newline(line)
        yield newline + text
        newline = line[len(text) :]


_CUTTERS: dict[DocumentUnit, Callable[[Iterable[bytes]], Iterator[bytes]]] = {
    "file": _whole_file,
    "line": _by_line,
    "block": _by_block,
}


# Records.


def text_of(record: object, field: str, where: str) -> Iterator[Document]:
    """Yield the text of a record, in pieces if it is longer than LONGEST. A null is an empty text.

    >>> list(text_of({"text": "a b", "id": 7}, "text", "here"))
    ['a b']
    >>> list(text_of({"body": "a b"}, "text", "here"))
    Traceback (most recent call last):
    t5x_lite.errors.UserError: here: has no text 'text'; set data.field to one of body
    """
    if not isinstance(record, dict):
        kind = type(record).__name__
        raise UserError(BAD_DATA, f"{where}: is a {kind}, expected an object with {field!r}")
    fix = f"set data.field to one of {', '.join(record)}"
    if field not in record:
        raise UserError(BAD_DATA, f"{where}: has no text {field!r}; {fix}")
    text = record[field]
    if text is None:
        text = ""
    if isinstance(text, bytes):
        yield from _whole_file(_lines(io.BytesIO(text)))
    elif isinstance(text, str):
        yield text[:LONGEST]
        for start in range(LONGEST, len(text), LONGEST):
            yield _TextContinuation(text[start : start + LONGEST])
    else:
        kind = type(text).__name__
        raise UserError(BAD_DATA, f"{where}: its {field!r} is a {kind}; {fix}")
