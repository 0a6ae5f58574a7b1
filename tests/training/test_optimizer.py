import dataclasses
import functools
from operator import getitem

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t5x_lite.config import Optimizer
from t5x_lite.errors import UserError
from t5x_lite.model.transformer import parameter_axes, parameter_shapes
from t5x_lite.training.adapt import ADAPTATIONS, parse_adaptation
from t5x_lite.training.averaging import AVERAGE
from t5x_lite.training.optimizer import (
    OPTIMIZERS,
    check_optimizer,
    make_optimizer,
)
from t5x_lite.training.schedules import SCHEDULES, depends_on_end, make_schedule
from t5x_lite.training.update_rule import names_of_state


def rate(step, **settings):
    config = Optimizer(learning_rate=2.0, warmup_steps=10, **settings)
    return float(make_schedule(config, steps=110, raw_tokens_per_step=1000)(step - 1))


def test_schedules_by_their_closed_forms():
    for schedule in ("cosine", "linear", "inverse_square_root", "constant"):
        assert rate(1, schedule=schedule) == pytest.approx(0.2)
        assert rate(10, schedule=schedule) == pytest.approx(2.0)
    assert rate(60, schedule="cosine", final_lr_ratio=0.1) == pytest.approx(2 * (0.1 + 0.9 / 2))
    assert rate(110, schedule="cosine", final_lr_ratio=0.1) == pytest.approx(0.2)
    assert rate(60, schedule="linear") == pytest.approx(1.0)
    assert rate(500, schedule="linear", final_lr_ratio=0.5) == pytest.approx(1.0)
    assert rate(40, schedule="inverse_square_root") == pytest.approx(1.0)
    assert rate(500, schedule="constant") == 2.0
    assert rate(35, schedule="linear", decay_steps=60) == pytest.approx(1.0)


def test_schedules_in_tokens_are_those_in_steps():
    tokens = Optimizer(
        learning_rate=2.0, warmup_steps=10_000, decay_steps=60_000, schedule_unit="tokens"
    )
    steps = Optimizer(learning_rate=2.0, warmup_steps=10, decay_steps=60)
    for step in (0, 5, 9, 30, 80):
        rates = [float(make_schedule(config, 110, 1000)(step)) for config in (tokens, steps)]
        assert rates[0] == pytest.approx(rates[1])


def test_t5s_schedule():
    """1 / √max(n, 10⁴) (Raffel et al., 2020, §3.1.2)."""
    config = Optimizer(
        learning_rate=0.01,
        schedule="inverse_square_root",
        warmup_steps=10_000,
        initial_lr_ratio=1.0,
    )
    schedule = make_schedule(config, 2**19, 1)
    for n in (1, 5000, 10_000, 40_000, 2**19):
        assert float(schedule(n - 1)) == pytest.approx(max(n, 10_000) ** -0.5, rel=1e-6)


def parameters():
    """A scanned dense layer and a table, and the names of their axes."""
    key = jax.random.key(1)
    layer = {"kernel": jax.random.normal(key, (3, 130, 140)), "bias": jnp.ones((3, 140))}
    params = {"decoder": {"layers": layer}, "embedding": jax.random.normal(key, (150, 130))}
    layer_axes = {"kernel": ("layers", "embed", "mlp"), "bias": ("layers", "mlp")}
    return params, {"decoder": {"layers": layer_axes}, "embedding": ("vocab", "embedding")}


