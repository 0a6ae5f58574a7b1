"""Batches are a pure function of the step, on any number of hosts and workers; mixtures keep their
rates, epochs end where the text does.
"""

import dataclasses
import hashlib
import json
import socket
import subprocess
import sys

import numpy as np
import pytest
from conftest import ALL_CELLS, CELLS, ROOT, run, with_devices
from hypothesis import given
from hypothesis import strategies as st

from t5x_lite.config.permission import allow, permission
from t5x_lite.data.objectives.mixture import parse_objective
from t5x_lite.data.objectives.pairs import Pairs
from t5x_lite.data.ragged import Ragged
from t5x_lite.data.rng import Purpose, RowRng, philox_key
from t5x_lite.data.rows.batches import ledger, make_batches, mixture_pattern, source_rates
from t5x_lite.data.rows.layouts import lay_out
from t5x_lite.errors import UserError
from t5x_lite.resolve import text_data
from t5x_lite.training.loop import Run, prefetch

SPLIT = {"data.split_documents": True}
ONE = np.zeros(1, np.int64)  # the pattern of a single stream

# A batch is a pure function of the step.


@pytest.mark.parametrize(("objective", "architecture"), ALL_CELLS)
@pytest.mark.parametrize("split_documents", [False, True])
def test_any_rows_of_any_batch_alone(batches_of, objective, architecture, split_documents):
    if split_documents and "second" in objective:
        pytest.skip("sentence pairs are rows of one pair")
    batches = batches_of(objective, architecture, **{"data.split_documents": split_documents})
    for step in (0, 3, 10_000):
        whole = batches.batch_at(step)
        part = batches.batch_at(step, [5, 2])
        for key, value in whole.items():
            assert (value[[5, 2]] == part[key]).all()
            assert value.dtype == part[key].dtype


# A row is what its pieces of text are alone.


def pairs_of_pieces(stream, index: int) -> list[Pairs]:
    """The pairs of a row, the objective given one piece of text at a time."""
    objective, (window,) = stream.objective, stream.read([index])
    window_ids = stream.windows.window_ids(np.array([index]))
    purpose = Purpose.TRAINING_ROWS if stream.endless else Purpose.VALIDATION_ROWS
    key = philox_key(stream.seed, purpose, stream.number)
    found = []
    for number, piece in enumerate(stream._pieces(window)):
        tokens = piece[None]
        if len(piece) < objective.traits.min_tokens:  # read, and not scored
            found.append(Pairs(Ragged.from_array(tokens), Ragged.empty(1), weights=Ragged.empty(1)))
            continue
        if objective.traits.windows_per_row == 2:
            tokens = np.stack([tokens, stream._elsewhere(tokens, window_ids)], 1)
        found += objective(tokens, RowRng(key, window_ids, [number]), stream.vocabulary)
    return found


def segment(row: dict, number: int) -> dict:
    """What a row has of one of its segments, positions counted from the segment's start."""
    found = {}
    for stack in ("encoder", "decoder"):
        if f"{stack}_segments" not in row:
            continue
        is_here = row[f"{stack}_segments"] == number
        for key, value in row.items():
            if key.startswith(stack) and value.shape == is_here.shape:
                found[key] = value[is_here]
        del found[f"{stack}_segments"]
    if "encoder_scored" in row:
        start = int(np.argmax(row["encoder_segments"] == number))
        place = row["encoder_scored"] - start
        is_here = (
            (place >= 0) & (place < len(found["encoder_tokens"])) & (row["encoder_weights"] > 0)
        )
        for key in ("encoder_targets", "encoder_weights"):
            found[key] = row[key][is_here]
        found["encoder_scored"] = place[is_here]
    return found


