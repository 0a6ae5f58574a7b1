from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import CELLS
from flax.traverse_util import flatten_dict
from model.auxiliary import CountingMLP
from model.proofs import random_params

from t5x_lite.data.rows.batches import make_batches
from t5x_lite.model.parts.contract import Measured
from t5x_lite.model.parts.table import FEED_FORWARDS
from t5x_lite.model.transformer import initialise
from t5x_lite.training.log import mean_metrics
from t5x_lite.training.loss import make_loss
from t5x_lite.training.step import first_state, make_train_step


def loss_and_batch(make, *args, **settings):
    """The loss of a config, and its first batch."""
    resolved, corpus = make(*args, **settings)
    config = resolved.config
    batch = make_batches(resolved.rows, config.data, config.seed, corpus, "train").batch_at(0)
    loss = make_loss(resolved)
    return loss, batch


def padded(batch: dict, rows: int) -> dict:
    """The batch with so many rows of padding at its end, as the last one of a validation split."""
    batch = {key: value.copy() for key, value in batch.items()}
    for value in batch.values():
        value[-rows:] = 0
    return batch


WAYS = [
    {"model.scan": False, "training.loss_chunk": 1000},
    {"model.remat": True, "training.loss_chunk": 5},
    {"training.microbatches": 4},
]


@pytest.mark.parametrize(
    ("objective", "architecture"), [CELLS[0], pytest.param(*CELLS[-1], marks=pytest.mark.slow)]
)
def test_how_it_is_computed_changes_nothing(make, objective, architecture):
    double = {"model.dtype": "float64"}
    with jax.enable_x64(True):
        loss, batch = loss_and_batch(make, objective, architecture, **double)
        params = random_params(loss.model, stddev=0.1)
        expected = jax.jit(loss.gradient)(params, batch, None)
        for way in WAYS:
            other, _ = loss_and_batch(make, objective, architecture, **double, **way)
            found = jax.jit(other.gradient)(params, batch, None)
            same = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-13, err_msg=str(way))
            jax.tree.map(same, found, expected)
            jax.tree.map(same, jax.jit(other.evaluate)(params, batch), expected[1])


@pytest.mark.parametrize(
    ("objective", "architecture"),
    [
        CELLS[0],
        CELLS[1],
        pytest.param(*CELLS[4], marks=pytest.mark.slow),
        pytest.param(*CELLS[-1], marks=pytest.mark.slow),
    ],
)
def test_bfloat16_is_float32_within_its_digits(make, objective, architecture):
    relative = {"model.positions": "relative"}
    loss, batch = loss_and_batch(make, objective, architecture, **relative)
    half, _ = loss_and_batch(
        make, objective, architecture, **relative, **{"model.dtype": "bfloat16"}
    )
    params = random_params(loss.model, stddev=0.1)
    (gradient, sums), (half_gradient, half_sums) = (
        jax.jit(one.gradient)(params, batch, None) for one in (loss, half)
    )
    for name in loss.heads:
        assert float(half_sums[name]["nll"]) == pytest.approx(float(sums[name]["nll"]), rel=1e-3)
    difference = jax.tree.map(jnp.subtract, gradient, half_gradient)
    assert 0 < float(optax.tree.norm(difference) / optax.tree.norm(gradient)) < 0.03
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(half_gradient))


def test_a_layer_is_drawn_the_same_in_deeper_models_and_all_layers_differ(make):
    def drawn(layers, **settings):
        settings |= {"model.num_layers": layers, "model.num_decoder_layers": layers}
        resolved, _ = make("span_corruption", "encoder_decoder", **settings)
        return flatten_dict(initialise(resolved.model, 3), sep="/")

    few, many = drawn(2), drawn(5, **{"model.scan": False})
    stacks = [path for path in few if "/layers/" in path]
    assert stacks
    for path, leaf in few.items():
        assert np.array_equal(leaf, many[path][:2] if path in stacks else many[path])
    kernels = [leaf[n] for path, leaf in many.items() if path in stacks for n in range(5)]
    kernels = [kernel.ravel()[:8].tolist() for kernel in kernels if kernel.ndim > 1]
    assert len(set(map(tuple, kernels))) == len(kernels)


