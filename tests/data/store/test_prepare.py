import dataclasses
import json
import os
import sys

import numpy as np
import pytest
from conftest import run, sentences

from t5x_lite.config import Data, TextCleaning
from t5x_lite.config.permission import allow
from t5x_lite.data.store import corpus, shards
from t5x_lite.data.store import prepare as preparing
from t5x_lite.data.store.prepare import prepare
from t5x_lite.data.tokenizers import tokenizer
from t5x_lite.errors import BAD_DATA, IO_ERROR, NO_FILE, UserError
from t5x_lite.progress import messages_to

# What is stored.


def test_every_document_is_stored_once_and_copies_in_one_split(tmp_path):
    texts = sentences(200).split("\n\n")
    (tmp_path / "a.txt").write_text("\n\n".join(texts + texts))
    data = Data(
        source=str(tmp_path / "a.txt"),
        document="block",
        validation_fraction=0.2,
        tokenizer="bytes",
    )
    store = prepare(data)
    eos = store.tokenizer.vocabulary.eos
    stored = {}
    for split in corpus.SPLITS:
        ids = np.array(store.tokens(split))
        documents = np.split(ids, np.flatnonzero(ids == eos) + 1)[:-1]
        stored[split] = [store.tokenizer.decode(document[:-1]) for document in documents]
        counts = store.manifest[split]
        assert counts["documents"] == len(stored[split]) > 0
        assert counts["bytes"] == sum(len(text.encode()) for text in stored[split])
    assert sorted(stored["train"] + stored["validation"]) == sorted(texts + texts)
    assert not set(stored["train"]) & set(stored["validation"])


def test_a_single_document_is_cut_in_two(tmp_path):
    text = sentences(50)
    (tmp_path / "a.txt").write_text(text)
    data = Data(source=str(tmp_path / "a.txt"), validation_fraction=0.1, tokenizer="bytes")
    store = prepare(data)
    cut = int(len(text) * 0.9)
    assert store.tokenizer.decode(store.tokens("train")[:-1]) == text[:cut]
    assert store.tokenizer.decode(store.tokens("validation")[:-1]) == text[cut:]


def test_a_validation_source_of_its_own(tmp_path):
    (tmp_path / "a.txt").write_text("some text")
    (tmp_path / "b.txt").write_text("other text")
    source, validation_source = str(tmp_path / "a.txt"), str(tmp_path / "b.txt")
    data = Data(source=source, validation_source=validation_source, tokenizer="bytes")
    store = prepare(data)
    assert store.tokenizer.decode(store.tokens("train")) == "some text</s>"
    assert store.tokenizer.decode(store.tokens("validation")) == "other text</s>"