@pytest.mark.parametrize("split_documents", [False, True])
@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize(("objective", "architecture"), ALL_CELLS)
def test_a_row_is_what_its_pieces_are_alone(
    batches_of, objective, architecture, split, split_documents
):
    """In any batch; the last row of validation may be shorter than the others."""
    if split_documents and "second" in objective:
        pytest.skip("sentence pairs are rows of one pair")
    more = {"data.split_documents": split_documents}
    batches = batches_of(objective, architecture, split=split, **more)
    last = 1000 if batches.endless else sum(stream.rows(1) for stream in batches.streams)
    indices = [*range(0, 10, 2), last - 2, last - 1]
    together = batches.rows(indices)
    numbers, places = batches.locate(np.array(indices))
    for at, (index, number, place) in enumerate(zip(indices, numbers, places, strict=True)):
        row, alone = {key: value[at] for key, value in together.items()}, batches.rows([index])
        assert row.keys() == alone.keys()
        for key, value in row.items():
            assert value.tobytes() == alone[key][0].tobytes(), key

        stream = batches.streams[number]
        for of_piece, pairs in enumerate(pairs_of_pieces(stream, place), 1):
            if pairs.scored is None and batches.shape.scored:
                pairs = dataclasses.replace(pairs, scored=Ragged.empty(1))
            piece = lay_out(pairs, batches.shape, stream.vocabulary)
            expected = segment({key: value[0] for key, value in piece.items()}, 1)
            found = segment(row, of_piece)
            assert found.keys() == expected.keys()
            for key, value in expected.items():
                np.testing.assert_array_equal(found[key], value, err_msg=key)


@pytest.mark.parametrize("split", ["train", "validation"])
def test_masked_next_token_reads_masks_where_documents_are_split(batches_of, split):
    batches = batches_of("masked_next_token(mask_rate=1)", "decoder", split=split, **SPLIT)
    rows = batches.rows(range(20))
    hidden = rows["decoder_weights"][:, :-1] > 0  # a token is read one position after its target
    hidden &= rows["decoder_segments"][:, 1:] == rows["decoder_segments"][:, :-1]
    masked = rows["decoder_tokens"][:, 1:] == batches.streams[0].vocabulary["[MASK]"]
    assert (hidden == masked).all()
    assert hidden.sum() > 50


def row_hashes(batch: dict) -> list[str]:
    """The SHA-256 of each row."""
    rows = len(next(iter(batch.values())))
    contents = [b"".join(batch[key][row].tobytes() for key in sorted(batch)) for row in range(rows)]
    return [hashlib.sha256(content).hexdigest() for content in contents]


@pytest.mark.parametrize("workers", range(5))
def test_workers_and_restarts_change_nothing(batches_of, workers):
    batch_at = batches_of("span_corruption", "encoder_decoder").batch_at
    expected = [row_hashes(batch_at(step)) for step in range(12)]
    assert [row_hashes(batch) for batch in prefetch(batch_at, 0, 12, workers)] == expected
    assert [row_hashes(batch) for batch in prefetch(batch_at, 7, 12, workers)] == expected[7:]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_threads_that_make_batches_have_the_permissions_of_the_run(workers):
    with allow(["mine"]):
        permitted = list(prefetch(lambda step: permission().modules, 0, 9, workers))
    assert permitted == [{"mine"}] * 9


PLACED = """
import hashlib, json, sys
sys.path.insert(0, "tests")
import jax
number, count, port = map(int, sys.argv[1:4])
if count > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", count, number)
import numpy as np
from functools import partial
from pathlib import Path
from conftest import settings
from t5x_lite.config import RunConfig
from t5x_lite.config.files import build
from t5x_lite.data.rows.batches import make_batches
from t5x_lite.data.store.prepare import prepare
from t5x_lite.resolve import resolve
from t5x_lite.parallel.mesh import make_mesh
from t5x_lite.parallel.placement import place_batch
values = settings(Path(sys.argv[4]), "ul2", "encoder_decoder", **{"mesh.tensor": 2})
config = build(RunConfig, values)
corpus = prepare(config.data)
resolved = resolve(config, corpus.tokenizer.vocabulary)
batches = make_batches(resolved.rows, config.data, config.seed, corpus, "train")
mesh = make_mesh(config.mesh)
assert mesh.size == 4
for step in (0, 777):
    batch = place_batch(partial(batches.batch_at, step), batches.batch_size, mesh)
    rows = {}
    for key in sorted(batch):
        for shard in batch[key].addressable_shards:
            indices = range(*shard.index[0].indices(batches.batch_size))
            for row, value in zip(indices, np.asarray(shard.data)):
                rows.setdefault(row, {})[key] = value.tobytes()
    contents = {row: b"".join(rows[row][key] for key in sorted(batch)) for row in rows}
    hashes = {row: hashlib.sha256(content).hexdigest() for row, content in contents.items()}
    print(json.dumps(hashes), flush=True)
"""


