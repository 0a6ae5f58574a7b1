import hashlib
import json
import os
import re
from dataclasses import replace

import numpy as np
import pytest
from conftest import refusal, run, sentences

from t5x_lite.config import Data
from t5x_lite.config.files import load
from t5x_lite.data.rows.batches import make_batches, source_rates
from t5x_lite.data.store import corpus
from t5x_lite.data.store.prepare import prepare
from t5x_lite.errors import BAD_DATA, NO_FILE, UserError
from t5x_lite.resolve import plan


def test_changed_stores_are_refused_naming_what_changed(tmp_path):
    (tmp_path / "a.txt").write_text(sentences(50))
    data = Data(source=str(tmp_path / "a.txt"), tokenizer="bytes", store=str(tmp_path / "store"))
    store = prepare(data).path

    tokens = (store / "0.train.bin").read_bytes()
    for changed in (b"xx" + tokens[2:], tokens[:-2] + b"xx"):
        (store / "0.train.bin").write_bytes(changed)
        with pytest.raises(UserError, match=r"train.bin: changed since it was prepared"):
            corpus.open_store(store)
    for changed in (tokens[:-2], tokens + b"xx"):
        (store / "0.train.bin").write_bytes(changed)
        with pytest.raises(UserError, match=r"train.bin: has 2\d+ tokens, 2\d+ were prepared"):
            corpus.open_store(store)
    (store / "0.train.bin").write_bytes(tokens)

    manifest = json.loads((store / "manifest.json").read_text())
    (store / "manifest.json").write_text(json.dumps(manifest | {"tokenizer": "0" * 16}))
    with pytest.raises(UserError, match="tokens were made by tokenizer 0000"):
        corpus.open_store(store)
    settings = manifest["made_from"]
    for damaged in (
        "{",
        "[]",
        "{}",
        json.dumps(manifest | {"train": 5}),
        json.dumps(manifest | {"train": manifest["train"] | {"tokens": 5}}),
        json.dumps(manifest | {"dtype": "x"}),
        json.dumps(manifest | {"made_from": settings | {"tokenizer": None}}),
        json.dumps(manifest | {"made_from": settings | {"text": ["a"]}}),
    ):
        (store / "manifest.json").write_text(damaged)
        with pytest.raises(UserError) as caught:
            corpus.open_store(store)
        assert caught.value.code == NO_FILE