def test_dropout_is_a_function_of_the_step_and_off_in_evaluation(make):
    loss, batch = loss_and_batch(make, **{"model.dropout": 0.5})
    params = random_params(loss.model, stddev=0.1)
    gradient = jax.jit(loss.gradient)
    first, again, other = (
        float(gradient(params, batch, jax.random.key(k))[1]["lm"]["nll"]) for k in (0, 0, 1)
    )
    assert first == again != other
    without, _ = loss_and_batch(make)
    expected = float(jax.jit(without.gradient)(params, batch, None)[1]["lm"]["nll"])
    assert float(gradient(params, batch, None)[1]["lm"]["nll"]) == expected


@pytest.mark.parametrize("part", ["dropout", "attention_dropout", "ff_dropout"])
def test_each_dropout_acts_by_itself_in_training(make, part):
    loss, batch = loss_and_batch(make, **{f"model.{part}": 0.5})
    unmoved = optax.set_to_zero()
    step = jax.jit(make_train_step(loss, lambda schedule: unmoved))
    state = first_state(initialise(loss.model, 0), unmoved)
    nll = []
    for n in (0, 0, 1):
        _, metrics = step(state.replace(step=jnp.int32(n)), batch, 0, jnp.zeros(()))
        nll.append(float(metrics["sums"]["lm"]["nll"]))
    assert nll[0] == nll[1] != nll[2]


AUXILIARY = {
    "decoder": ("causal_lm", "decoder", {}),
    "decoder, packed": ("causal_lm", "decoder", {"data.split_documents": True}),
    "encoder": ("masked_lm", "encoder", {"model.scan": False}),
    "encoder_decoder": (
        "iid_denoising",
        "encoder_decoder",
        {"model.remat": True, "model.num_decoder_layers": 3},
    ),
}


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.slow if "encoder" in case else ()) for case in AUXILIARY],
)
def test_auxiliary_losses_join_what_is_minimised(exchange, make, case):
    """By their closed forms, on a batch with padded rows, in one microbatch and in four: sums under
    their own names, gradients, and figures.
    """
    exchange(FEED_FORWARDS, "mlp", CountingMLP)
    objective, architecture, settings = AUXILIARY[case]
    settings = settings | {"model.dtype": "float64"}
    with jax.enable_x64(True):
        loss, batch = loss_and_batch(make, objective, architecture, **settings)
        four, _ = loss_and_batch(
            make, objective, architecture, **settings, **{"training.microbatches": 4}
        )
        batch = padded(batch, rows=3)
        params = random_params(loss.model, stddev=0.1)
        gradient, sums = jax.jit(loss.gradient)(params, batch, None)
        of_four = jax.jit(four.gradient)(params, batch, None)
        same = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-13)
        jax.tree.map(same, of_four, (gradient, sums))
        jax.tree.map(same, jax.jit(four.evaluate)(params, batch), sums)

        # Every layer sees the positions of its stack.
        real = {
            stack: int((batch[f"{stack}_segments"] > 0).sum())
            for stack in ("encoder", "decoder")
            if f"{stack}_segments" in batch
        }
        layers = {"encoder": loss.model.num_layers, "decoder": loss.model.num_decoder_layers}
        figures = mean_metrics(jax.device_get(sums))
        names = {f"{stack}_{name}" for stack in real for name in ("tax", "toll", "size")}
        assert set(sums) == {*loss.heads, *names}
        for name in names:
            assert sums[name].keys() == {"total_loss", "weight"}
        for stack, count in real.items():
            tax, toll = sums[f"{stack}_tax"], sums[f"{stack}_toll"]
            expected = params[stack]["layers"]["feed_forward"]["toll"].sum()
            assert int(tax["weight"]) == int(toll["weight"]) == count
            assert float(tax["total_loss"]) == 3 * count * layers[stack]
            assert float(toll["total_loss"]) == pytest.approx(count * float(expected), rel=1e-12)
            assert figures[f"{stack}_tax"] == pytest.approx(3 * layers[stack])
            assert figures[f"{stack}_toll"] == pytest.approx(float(expected))

            # The gradient of the mean over the positions of its stack.
            slope = gradient[stack]["layers"]["feed_forward"]["toll"]
            np.testing.assert_allclose(slope, np.ones_like(slope), rtol=1e-12)

        (head,) = loss.heads
        assert figures["loss"] == pytest.approx(
            float(sums[head]["nll"]) / batch[f"{architecture.split('_')[-1]}_weights"].sum()
        )
        parts = figures["loss"] + sum(figures[name] for name in names)
        assert figures["total_loss"] == pytest.approx(parts, rel=1e-12)
        assert float(loss.mean(sums, loss.divisors(batch))) == pytest.approx(parts, rel=1e-12)