@pytest.mark.parametrize(
    "count", [pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow), 4]
)
def test_the_global_batch_is_the_same_for_any_number_of_processes(batches_of, text_file, count):
    """Over a mesh of data 2 × tensor 2, whose tensor axis spans processes when there are four."""
    batches = batches_of("ul2", "encoder_decoder")
    expected = [dict(enumerate(row_hashes(batches.batch_at(step)))) for step in (0, 777)]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = with_devices(4 // count)
    processes = []
    for number in range(count):
        arguments = map(str, (number, count, port, text_file))
        command = [sys.executable, "-c", PLACED, *arguments]
        processes.append(
            subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)
        )
    hashes = [{}, {}]
    for process in processes:
        out, _ = process.communicate(timeout=300)
        assert process.returncode == 0
        for step, line in enumerate(out.splitlines()):
            hashes[step] |= {int(row): digest for row, digest in json.loads(line).items()}
    assert hashes == expected


# What rows hold.


@pytest.mark.parametrize(("objective", "architecture"), CELLS)
def test_padding(batches_of, objective, architecture):
    """None for the objectives whose lengths are known; stated for the others by the ledger."""
    batches = batches_of(objective, architecture)
    padding = ledger(batches).padding
    name = objective.partition("(")[0]
    is_exact = objective in ("causal_lm", "masked_lm", "span_corruption") or name == "prefix_lm"
    if is_exact and (architecture != "encoder_decoder" or objective == "span_corruption"):
        # A row whose length no window fills exactly keeps what is left over.
        (stream,) = batches.streams
        bound = stream.objective.bound(stream.windows.size)
        used = bound.both
        if architecture == "encoder_decoder":
            used = bound.inputs + bound.targets
        positions = batches.shape.encoder + batches.shape.decoder
        assert padding == pytest.approx(1 - used / positions)
    else:
        assert 0 <= padding < 0.5


@pytest.mark.parametrize(
    ("objective", "architecture", "lengths"),
    [
        ("causal_lm", "decoder", {"sequence_length": 128}),
        ("masked_lm", "encoder", {"sequence_length": 130}),
        ("span_corruption", "encoder_decoder", {"inputs": 512, "targets": 114}),
        ("span_corruption", "encoder_decoder", {"inputs": 116, "targets": 26}),
        ("prefix_lm", "encoder_decoder", {"inputs": 64, "targets": 64}),
        ("prefix_lm", "prefix_decoder", {"sequence_length": 128}),
    ],
)
def test_no_padding_where_the_lengths_fit(batches_of, objective, architecture, lengths):
    assert ledger(batches_of(objective, architecture, **{"data.lengths": lengths})).padding == 0


def test_the_ledger_of_t5_is_that_of_the_paper(batches_of):
    """568 raw tokens become 626 positions, of which 114 are scored."""
    lengths = {"data.lengths": {"inputs": 512, "targets": 114}}
    row = ledger(batches_of("span_corruption", "encoder_decoder", **lengths))
    assert (row.raw_tokens, row.model_tokens, row.loss_tokens) == (568, 626, 114)


@pytest.mark.parametrize(("objective", "architecture"), CELLS)
def test_the_ledger_says_how_much_split_documents_leave_out(batches_of, objective, architecture):
    batches = batches_of(objective, architecture, **{"data.split_documents": True})
    (stream,) = batches.streams
    kept = sum(len(piece) for window in stream.read(range(64)) for piece in stream._pieces(window))
    assert ledger(batches).left_out == pytest.approx(1 - kept / 64 / stream.windows.size)


