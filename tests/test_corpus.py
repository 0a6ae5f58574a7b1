import dataclasses
import json
import os

import numpy as np
import pytest
from conftest import run, sentences

from t5x_lite.config import Data, Dirt
from t5x_lite.data import batches, corpus, files, shards, sources, tokenizer
from t5x_lite.data import prepare as preparing
from t5x_lite.data.prepare import prepare
from t5x_lite.errors import BAD_DATA, NO_FILE, Refusal
from t5x_lite.settings import load

QUIET = {"say": lambda _: None}


def test_documents_by_file_line_and_block(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n\r\nthree \xff\n")
    (tmp_path / "b.txt").write_text("\n \n")

    def texts(name, document="file"):
        found = shards.texts(Data(document=document), str(tmp_path / name), "data.source")
        return [text for text, _ in found]

    assert texts("") == ["one\r\ntwo\r\n\r\nthree \ufffd\n"]
    assert texts("*.txt", "line") == ["one", "two", "three \ufffd"]
    assert texts("a.txt", "block") == ["one\r\ntwo", "three \ufffd"]


def test_the_built_in_text_is_the_same_each_time():
    first = list(sources.python_docs())
    assert first == list(sources.python_docs())
    assert sum(map(len, first)) > 1_500_000
    assert any("context manager" in text for text in first)


def test_every_document_is_stored_once_and_copies_on_one_side(tmp_path):
    texts = sentences(200).split("\n\n")
    (tmp_path / "a.txt").write_text("\n\n".join(texts + texts))
    data = Data(source=str(tmp_path / "a.txt"), document="block", validation_fraction=0.2, tokenizer="bytes")
    made = prepare(data, **QUIET)
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
    made = prepare(Data(source=str(tmp_path / "a.txt"), validation_fraction=0.1, tokenizer="bytes"), **QUIET)
    cut = int(len(text) * 0.9)
    assert made.tokenizer.decode(made.tokens["train"][:-1]) == text[:cut]
    assert made.tokenizer.decode(made.tokens["validation"][:-1]) == text[cut:]


def test_a_validation_source_of_its_own(tmp_path):
    (tmp_path / "a.txt").write_text("some text")
    (tmp_path / "b.txt").write_text("other text")
    data = Data(source=str(tmp_path / "a.txt"), validation_source=str(tmp_path / "b.txt"), tokenizer="bytes")
    made = prepare(data, **QUIET)
    assert made.tokenizer.decode(made.tokens["validation"]) == "other text</s>"


def test_changed_stores_are_refused_naming_what_changed(tmp_path):
    (tmp_path / "a.txt").write_text(sentences(50))
    data = Data(source=str(tmp_path / "a.txt"), tokenizer="bytes", store=str(tmp_path / "store"))
    made = prepare(data, **QUIET)
    with pytest.raises(Refusal, match="made with document 'file', now it is 'line'"):
        prepare(Data(**{**vars(data), "document": "line"}), **QUIET)
    path = made.path / "0.train.bin"
    stored = path.read_bytes()
    for changed in (stored[:-2], b"xx" + stored[2:]):
        path.write_bytes(changed)
        with pytest.raises(Refusal, match=r"train.bin: changed since it was prepared"):
            prepare(data, **QUIET)
    path.write_bytes(stored)
    manifest = json.loads((made.path / "manifest.json").read_text())
    (made.path / "manifest.json").write_text(json.dumps(manifest | {"tokenizer": "0" * 16}))
    with pytest.raises(Refusal, match="tokens were made by tokenizer 0000"):
        prepare(data, **QUIET)
    for damaged in ("{", "[]", "{}", json.dumps(manifest | {"train": 5}), json.dumps(manifest | {"dtype": "x"})):
        (made.path / "manifest.json").write_text(damaged)
        with pytest.raises(Refusal) as caught:
            prepare(data, **QUIET)
        assert caught.value.code == NO_FILE


def test_a_directory_of_something_else_is_not_written_over(tmp_path):
    (tmp_path / "a.txt").write_text(sentences(50))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    with pytest.raises(Refusal, match="is no token store"):
        prepare(Data(source=str(tmp_path / "a.txt"), tokenizer="bytes", store=str(tmp_path / "mine")), **QUIET)
    assert (tmp_path / "mine/thesis.txt").read_text() == "years of work"
    (tmp_path / "mine/thesis.txt").rename(tmp_path / "mine/train.bin")  # whatever its name
    with pytest.raises(Refusal, match="is no token store"):
        prepare(Data(source=str(tmp_path / "a.txt"), tokenizer="bytes", store=str(tmp_path / "mine")), **QUIET)
    assert (tmp_path / "mine/train.bin").read_text() == "years of work"


def test_a_store_left_half_made_is_made_again(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text(sentences(50))
    data = Data(source=str(tmp_path / "a.txt"), tokenizer="bytes", store=str(tmp_path / "store"))
    with monkeypatch.context() as patched:
        patched.setattr(preparing, "_write", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            prepare(data, **QUIET)
    assert prepare(data, **QUIET).manifest["train"]["documents"] == 1


def test_what_follows_of_a_long_document_stays_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LONGEST", 100)
    (tmp_path / "one.txt").write_text("".join(f"{i:09}\n" for i in range(100)))
    data = Data(source=str(tmp_path), validation_fraction=0.25, tokenizer="bytes")
    made = list(shards.divided(data, data.source, "data.source"))
    assert "".join(text for _, text in made) == (tmp_path / "one.txt").read_text()
    assert sum(len(text) for split, text in made if split == "validation") == 250
    for number in range(300):
        (tmp_path / f"{number}.txt").write_text(chr(0x4E00 + number) * 100)
    sides = {}
    for split, text in shards.divided(data, data.source, "data.source"):
        sides.setdefault("one" if "\n" in text else text[0], set()).add(split)
    assert len(sides) == 301
    assert all(len(found) == 1 for found in sides.values())


def test_many_copies_first_hide_nothing_that_follows(tmp_path):
    lines = ["the same header"] * 250 + [f"line {i}" for i in range(100)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    data = Data(source=str(tmp_path / "a.txt"), document="line", validation_fraction=0.3, tokenizer="bytes")
    manifest = prepare(data, **QUIET).manifest
    assert manifest["train"]["documents"] + manifest["validation"]["documents"] == 350


def test_text_that_cannot_be_used(tmp_path):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "short.txt").write_text("too short")
    for name, code, words in [
        ("empty.txt", BAD_DATA, "no document for train"),
        ("none.txt", NO_FILE, "no such text"),
        ("short.txt", BAD_DATA, "its rows need 128"),
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
            prepare(Data(**{"source": str(tmp_path / "a.txt"), "tokenizer": "bytes", **more}), **QUIET)


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
    made = prepare(Data(source=str(tmp_path), tokenizer="bytes"), **QUIET)
    assert made.manifest["validation"]["documents"] == 1
    assert made.manifest["train"]["documents"] == count - 1
    made = prepare(Data(source=str(tmp_path), tokenizer="bytes", validation_fraction=0.9), **QUIET)
    assert made.manifest["train"]["documents"] >= 1


def big(tmp_path, documents=300):
    """A file whose lines are documents."""
    lines = [f"{i}: {text}" for i, text in enumerate(sentences(documents).split("\n\n"))]
    (tmp_path / "big.txt").write_text("\n".join(lines))
    return {"source": str(tmp_path / "big.txt"), "document": "line", "tokenizer": "bytes"}


def content(store) -> dict:
    return {path.name: path.read_bytes() for path in store.iterdir() if path.is_file()}


def test_shards_by_several_processes_are_the_same_bytes(tmp_path, monkeypatch):
    settings = big(tmp_path)
    monkeypatch.setattr(shards, "SHARD", 2000)
    stores = [tmp_path / f"store{n}" for n in (1, 3)]
    for store, processes in zip(stores, (1, 3), strict=True):
        prepare(Data(**settings, store=str(store), processes=processes), **QUIET)
    assert content(stores[0]) == content(stores[1])
    manifest = json.loads((stores[0] / "manifest.json").read_text())
    assert len(manifest["sources"][0]["train"]["shards"]) > 5


def test_a_store_that_was_killed_goes_on_behind_the_last_whole_shard(tmp_path, monkeypatch):
    settings = big(tmp_path)
    monkeypatch.setattr(shards, "SHARD", 2000)
    prepare(Data(**settings, store=str(tmp_path / "whole"), processes=1), **QUIET)
    encoded = []
    encode = preparing.Pool.submit

    def submit(pool, shard):
        encoded.append(shard)
        if len(encoded) == 5:
            raise KeyboardInterrupt
        return encode(pool, shard)

    monkeypatch.setattr(preparing.Pool, "submit", submit)
    data = Data(**settings, store=str(tmp_path / "killed"), processes=1)
    with pytest.raises(KeyboardInterrupt):
        prepare(data, **QUIET)
    journal = tmp_path / "killed" / preparing.JOURNAL
    done = len(journal.read_text().splitlines()) - 2
    assert done >= 3
    with open(journal, "a") as file:
        file.write('{"source": 0, "te')  # a kill in the middle of a line,
    with open(tmp_path / "killed/0.train.bin", "ab") as file:
        file.write(b"xyz")  # and of a shard
    encoded[:] = [None] * 9
    prepare(data, **QUIET)
    total = len(json.loads((tmp_path / "whole/manifest.json").read_text())["sources"][0]["train"]["shards"])
    assert len(encoded) - 9 == total - done
    assert content(tmp_path / "killed") == content(tmp_path / "whole")


def test_text_that_shrank_at_the_border_of_a_shard_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "SHARD", 1000)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "growing.py").write_text("count = 300\ndef f():\n    return (f'{i:0100}' for i in range(count))")
    import growing

    data = Data(source="python:growing.f", tokenizer="bytes", store=str(tmp_path / "store"), processes=1)
    with monkeypatch.context() as stopped:
        stopped.setattr(preparing, "_total", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            prepare(data, **QUIET)
    growing.count = 250
    with pytest.raises(Refusal, match="changed while its store was made; start again"):
        prepare(data, **QUIET)
    assert prepare(data, **QUIET).manifest["train"]["documents"] < 250


def test_the_rest_of_a_document_that_is_skipped_is_a_document(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LONGEST", 50)
    for number in range(300):
        dirt = b"\xff" if number % 3 == 0 else b""
        (tmp_path / f"{number}.txt").write_bytes(dirt + chr(0x4E00 + number).encode() * 50)
    data = Data(source=str(tmp_path), dirt=Dirt(invalid_utf8="skip"), validation_fraction=0.3)
    sides = {}
    for split, text in shards.divided(data, data.source, "data.source"):
        sides.setdefault(text[0], set()).add(split)
    assert len(sides) == 300
    assert all(len(found) == 1 for found in sides.values())


def test_a_store_goes_on_only_with_the_same_text_and_settings(tmp_path, monkeypatch):
    settings = big(tmp_path)
    monkeypatch.setattr(shards, "SHARD", 2000)
    made, store = [], tmp_path / "store"

    def stopped(**more):
        monkeypatch.setattr(preparing, "_total", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            prepare(Data(**{**settings, **more}, store=str(store), processes=1), **QUIET)
        made.append((store / preparing.JOURNAL).read_text().splitlines())

    stopped()
    stopped(validation_fraction=0.3)
    assert made[0][0] != made[1][0]  # begun anew
    assert made[0][2] != made[1][2]


def test_a_named_store_needs_its_text_no_more(tmp_path):
    settings = big(tmp_path)
    data = Data(**settings, store=str(tmp_path / "store"))
    prepare(data, **QUIET)
    path = tmp_path / "big.txt"
    os.utime(path, ns=(1, 1))  # touched, but the same
    prepare(data, **QUIET)
    (tmp_path / "elsewhere").mkdir()
    moved = path.rename(tmp_path / "elsewhere/big.txt")
    prepare(data, **QUIET)  # cannot be reached
    prepare(Data(**{**settings, "source": str(moved)}, store=str(tmp_path / "store")), **QUIET)
    moved.write_text(moved.read_text() + "\nmore")
    with pytest.raises(Refusal, match="made with the text"):
        prepare(Data(**{**settings, "source": str(moved)}, store=str(tmp_path / "store")), **QUIET)


def test_a_named_store_needs_its_tokenizer_no_more(tmp_path):
    made = tokenizer.train([sentences(200)], 530)
    made.save(tmp_path)
    model = tmp_path / "spiece.model"
    data = Data(**{**big(tmp_path), "tokenizer": str(model), "add_specials": True}, store=str(tmp_path / "store"))
    prepare(data, **QUIET)
    content = model.read_bytes()
    model.unlink()
    prepare(data, **QUIET)
    model.write_bytes(content + b" ")
    with pytest.raises(Refusal, match="made with tokenizer"):
        prepare(data, **QUIET)


def test_dirt_stands_in_the_manifest_and_inspect_shows_it(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        "\n".join(json.dumps({"text": t}) for t in ("a", "b\ud800c", "", "\r\n", "d e f\r\n"))
    )
    data = Data(source=str(tmp_path / "a.jsonl"), tokenizer="bytes", store=str(tmp_path / "store"))
    manifest = prepare(data, **QUIET).manifest
    dirt = {"lone_surrogate": 1, "empty": 2, "carriage_return": 2, "one_token": 1}
    assert manifest["sources"][0]["dirt"] == dirt
    assert manifest["train"]["documents"] + manifest["validation"]["documents"] == 3
    out, _ = run("inspect", "--store", tmp_path / "store")
    for words in ("empty                          2 documents", "tokens a document", "most frequent: ", "'d e f"):
        assert words in out
    short = Data(source=str(tmp_path / "a.jsonl"), tokenizer="bytes", dirt=Dirt(one_token="skip"))
    manifest = prepare(short, **QUIET).manifest
    assert manifest["train"]["documents"] + manifest["validation"]["documents"] == 2
    with pytest.raises(Refusal, match=r"data.dirt.one_token"):
        prepare(Data(source=str(tmp_path / "a.jsonl"), tokenizer="bytes", dirt=Dirt(one_token="stop")), **QUIET)
    _, err = run("inspect", "--store", tmp_path, code=NO_FILE)
    assert "run prepare" in err


def two_sources(tmp_path) -> str:
    (tmp_path / "small.txt").write_text(sentences(100, seed=1))
    (tmp_path / "large.txt").write_text(sentences(900, seed=2))
    return f"{tmp_path}/small.txt + {tmp_path}/large.txt"


def test_sources_are_mixed_in_proportion_by_temperature_capped_or_as_given(tmp_path):
    source = two_sources(tmp_path)

    def rates(source=source, **more):
        data = Data(source=source, document="block", tokenizer="bytes", **more)
        made = prepare(data, **QUIET)
        sizes.append([len(s.tokens["train"]) for s in made.sources])
        return batches.source_rates(list(made.sources), data)

    sizes = []
    small, large = rates()
    assert small == pytest.approx(sizes[0][0] / sum(sizes[0]))
    assert rates(temperature=2.0)[0] == pytest.approx(1 / (1 + (sizes[0][1] / sizes[0][0]) ** 0.5))
    assert rates(cap=1000) == [0.5, 0.5]
    assert rates(cap=sizes[0][0] * 2) == pytest.approx([1 / 3, 2 / 3])
    assert rates(source="3 * " + source) == [0.75, 0.25]
    assert sizes == [sizes[0]] * 5
    assert large > small


def test_a_mixture_of_sources_trains_each_at_its_rate_and_the_ledger_shows_it(tmp_path, config_file):
    source = "3 * " + two_sources(tmp_path)
    path = config_file(**{"data.source": source})
    out, _ = run("inspect", f"--config={path}", "--examples=4")
    assert "75.0%" in out
    assert f"causal_lm on {tmp_path}/small.txt" in out
    assert out.count("── row") == 4
    config = load(str(path))
    made = batches.make(config, prepare(config.data, **QUIET), "train")
    numbers, _ = made.places(np.arange(400))
    assert np.bincount(numbers).tolist() == [300, 100]
    run("train", f"--config={path}", f"--workdir={tmp_path / 'run'}")


@pytest.mark.parametrize(
    ("source", "words"), [("x * a.txt", "got the rate 'x'"), ("0 * a.txt", "expected a number above 0")]
)
def test_rates_that_are_none_are_refused(source, words):
    with pytest.raises(Refusal, match=words):
        load("gpt_tiny", [f"data.source={source}"])


def test_the_order_of_sources_is_theirs(tmp_path):
    """Train and validation text exchanged, or sources named the other way round, are another store."""
    (tmp_path / "a.txt").write_text(sentences(50))
    (tmp_path / "b.txt").write_text(sentences(50, seed=1))
    a, b = str(tmp_path / "a.txt"), str(tmp_path / "b.txt")
    for one, other in (
        ({"source": a, "validation_source": b}, {"source": b, "validation_source": a}),
        ({"source": f"1 * {a} + 9 * {b}"}, {"source": f"9 * {b} + 1 * {a}"}),
    ):
        made = [prepare(Data(**settings, tokenizer="bytes"), **QUIET) for settings in (one, other)]
        first = [made[0].sources[0].tokens["train"], made[1].sources[1 if len(one) == 1 else 0].tokens["train"]]
        assert (np.array_equal(*first)) == (len(one) == 1)
    assert [(s.name, s.rate) for s in made[1].sources] == [(b, 9.0), (a, 1.0)]
    store = str(tmp_path / "store")
    prepare(Data(source=a, tokenizer="bytes", store=store), **QUIET)
    for source in (b, f"{a} + {b}", str(tmp_path / "typo.txt")):
        with pytest.raises(Refusal, match="made with the text"):
            prepare(Data(source=source, tokenizer="bytes", store=store), **QUIET)


def test_a_refusal_comes_back_from_another_process(tmp_path, monkeypatch):
    lines = ["some words"] * 400 + ["x"] + ["more words"] * 400
    (tmp_path / "a.txt").write_text("\n".join(lines))
    monkeypatch.setattr(shards, "SHARD", 2000)
    data = Data(source=str(tmp_path / "a.txt"), document="line", tokenizer="bytes", dirt=Dirt(one_token="stop"))
    with pytest.raises(Refusal, match=r"data.dirt.one_token") as caught:
        prepare(dataclasses.replace(data, processes=2), **QUIET)
    assert caught.value.code == BAD_DATA