def test_adafactor_of_scanned_layers_is_that_of_each_layer():
    """Of two stacks, one deeper than the other."""
    params, axes = parameters()
    params["encoder"] = jax.tree.map(lambda x: x[:2] + 1.0, params["decoder"])
    axes["encoder"] = axes["decoder"]
    grads = jax.tree.map(jnp.cos, params)
    config = Optimizer(name="adafactor", grad_clip_norm=0.0)
    rule = make_optimizer(config, lambda step: 0.1, axes)
    updates, _ = jax.jit(rule.update)(grads, rule.init(params), params)
    alone = optax.adafactor(lambda step: 0.1)
    update_alone = jax.jit(alone.update)
    for stack, number in (("encoder", 2), ("decoder", 3)):
        for i in range(number):
            layer, gradient, found = (
                jax.tree.map(lambda x, i=i: x[i], tree[stack]["layers"])
                for tree in (params, grads, updates)
            )
            expected, _ = update_alone(gradient, alone.init(layer), layer)
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_trains_stacks_of_different_depth(name, make):
    sizes = {"model.num_layers": 2, "model.num_decoder_layers": 1}
    model = make("span_corruption", "encoder_decoder", **sizes)[0].model
    shapes = parameter_shapes(model)
    rule = make_optimizer(Optimizer(name=name), lambda step: 0.1, parameter_axes(model))
    state = jax.eval_shape(rule.init, shapes)
    updates, after = jax.eval_shape(rule.update, shapes, state, shapes)
    assert jax.tree.map(lambda x: x.shape, updates) == jax.tree.map(lambda x: x.shape, shapes)
    assert jax.tree.structure(after) == jax.tree.structure(state)


def test_adamw_by_its_formula_clipped_and_decaying_kernels_alone():
    config = Optimizer(weight_decay=0.5, grad_clip_norm=1.0, beta1=0.8, beta2=0.9)
    params, axes = parameters()
    rule = make_optimizer(config, lambda step: 0.1, axes)
    state, m, v = rule.init(params), {"kernel": 0, "bias": 0}, {"kernel": 0, "bias": 0}
    for t in (1, 2, 3, 4):
        grads = jax.tree.map(lambda x, t=t: jnp.cos(t * x), params)
        updates, state = rule.update(grads, state, params)
        norm = np.sqrt(sum(float((g**2).sum()) for g in jax.tree.leaves(grads)))
        for name, decay in (("kernel", 0.5), ("bias", 0.0)):
            p, g, u = (
                np.asarray(tree["decoder"]["layers"][name], np.float64)
                for tree in (params, grads, updates)
            )
            m[name] = 0.8 * m[name] + 0.2 * g / norm
            v[name] = 0.9 * v[name] + 0.1 * (g / norm) ** 2
            mean, variance = m[name] / (1 - 0.8**t), v[name] / (1 - 0.9**t)
            expected = -0.1 * (mean / (np.sqrt(variance) + config.epsilon) + decay * p)
            np.testing.assert_allclose(u, expected, rtol=1e-4, atol=1e-6)
        params = optax.apply_updates(params, updates)


def test_lion_by_its_formula_decaying_kernels_alone():
    """Chen et al. (2023), algorithm 2."""
    config = Optimizer(name="lion", weight_decay=0.5, grad_clip_norm=0.0, beta1=0.8, beta2=0.9)
    params, axes = parameters()
    rule = make_optimizer(config, lambda step: 0.1, axes)
    state, momentum = rule.init(params), {"kernel": 0, "bias": 0}
    for t in (1, 2, 3, 4):
        grads = jax.tree.map(lambda x, t=t: jnp.cos(t * x), params)
        updates, state = rule.update(grads, state, params)
        for name, decay in (("kernel", 0.5), ("bias", 0.0)):
            p, g, u = (
                np.asarray(tree["decoder"]["layers"][name], np.float64)
                for tree in (params, grads, updates)
            )
            direction = np.sign(0.8 * momentum[name] + 0.2 * g)
            momentum[name] = 0.9 * momentum[name] + 0.1 * g
            np.testing.assert_allclose(u, -0.1 * (direction + decay * p), rtol=1e-4, atol=1e-6)
        params = optax.apply_updates(params, updates)


