import dataclasses
import subprocess
import sys

import numpy as np
import pytest
from conftest import CELLS, ROOT, run
from hypothesis import given
from hypothesis import strategies as st
from test_objectives import SPECS

from t5x_lite.data import batches
from t5x_lite.data.objectives import parse
from t5x_lite.errors import Refusal


@given(st.integers(1, 5000), st.integers(0, 2**100))
def test_permute_is_a_permutation(size, key):
    assert (np.sort(batches.permute(np.arange(size), size, key)) == np.arange(size)).all()


def test_permute_takes_no_memory_and_mixes_well():
    size = 10**11
    index = np.arange(0, size, size // 1000)
    sent = batches.permute(index, size, 1)
    assert 0 <= sent.min() <= sent.max() < size
    assert abs(sent.mean() / size - 0.5) < 3 / np.sqrt(12 * len(index))
    assert abs(np.corrcoef(index, sent)[0, 1]) < 0.1
    keys = [batches.permute(np.arange(1000), 1000, key) for key in range(200)]
    assert abs(np.mean([k[0] for k in keys]) - 500) < 3 * 289 / np.sqrt(200)


@pytest.mark.parametrize(("objective", "architecture"), CELLS)
@pytest.mark.parametrize("split_documents", [False, True])
def test_any_rows_of_any_batch_alone(make, objective, architecture, split_documents):
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
        bound = made.objective.bound(made.window)
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
        made = batches.make(*make(objective, architecture, **{"data.block": 50}), "train")
        rows = -(-4000 // made.window)
        read[objective] = np.concatenate([made.window_at(i) for i in range(rows)])[:4000]
        assert len(read[objective]) == 4000
    assert (read["causal_lm"] == read["masked_lm"]).all()
    assert (read["causal_lm"] == read["span_corruption"]).all()


@pytest.mark.parametrize("block", [0, 7, 64, 1000])
def test_an_epoch_reads_every_token_once(make, block):
    made = batches.make(*make(**{"data.block": block}), "train")
    made = batches.Batches(**{**vars(made), "tokens": np.arange(len(made.tokens))})
    for epoch in (0, 1):
        first = epoch * made.epoch_rows
        read = np.concatenate([made.window_at(first + i) for i in range(made.epoch_rows)])
        assert len(set(read.tolist())) == len(read) > len(made.tokens) - made.window - made.block
    assert (made.window_at(0) != made.window_at(made.epoch_rows)).any()


def test_rows_of_one_batch_come_from_far_apart(make):
    made = batches.make(*make(), "train")
    made = batches.Batches(**{**vars(made), "tokens": np.arange(len(made.tokens))})
    starts = np.sort([made.window_at(i)[0] for i in range(64)])
    assert np.median(np.diff(starts)) > made.window


@pytest.mark.parametrize(("objective", "architecture"), CELLS)
def test_validation_reads_the_whole_split_in_order(make, objective, architecture):
    config, corpus = make(objective, architecture)
    made = batches.make(config, corpus, "validation")
    read = np.concatenate([made.window_at(i) for i in range(made.epoch_rows)])
    assert len(corpus.tokens["validation"]) - len(read) < made.objective.least
    assert (read == corpus.tokens["validation"][: len(read)]).all()
    last = made.batch_at(made.batches - 1)
    past = made.batches * made.batch_size - made.epoch_rows
    weights = next(value for key, value in last.items() if key.endswith("_weights"))
    assert (weights.sum(1) > 0).sum() == made.batch_size - past


@pytest.mark.parametrize(("objective", "architecture"), CELLS)
def test_documents_are_segments_of_their_own(make, objective, architecture):
    made = batches.make(*make(objective, architecture, **{"data.split_documents": True}), "train")
    eos = made.vocabulary.eos
    for index in range(20):
        for pair in made.pairs_at(index):
            ids = np.append(pair.inputs, pair.targets) if pair.scored is None else pair.inputs
            extra = 2 if "corruption" in objective or "denoising" in objective else 0
            assert (ids == eos).sum() <= 1 + extra
        row = made.rows([index])
        assert all(value.shape[0] == 1 for value in row.values())


@pytest.mark.parametrize(("objective", "architecture"), CELLS)
def test_split_documents_fill_rows_and_what_is_left_out_is_counted(make, objective, architecture):
    made = batches.make(*make(objective, architecture, **{"data.split_documents": True}), "train")
    left = 0
    for index in range(64):
        window, pieces = made.window_at(index), made.pieces_at(index)
        assert all((piece[:-1] != made.vocabulary.eos).all() for piece in pieces)
        kept = iter(window.tolist())
        assert all(token in kept for piece in pieces for token in piece.tolist())  # in order, none twice
        left += len(window) - sum(map(len, pieces))
    assert batches.ledger(made)["left_out"] == pytest.approx(left / 64 / made.window)
    assert (left == 0) == (objective.partition("(")[0] in ("causal_lm", "prefix_lm"))  # others add EOS and sentinels


def test_too_few_sentinels_are_refused_with_the_number_needed(make):
    lengths = {"inputs": 1200, "targets": 400}
    with pytest.raises(Refusal, match=r"can need \d{3} sentinels, the tokenizer has 100"):
        batches.make(*make("iid_denoising", "encoder_decoder", **{"data.lengths": lengths}), "train")


def test_too_short_rows_are_refused(make):
    with pytest.raises(Refusal, match="too short for any window"):
        batches.make(
            *make("span_corruption", "encoder_decoder", **{"data.lengths": {"inputs": 2, "targets": 2}}), "train"
        )


def test_text_too_short_for_its_blocks_is_refused(make):
    config, corpus = make(**{"data.block": 30})
    short = dataclasses.replace(corpus, tokens={"train": corpus.tokens["train"][:59]})
    with pytest.raises(Refusal, match="train has 59 tokens, a row reads 60"):
        batches.make(config, short, "train")


@given(st.sampled_from(SPECS), st.integers(2, 5000))
def test_bounds_grow_with_the_window(spec, n):
    """What finding the largest window that fits by bisection rests on."""
    assert all(a <= b for a, b in zip(parse(spec).bound(n), parse(spec).bound(n + 1), strict=True))


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
        out, _ = run("inspect", f"--config={config_file(objective, architecture)}", "--examples=1")
        assert "ledger" in out
