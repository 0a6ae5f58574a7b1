import json

import numpy as np
import pytest
from conftest import run, sentences

from t5x_lite.config import Data
from t5x_lite.data import corpus, sources
from t5x_lite.errors import BAD_DATA, NO_FILE, Refusal

QUIET = {"say": lambda _: None}


def test_documents_by_file_line_and_block(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n\r\nthree \xff\n")
    (tmp_path / "b.txt").write_text("\n \n")
    assert list(sources.documents(str(tmp_path))) == ["one\r\ntwo\r\n\r\nthree \ufffd\n"]
    assert list(sources.documents(str(tmp_path / "*.txt"), "line")) == ["one", "two", "three \ufffd"]
    assert list(sources.documents(str(tmp_path / "a.txt"), "block")) == ["one\r\ntwo", "three \ufffd\n"]


def test_the_built_in_text_is_the_same_each_time():
    first = list(sources.python_docs())
    assert first == list(sources.python_docs())
    assert sum(map(len, first)) > 1_500_000
    assert any("context manager" in text for text in first)


def test_every_document_is_stored_once_and_copies_on_one_side(tmp_path):
    texts = sentences(200).split("\n\n")
    (tmp_path / "a.txt").write_text("\n\n".join(texts + texts))
    data = Data(source=str(tmp_path / "a.txt"), document="block", validation_fraction=0.2, tokenizer="bytes")
    made = corpus.prepare(data, **QUIET)
    eos = made.tokenizer.vocabulary.eos
    stored = {}
    for split in corpus.SPLITS:
        ids = np.array(made.tokens[split])
        stored[split] = [
            made.tokenizer.decode(part[:-1]) for part in np.split(ids, np.flatnonzero(ids == eos) + 1)[:-1]
        ]
        counted = made.manifest[split]
        assert counted["documents"] == len(stored[split]) > 0
        assert counted["bytes"] == sum(len(text.encode()) for text in stored[split])
    assert sorted(stored["train"] + stored["validation"]) == sorted(texts + texts)
    assert not set(stored["train"]) & set(stored["validation"])


def test_a_single_document_is_cut_in_two(tmp_path):
    text = sentences(50)
    (tmp_path / "a.txt").write_text(text)
    made = corpus.prepare(Data(source=str(tmp_path / "a.txt"), validation_fraction=0.1, tokenizer="bytes"), **QUIET)
    cut = int(len(text) * 0.9)
    assert made.tokenizer.decode(made.tokens["train"][:-1]) == text[:cut]
    assert made.tokenizer.decode(made.tokens["validation"][:-1]) == text[cut:]


def test_a_validation_source_of_its_own(tmp_path):
    (tmp_path / "a.txt").write_text("some text")
    (tmp_path / "b.txt").write_text("other text")
    data = Data(source=str(tmp_path / "a.txt"), validation_source=str(tmp_path / "b.txt"), tokenizer="bytes")
    made = corpus.prepare(data, **QUIET)
    assert made.tokenizer.decode(made.tokens["validation"]) == "other text</s>"


def test_changed_stores_are_refused_naming_what_changed(tmp_path):
    (tmp_path / "a.txt").write_text(sentences(50))
    data = Data(source=str(tmp_path / "a.txt"), tokenizer="bytes", store=str(tmp_path / "store"))
    made = corpus.prepare(data, **QUIET)
    with pytest.raises(Refusal, match="made with document 'file', now it is 'line'"):
        corpus.prepare(Data(**{**vars(data), "document": "line"}), **QUIET)
    path = made.path / "train.bin"
    stored = path.read_bytes()
    for changed in (stored[:-2], b"xx" + stored[2:]):
        path.write_bytes(changed)
        with pytest.raises(Refusal, match=r"train.bin: changed since it was prepared"):
            corpus.prepare(data, **QUIET)
    path.write_bytes(stored)
    manifest = json.loads((made.path / "manifest.json").read_text())
    (made.path / "manifest.json").write_text(json.dumps(manifest | {"tokenizer": "0" * 16}))
    with pytest.raises(Refusal, match="tokens were made by tokenizer 0000"):
        corpus.prepare(data, **QUIET)
    for damaged in ("{", "[]", "{}", json.dumps(manifest | {"train": 5}), json.dumps(manifest | {"dtype": "x"})):
        (made.path / "manifest.json").write_text(damaged)
        with pytest.raises(Refusal) as caught:
            corpus.prepare(data, **QUIET)
        assert caught.value.code == NO_FILE


def test_a_directory_of_something_else_is_not_written_over(tmp_path):
    (tmp_path / "a.txt").write_text(sentences(50))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    with pytest.raises(Refusal, match="is no token store"):
        corpus.prepare(Data(source=str(tmp_path / "a.txt"), tokenizer="bytes", store=str(tmp_path / "mine")), **QUIET)
    assert (tmp_path / "mine/thesis.txt").read_text() == "years of work"
    (tmp_path / "mine/thesis.txt").rename(tmp_path / "mine/train.bin")  # whatever its name
    with pytest.raises(Refusal, match="is no token store"):
        corpus.prepare(Data(source=str(tmp_path / "a.txt"), tokenizer="bytes", store=str(tmp_path / "mine")), **QUIET)
    assert (tmp_path / "mine/train.bin").read_text() == "years of work"


def test_a_store_left_half_made_is_made_again(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text(sentences(50))
    data = Data(source=str(tmp_path / "a.txt"), tokenizer="bytes", store=str(tmp_path / "store"))
    with monkeypatch.context() as patched:
        patched.setattr(corpus, "_write", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            corpus.prepare(data, **QUIET)
    assert corpus.prepare(data, **QUIET).manifest["train"]["documents"] == 1


def test_many_copies_first_hide_nothing_that_follows(tmp_path):
    lines = ["the same header"] * 250 + [f"line {i}" for i in range(100)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    data = Data(source=str(tmp_path / "a.txt"), document="line", validation_fraction=0.3, tokenizer="bytes")
    manifest = corpus.prepare(data, **QUIET).manifest
    assert manifest["train"]["documents"] + manifest["validation"]["documents"] == 350


def test_text_that_cannot_be_used(tmp_path):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "short.txt").write_text("too short")
    for name, code, words in [
        ("empty.txt", BAD_DATA, "no document for train"),
        ("none.txt", NO_FILE, "no such text"),
        ("short.txt", BAD_DATA, "a row reads 128"),
    ]:
        source = f"--config.data.source={tmp_path / name}"
        tokenizer = "--config.data.tokenizer=bytes"
        _, err = run("train", "--config=gpt_tiny", source, tokenizer, f"--workdir={tmp_path / 'run'}", code=code)
        assert words in err
        assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_the_setting_that_names_no_text_is_named(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "broken.txt").symlink_to(tmp_path / "nowhere")
    for more, words in [
        ({"validation_source": str(tmp_path / "none")}, f"data.validation_source={tmp_path}/none: no such text"),
        ({"source": str(tmp_path / "*.txt")}, "data.source: cannot read .*broken.txt"),
        ({"store": "/"}, "data.store=/: is no directory"),
    ]:
        with pytest.raises(Refusal, match=words):
            corpus.prepare(Data(**{"source": str(tmp_path / "a.txt"), "tokenizer": "bytes", **more}), **QUIET)


def test_prepare_and_inspect(tmp_path, config_file):
    path = config_file("span_corruption", "encoder_decoder")
    out, _ = run("prepare", f"--config={path}")
    assert "store: " in out
    out, _ = run("inspect", f"--config={path}", "--examples=1")
    assert "<extra_id_0>" in out
    assert "loss tokens" in out
    out, _ = run("inspect", f"--config={config_file('masked_lm', 'encoder')}", "--examples=1")
    assert "[MASK]" in out


@pytest.mark.parametrize("count", [2, 3, 20])
def test_of_few_documents_at_least_one_is_held_out(tmp_path, count):
    for i in range(count):
        (tmp_path / f"{i}.txt").write_text(f"text number {i}")
    made = corpus.prepare(Data(source=str(tmp_path), tokenizer="bytes"), **QUIET)
    assert made.manifest["validation"]["documents"] == 1
    assert made.manifest["train"]["documents"] == count - 1
    made = corpus.prepare(Data(source=str(tmp_path), tokenizer="bytes", validation_fraction=0.9), **QUIET)
    assert made.manifest["train"]["documents"] >= 1
