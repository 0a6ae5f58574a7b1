import dataclasses
import hashlib
import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest
from conftest import ALL_CELLS, CELLS, ROOT, run
from hypothesis import given
from hypothesis import strategies as st
from test_objectives import SPECS

from t5x_lite.data import batches
from t5x_lite.data.draws import Draws
from t5x_lite.data.objectives import parse
from t5x_lite.data.windows import Successive, permute
from t5x_lite.errors import Refusal
from t5x_lite.training.loop import Run, prefetch


@given(st.integers(1, 5000), st.integers(0, 2**100))
def test_permute_is_a_permutation(size, key):
    assert (np.sort(permute(np.arange(size), size, key)) == np.arange(size)).all()


def test_permute_takes_no_memory_and_mixes_well():
    size = 10**11
    index = np.arange(0, size, size // 1000)
    sent = permute(index, size, 1)
    assert 0 <= sent.min() <= sent.max() < size
    assert abs(sent.mean() / size - 0.5) < 3 / np.sqrt(12 * len(index))
    assert abs(np.corrcoef(index, sent)[0, 1]) < 0.1
    keys = [permute(np.arange(1000), 1000, key) for key in range(200)]
    assert abs(np.mean([k[0] for k in keys]) - 500) < 3 * 289 / np.sqrt(200)


@pytest.mark.parametrize(("objective", "architecture"), ALL_CELLS)
@pytest.mark.parametrize("split_documents", [False, True])
def test_any_rows_of_any_batch_alone(make, objective, architecture, split_documents):
    if split_documents and "second" in objective:
        pytest.skip("sentence pairs are rows of one pair")
    made = batches.make(*make(objective, architecture, **{"data.split_documents": split_documents}), "train")
    for step in (0, 3, 10_000):
        whole = made.batch_at(step)
        part = made.batch_at(step, [5, 2])
        for key, value in whole.items():
            assert (value[[5, 2]] == part[key]).all()
            assert value.dtype == part[key].dtype


@pytest.mark.parametrize(("objective", "architecture"), CELLS)
def test_padding(make, objective, architecture):
    """None for the objectives whose lengths are known; stated for the others by the ledger."""
    padding = batches.ledger(batches.make(*make(objective, architecture), "train"))["padding"]
    exact = objective in ("causal_lm", "masked_lm", "span_corruption") or objective.startswith("prefix_lm")
    if exact and not (architecture == "encoder_decoder" and objective != "span_corruption"):
        # a row whose length no window fills exactly keeps what is left over
        made = batches.make(*make(objective, architecture), "train")
        (stream,) = made.streams
        bound = stream.objective.bound(stream.window)
        used = bound.both if architecture != "encoder_decoder" else bound.inputs + bound.targets
        slots = made.shape.encoder + made.shape.decoder
        assert padding == pytest.approx(1 - used / slots)
    else:
        assert 0 <= padding < 0.5


def test_no_padding_where_the_lengths_fit(make):
    for objective, architecture, lengths in [
        ("causal_lm", "decoder", {"row": 128}),
        ("masked_lm", "encoder", {"row": 130}),
        ("span_corruption", "encoder_decoder", {"inputs": 512, "targets": 114}),
        ("span_corruption", "encoder_decoder", {"inputs": 116, "targets": 26}),
        ("prefix_lm", "encoder_decoder", {"inputs": 64, "targets": 64}),
        ("prefix_lm", "prefix_decoder", {"row": 128}),
    ]:
        row = batches.ledger(batches.make(*make(objective, architecture, **{"data.lengths": lengths}), "train"))
        assert row["padding"] == 0


def test_every_objective_has_read_the_same_text(make):
    """At equal raw tokens, in the same blocks, whatever the window: here 40 against 34 − 2 and their joint multiple."""
    read = {}
    for objective, architecture in (("causal_lm", "decoder"), ("masked_lm", "encoder"), ("span_corruption", "decoder")):
        (made,) = batches.make(*make(objective, architecture, **{"data.block": 50}), "train").streams
        several = round(2.5 * len(made.windows.tokens))  # over the borders of epochs too
        read[objective] = np.concatenate(made.raw(range(-(-several // made.window))))[:several]
    assert (read["causal_lm"] == read["masked_lm"]).all()
    assert (read["causal_lm"] == read["span_corruption"]).all()
    mixed = batches.make(*make("3 * prefix_lm + 2 * iid_denoising", "decoder", **{"data.block": 50}), "train")
    numbers, inner = mixed.places(np.arange(several // min(stream.window for stream in mixed.streams)))
    windows = [mixed.streams[n].raw([i])[0] for n, i in zip(numbers.tolist(), inner.tolist(), strict=True)]
    assert {len(window) for window in windows} == {stream.window for stream in mixed.streams}
    assert (np.concatenate(windows)[:several] == read["causal_lm"]).all()


@pytest.mark.parametrize("block", [0, 7, 64, 1000])
def test_an_epoch_reads_every_token_once(make, block):
    windows = batches.make(*make(**{"data.block": block}), "train").streams[0].windows
    order = dataclasses.replace(windows.order, tokens=np.arange(len(windows.tokens)), end=None)
    assert order.epoch > len(order.tokens) - order.block
    one, other = order.read(np.array([0, order.epoch]), order.epoch)
    assert len(set(one.tolist())) == len(set(other.tolist())) == order.epoch
    assert (one != other).any()


def _of_places(stream):
    """The stream on a text whose tokens are their own places."""
    order = stream.windows.order
    order = dataclasses.replace(order, tokens=np.arange(len(order.tokens)))
    return dataclasses.replace(stream, windows=dataclasses.replace(stream.windows, order=order))


@pytest.mark.parametrize(
    ("objective", "more"),
    [
        ("causal_lm", {}),
        ("causal_lm", {"data.block": 30}),
        ("causal_lm", {"data.block": 7}),
        ("3 * causal_lm + span_corruption", {}),
    ],
)
def test_no_piece_holds_two_documents(tmp_path, make, objective, more):
    """Each document is one letter, over and over: a piece with two letters would have met another document."""
    path = tmp_path / "letters.txt"
    path.write_text("\n\n".join(chr(97 + i % 26) * (40 + i % 23) for i in range(400)))
    more = {"data.split_documents": True, "data.source": str(path), "data.validation_fraction": 0.01} | more
    made = batches.make(*make(objective, "decoder", **more), "train")
    for stream in made.streams:
        for pieces in stream.pieces(range(300)):
            assert all(len({*piece.tolist()} - {stream.vocabulary.eos}) <= 1 for piece in pieces)
        for window in stream.raw(range(300)):
            changes = np.flatnonzero(np.diff(window.astype(int)) & (window[:-1] != stream.vocabulary.eos)) + 1
            assert (window[changes] == stream.vocabulary.eos).all()


def test_rows_of_one_batch_come_from_far_apart(make):
    (made,) = batches.make(*make(), "train").streams
    made = _of_places(made)
    starts = np.sort([window[0] for window in made.raw(range(64))])
    assert np.median(np.diff(starts)) > made.window


@pytest.mark.parametrize(("objective", "architecture"), CELLS)
def test_validation_reads_the_whole_split_in_order(make, objective, architecture):
    config, corpus = make(objective, architecture)
    made = batches.make(config, corpus, "validation")
    (stream,) = made.streams
    rows = stream.rows(1)
    read = np.concatenate(stream.raw(range(rows)))
    assert len(corpus.tokens["validation"]) - len(read) < stream.objective.least
    assert (read == corpus.tokens["validation"][: len(read)]).all()
    last = made.batch_at(made.batches - 1)
    past = made.batches * made.batch_size - rows
    weights = next(value for key, value in last.items() if key.endswith("_weights"))
    assert (weights.sum(1) > 0).sum() == made.batch_size - past


@pytest.mark.parametrize(("objective", "architecture"), CELLS)
def test_documents_are_segments_of_their_own(make, objective, architecture):
    (made,) = batches.make(*make(objective, architecture, **{"data.split_documents": True}), "train").streams
    pairs, row_of = made.pairs(range(20))
    assert (np.diff(row_of) >= 0).all()
    assert set(row_of) == set(range(20))
    for pair in pairs.each():
        ids = np.append(pair.inputs, pair.targets) if pair.scored is None else pair.inputs
        extra = 2 if "corruption" in objective or "denoising" in objective else 0
        assert (ids == made.vocabulary.eos).sum() <= 1 + extra


@pytest.mark.parametrize(("objective", "architecture"), CELLS)
def test_split_documents_fill_rows_and_what_is_left_out_is_counted(make, objective, architecture):
    made = batches.make(*make(objective, architecture, **{"data.split_documents": True}), "train")
    (stream,), left = made.streams, 0
    for window, pieces in zip(stream.raw(range(64)), stream.pieces(range(64)), strict=True):
        assert all((piece[:-1] != stream.vocabulary.eos).all() for piece in pieces)
        kept = iter(window.tolist())
        assert all(token in kept for piece in pieces for token in piece.tolist())  # in order, none twice
        left += len(window) - sum(map(len, pieces))
    assert batches.ledger(made)["left_out"] == pytest.approx(left / 64 / stream.window)
    assert (left == 0) == (objective.partition("(")[0] in ("causal_lm", "prefix_lm"))  # others add EOS and sentinels


@pytest.mark.parametrize("objective", ["prefix_lm(score_prefix=True)", "fill_in_the_middle"])
def test_pieces_too_short_are_scored_in_no_company(make, objective):
    made = batches.make(*make(objective, "decoder", **{"data.split_documents": True}), "train")
    (stream,) = made.streams
    eos, window = stream.vocabulary.eos, stream.window
    tokens = np.array([eos] * window + ([97] * 9 + [eos]) * window)  # a window of empty documents, then others
    stream = dataclasses.replace(stream, windows=Successive(tokens, window, 1))
    made = dataclasses.replace(made, streams=(stream,))
    alone, together = made.rows([0]), made.rows(range(5))
    assert alone["decoder_weights"].sum() == 0
    assert together["decoder_weights"][1:].sum() > 0
    assert all((alone[key][0] == together[key][0]).all() for key in alone)


def test_too_few_sentinels_are_refused_with_the_number_needed(make):
    lengths = {"inputs": 2400, "targets": 800}
    with pytest.raises(Refusal, match=r"can need \d{3} sentinels, the tokenizer has 256"):
        batches.make(*make("iid_denoising", "encoder_decoder", **{"data.lengths": lengths}), "train")


def test_an_objective_that_asks_nothing_is_refused(make, tmp_path):
    path = tmp_path / "small.txt"
    path.write_text("\n\n".join("nothing has a name" + " or a number" * count for count in range(100)))
    with pytest.raises(Refusal, match="asks nothing of the first rows"):
        Run(*make("masked_lm(choice='salient')", "encoder", **{"data.source": str(path)}))


def test_too_short_rows_are_refused(make):
    with pytest.raises(Refusal, match="too short for any window"):
        batches.make(
            *make("span_corruption", "encoder_decoder", **{"data.lengths": {"inputs": 2, "targets": 2}}), "train"
        )


def test_text_too_short_for_its_blocks_is_refused(make):
    config, corpus = make(**{"data.block": 30})
    source = dataclasses.replace(corpus.sources[0], tokens={"train": corpus.tokens["train"][:59]})
    with pytest.raises(Refusal, match="train has 59 tokens, its rows need 60"):
        batches.make(config, dataclasses.replace(corpus, sources=(source,)), "train")


@given(st.lists(st.floats(0.01, 10), min_size=2, max_size=9))
def test_a_mixture_meets_its_rates_everywhere(rates):
    pattern = batches.quotas(rates)
    shares = np.bincount(pattern, minlength=len(rates)) / len(pattern)
    assert np.abs(shares - np.array(rates) / sum(rates)).max() <= len(rates) / len(pattern)
    upto = np.cumsum(pattern[:, None] == np.arange(len(rates)), axis=0)
    assert np.abs(upto - shares * np.arange(1, len(pattern) + 1)[:, None]).max() < 2 + len(rates) / 2  # evenly spread


def test_a_rare_member_is_as_rare_as_it_is_meant_to_be():
    assert np.bincount(batches.quotas([1, 4999])).tolist() == [20, 99_980]


def test_the_streams_of_a_mixture_go_on_where_they_were(make):
    made = batches.make(*make("3 * causal_lm + 2 * prefix_lm", "decoder"), "train")
    numbers, inner = made.places(np.arange(5000))
    assert np.bincount(numbers).tolist() == [3000, 2000]
    for number in (0, 1):
        assert (inner[numbers == number] == np.arange((numbers == number).sum())).all()
        assert np.abs(np.flatnonzero(numbers == number)[:600] / np.arange(1, 601) - [5 / 3, 5 / 2][number]).max() < 3
    again = made.places(np.arange(4000, 4100))
    assert (again[0] == numbers[4000:4100]).all()
    assert (again[1] == inner[4000:4100]).all()


@given(st.integers(1, 3), st.integers(1, 9))
def test_epochs_end_before_any_text_is_read_once_more(make, epochs, size):
    made = batches.make(*make("3 * causal_lm + 2 * iid_denoising", "decoder"), "train")
    made = dataclasses.replace(made, batch_size=size)
    steps = made.steps_of(epochs)
    numbers, _ = made.places(np.arange((steps + 1) * size))
    read = np.cumsum([made.streams[number].window for number in numbers])
    epoch = made.streams[0].windows.order.epoch
    assert read[steps * size - 1] <= epochs * epoch < read[-1]


def test_a_run_ends_with_its_epochs_at_the_same_step_on_all_hosts(make, tmp_path, config_file):
    made = batches.make(*make(), "train")
    path = config_file(**{"data.epochs": 1, "training.steps": 10_000, "training.log_every": 1000})
    steps = made.streams[0].rows(1) // made.batch_size
    for name, start in (("alone", ["-m", "t5x_lite"]), ("together", ["launch/local", "2"])):
        workdir = tmp_path / name
        command = [sys.executable, *start, "train", f"--config={path}", f"--workdir={workdir}"]
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        assert f"step {steps}/{steps} train" in done.stdout
        assert (workdir / "checkpoints" / str(steps)).exists()
    config, corpus = make(**{"data.epochs": 1, "data.batch_size": 100_000})
    with pytest.raises(Refusal, match=r"data.epochs=1 has \d+ rows, a batch 100000"):
        batches.last_step(config, batches.make(config, corpus, "train"))


def test_validation_of_a_mixture_reads_the_split_once_a_stream(make):
    made = batches.make(*make("causal_lm + prefix_lm", "decoder"), "validation")
    numbers, inner = made.places(np.arange(made.batches * made.batch_size))
    for number, stream in enumerate(made.streams):
        assert inner[(numbers == number) & (inner >= 0)].tolist() == list(range(stream.rows(1)))
    assert 0 <= (inner < 0).sum() < made.batch_size
    last = made.batch_at(made.batches - 1)
    assert (last["decoder_segments"].any(1) == (inner[-made.batch_size :] >= 0)).all()


def test_static_masks_are_the_same_every_epoch_and_others_are_not(make):
    def seen(option):
        (made,) = batches.make(*make(f"masked_lm(static={option})", "encoder"), "train").streams
        rows = made.rows(1)
        return [{p.inputs.tobytes() for p in made.pairs(range(e * rows, (e + 1) * rows))[0].each()} for e in (0, 1)]

    first, second = seen(True)
    assert first == second
    first, second = seen(False)
    assert not first & second


def test_the_other_sentence_comes_from_far_away(make):
    (made,) = batches.make(*make("masked_lm(second='next')", "encoder"), "train").streams
    rows = np.arange(made.rows(1))
    pairs, _ = made.pairs(rows)
    assert 0.4 < pairs.labels.mean() < 0.6
    everywhere = _of_places(made)
    own, other = np.stack(everywhere.raw(rows)), everywhere.windows.others(rows)
    assert (np.abs(own - other).min(1) > made.window).mean() > 0.98
    assert np.bincount(other.reshape(-1)).max() <= 2  # it is the other one once, or near enough
    for one, another in zip(own, other, strict=True):
        assert not set(one.tolist()) & set(another.tolist())


def test_random_numbers_of_pieces_of_other_lengths_are_others():
    words = [Draws(0, 0, [index]).words(n).reshape(-1) for index in range(8) for n in range(1, 30)]
    words += [Draws(0, 0, [3], piece).words(7).reshape(-1) for piece in (1, 2)]
    together = np.concatenate(words)
    assert len(np.unique(together)) == len(together)


def test_validation_rows_of_two_streams_draw_other_numbers(make):
    made = batches.make(*make("masked_lm + masked_lm(noise_density=0.15)", "encoder"), "validation")
    half = made.streams[0].rows(1)
    rows = made.rows(range(half)), made.rows(range(half, 2 * half))
    assert (rows[0]["encoder_scored"] != rows[1]["encoder_scored"]).any(1).mean() > 0.9


def test_other_sentences_need_two_windows_and_do_not_mix_with_none(make):
    config, corpus = make("masked_lm(second='next')", "encoder")
    source = dataclasses.replace(corpus.sources[0], tokens={s: t[:50] for s, t in corpus.sources[0].tokens.items()})
    for split, least in (("train", 124), ("validation", 62)):
        with pytest.raises(Refusal, match=f"{split} has 50 tokens, its rows need {least}"):
            batches.make(config, dataclasses.replace(corpus, sources=(source,)), split)
    with pytest.raises(Refusal, match="do not mix"):
        batches.make(*make("masked_lm + masked_lm(second='order')", "encoder"), "train")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"data.split_documents": True}, "data.split_documents: a row is one pair"),
        ({"model.token_types": 1}, "model.token_types: got 1"),
        ({"model.classes": 1}, "model.classes: got 1"),
    ],
)
def test_what_contradicts_sentence_pairs_is_refused(make, settings, words):
    with pytest.raises(Refusal, match=words):
        batches.make(*make("masked_lm(second='order')", "encoder", **settings), "train")


@given(st.sampled_from(SPECS), st.integers(2, 5000))
def test_bounds_grow_with_the_window(spec, n):
    """What finding the largest window that fits by bisection rests on."""
    assert all(a <= b for a, b in zip(parse(spec).bound(n), parse(spec).bound(n + 1), strict=True))


def digests(batch: dict) -> list[str]:
    """The SHA-256 of each row."""
    rows = len(next(iter(batch.values())))
    return [hashlib.sha256(b"".join(batch[key][r].tobytes() for key in sorted(batch))).hexdigest() for r in range(rows)]


PLACED = """
import hashlib, json, os, sys
sys.path.insert(0, "tests")
import jax
number, count, port = map(int, sys.argv[1:4])
if count > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", count, number)
import numpy as np
from pathlib import Path
from conftest import settings
from t5x_lite.config import RunConfig
from t5x_lite.data import batches
from t5x_lite.data.prepare import prepare
from t5x_lite.settings import build
from t5x_lite.training import sharding
config = build(RunConfig, settings(Path(sys.argv[4]), "ul2", "encoder_decoder", **{"mesh.tensor": 2}))
made = batches.make(config, prepare(config.data, say=lambda _: None), "train")
mesh = sharding.make_mesh(config)
assert mesh.size == 4
for step in (0, 777):
    placed = sharding.place(lambda rows: made.batch_at(step, rows), made.batch_size, mesh)
    found = {}
    for key in sorted(placed):
        for shard in placed[key].addressable_shards:
            for row, value in zip(range(*shard.index[0].indices(made.batch_size)), np.asarray(shard.data)):
                found.setdefault(row, {})[key] = value.tobytes()
    rows = {row: hashlib.sha256(b"".join(found[row][key] for key in sorted(placed))).hexdigest() for row in found}
    print(json.dumps(rows), flush=True)
"""


def test_the_global_batch_is_the_same_for_one_two_and_four_processes(make, text_file):
    """Over a mesh of data 2 × tensor 2, whose tensor axis spans processes when there are four."""
    made = batches.make(*make("ul2", "encoder_decoder"), "train")
    expected = [dict(enumerate(digests(made.batch_at(step)))) for step in (0, 777)]
    for count in (1, 2, 4):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        env = {**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count={4 // count}"}
        commands = [[sys.executable, "-c", PLACED, *map(str, (i, count, port, text_file))] for i in range(count)]
        processes = [subprocess.Popen(c, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) for c in commands]
        rows = [{}, {}]
        for process in processes:
            out, _ = process.communicate(timeout=300)
            assert process.returncode == 0
            for at, line in enumerate(out.splitlines()):
                rows[at] |= {int(row): digest for row, digest in json.loads(line).items()}
        assert rows == expected


@pytest.mark.parametrize("workers", range(5))
def test_workers_and_restarts_change_nothing(make, workers):
    made = batches.make(*make("span_corruption", "encoder_decoder"), "train")
    expected = [digests(made.batch_at(step)) for step in range(12)]
    assert [digests(batch) for batch in prefetch(made.batch_at, 0, 12, workers)] == expected
    assert [digests(batch) for batch in prefetch(made.batch_at, 7, 12, workers)] == expected[7:]


def test_data_never_imports_jax():
    code = """
import sys
from t5x_lite.data import batches, corpus, layouts, objectives, sources, tokenizer
from t5x_lite import inspection
assert "jax" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_inspect_shows_every_cell(config_file):
    for objective, architecture in CELLS[::4]:
        for split in (False, True):
            path = config_file(objective, architecture, **{"data.split_documents": split})
            out, _ = run("inspect", f"--config={path}", "--examples=2")
            assert "ledger" in out