def test_the_ledger_of_a_mixture_is_the_mean_of_its_members_by_their_shares(batches_of):
    batches = batches_of("3 * causal_lm + span_corruption", "decoder")
    row = ledger(batches)
    lm, spans = row.members
    assert batches.shares.tolist() == [0.75, 0.25]
    for field in ("raw_tokens", "model_tokens", "loss_tokens", "padding"):
        mean = 0.75 * getattr(lm, field) + 0.25 * getattr(spans, field)
        assert getattr(row, field) == pytest.approx(mean)
    assert batches.raw_tokens == pytest.approx(8 * row.raw_tokens)


def test_an_objective_that_scores_nothing_is_refused(make, tmp_path):
    path = tmp_path / "small.txt"
    path.write_text(
        "\n\n".join("nothing has a name" + " or a number" * count for count in range(100))
    )
    resolved, corpus = make("masked_lm(choice='salient')", "encoder", **{"data.source": str(path)})
    with pytest.raises(UserError, match="scores nothing in the first rows"):
        Run(resolved, text_data(resolved, corpus))


def test_inspect_shows_every_cell(config_file):
    for objective, architecture in CELLS[::4]:
        for split in (False, True):
            path = config_file(objective, architecture, **{"data.split_documents": split})
            out, _ = run("inspect", f"--config={path}", "--examples=2")
            assert "ledger" in out


# Text that is too short.


def with_tokens(corpus, tokens):
    """The corpus, its source cut to so few tokens."""
    (source,) = corpus.sources
    cut = {split: ids[:tokens] for split, ids in source.tokens.items()}
    return dataclasses.replace(corpus, sources=(dataclasses.replace(source, tokens=cut),))


def test_text_too_short_for_its_blocks_is_refused(make):
    resolved, corpus = make(**{"data.block": 30})
    short = with_tokens(corpus, 59)
    with pytest.raises(UserError, match="train has 59 tokens, its rows need 60"):
        make_batches(resolved.rows, resolved.config.data, 0, short, "train")


def test_other_sentences_need_another_document(make):
    resolved, corpus = make("masked_lm(second='next')", "encoder")
    (source,) = corpus.sources
    tokens = {split: np.full(80, 7) for split in source.tokens}
    one = dataclasses.replace(corpus, sources=(dataclasses.replace(source, tokens=tokens),))
    for split in ("train", "validation"):
        with pytest.raises(UserError, match=f"{split} has one document, but .* needs two"):
            make_batches(resolved.rows, resolved.config.data, 0, one, split)


# Mixtures.


@given(st.lists(st.floats(0.01, 10), min_size=2, max_size=9))
def test_a_mixture_meets_its_rates_everywhere(rates):
    pattern = mixture_pattern(rates)
    shares = np.bincount(pattern, minlength=len(rates)) / len(pattern)
    exact = np.array(rates) / sum(rates)
    assert np.abs(shares - exact).max() <= len(rates) / len(pattern)
    # Evenly spread: at every place, each member is near its share of the rows before it.
    counts = np.cumsum(pattern[:, None] == np.arange(len(rates)), axis=0)
    expected = shares * np.arange(1, len(pattern) + 1)[:, None]
    assert np.abs(counts - expected).max() < 2 + len(rates) / 2


def test_a_rare_member_is_as_rare_as_it_is_meant_to_be():
    assert np.bincount(mixture_pattern([1, 4999])).tolist() == [20, 99_980]


def test_the_streams_of_a_mixture_go_on_where_they_were(batches_of):
    batches = batches_of("3 * causal_lm + 2 * prefix_lm", "decoder")
    numbers, inner = batches.locate(np.arange(5000))
    assert np.bincount(numbers).tolist() == [3000, 2000]
    for number, distance in ((0, 5 / 3), (1, 5 / 2)):
        rows = np.flatnonzero(numbers == number)
        assert (inner[rows] == np.arange(len(rows))).all()
        assert np.abs(rows[:600] / np.arange(1, 601) - distance).max() < 3
    some_numbers, some_inner = batches.locate(np.arange(4000, 4100))
    assert (some_numbers == numbers[4000:4100]).all()
    assert (some_inner == inner[4000:4100]).all()


