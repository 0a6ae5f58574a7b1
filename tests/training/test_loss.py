"""Losses from outside: ELECTRA, as the manual has it, and two streams (XLNet)."""

import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from model.proofs import random_params
from proof_sharding import module_of_the_manual

from t5x_lite.config.permission import allow
from t5x_lite.data.rows.batches import make_batches
from t5x_lite.errors import UserError
from t5x_lite.model import transformer
from t5x_lite.model.check import check_model
from t5x_lite.model.flops import forward_flops
from t5x_lite.model.transformer import count_parameters, parameter_shapes
from t5x_lite.training.log import mean_metrics
from t5x_lite.training.loss import find_loss, make_loss, step_flops

TWO_STREAMS = '''
"""XLNet (Yang et al., 2019): predict tokens in a random order, after those that are only read."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from t5x_lite.data.objectives.declaration import objective
from t5x_lite.data.objectives.masked import masked_lm
from t5x_lite.model.flops import forward_flops

MASK = 4


@dataclass(frozen=True)
class ByRank:
    """What was read before; the content of a token sees itself, too, the query for it does not."""

    def __call__(self, queries, keys):
        query, key = queries["rank"][:, :, None], keys["rank"][:, None, :]
        sees_itself = (queries["asks"] == 0)[:, :, None] & (key == query)
        return (keys["asks"] == 0)[:, None, :] & ((key < query) | sees_itself)

    def visible(self, positions, bidirectional):
        return positions / 2


def two_streams(rows, keys):
    """Rows of twice the positions: the content of each token, then the query for it."""
    shape = rows["encoder_tokens"].shape
    order = jax.vmap(lambda key: jax.random.permutation(key, shape[1]))(keys) + 1
    put = jax.vmap(lambda places, used: jnp.zeros(shape[1]).at[places].max(used))
    rank = order * put(rows["encoder_scored"], rows["encoder_weights"]).astype(int)
    def both(content, query):
        return jnp.concatenate([content, query], 1)

    doubled = {name: both(rows[name], rows[name]) for name in rows if rows[name].shape == shape}
    return rows | doubled | {
        "encoder_tokens": both(rows["encoder_tokens"], jnp.full(shape, MASK)),
        "encoder_rank": both(rank, rank),
        "encoder_asks": both(jnp.zeros_like(rank), jnp.ones_like(rank)),
        "encoder_scored": rows["encoder_scored"] + shape[1],
    }


class TwoStreams:
    def __call__(self, models, rows, keys):
        rows = two_streams(rows, keys)
        return {"mlm": models.head_sums("mlm", models.output(rows), rows)}

    def flops(self, model, shape, scored):
        return forward_flops(model, replace(shape, encoder=2 * shape.encoder), scored)


@objective(
    bound=masked_lm.bound,
    traits=lambda **options: replace(
        masked_lm.traits(),
        loss="xlnet.TwoStreams",
        model=lambda model: replace(model, attention_rules=("xlnet.ByRank",)),
    ),
)
def permuted(tokens, rng, vocabulary):
    return masked_lm(tokens, rng, vocabulary, mask_rate=0.0, random_rate=0.0)


@objective(bound=masked_lm.bound, traits=replace(masked_lm.traits(), loss="xlnet.TwoStreams"))
def without_rules(tokens, rng, vocabulary):
    return masked_lm(tokens, rng, vocabulary)
'''


