import sys

import pytest

from t5x_lite.config import Data, TextCleaning
from t5x_lite.config.permission import allow
from t5x_lite.data.store import shards
from t5x_lite.data.text import files
from t5x_lite.data.text.cleaning import Cleaner
from t5x_lite.errors import UserError


def by_split(data: Data) -> list[tuple[str, str]]:
    (source,) = shards.list_sources(data)
    documents = shards.clean_documents(data, source)
    return list(shards.split_documents(documents, shards.split_rule(data, source)))


def test_documents_are_cleaned_by_file_line_and_block(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n\r\nthree \xff\n")
    (tmp_path / "b.txt").write_text("\n \n")

    def texts(path, document="file"):
        data = Data(source=str(path), document=document)
        (source,) = shards.list_sources(data)
        return [text for text, _ in shards.clean_documents(data, source)]

    assert texts(tmp_path) == ["one\r\ntwo\r\n\r\nthree \ufffd\n"]
    assert texts(tmp_path / "*.txt", "line") == ["one", "two", "three \ufffd"]
    assert texts(tmp_path / "a.txt", "block") == ["one\r\ntwo", "three \ufffd"]


def test_the_parts_of_a_long_document_stay_together(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LONGEST", 100)
    (tmp_path / "one.txt").write_text("".join(f"{i:09}\n" for i in range(100)))
    data = Data(source=str(tmp_path), validation_fraction=0.25, tokenizer="bytes")

    # Alone it is cut in two.
    parts = by_split(data)
    assert "".join(text for _, text in parts) == (tmp_path / "one.txt").read_text()
    assert sum(len(text) for split, text in parts if split == "validation") == 250

    # Among others it is in one split as a whole.
    for number in range(300):
        (tmp_path / f"{number}.txt").write_text(chr(0x4E00 + number) * 100)
    splits = {}
    for split, text in by_split(data):
        document = "one" if "\n" in text else text[0]
        splits.setdefault(document, set()).add(split)
    assert len(splits) == 301
    assert all(len(splits_of_document) == 1 for splits_of_document in splits.values())


def test_the_rest_of_a_document_whose_first_part_is_skipped_is_a_document(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LONGEST", 50)
    for number in range(300):
        issue = b"\xff" if number % 3 == 0 else b""
        content = issue + chr(0x4E00 + number).encode() * 50
        (tmp_path / f"{number}.txt").write_bytes(content)
    cleaning = TextCleaning(invalid_utf8="skip")
    data = Data(source=str(tmp_path), text_cleaning=cleaning, validation_fraction=0.3)
    splits = {}
    for split, text in by_split(data):
        splits.setdefault(text[0], set()).add(split)
    assert len(splits) == 300
    assert all(len(splits_of_document) == 1 for splits_of_document in splits.values())


def test_issues_are_counted_once_though_text_is_read_twice(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one \xff\ntwo\n\n")
    data = Data(source=str(tmp_path / "a.txt"), document="line")
    (source,) = shards.list_sources(data)
    cleaner = Cleaner(data.text_cleaning, source.where)
    (shard,) = shards.read_shards(data, source, cleaner)
    assert len(shard) == 2
    assert cleaner.counts == {"invalid_utf8": 1, "empty": 1}


def test_shards_hold_all_text_in_order(monkeypatch):
    monkeypatch.setattr(shards, "SHARD_BYTES", 10)
    documents = [("train", "größer"), ("validation", "abc"), ("train", "d" * 30), ("train", "e")]
    made = list(shards.make_shards(documents))
    assert [len(shard) for shard in made] == [2, 1, 1]
    assert [(s, utf8.decode()) for shard in made for s, utf8 in shard] == documents
    assert len({shards.shard_hash(shard) for shard in made}) == 3


def test_a_hash_tells_documents_and_splits_apart():
    texts = [
        [("train", b"ab"), ("train", b"c")],
        [("train", b"a"), ("train", b"bc")],
        [("train", b"ab"), ("validation", b"c")],
    ]
    assert len({shards.shard_hash(shard) for shard in texts}) == 3


def test_a_tokenizer_is_trained_on_all_sources_in_turn_but_not_on_held_out_text(tmp_path):
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text("\n".join(f"{name}{i}" for i in range(3)))
    data = Data(
        source=f"{tmp_path}/a.txt + {tmp_path}/b.txt",
        validation_source=f"{tmp_path}/c.txt",
        document="line",
    )
    assert list(shards.training_texts(data)) == ["a0", "b0", "a1", "b1", "a2", "b2"]
    data = Data(source=f"{tmp_path}/a.txt", document="line", validation_fraction=0.3)
    train = [text for split, text in by_split(data) if split == "train"]
    assert list(shards.training_texts(data)) == train
    assert len(train) == 2


def test_code_is_imported_only_where_it_is_allowed(tmp_path, monkeypatch):
    (tmp_path / "guarded_shards.py").write_text("def texts():\n    return ['a b']\n")
    monkeypatch.syspath_prepend(tmp_path)
    data = Data(source="python:guarded_shards.texts")
    (source,) = shards.list_sources(data)
    for read in (
        lambda: list(shards.clean_documents(data, source)),
        lambda: list(shards.read_shards(data, source)),
        lambda: shards.text_hash(data, source),
        lambda: list(shards.training_texts(data)),
    ):
        with pytest.raises(UserError, match="--allow-code=guarded_shards"):
            read()
    assert "guarded_shards" not in sys.modules
    with allow(["guarded_shards"]):
        assert shards.text_hash(data, source) == shards.text_hash(data, source)