def test_what_was_found_right_is_not_read_again_until_it_is_written(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text(sentences(50))
    data = Data(source=str(tmp_path / "a.txt"), tokenizer="bytes", store=str(tmp_path / "store"))
    store = prepare(data).path
    read, sha256 = [], hashlib.sha256
    monkeypatch.setattr(corpus.hashlib, "sha256", lambda text: read.append(text) or sha256(text))

    def count() -> int:
        """The bytes of ids that opening it reads."""
        read.clear()
        corpus.open_store(store)
        return sum(text.nbytes for text in read if isinstance(text, memoryview))

    def replace(content):
        """Another file with the times of the one before, as `cp -p` and `rsync -t` leave it."""
        path = store / "0.train.bin"
        times = path.stat().st_atime_ns, path.stat().st_mtime_ns
        (tmp_path / "new").write_bytes(content)
        os.utime(tmp_path / "new", ns=times)
        os.replace(tmp_path / "new", path)

    size = sum(path.stat().st_size for path in store.glob("*.bin"))
    # Of what was written just now the next writing may have the same time.
    monkeypatch.setattr(corpus, "_SETTLED_AFTER", 1000)
    assert [count(), count()] == [size, size]
    monkeypatch.setattr(corpus, "_SETTLED_AFTER", -1)
    assert [count(), count()] == [size, 0]

    tokens = (store / "0.train.bin").read_bytes()
    bad = b"xx" + tokens[2:]
    for changed in (bad, tokens[:100] + b"xx" + tokens[102:]):
        replace(changed)
        with pytest.raises(UserError, match="changed since it was prepared"):
            corpus.open_store(store)
        replace(tokens)
        assert [count(), count()] == [size, 0]
    # It changes while it is looked at.
    check = corpus._check_hashes
    monkeypatch.setattr(corpus, "_check_hashes", lambda *args: (check(*args), replace(bad)))
    corpus.open_store(store, check_again=True)
    monkeypatch.setattr(corpus, "_check_hashes", check)
    with pytest.raises(UserError, match="changed since it was prepared"):
        corpus.open_store(store)
    # A disk that rots does so unnoticed, but for who asks.
    corpus._remember_verified(store, corpus._stamps(store))
    assert count() == 0
    _, err = run("inspect", f"--store={store}", code=65)
    assert "changed since it was prepared" in err
    # Without a cache it is read each time; files that are not the store's are none of its business.
    replace(tokens)
    (store / "x.bin").symlink_to("nowhere")
    monkeypatch.setenv("T5X_LITE_CACHE", "/proc/nowhere")
    assert [count(), count()] == [size, size]
    monkeypatch.delenv("T5X_LITE_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(corpus.Path, "home", no_home)
    assert [count(), count()] == [size, size]


def no_home():
    raise RuntimeError("Could not determine home directory.")


def test_a_directory_without_a_store_is_refused_saying_what_to_run(tmp_path):
    with pytest.raises(UserError, match="run prepare") as caught:
        corpus.open_store(tmp_path)
    assert caught.value.code == NO_FILE


def test_the_cache_is_private_and_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("T5X_LITE_CACHE", str(tmp_path / "mine"))
    assert corpus.cache_directory() == tmp_path / "mine"
    monkeypatch.delenv("T5X_LITE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert corpus.cache_directory() == tmp_path / "t5x_lite"
    assert os.stat(tmp_path / "t5x_lite").st_mode & 0o777 == 0o700


# Several sources.


def two_sources(tmp_path) -> str:
    (tmp_path / "small.txt").write_text(sentences(100, seed=1))
    (tmp_path / "large.txt").write_text(sentences(900, seed=2))
    return f"{tmp_path}/small.txt + {tmp_path}/large.txt"


def test_the_tokens_of_several_sources_follow_each_other(tmp_path):
    data = Data(source=two_sources(tmp_path), document="block", tokenizer="bytes")
    store = prepare(data)
    small, large = store.sources
    for split in corpus.SPLITS:
        joined = [*small.tokens[split], *large.tokens[split]]
        assert store.tokens(split).tolist() == joined
        assert store.manifest[split]["tokens"] == len(joined)


def test_sources_are_mixed_in_proportion_by_temperature_capped_or_as_given(tmp_path):
    source = two_sources(tmp_path)
    sizes = []

    def rates(source=source, **more):
        data = Data(source=source, document="block", tokenizer="bytes", **more)
        store = prepare(data)
        sizes.append([len(source.tokens["train"]) for source in store.sources])
        return source_rates(list(store.sources), data)

    small, large = rates()
    assert small == pytest.approx(sizes[0][0] / sum(sizes[0]))
    assert large > small
    ratio = sizes[0][1] / sizes[0][0]
    assert rates(temperature=2.0)[0] == pytest.approx(1 / (1 + ratio**0.5))
    assert rates(cap=1000) == [0.5, 0.5]
    assert rates(cap=sizes[0][0] * 2) == pytest.approx([1 / 3, 2 / 3])
    assert rates(source="3 * " + source) == [0.75, 0.25]
    assert sizes == [sizes[0]] * 5


def test_a_mixture_of_sources_reads_each_at_its_rate(tmp_path, config_file):
    path = config_file(**{"data.source": "3 * " + two_sources(tmp_path)})
    config = load(str(path))
    store = prepare(config.data)
    batches = make_batches(plan(config), config.data, config.seed, store, "train")
    streams, _ = batches.locate(np.arange(400))
    assert np.bincount(streams).tolist() == [300, 100]


def test_a_mixture_of_sources_trains_and_the_ledger_shows_it(tmp_path, config_file):
    path = config_file(**{"data.source": "3 * " + two_sources(tmp_path)})
    out, _ = run("inspect", f"--config={path}", "--examples=4")
    assert "75.0%" in out
    assert f"causal_lm on {tmp_path}/small.txt" in out
    assert out.count("── row") == 4
    run("train", f"--config={path}", f"--workdir={tmp_path / 'run'}")


@pytest.mark.parametrize(
    ("source", "words"),
    [("x * a.txt", "got the rate 'x'"), ("0 * a.txt", "expected a number above 0")],
)
def test_bad_rates_are_refused(source, words):
    with pytest.raises(UserError, match=words):
        load("gpt_tiny", [f"data.source={source}"])


@pytest.mark.parametrize(
    ("sources", "unique"), [("one", 1), ("one", 999), ("two", 50), ("two", 999), ("two", 4000)]
)
def test_only_the_first_of_the_text_is_trained_on(tmp_path, sources, unique):
    source = two_sources(tmp_path)
    if sources == "one":
        source = source.split(" + ")[1]
    data = Data(source=source, document="block", tokenizer="bytes")
    whole, part = prepare(data), prepare(replace(data, unique_tokens=unique))
    assert part.path == whole.path
    assert part.manifest["validation"] == whole.manifest["validation"]

    assert part.manifest["train"]["tokens"] == unique
    sizes = np.array([len(source.tokens["train"]) for source in whole.sources])
    kept = np.array([len(source.tokens["train"]) for source in part.sources])
    assert kept.sum() == unique
    np.testing.assert_allclose(kept, unique * sizes / sizes.sum(), atol=1)
    for before, after, length in zip(whole.sources, part.sources, kept, strict=True):
        # It ends in EOS, since it begins again after that.
        expected = [*before.tokens["train"][: length - 1], whole.tokenizer.vocabulary.eos]
        assert after.tokens["train"].tolist() == expected

    # Another part is another text, which a run does not go on with.
    hashes = {prepare(replace(data, unique_tokens=n)).manifest["train"]["sha256"] for n in (0, 998)}
    assert part.manifest["train"]["sha256"] not in hashes
    if sources == "two":
        words = "data.unique_tokens: got 1, of which .*small.txt has no share"
        assert re.match(words, refusal(prepare, replace(data, unique_tokens=1), code=BAD_DATA))
    size = whole.manifest["train"]["tokens"]
    expected = f"unique_tokens: got {size + 1:,}, but the training text has {size:,} tokens"
    assert expected in refusal(prepare, replace(data, unique_tokens=size + 1), code=BAD_DATA)


@pytest.mark.parametrize(
    ("objective", "architecture"),
    [  # every kind of windows, and what reads more than its window
        ("causal_lm", "decoder"),
        ("masked_lm(static=True)", "encoder"),
        ("masked_lm(second='next')", "encoder"),
        ("prefix_lm", "encoder_decoder"),
        ("ul2", "encoder_decoder"),
        ("causal_lm + span_corruption + fill_in_the_middle", "decoder"),
    ],
)
def test_no_objective_reads_more_than_the_unique_tokens(tmp_path, make, objective, architecture):
    # The first documents are words, the others numbers.
    path, held_out = tmp_path / "text.txt", tmp_path / "held_out.txt"
    words = sentences(40)
    path.write_text(f"{words}\n\n" + "\n\n".join(map(str, range(3000))))
    held_out.write_text(sentences(40))
    more = {"data.source": str(path), "data.validation_source": str(held_out)}
    resolved, corpus = make(
        objective, architecture, **more, **{"data.unique_tokens": len(words) // 2}
    )
    batches = make_batches(resolved.rows, resolved.config.data, 0, corpus, "train")
    rows = 4 * batches.streams[0].rows(1)
    for stream in batches.streams:
        read = {*np.concatenate(stream.read(range(rows))).tolist()}
        known = {*stream.windows.tokens.tolist()}
        assert read == known
        assert not known & {*corpus.tokenizer.encode("0123456789").tolist()}
        assert len(stream.documents.tokens) == len(words) // 2
        assert stream.epochs(rows) == pytest.approx(4, rel=0.2)