@pytest.fixture
def run_of(make, tmp_path, monkeypatch):
    """Objective of a module → (resolved, loss, first batch)."""
    (tmp_path / "xlnet.py").write_text(TWO_STREAMS)
    module_of_the_manual("own-loss.md", "electra.py", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def run(objective, **settings):
        resolved, corpus = make(objective, "encoder", **settings)
        config = resolved.config
        batches = make_batches(resolved.rows, config.data, config.seed, corpus, "train")
        batch = {key: jnp.asarray(value) for key, value in batches.batch_at(0).items()}
        return resolved, make_loss(resolved), batch

    with allow(["xlnet", "electra"]):
        yield run
    for name in ("xlnet", "electra"):
        sys.modules.pop(name, None)


def test_the_discriminator_teaches_the_generator_nothing(run_of):
    """Only the tables that they share have a gradient of both."""
    resolved, loss, batch = run_of("electra.replaced_tokens")
    params, key = random_params(resolved.model, stddev=0.1), jax.random.key(1)
    assert resolved.heads == ("mlm", "electra.replaced(weight=50)")

    @jax.jit
    def gradients(params):
        def total(name):
            return lambda params: loss.sums(params, batch, key)[name]["total_loss"]

        return {name: jax.grad(total(name))(params) for name in resolved.heads}

    found = {name: flatten_dict(tree, sep="/") for name, tree in gradients(params).items()}
    generator, discriminator = found["mlm"], found[resolved.heads[1]]
    for path in generator:
        is_of_generator = path.startswith("generator/")
        is_shared = path in ("embedding", "position_embedding", "type_embedding")
        learns = np.abs(generator[path]).max() > 0, np.abs(discriminator[path]).max() > 0
        if "key/bias" in path:  # whose gradient is 0 but for rounding
            continue
        assert learns == (is_of_generator or is_shared, not is_of_generator), path


def test_replaced_tokens_are_those_that_the_generator_got_wrong(run_of):
    """A generator that always writes the original replaces nothing."""
    resolved, loss, batch = run_of("electra.replaced_tokens", **{"model.mlm_head": True})
    params = random_params(resolved.model, stddev=0.1)
    targets = batch["encoder_targets"]
    same = jnp.broadcast_to(targets[:1, :1], targets.shape)
    batch |= {"encoder_targets": same}
    bias = params["generator"]["head"]["bias"]
    params["generator"]["head"]["bias"] = bias.at[same[0, 0]].set(1e4)
    sums = jax.jit(loss.sums)(params, batch)[resolved.heads[1]]
    # All logits are asked whether nothing was replaced: each says so where it is below 0.
    params["head_replaced"]["output"]["bias"] = jnp.array([-1e4])
    params["head_replaced"]["output"]["kernel"] *= 0
    certain = jax.jit(loss.sums)(params, batch)[resolved.heads[1]]
    assert certain["correct"] == certain["weight"] == sums["weight"]


@pytest.mark.parametrize("objective", ["electra.replaced_tokens", "xlnet.permuted"])
def test_what_is_logged_is_what_is_minimised(run_of, objective):
    """The head of the manual states its weight once, as the divisor."""
    resolved, loss, batch = run_of(objective)
    params = random_params(resolved.model, stddev=0.1)
    sums = jax.jit(loss.sums)(params, batch, jax.random.key(1))
    minimised = loss.mean(sums, loss.divisors(batch))
    assert mean_metrics(sums)["total_loss"] == pytest.approx(float(minimised), rel=1e-6)


@pytest.mark.parametrize("key", [None, jax.random.key(5)])
@pytest.mark.parametrize("objective", ["electra.replaced_tokens", "xlnet.permuted"])
def test_samples_do_not_depend_on_microbatches(run_of, objective, key):
    found = []
    for microbatches in (1, 2, 4):
        resolved, loss, batch = run_of(objective, **{"training.microbatches": microbatches})
        params = random_params(resolved.model, stddev=0.1)
        if key is None:
            sums = jax.jit(loss.evaluate)(params, batch)
        else:
            _, sums = jax.jit(loss.gradient)(params, batch, key)
        found.append(jax.tree.map(float, sums))
    for other in found[1:]:
        for name, term in found[0].items():
            assert other[name] == pytest.approx(term, rel=1e-5), name


BAD_SUMS = {
    "nothing": ("{}", "expected a dict of sums by head"),
    "a number": ("1.0", "expected a dict of sums by head"),
    "another name": ("{'lm': sums}", "expected those of heads: mlm"),
    "a stack that rows lack": ("{'decoder_x': sums}", "expected those of heads: mlm"),
    "no total": ("{'mlm': {'nll': sums['nll']}}", "expected the sums correct, nll, total_loss"),
    "sums of each row": ("{'mlm': {k: v[None] for k, v in sums.items()}}", "each one number"),
}


@pytest.mark.parametrize("kind", BAD_SUMS)
def test_what_a_loss_returns_is_checked(run_of, monkeypatch, kind):
    expression, words = BAD_SUMS[kind]
    resolved, loss, batch = run_of("xlnet.permuted")
    right = loss._function

    def wrong(models, rows, keys):
        return eval(expression, {"sums": right(models, rows, keys)["mlm"]})

    monkeypatch.setitem(vars(loss), "_function", wrong)
    with pytest.raises(UserError, match=words):
        jax.eval_shape(loss.sums, parameter_shapes(resolved.model), batch)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ("masked_lm", "each has a loss of its own"),
        ("xlnet.without_rules", "each changes the model in a way of its own"),
    ],
)
def test_members_of_a_mixture_train_one_model_by_one_loss(run_of, other, words):
    for mixture in (f"xlnet.permuted + {other}", f"{other} + xlnet.permuted"):
        with pytest.raises(UserError, match=words):
            run_of(mixture)