def test_muon_makes_the_momentum_of_kernels_orthogonal_and_leaves_the_rest_to_adamw():
    """Five steps of its Newton-Schulz iteration bring every singular value between 0.65 and 1.25
    and leave the singular vectors as they are (Jordan et al., 2024).
    """
    config = Optimizer(name="muon", weight_decay=0.5, grad_clip_norm=0.0)
    params, axes = parameters()
    muon = make_optimizer(config, lambda step: 0.1, axes)
    adamw = make_optimizer(dataclasses.replace(config, name="adamw"), lambda step: 0.1, axes)
    states, momentum = (muon.init(params), adamw.init(params)), 0.0
    for t in (1, 2, 3):
        grads = jax.tree.map(lambda x, t=t: jnp.cos(t * x), params)
        updates, of_muon = muon.update(grads, states[0], params)
        expected, of_adamw = adamw.update(grads, states[1], params)
        states = of_muon, of_adamw
        for path in (("embedding",), ("decoder", "layers", "bias")):
            found, right = (functools.reduce(getitem, path, tree) for tree in (updates, expected))
            np.testing.assert_allclose(found, right, rtol=1e-5)

        kernel, gradient, update = (
            np.asarray(tree["decoder"]["layers"]["kernel"], np.float64)
            for tree in (params, grads, updates)
        )
        momentum = 0.95 * momentum + 0.05 * gradient
        ahead = 0.95 * momentum / (1 - 0.95 ** (t + 1)) + 0.05 * gradient / (1 - 0.95**t)
        u, _, vt = np.linalg.svd(ahead, full_matrices=False)
        orthogonal = (update / -0.1 - 0.5 * kernel) / (0.2 * 140**0.5)
        turned = u.swapaxes(1, 2) @ orthogonal @ vt.swapaxes(1, 2)
        singular = np.diagonal(turned, axis1=1, axis2=2)
        assert singular.min() > 0.65
        assert singular.max() < 1.25
        np.testing.assert_allclose(turned - singular[..., None] * np.eye(130), 0, atol=1e-3)
        params = optax.apply_updates(params, updates)


@pytest.mark.parametrize("name", ["adafactor", "muon"])
def test_where_no_kernel_and_no_layer_is_trained(name):
    params, axes = {"bias": jnp.ones(3)}, {"bias": ("norm",)}
    rule = make_optimizer(Optimizer(name=name), lambda step: 0.1, axes)
    updates, _ = rule.update(params, rule.init(params), params)
    assert (updates["bias"] < 0).all()


MINE = """
import jax.numpy as jnp
import optax
from t5x_lite.training.update_rule import UpdateRule


def heavy(config, schedule, axes, *, decay=0.9):
    return optax.chain(optax.trace(decay), optax.scale_by_learning_rate(schedule))


def wide(config, schedule, axes):
    init = lambda params: {"kernel": jnp.zeros((3, 3))}
    return optax.GradientTransformation(init, lambda updates, state, params: (updates, state))


def wrong(config, schedule, axes):
    return UpdateRule(*wide(config, schedule, axes), lambda names, shape: ("precondition",))


def named(config, schedule, axes):
    return UpdateRule(*wide(config, schedule, axes), lambda names, shape: ("preconditioner", None))


def last_tenth(place, config, *, tail=0.1):
    return jnp.minimum(1.0, (1.0 - place.decayed) / tail)
"""
AXES = {"kernel": ("embed", "mlp")}
SHAPES = {"kernel": jax.ShapeDtypeStruct((3, 5), jnp.float32)}


@pytest.mark.usefixtures("own_code")
def test_an_optimizer_of_ones_own_is_found_with_its_options(write_module):
    write_module("mine", MINE)
    config = Optimizer(name="mine.heavy(decay=0.5)", grad_clip_norm=0.0)
    rule = make_optimizer(config, lambda step: 0.1, AXES)
    params = {"kernel": jnp.ones((3, 5))}
    state = rule.init(params)
    for expected in (-0.1, -0.15):
        updates, state = rule.update(params, state, params)
        np.testing.assert_allclose(updates["kernel"], expected, rtol=1e-6)