def test_many_copies_first_hide_nothing_that_follows(tmp_path):
    lines = ["the same header"] * 250 + [f"line {i}" for i in range(100)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    data = Data(
        source=str(tmp_path / "a.txt"),
        document="line",
        validation_fraction=0.3,
        tokenizer="bytes",
    )
    manifest = prepare(data).manifest
    assert manifest["train"]["documents"] + manifest["validation"]["documents"] == 350


@pytest.mark.parametrize("count", [2, 3, 20])
def test_of_few_documents_at_least_one_is_held_out(tmp_path, count):
    for i in range(count):
        (tmp_path / f"{i}.txt").write_text(f"text number {i}")
    manifest = prepare(Data(source=str(tmp_path), tokenizer="bytes")).manifest
    assert manifest["validation"]["documents"] == 1
    assert manifest["train"]["documents"] == count - 1
    data = Data(source=str(tmp_path), tokenizer="bytes", validation_fraction=0.9)
    assert prepare(data).manifest["train"]["documents"] >= 1


def test_issues_of_the_text_are_in_the_manifest(tmp_path):
    texts = ("a", "b\ud800c", "", "\r\n", "d e f\r\n")
    lines = "\n".join(json.dumps({"text": text}) for text in texts)
    (tmp_path / "a.jsonl").write_text(lines)
    source = str(tmp_path / "a.jsonl")
    said = []
    data = Data(source=source, tokenizer="bytes", store=str(tmp_path / "store"))
    with messages_to(said.append):
        manifest = prepare(data).manifest
    issues = {"lone_surrogate": 1, "empty": 2, "carriage_return": 2, "single_token": 1}
    assert manifest["sources"][0]["text_cleaning"] == issues
    issues_line = f"prepare: {source}: 1 lone_surrogate, 2 empty, 2 carriage_return, 1 single_token"
    assert said[-1] == issues_line
    assert manifest["train"]["documents"] + manifest["validation"]["documents"] == 3

    cleaning = TextCleaning(single_token="skip")
    data = Data(source=source, tokenizer="bytes", text_cleaning=cleaning)
    manifest = prepare(data).manifest
    assert manifest["train"]["documents"] + manifest["validation"]["documents"] == 2
    cleaning = TextCleaning(single_token="stop")
    data = Data(source=source, tokenizer="bytes", text_cleaning=cleaning)
    with pytest.raises(UserError, match=r"data.text_cleaning.single_token"):
        prepare(data)

    out, _ = run("inspect", "--store", tmp_path / "store")
    for words in ("tokens a document", "most frequent: ", "'d e f"):
        assert words in out
    (empty_line,) = [line for line in out.splitlines() if line.startswith("empty ")]
    assert empty_line.split() == ["empty", "2", "documents"]
    _, err = run("inspect", "--store", tmp_path, code=NO_FILE)
    assert "run prepare" in err


def test_the_order_of_sources_is_theirs(tmp_path):
    """Training and validation text exchanged, or sources in another order, are another store."""
    a, b = str(tmp_path / "a.txt"), str(tmp_path / "b.txt")
    (tmp_path / "a.txt").write_text(sentences(50))
    (tmp_path / "b.txt").write_text(sentences(50, seed=1))

    def stores(one, other):
        return [prepare(Data(**data, tokenizer="bytes")) for data in (one, other)]

    first, second = stores(
        {"source": a, "validation_source": b}, {"source": b, "validation_source": a}
    )
    tokens = [store.sources[0].tokens["train"] for store in (first, second)]
    assert not np.array_equal(*tokens)

    first, second = stores(
        {"source": f"1 * {a} + 9 * {b}"},
        {"source": f"9 * {b} + 1 * {a}"},
    )
    tokens = [first.sources[0].tokens["train"], second.sources[1].tokens["train"]]
    assert np.array_equal(*tokens)
    assert [(source.name, source.rate) for source in second.sources] == [(b, 9.0), (a, 1.0)]

    store = str(tmp_path / "store")
    prepare(Data(source=a, tokenizer="bytes", store=store))
    for source in (b, f"{a} + {b}", str(tmp_path / "typo.txt")):
        with pytest.raises(UserError, match="made with the text"):
            prepare(Data(source=source, tokenizer="bytes", store=store))


# What is refused.


def test_text_that_cannot_be_used(tmp_path):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "short.txt").write_text("too short")
    for name, code, words in [
        ("empty.txt", BAD_DATA, "no document for train"),
        ("none.txt", NO_FILE, "no such text"),
        ("short.txt", BAD_DATA, "its rows need 128"),
    ]:
        settings = [f"--config.data.source={tmp_path / name}", "--config.data.tokenizer=bytes"]
        workdir = f"--workdir={tmp_path / 'run'}"
        _, err = run("train", "--config=gpt_tiny", *settings, workdir, code=code)
        assert words in err
        assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_the_setting_that_names_no_text_is_named(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "broken.txt").symlink_to(tmp_path / "nowhere")
    missing = tmp_path / "none"
    for more, words in [
        ({"validation_source": str(missing)}, f"data.validation_source={missing}: no such text"),
        ({"source": str(tmp_path / "*.txt")}, "data.source: cannot read .*broken.txt"),
        ({"store": "/"}, "data.store=/: not a directory"),
    ]:
        data = {"source": str(tmp_path / "a.txt"), "tokenizer": "bytes", **more}
        with pytest.raises(UserError, match=words):
            prepare(Data(**data))


@pytest.mark.parametrize("key", ["source", "validation_source"])
def test_code_is_imported_only_where_it_is_allowed(tmp_path, monkeypatch, key):
    module = f"guarded_{key}"
    (tmp_path / f"{module}.py").write_text("def texts():\n    return ['a b', 'c d', 'e f']\n")
    (tmp_path / "a.txt").write_text("text")
    monkeypatch.syspath_prepend(tmp_path)
    settings = {"source": str(tmp_path / "a.txt"), "tokenizer": "bytes"}
    data = Data(**{**settings, key: f"python:{module}.texts"})
    named = Data(**{**vars(data), "store": str(tmp_path / "store")})
    for guarded in (data, named):
        with pytest.raises(UserError, match=f"data.{key}=.* --allow-code={module}"):
            prepare(guarded)
    assert module not in sys.modules

    for guarded in (data, named):
        with allow([module]):
            assert prepare(guarded).manifest["validation"]["documents"]
    # The stores exist now; their source is compared all the same.
    del sys.modules[module]
    for guarded in (data, named):
        with pytest.raises(UserError, match=f"--allow-code={module}"):
            prepare(guarded)