def test_the_gradient_of_an_auxiliary_loss_is_that_of_the_whole(exchange, make):
    """With and without it, gradients differ by its own, which reaches all that it depends on."""
    with jax.enable_x64(True):
        exchange(FEED_FORWARDS, "mlp", CountingMLP)
        loss, batch = loss_and_batch(make, **{"model.dtype": "float64"})
        params = random_params(loss.model, stddev=0.3)
        batch = jax.tree.map(jnp.asarray, batch)

        def mean_of(names, params):
            sums = loss.sums(params, batch)
            return loss.mean({name: sums[name] for name in names}, loss.divisors(batch))

        whole, _ = jax.jit(loss.gradient)(params, batch, None)
        alone = jax.jit(
            jax.grad(partial(mean_of, ("decoder_size", "decoder_tax", "decoder_toll")))
        )(params)
        head = jax.jit(jax.grad(partial(mean_of, ("lm",))))(params)
        for path, slope in jax.tree_util.tree_leaves_with_path(alone["decoder"]["layers"]):
            assert (slope != 0).any(), path
        added = jax.tree.map(jnp.add, alone, head)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-13), whole, added)


def test_what_a_part_measures_is_logged_and_not_minimised(exchange, make):
    class Counting(CountingMLP):
        def __call__(self, x, context):
            y, losses = super().__call__(x, context)
            return y, {"tax": losses["tax"], "paid": Measured(losses["toll"], losses["tax"])}

    exchange(FEED_FORWARDS, "mlp", Counting)
    loss, batch = loss_and_batch(make)
    params = random_params(loss.model)
    gradient, sums = jax.jit(loss.gradient)(params, batch, None)
    of_layers = gradient["decoder"]["layers"]["feed_forward"]
    assert (of_layers["toll"] == 0).all()
    figures = mean_metrics(jax.device_get(sums))
    toll = float(params["decoder"]["layers"]["feed_forward"]["toll"].sum())
    layers = loss.model.num_decoder_layers
    assert figures["decoder_paid"] == pytest.approx(toll / (3 * layers), rel=1e-6)
    assert figures["total_loss"] == pytest.approx(figures["loss"] + 3 * layers)


@pytest.mark.parametrize("parts", [1, 4])
def test_labels_of_sentence_pairs_add_their_own_mean(make, parts):
    """The gradient is that of nll / targets + label nll / rows, however many microbatches there
    are.
    """
    settings = {"model.token_types": 2, "training.microbatches": parts, "model.dtype": "float32"}
    loss, batch = loss_and_batch(make, "masked_lm(second='next')", "encoder", **settings)
    params = random_params(loss.model, stddev=0.02)
    batch = {key: value.copy() for key, value in batch.items()}
    batch["encoder_weights"][0, 1:] = 0  # unequal numbers of targets
    gradient, sums = jax.jit(loss.gradient)(params, batch, None)

    arrays = jax.tree.map(jnp.asarray, batch)

    def mean(params):
        total = loss.sums(params, arrays)
        words, labels = total["mlm"], total["sequence_label"]
        return words["total_loss"] / batch["encoder_weights"].sum() + labels["nll"] / 8

    expected = jax.jit(jax.grad(mean))(params)
    assert sums["sequence_label"]["weight"] == 8
    for one, other in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-6)
    assert float(np.abs(expected["classifier"]["output"]["kernel"]).max()) > 0
    figures = mean_metrics(jax.device_get(sums))
    assert figures["label_loss"] == pytest.approx(np.log(2), rel=0.3)
    assert 0 <= figures["label_accuracy"] <= 1
    total = figures["loss"] + figures["label_loss"]
    assert figures["total_loss"] == pytest.approx(total, rel=1e-6)