@pytest.mark.usefixtures("own_code")
def test_state_of_another_shape_is_refused_unless_its_axes_are_named(write_module):
    write_module("mine", MINE)
    for name, clip in (
        ("wide", 0.0),
        ("wide", 1.0),
        ("named", 0.0),
        ("named", 1.0),
        ("wrong", 0.0),
    ):
        config = Optimizer(name=f"mine.{name}", grad_clip_norm=clip)
        rule = make_optimizer(config, lambda step: 0.1, AXES)
        names_of = names_of_state(rule, SHAPES, AXES)
        ((path, leaf),) = jax.tree_util.tree_leaves_with_path(jax.eval_shape(rule.init, SHAPES))
        if name == "named":
            assert list(names_of(path, leaf)) == ["preconditioner", None]
        elif name == "wrong":
            with pytest.raises(UserError, match=r"its state_axes name \['precondition'\] for"):
                names_of(path, leaf)
        else:
            with pytest.raises(UserError, match="has shape \\[3, 3\\], unlike a parameter; return"):
                names_of(path, leaf)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_optimizer_names_the_axes_of_all_its_state(name):
    axes = {
        "embedding": ("vocab", "embedding"),
        "layers": {"kernel": ("layers", "embed", "mlp"), "scale": ("layers", "norm")},
    }
    shapes = {
        "embedding": jax.ShapeDtypeStruct((256, 128), jnp.float32),
        "layers": {
            "kernel": jax.ShapeDtypeStruct((4, 128, 256), jnp.float32),
            "scale": jax.ShapeDtypeStruct((4, 128), jnp.float32),
        },
    }
    rule = make_optimizer(Optimizer(name=name), lambda step: 0.1, axes)
    names_of = names_of_state(rule, shapes, axes)
    for path, leaf in jax.tree_util.tree_leaves_with_path(jax.eval_shape(rule.init, shapes)):
        names = names_of(path, leaf)
        assert len(names) == len(leaf.shape)
        if leaf.shape == (4, 128, 256):
            assert names == ("layers", "embed", "mlp")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": "adamm"}, "optimizer.name=adamm: no such optimizer; did you mean adamw?"),
        ({"name": "adamw(x=1)"}, "adamw has no option x; it has none"),
        ({"schedule": "cosin"}, "optimizer.schedule=cosin: no such schedule; did you mean cosine?"),
        ({"name": "adafactor", "weight_decay": 0.1}, "adafactor has no weight decay"),
    ],
)
def test_what_is_no_optimizer_and_no_schedule(settings, words):
    with pytest.raises(UserError) as caught:
        check_optimizer(Optimizer(**settings))
    assert words in str(caught.value)


@pytest.mark.usefixtures("own_code")
def test_a_schedule_of_ones_own(write_module):
    write_module("mine", MINE)
    config = Optimizer(schedule="mine.last_tenth(tail=0.5)", warmup_steps=0, learning_rate=1.0)
    rates = [float(make_schedule(config, 100, 1)(step)) for step in (0, 49, 74, 99)]
    assert rates == pytest.approx([1.0, 1.0, 0.5, 0.0])
    for tail in (0.1, 0.5):
        config = dataclasses.replace(config, schedule=f"mine.last_tenth(tail={tail})")
        assert depends_on_end(config)
        assert not depends_on_end(dataclasses.replace(config, decay_steps=50))


@pytest.mark.parametrize("name", SCHEDULES)
def test_only_schedules_that_decay_to_the_end_depend_on_it(name):
    config = Optimizer(schedule=name, warmup_steps=10)
    rates = [float(make_schedule(config, steps, 1)(40)) for steps in (60, 90)]
    assert depends_on_end(config) == (rates[0] != rates[1])


@pytest.mark.parametrize("adapt", sorted({*ADAPTATIONS} - {"probe"}))  # here no task has a head
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_state_of_what_is_trained_has_its_axes(name, adapt, make):
    """Each optimizer × each part of the parameters that may be trained."""
    adaptation = parse_adaptation(adapt if adapt != "last" else "last(1)")
    settings = {f"model.{key}": value for key, value in adaptation.settings.items()}
    model = make("causal_lm", "decoder", **{"model.num_layers": 2}, **settings)[0].model
    axes = adaptation.trained_part(parameter_axes(model))
    shapes, _ = adaptation.split_shapes(parameter_shapes(model))
    rule = make_optimizer(Optimizer(name=name, average="ema"), lambda step: 0.1, axes)
    names_of = names_of_state(rule, shapes, axes)
    state = jax.eval_shape(rule.init, shapes)
    is_axes = {"is_leaf": lambda leaf: isinstance(leaf, tuple)}
    averages = jax.tree_util.tree_leaves_with_path({AVERAGE: state[AVERAGE]})
    for (path, leaf), names in zip(averages, jax.tree.leaves(axes, **is_axes), strict=True):
        assert tuple(names_of(path, leaf)) == names
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        assert len(names_of(path, leaf)) == len(leaf.shape)
