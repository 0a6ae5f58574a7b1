import bz2
import gzip
import json
import lzma
import os

import fsspec
import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from t5x_lite.config import TextCleaning
from t5x_lite.data.text import files, sources
from t5x_lite.data.text.cleaning import Cleaner
from t5x_lite.errors import BAD_DATA, NO_FILE, UserError

TEXTS = ["one\ntwo", "größer 漢字 😀", " three "]
COMPRESS = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.compress,
}


def texts(source, document="file", field="text") -> list[str]:
    documents = sources.documents(str(source), document, field)
    return [text.decode() if isinstance(text, bytes) else text for text in documents]


@pytest.mark.parametrize("ending", COMPRESS)
def test_compressed_or_not(tmp_path, ending):
    compress = COMPRESS[ending]
    plain = "\n\n".join(TEXTS)
    json_lines = "\n".join(json.dumps({"text": text}) for text in TEXTS)
    (tmp_path / f"a.txt{ending}").write_bytes(compress(plain.encode()))
    (tmp_path / f"b.jsonl{ending}").write_bytes(compress(json_lines.encode()))
    assert texts(tmp_path / f"a.txt{ending}", "block") == TEXTS
    assert texts(tmp_path / f"b.jsonl{ending}") == TEXTS
    assert texts(tmp_path, "block") == TEXTS * 2
    assert texts(tmp_path / "*", "block") == TEXTS * 2