def test_a_store_made_with_other_settings_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text(sentences(50))
    data = Data(source=str(tmp_path / "a.txt"), tokenizer="bytes", store=str(tmp_path / "store"))
    prepare(data)
    with pytest.raises(UserError, match="made with document 'file', now it is 'line'"):
        prepare(Data(**{**vars(data), "document": "line"}))


def test_a_directory_of_something_else_is_not_written_over(tmp_path):
    (tmp_path / "a.txt").write_text(sentences(50))
    (tmp_path / "mine").mkdir()
    data = Data(source=str(tmp_path / "a.txt"), tokenizer="bytes", store=str(tmp_path / "mine"))
    for name in ("thesis.txt", "train.bin"):  # whatever its name
        (tmp_path / "mine" / name).write_text("years of work")
        with pytest.raises(UserError, match="is not a token store"):
            prepare(data)
        assert (tmp_path / "mine" / name).read_text() == "years of work"
        (tmp_path / "mine" / name).unlink()


# Tokenizers.


def test_a_small_text_gets_a_smaller_vocabulary_and_is_told_so(tmp_path):
    (tmp_path / "a.txt").write_text(sentences(50))
    said = []
    asked = "sentencepiece(vocab_size=8192)"
    with messages_to(said.append):
        store = prepare(Data(source=str(tmp_path / "a.txt"), tokenizer=asked))
    size = store.tokenizer.vocabulary.size
    assert size < 8192
    assert sum(f"asked for vocab_size=8192, made {size}" in line for line in said) == 1
    again = Data(source=str(tmp_path / "a.txt"), tokenizer=asked, store=str(tmp_path / "again"))
    assert content(prepare(again).path / "tokenizer") == content(store.path / "tokenizer")
    text = sentences(50)
    assert store.tokenizer.decode(store.tokenizer.encode(text)) == text


# Stores that are made by several processes, by several runs, or used without their text.


def big(tmp_path, documents=300):
    """A file whose lines are documents."""
    lines = [f"{i}: {text}" for i, text in enumerate(sentences(documents).split("\n\n"))]
    (tmp_path / "big.txt").write_text("\n".join(lines))
    return {"source": str(tmp_path / "big.txt"), "document": "line", "tokenizer": "bytes"}


def content(store) -> dict:
    return {path.name: path.read_bytes() for path in store.iterdir() if path.is_file()}


def test_shards_by_several_processes_are_the_same_bytes(tmp_path, monkeypatch):
    settings = big(tmp_path)
    monkeypatch.setattr(shards, "SHARD_BYTES", 2000)
    one, three = tmp_path / "one", tmp_path / "three"
    prepare(Data(**settings, store=str(one), processes=1))
    prepare(Data(**settings, store=str(three), processes=3))
    assert content(one) == content(three)
    manifest = json.loads((one / "manifest.json").read_text())
    assert len(manifest["sources"][0]["train"]["shards"]) > 5