def test_sources_without_rates_count_by_their_size_up_to_a_cap(make):
    resolved, corpus = make()
    (source,) = corpus.sources
    sizes = (100, 400, 900)
    sources = [dataclasses.replace(source, tokens={"train": np.zeros(size)}) for size in sizes]

    def rates(**more):
        return source_rates(sources, dataclasses.replace(resolved.config.data, **more))

    assert rates() == pytest.approx([1 / 14, 4 / 14, 9 / 14])
    assert rates(cap=400) == pytest.approx([1 / 9, 4 / 9, 4 / 9])
    assert rates(temperature=2.0) == pytest.approx([1 / 6, 2 / 6, 3 / 6])


# Epochs and validation.


@given(st.integers(1, 3), st.integers(1, 9))
def test_epochs_end_before_any_text_is_read_once_more(batches_of, epochs, batch_size):
    batches = batches_of("3 * causal_lm + 2 * iid_denoising", "decoder")
    batches = dataclasses.replace(batches, batch_size=batch_size)
    steps = batches.num_steps(10**9, epochs)
    numbers, _ = batches.locate(np.arange((steps + 1) * batch_size))
    read = np.cumsum([batches.streams[number].windows.size for number in numbers])
    epoch_tokens = batches.streams[0].windows.order.epoch_tokens
    assert read[steps * batch_size - 1] <= epochs * epoch_tokens < read[-1]


def test_a_run_ends_with_its_steps_or_its_epochs(batches_of):
    batches = batches_of()
    in_an_epoch = batches.streams[0].rows(1) // batches.batch_size
    assert batches.num_steps(7, epochs=0) == 7
    assert batches.num_steps(7, epochs=1) == 7
    assert batches.num_steps(10_000, epochs=1) == in_an_epoch
    large = dataclasses.replace(batches, batch_size=100_000)
    with pytest.raises(UserError, match=r"data.epochs=1 has \d+ rows, a batch 100000"):
        large.num_steps(10, epochs=1)