def test_documents_by_file_line_and_block(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\r\ntwo\r\n\r\nthree\n")
    (tmp_path / "b.txt").write_text("\n \n")
    assert texts(tmp_path) == ["one\r\ntwo\r\n\r\nthree\n", "\n \n"]
    assert texts(tmp_path, "line") == ["one", "two", "", "three", "", " "]
    assert texts(tmp_path, "block") == ["one\r\ntwo", "three"]


def test_parquet_and_columns(tmp_path):
    table = pyarrow.table({"body": TEXTS, "number": [1, 2, 3]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    assert texts(tmp_path / "a.parquet", field="body") == TEXTS
    for field, problem in (("text", "has no text 'text'"), ("number", "its 'number' is a int")):
        with pytest.raises(UserError, match=f"{problem}; set data.field to one of"):
            texts(tmp_path / "a.parquet", field=field)


def test_endings_in_capitals(tmp_path):
    (tmp_path / "A.TXT").write_text("one")
    (tmp_path / "B.TXT.GZ").write_bytes(gzip.compress(b"two"))
    assert texts(tmp_path) == ["one", "two"]


def test_invalid_text_in_json_lines_is_left_to_text_cleaning(tmp_path):
    lines = b'{"text": "caf\xe9 x"}\n{"text": null}\n{"text": "\\ud800"}\n'
    (tmp_path / "a.jsonl").write_bytes(lines)
    assert texts(tmp_path / "a.jsonl") == ["caf\udce9 x", "", "\ud800"]


def test_frames_of_zst_one_after_another(tmp_path):
    frames = zstandard.compress(b"one\n") + zstandard.compress(b"two\n" * 100_000)
    (tmp_path / "a.txt.zst").write_bytes(frames)
    assert texts(tmp_path / "a.txt.zst", "line") == ["one"] + ["two"] * 100_000


# File systems.


def test_any_file_system():
    with fsspec.open("memory://corpus/a.txt", "w") as file:
        file.write("far away")
    assert texts("memory://corpus/a.txt") == ["far away"]
    assert texts("memory://corpus/*.txt") == ["far away"]
    assert sources.size("memory://corpus/*.txt") == 8


class Bucket(fsspec.AbstractFileSystem):
    """Files as those of gs:// and s3:// are: fetched in ranges."""

    protocol = "bucket"
    contents = {}

    def ls(self, path, detail=True, **_):
        entries = []
        for name, content in self.contents.items():
            if name.startswith(self._strip_protocol(path)):
                entry = {"name": name, "size": len(content), "type": "file", "etag": name}
                entries.append(entry)
        if not entries:
            raise FileNotFoundError(path)
        return entries if detail else [entry["name"] for entry in entries]

    def _open(self, path, mode="rb", **_):
        content = self.contents[path]

        class File(fsspec.spec.AbstractBufferedFile):
            def _fetch_range(self, start, end):
                return content[start:end]

        return File(self, path, mode, size=len(content), block_size=50)


def test_files_that_come_in_ranges(tmp_path):
    fsspec.register_implementation("bucket", Bucket, clobber=True)
    pyarrow.parquet.write_table(pyarrow.table({"text": TEXTS}), tmp_path / "c.parquet")
    text = "\n\n".join(TEXTS * 20).encode()
    Bucket.contents = {
        "t/a.txt": text,
        "t/b.txt.gz": gzip.compress(text),
        "t/c.parquet": (tmp_path / "c.parquet").read_bytes(),
    }
    assert texts("bucket://t/a.txt", "block") == TEXTS * 20
    assert texts("bucket://t", "block") == TEXTS * 41
    assert "t/a.txt" in sources.fingerprint("bucket://t")


# Long documents.


def test_long_records_come_in_several(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LONGEST", 10)
    lines = [json.dumps({"text": "ä" * 25}), json.dumps({"text": "short"})]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    documents = list(sources.documents(str(tmp_path / "a.jsonl")))
    assert documents == ["ä" * 10, "ä" * 10, "ä" * 5, "short"]
    is_continuation = [isinstance(document, files.Continuation) for document in documents]
    assert is_continuation == [False, True, True, False]


@example("0000000000\x80ࠀࠀ\r\n0", 19, "block")  # cut within the end of a line
@example(" " * 9 + "a\n\n" + " " * 9, 5, "block")
@example("\x80" * 7 + "𐀀𐀀𐀀\n", 9, "file")  # what is cut off is a whole character
@given(st.text(min_size=1), st.integers(5, 40), st.sampled_from(["file", "line", "block"]))
def test_long_documents_come_in_several_and_lose_nothing(text, longest, document):
    memory = fsspec.filesystem("memory")
    with memory.open("/long.txt", "wb") as file:
        file.write(text.encode(errors="replace"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(files, "LONGEST", longest)
        pieces = list(sources.documents("memory://long.txt", document))
    joined = []
    for piece in pieces:
        piece.decode()  # never cut within a character
        assert len(piece) <= longest
        if isinstance(piece, files.Continuation):
            joined[-1] += piece
        else:
            joined.append(bytes(piece))
    assert joined == list(sources.documents("memory://long.txt", document))
    cleaner = Cleaner(TextCleaning(), "here")
    for piece in pieces:
        cleaner(piece)
    assert cleaner.counts["too_long_and_read_as_several"] == len(pieces) - len(joined)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.csv", b'id,text\n1,"a, ""b"""\n2,"two\nlines"\n', ['a, "b"', "two\nlines"]),
        ("a.csv", b"\xef\xbb\xbftext\r\na\r\nb\r\n", ["a", "b"]),
        ("a.tsv", b'text\tn\nsay "a"\t1\n', ['say "a"']),
        ("a.csv", b"text\n\xff\n", ["\udcff"]),
        ("a.csv", b"text\n" + b"x" * 200_000 + b"\n", ["x" * 200_000]),
        ("a.json", b'[{"text": "a"}, {"text": "b"}]', ["a", "b"]),
        ("a.jsonl", b'\xef\xbb\xbf{"text": "a"}\n\n{"text": "b"}', ["a", "b"]),
    ],
)
def test_tables_and_lists_of_objects_are_text(tmp_path, name, content, expected):
    path = tmp_path / name
    path.write_bytes(content)
    assert list(sources.documents(str(path))) == expected


# Damaged files.


@pytest.mark.parametrize(
    ("name", "content", "code", "words"),
    [
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', BAD_DATA, "line 2: is no JSON"),
        ("a.jsonl", b'{"body": "a"}\n', BAD_DATA, "no text 'text'; set data.field to one of body"),
        ("a.jsonl", b"[1]\n", BAD_DATA, "number 0: is of type int, expected an object"),
        ("a.csv", b"text,b\na,b,c\n", BAD_DATA, "line 2: has 3 cells, expected 2"),
        ("a.csv", b"body\na\n", BAD_DATA, "no text 'text'; set data.field to one of body"),
        ("a.zip", b"PK", BAD_DATA, "is an archive of several files"),
        ("a.tar.xz", lzma.compress(b"x"), BAD_DATA, "is an archive of several files"),
        (
            "b.txt.zst",
            zstandard.compress(bytes(range(256)) * 9999)[:-9],
            NO_FILE,
            r"cannot read .*zst \(EOFError: it is cut off",
        ),
        (
            "a.txt.gz",
            gzip.compress(b"some text" * 999, mtime=0)[:-20],
            NO_FILE,
            "cannot read .*a.txt.gz",
        ),
        ("a.txt.gz", b"not compressed", NO_FILE, "cannot read .*a.txt.gz"),
        ("a.txt.zst", b"not compressed", NO_FILE, "cannot read .*a.txt.zst"),
        ("a.parquet", b"no parquet", NO_FILE, "cannot read .*a.parquet"),
    ],
)
def test_damaged_files_are_refused(tmp_path, name, content, code, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=words) as caught:
        texts(tmp_path / name)
    assert caught.value.code == code


TEXT = "The cat sat on the mat. " * 20


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"%PDF-1.7 ...", "is a PDF, expected text in UTF-8"),
        (b"PK\x03\x04...", "is a zip archive, as .docx"),
        (b"\x89PNG\r\n\x1a\n...", "is a PNG image"),
        (b"\x7fELF...", "is a program"),
        (
            gzip.compress(TEXT.encode(), mtime=0),
            "is compressed, expected text in UTF-8; let its name end in",
        ),
        (bz2.compress(TEXT.encode()), "let its name end in .bz2"),
        (lzma.compress(TEXT.encode()), "let its name end in .xz"),
        (TEXT.encode("utf-16"), "is UTF-16, expected text in UTF-8; convert it: iconv -f UTF-16"),
        (TEXT.encode("utf-32"), "is UTF-32, expected text in UTF-8; convert it: iconv -f UTF-32"),
        (TEXT.encode("utf-16-le"), "zero bytes among its first"),
        (TEXT.encode("utf-16-be"), "if it is UTF-16 without a byte order mark"),
        (TEXT.encode("utf-32-be"), "zero bytes among its first"),
        (b"\0" * 9000, "has 4096 zero bytes among its first 4096"),
    ],
)
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv", "a.txt.gz"])
def test_what_is_no_text_is_refused_by_its_content(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(UserError) as caught:
        list(sources.documents(str(path)))
    assert caught.value.code == BAD_DATA
    assert words in str(caught.value)


def test_text_with_some_zero_bytes_or_a_mark_is_text(tmp_path):
    for content in (
        b"\xef\xbb\xbfa cat",
        b"a\0cat",
        b"%PD",
        b"PK is a name",
        b"BZh is, too",
        b"\xff",
    ):
        (tmp_path / "a.txt").write_bytes(content)
        assert list(sources.documents(str(tmp_path / "a.txt"))) == [content]


def test_pipes_devices_and_whole_file_systems_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "zero.txt").symlink_to("/dev/zero")
    for name in ("pipe.txt", "zero.txt"):
        with pytest.raises(UserError, match="is a pipe or a device; write its text to a file"):
            list(sources.documents(str(tmp_path / name)))
        with pytest.raises(UserError, match="is a pipe or a device"):
            sources.fingerprint(str(tmp_path / name))
    for place in (
        "/",
        "//",
        "file:///",
        "gs://",
        "/dev/stdin",
        "/proc/self/mem",
        "file:///proc/1/mem",
    ):
        with pytest.raises(UserError, match="is a whole file system, or one of the system's own"):
            list(sources.documents(place))


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_two_columns_of_one_name_are_refused(tmp_path, name):
    separator = "," if name == "a.csv" else "\t"
    (tmp_path / name).write_text(f"text{separator}id{separator}text\n1{separator}2{separator}3\n")
    with pytest.raises(UserError, match="two columns are called 'text'; rename one"):
        list(sources.documents(str(tmp_path / name)))