def test_a_store_left_half_made_is_made_again(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text(sentences(50))
    data = Data(source=str(tmp_path / "a.txt"), tokenizer="bytes", store=str(tmp_path / "store"))
    with monkeypatch.context() as patched:
        patched.setattr(preparing, "_write_source", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            prepare(data)
    assert prepare(data).manifest["train"]["documents"] == 1


def test_a_store_that_was_killed_goes_on_after_the_last_whole_shard(tmp_path, monkeypatch):
    settings = big(tmp_path)
    monkeypatch.setattr(shards, "SHARD_BYTES", 2000)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    prepare(Data(**settings, store=str(whole), processes=1))
    encode = preparing.EncoderPool.submit
    encoded = []

    def submit(pool, shard):
        encoded.append(shard)
        if len(encoded) == 5:
            raise KeyboardInterrupt
        return encode(pool, shard)

    monkeypatch.setattr(preparing.EncoderPool, "submit", submit)
    data = Data(**settings, store=str(killed), processes=1)
    with pytest.raises(KeyboardInterrupt):
        prepare(data)
    journal = killed / preparing.JOURNAL
    written = len(journal.read_text().splitlines()) - 2
    assert written >= 3
    # A kill in the middle of a line, and of a shard.
    with open(journal, "a") as file:
        file.write('{"source": 0, "te')
    with open(killed / "0.train.bin", "ab") as file:
        file.write(b"xyz")
    before = [None] * 9
    encoded[:] = before
    prepare(data)
    manifest = json.loads((whole / "manifest.json").read_text())
    total = len(manifest["sources"][0]["train"]["shards"])
    assert len(encoded) - len(before) == total - written
    assert content(killed) == content(whole)


@pytest.mark.usefixtures("own_code")
def test_text_that_shrank_at_the_border_of_a_shard_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "SHARD_BYTES", 1000)
    monkeypatch.syspath_prepend(tmp_path)
    code = "count = 300\ndef texts():\n    return (f'{i:0100}' for i in range(count))"
    (tmp_path / "shrinking.py").write_text(code)
    import shrinking

    data = Data(
        source="python:shrinking.texts",
        tokenizer="bytes",
        store=str(tmp_path / "store"),
        processes=1,
    )
    with monkeypatch.context() as stopped:
        stopped.setattr(preparing, "_total", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            prepare(data)
    shrinking.count = 250
    with pytest.raises(UserError, match="changed while its store was made; start again"):
        prepare(data)
    assert prepare(data).manifest["train"]["documents"] < 250


def test_a_store_goes_on_only_with_the_same_text_and_settings(tmp_path, monkeypatch):
    settings = big(tmp_path)
    monkeypatch.setattr(shards, "SHARD_BYTES", 2000)
    monkeypatch.setattr(preparing, "_total", lambda _: 1 / 0)
    store = tmp_path / "store"

    def stopped(**more) -> list[str]:
        """The journal of a run that is stopped before its end."""
        with pytest.raises(ZeroDivisionError):
            prepare(Data(**settings, **more, store=str(store), processes=1))
        return (store / preparing.JOURNAL).read_text().splitlines()

    first = stopped()
    second = stopped(validation_fraction=0.3)
    assert first[0] != second[0]  # begun anew
    assert first[2] != second[2]


def test_a_named_store_does_not_need_its_text_any_more(tmp_path):
    settings = big(tmp_path)
    store = str(tmp_path / "store")
    data = Data(**settings, store=store)
    prepare(data)
    path = tmp_path / "big.txt"
    os.utime(path, ns=(1, 1))  # touched, but the same
    prepare(data)
    (tmp_path / "elsewhere").mkdir()
    moved = path.rename(tmp_path / "elsewhere/big.txt")
    prepare(data)  # cannot be reached
    data = Data(**{**settings, "source": str(moved)}, store=store)
    prepare(data)
    moved.write_text(moved.read_text() + "\nmore")
    with pytest.raises(UserError, match="made with the text"):
        prepare(data)


def test_a_named_store_does_not_need_its_tokenizer_any_more(tmp_path):
    tokenizer.train_sentencepiece([sentences(200)], 530).save(tmp_path)
    model = tmp_path / "spiece.model"
    settings = {**big(tmp_path), "tokenizer": str(model), "add_specials": True}
    data = Data(**settings, store=str(tmp_path / "store"))
    prepare(data)
    content = model.read_bytes()
    model.unlink()
    prepare(data)
    model.write_bytes(content + b" ")
    with pytest.raises(UserError, match="made with tokenizer"):
        prepare(data)


# Commands.


def test_what_could_not_be_copied_to_a_bucket_is_not_made_again(tmp_path, monkeypatch):
    monkeypatch.setenv("T5X_LITE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.txt").write_text(sentences(50))
    store = "memory://bucket/not-copied-at-first"
    data = Data(source=str(tmp_path / "a.txt"), tokenizer="bytes", store=store)

    def away(*_, **__):
        raise UserError(IO_ERROR, "the bucket is away")

    with monkeypatch.context() as patched:
        patched.setattr(preparing.storage, "upload", away)
        with pytest.raises(UserError, match="is away"):
            prepare(data)
    with monkeypatch.context() as patched:
        patched.setattr(preparing, "_make_store", None)
        there = prepare(data)
    assert not list((tmp_path / "cache/stores").glob("*/*.bin"))  # nor is it here twice
    here = prepare(dataclasses.replace(data, store=""))
    assert there.tokens("train").tolist() == here.tokens("train").tolist()


def test_prepare_and_inspect(config_file):
    path = config_file("span_corruption", "encoder_decoder")
    out, _ = run("prepare", f"--config={path}")
    assert "store: " in out
    out, _ = run("inspect", f"--config={path}", "--examples=1")
    assert "<extra_id_0>" in out
    assert "loss tokens" in out
    out, _ = run("inspect", f"--config={config_file('masked_lm', 'encoder')}", "--examples=1")
    assert "[MASK]" in out