def test_a_companion_shares_what_it_says_and_is_counted(run_of):
    resolved, _, _ = run_of("electra.replaced_tokens")
    model = resolved.model
    (companion,) = model.companions
    alone = count_parameters(replace(model, companions=()))
    shapes = parameter_shapes(model)
    assert "embedding" not in shapes["generator"]
    shared = sum(
        leaf.size
        for name in companion.shares
        if name in shapes
        for leaf in jax.tree.leaves(parameter_shapes(replace(model, companions=()))[name])
    )
    padding = (model.embedding_rows - model.vocab_size) * model.embedding_size
    own = count_parameters(companion.model) - (shared - padding)
    assert count_parameters(model) == alone + own

    shape = resolved.rows.shape
    both = forward_flops(model, shape, 5) + forward_flops(companion.model, shape, 5)
    assert step_flops(resolved, shape, 5) == 3 * both


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shares": ("encoder",)}, "cannot share encoder"),
        ({"name": "encoder"}, "give its companion another"),
    ],
)
def test_what_a_companion_cannot_share_is_refused(run_of, change, words):
    resolved, _, _ = run_of("electra.replaced_tokens")
    model = replace(resolved.model, lm_head=True)
    wrong = replace(model, companions=(replace(model.companions[0], **change),))
    with pytest.raises(UserError, match=words):
        check_model(wrong, resolved.rows.shape)


def test_two_streams_see_what_comes_before_in_their_order(run_of):
    """Perturb each token: the states of those queries change that come later in the order."""
    resolved, _, batch = run_of("xlnet.permuted")
    rows = sys.modules["xlnet"].two_streams(batch, jax.random.split(jax.random.key(3), 8))
    rows = {key: value[:1] for key, value in rows.items()}
    params = random_params(resolved.model, stddev=0.3)

    @jax.jit
    def states(tokens):
        row = rows | {"encoder_tokens": tokens}
        return transformer.apply(resolved.model, params, row).hidden_states[0]

    tokens = rows["encoder_tokens"]
    length = tokens.shape[1] // 2
    rank, before = np.asarray(rows["encoder_rank"][0, :length]), states(tokens)
    assert (rank > 0).sum() > 2
    for place in np.flatnonzero(np.asarray(rows["encoder_segments"][0, :length])):
        changed = states(tokens.at[0, place].add(1)) - before
        changes = np.abs(np.asarray(changed[length:])).max(-1) > 0
        asked = np.flatnonzero(rank > 0)
        assert (changes[asked] == (rank[asked] > rank[place])).all(), place


def test_a_loss_of_two_streams_learns_and_says_what_it_costs(run_of):
    resolved, loss, batch = run_of("xlnet.permuted")
    params = random_params(resolved.model, stddev=0.1)
    gradient, sums = jax.jit(loss.gradient)(params, batch, jax.random.key(0))
    assert np.isfinite(sums["mlm"]["nll"])
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    shape = resolved.rows.shape
    doubled = replace(shape, encoder=2 * shape.encoder)
    assert step_flops(resolved, shape, 5) == 3 * forward_flops(resolved.model, doubled, 5)


def test_a_loss_that_does_not_say_what_it_costs_is_refused(tmp_path, monkeypatch):
    (tmp_path / "costless.py").write_text("def of_nothing(models=None):\n    return None\n")
    monkeypatch.syspath_prepend(tmp_path)
    with allow(["costless"]), pytest.raises(UserError, match="has no method __call__"):
        find_loss("costless.of_nothing")
