"""The LSTM against a loop over tokens in NumPy; and ELMo, where a second decoder reads backward."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from model.proofs import (
    MASK,
    POSITIONS,
    QUIET,
    SEGMENTS,
    apply,
    check_gradients,
    draw,
    random_params,
    small,
)

from t5x_lite.data.rows.layouts import RowShape
from t5x_lite.model import flops
from t5x_lite.model.blocks import StackContext
from t5x_lite.model.dropout import Noise
from t5x_lite.model.heads import (
    HEADS,
    HeadInput,
    LossSettings,
    VocabularyShard,
    head_params,
    logits,
)
from t5x_lite.model.masks import AttentionMask
from t5x_lite.model.parts.lstm import FORGET_BIAS, LSTM
from t5x_lite.model.parts.table import make_mixer
from t5x_lite.model.transformer import Transformer, parameter_shapes

BOTH_WAYS = AttentionMask(SEGMENTS, SEGMENTS, packed=True)
KINDS = {
    "as many cells as features": {"norm": "none"},
    "projected": {"norm": "none", "mixer": "lstm(cells=9)", "bias": False},
    "normalised": {"mixer": "lstm(cells=4)"},
    "normalised, no biases": {"norm": "rms_norm", "bias": False},
}


def lstm_of(kind: str) -> LSTM:
    return make_mixer(small(**{"mixer": "lstm", "positions": "none"} | KINDS[kind]))


def context_of(mask: AttentionMask) -> StackContext:
    return StackContext(SEGMENTS, POSITIONS, mask, mask.bias(), QUIET)


def normalised(config, params, name, x):
    """LayerNorm or RMSNorm of one vector."""
    if config.norm == "none":
        return x
    if config.norm == "layer_norm":
        x = x - x.mean()
    y = params[name]["scale"] * x / np.sqrt((x**2).mean() + config.norm_epsilon)
    return y + params[name].get("bias", 0.0)


def read_one_by_one(config, params, tokens):
    """Outputs [T, D] of one text [T, D], gate by gate: Sak et al. (2014), eqs. 1 to 6 without
    peepholes; Ba et al. (2016), eqs. 20 to 22.
    """

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    cells, output = np.zeros(len(params["projection"]["kernel"])), np.zeros(config.d_model)
    outputs = []
    for token in tokens:
        of_token = normalised(config, params, "inputs_norm", token @ params["inputs"]["kernel"])
        of_output = output @ params["recurrent"]["kernel"]
        gates = of_token + normalised(config, params, "recurrent_norm", of_output)
        gates = gates + params.get("bias", 0.0)
        i, f, g, o = gates[0::4], gates[1::4], gates[2::4], gates[3::4]
        cells = sigmoid(f + FORGET_BIAS) * cells + sigmoid(i) * np.tanh(g)
        hidden = sigmoid(o) * np.tanh(normalised(config, params, "cells_norm", cells))
        output = hidden @ params["projection"]["kernel"]
        outputs.append(output)
    return np.array(outputs)


@pytest.mark.parametrize("mask", [MASK, BOTH_WAYS], ids=["decoder", "encoder"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_segment_is_read_token_by_token(kind, mask):
    """A decoder's from its start; an encoder's from both ends, the outputs added."""
    with jax.enable_x64(True):
        lstm, shared = lstm_of(kind), context_of(mask)
        x = draw(jax.ShapeDtypeStruct((2, 5, 6), jnp.float64), seed=1, stddev=1.0)
        init = lambda: nn.meta.unbox(lstm.init(jax.random.key(0), x, shared))  # noqa: E731
        variables = draw(jax.eval_shape(init))
        found = np.asarray(lstm.apply(variables, x, shared)[0])
    params = jax.tree.map(np.asarray, variables["params"])
    x = np.asarray(x)
    assert ("backward" in params) == (mask is BOTH_WAYS)
    for row, segment in ((0, slice(0, 3)), (0, slice(3, 5)), (1, slice(0, 4))):
        text = x[row, segment]
        expected = read_one_by_one(lstm.config, params["forward"], text)
        if "backward" in params:
            expected += read_one_by_one(lstm.config, params["backward"], text[::-1])[::-1]
        np.testing.assert_allclose(found[row, segment], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("mask", [MASK, BOTH_WAYS], ids=["decoder", "encoder"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_an_lstm(kind, mask):
    check_gradients(lstm_of(kind), lambda part, x: part(x, context_of(mask))[0])


def test_cells_are_kept_in_float32():
    config = small(mixer="lstm", positions="none", dtype="bfloat16")
    state = make_mixer(config).initial_state(2, 8)
    assert (state.cells.dtype, state.output.dtype) == (jnp.float32, jnp.bfloat16)


# Two decoders, of which one reads backward.

ELMO = {"backward_decoder": True, "mixer": "lstm", "positions": "none", "feed_forward": "none"}
ELMOS = {
    "LSTM": ELMO,
    "LSTM with its own head": {**ELMO, "tie_embeddings": False},
    "attention": {"backward_decoder": True, "positions": "learned"},
    "attention, one block": {
        "backward_decoder": True,
        "positions": "relative",
        "shared_layers": "all",
    },
}
START = 1


def packed_row(texts, length=8):
    """Texts one after another: start token and text are read, text and what follows predicted."""
    row = {"tokens": [], "targets": [], "segments": [], "positions": []}
    for number, text in enumerate(texts, 1):
        row["tokens"] += [START, *text[:-1]]
        row["targets"] += text
        row["segments"] += [number] * len(text)
        row["positions"] += range(len(text))
    row["weights"] = [1.0] * len(row["tokens"])
    return {
        f"decoder_{key}": jnp.asarray([values + [0] * (length - len(values))])
        for key, values in row.items()
    }


def head_input(config, params, states, row, settings) -> HeadInput:
    vocabulary = VocabularyShard(config.vocab_size, jnp.arange(config.embedding_rows))
    return HeadInput(config, params, states, row, settings, vocabulary, Noise(jnp.arange(1)))


def losses_of(config, params, row) -> dict[str, np.ndarray]:
    """Of each head: the loss and the weight it is divided by."""
    output = apply(config, params, row)
    settings = LossSettings()
    found = {}
    for name in ("lm", "backward_lm"):
        head = HEADS[name]
        sums = head.sums(head_input(config, params, head.read(output, row), row, settings))
        found[name] = np.array([sums["total_loss"], head.weight(row)])
    return found


@pytest.mark.parametrize("kind", ELMOS)
def test_the_backward_language_model_is_the_forward_one_of_the_text_reversed(kind):
    """With the parameters of the two decoders exchanged."""
    with jax.enable_x64(True):
        config = small(**ELMOS[kind])
        params = random_params(config)
        exchanged = {**params, "decoder": params["backward_decoder"]}
        exchanged["backward_decoder"] = params["decoder"]
        # What the first decoder predicts and never reads is what the second reads first.
        texts = [[3, 4, 5, 6], [7, 8, 9]]
        turned = [[*text[-2::-1], START] for text in reversed(texts)]
        row, turned_row = packed_row(texts), packed_row(turned)
        tokens = np.array(turned_row["decoder_tokens"])
        tokens[0, [0, 3]] = texts[1][-1], texts[0][-1]
        turned_row["decoder_tokens"] = jnp.asarray(tokens)
        # The start token is a target of neither.
        turned_row["decoder_weights"] = jnp.asarray(turned_row["decoder_targets"] > START, float)
        found = losses_of(config, params, row)["backward_lm"]
        expected = losses_of(config, exchanged, turned_row)["lm"]
    assert found[1] == 5
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("kind", ELMOS)
def test_each_decoder_sees_its_side_alone(kind):
    """Change one token of a text: what is predicted before it, and after it, stays to the bit."""
    with jax.enable_x64(True):
        config = small(**ELMOS[kind])
        params = random_params(config)
        texts = [[3, 4, 5, 6], [7, 8, 9]]
        change = [[3, 4, 10, 6], [7, 8, 9]]
        forward, backward = [], []
        for row in (packed_row(texts), packed_row(change)):
            output = apply(config, params, row)
            for name, states in (("lm", forward), ("backward_lm", backward)):
                hidden = HEADS[name].read(output, row)
                states.append(np.asarray(logits(config, head_params(params), hidden))[0, :7])
    changed = (forward[0] != forward[1]).any(-1)
    assert changed.tolist() == [False] * 3 + [True] + [False] * 3
    # At t stands what is known of token t from those after it; the third has place 3 as a token.
    changed = (backward[0] != backward[1]).any(-1)
    assert changed.tolist() == [True] * 3 + [False] * 4


@pytest.mark.slow
def test_a_run_trains_both_decoders(make):
    from t5x_lite.resolve import text_data
    from t5x_lite.training.loop import Run

    resolved, corpus = make("causal_lm", "decoder", **{f"model.{k}": v for k, v in ELMO.items()})
    assert resolved.heads == ("lm", "backward_lm")
    run = Run(resolved, text_data(resolved, corpus))
    with run.within():
        state = run.fresh_state()
        before = jax.device_get(state.params)
        for step in range(2):
            state, _ = run.train_step(state, run.batch(run.batches, step))
        evaluated = run.evaluate(state.params)
    assert {"loss", "backward_loss"} <= set(evaluated)
    for stack in ("decoder", "backward_decoder"):
        moved = jax.tree.map(lambda a, b: bool((a != b).any()), before[stack], state.params[stack])
        assert all(jax.tree.leaves(moved))


@pytest.mark.parametrize(
    "part",
    [
        {"architecture": "encoder"},
        {"architecture": "encoder", "mixer": "lstm(cells=512)", "feed_forward": "none"},
        {"architecture": "decoder"},
        {"architecture": "decoder", "backward_decoder": True, "feed_forward": "none"},
    ],
    ids=str,
)
def test_flops_agree_with_the_compiler(part):
    """Of rows of one token, since the compiler counts a loop's body once: within 2 %."""
    settings = {"d_model": 512, "vocab_multiple": 1, "dtype": "float32", "scan": False}
    config = small(**settings | {"mixer": "lstm", "positions": "none"} | part)
    stack = "encoder" if config.architecture == "encoder" else "decoder"
    keys = ("tokens", "segments", "positions", "targets")
    row = {f"{stack}_{key}": jax.ShapeDtypeStruct((4, 1), jnp.int32) for key in keys}

    def forward(params, row):
        output = Transformer(config, packed=False).apply({"params": params}, row)
        states = [output.hidden_states]
        if output.backward_states is not None:
            states.append(output.backward_states)
        return [logits(config, head_params(params), hidden) for hidden in states]

    lowered = jax.jit(forward).lower(parameter_shapes(config), row)
    counted = lowered.cost_analysis()["flops"] / 4
    shape = RowShape(**{stack: 1})
    assert flops.forward_flops(config, shape, 1) == pytest.approx(counted, rel=0.02)


def test_as_many_cells_as_features_unless_told():
    config = small(mixer="lstm", positions="none", dtype="float32")
    state = make_mixer(config).initial_state(1, 0)
    assert state.cells.shape == (1, config.d_model)
    state = make_mixer(replace(config, mixer="lstm(cells=9)")).initial_state(1, 0)
    assert state.cells.shape == (1, 9)