@pytest.mark.slow
def test_a_run_ends_with_its_epochs_at_the_same_step_on_all_hosts(
    batches_of, tmp_path, config_file
):
    batches = batches_of()
    more = {"data.epochs": 1, "training.steps": 10_000, "training.log_every": 1000}
    path = config_file(**more)
    steps = batches.streams[0].rows(1) // batches.batch_size
    alone, together = ("train", f"--config={path}"), tmp_path / "together"
    out, _ = run(*alone, f"--workdir={tmp_path / 'alone'}")
    assert f"step {steps}/{steps} train" in out
    command = [sys.executable, "launch/local", "2", *alone, f"--workdir={together}"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert f"step {steps}/{steps} train" in done.stdout
    for workdir in (tmp_path / "alone", together):
        assert (workdir / "checkpoints" / str(steps)).exists()


@pytest.mark.parametrize(("objective", "architecture"), CELLS)
def test_validation_reads_the_whole_split_in_order(make, batches_of, objective, architecture):
    _, corpus = make(objective, architecture)
    batches = batches_of(objective, architecture, split="validation")
    (stream,) = batches.streams
    rows, tokens = stream.rows(1), corpus.tokens("validation")
    read = np.concatenate(stream.read(range(rows)))
    assert len(tokens) - len(read) < stream.objective.traits.min_tokens
    assert (read == tokens[: len(read)]).all()
    last = batches.batch_at(batches.validation_batches - 1)
    past_the_end = batches.validation_batches * batches.batch_size - rows
    weights = next(value for key, value in last.items() if key.endswith("_weights"))
    assert (weights.sum(1) > 0).sum() == batches.batch_size - past_the_end


def test_validation_of_a_mixture_reads_the_split_once_a_stream(batches_of):
    batches = batches_of("causal_lm + prefix_lm", "decoder", split="validation")
    rows = batches.validation_batches * batches.batch_size
    numbers, inner = batches.locate(np.arange(rows))
    for number, stream in enumerate(batches.streams):
        assert inner[(numbers == number) & (inner >= 0)].tolist() == list(range(stream.rows(1)))
    assert 0 <= (inner < 0).sum() < batches.batch_size
    last = batches.batch_at(batches.validation_batches - 1)
    is_real = inner[-batches.batch_size :] >= 0
    assert (last["decoder_segments"].any(1) == is_real).all()


def masked_counts(data, rows) -> np.ndarray:
    """How many tokens each of these rows of training hides."""
    made = data.batches("train").rows(rows)
    return (made["encoder_weights"] > 0).sum(1)


@pytest.mark.parametrize("objective", ["masked_lm", "masked_lm + masked_lm(choice='word')"])
def test_an_option_changes_in_the_course_of_a_run(make, objective):
    """From row to row, whichever rows are asked for together; validation has the last value."""
    annealed = objective.replace("masked_lm", "masked_lm(noise_density=linear(0.5, 0.1))", 1)
    resolved, corpus = make(annealed, "encoder", **{"training.steps": 10})
    data = text_data(resolved, corpus)
    window = resolved.rows.members[0].window
    every = len(resolved.rows.members)
    counts = masked_counts(data, range(0, 10 * 8, every))
    # A row may hold an end of a document, which is never masked.
    expected = window * np.linspace(0.5, 0.1, len(counts), endpoint=False)
    assert (counts <= np.rint(expected)).all()
    assert np.abs(counts - expected).mean() < 1.5
    assert masked_counts(data, [every * 3])[0] == counts[3]
    # What is counted of the run is the mean over it.
    batches = data.batches("train")
    of_stream = ledger(dataclasses.replace(batches, streams=batches.streams[:1], pattern=ONE))
    assert of_stream.loss_tokens == pytest.approx(counts.mean(), rel=0.05)
    assert masked_counts(data, [every * 400])[0] <= round(0.1 * window)
    validation = data.batches("validation").rows(range(3))
    assert (validation["encoder_weights"] > 0).sum(1).max() <= round(0.1 * window)


def test_a_stage_has_the_course_of_an_option_to_itself(make):
    start = {"start.step": 10, "start.skip_tokens": 10 * 8 * 38, "init_from": "other"}
    more = start | {"training.steps": 20}
    resolved, corpus = make("masked_lm(noise_density=linear(0.5, 0.1))", "encoder", **more)
    data = text_data(resolved, corpus)
    window, first = resolved.rows.members[0].window, data.batches("train").first_row
    assert masked_counts(data, [first])[0] >= 0.45 * window
    assert masked_counts(data, [first + 10 * 8])[0] <= round(0.1 * window)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("linear(0.3)", "got linear\\(0.3\\), expected a number, or linear\\(first, last\\)"),
        ("linear(0.3, x)", "expected a number, or linear"),
        ("linear(0.3, 1.0)", "noise_density: got 1.0, expected between 0 and 1"),
        ("cosine(0.3, 0.1)", "expected a number, or linear"),
        ("high", "got high, expected a number, or linear"),
        ("1.5", "got 1.5, expected between 0 and 1"),
    ],
)
def test_an_option_that_does_not_change_like_that(value, reason):
    with pytest.raises(UserError, match=reason):
        parse_objective(f"masked_lm(noise_density={value})")


@pytest.mark.parametrize("architecture", ["encoder", "decoder"])
def test_positions_are_counted_whatever_their_weights(batches_of, architecture):
    """Of masked_diffusion half of the positions are scored, and their weights add up to all."""
    batches = batches_of("masked_diffusion", architecture)
    (stream,) = batches.streams
    row = ledger(batches, rows=1000)
    assert row.loss_tokens == pytest.approx(stream.raw_tokens)
    assert row.scored == pytest.approx((stream.raw_tokens + 1) / 2, rel=0.02)
