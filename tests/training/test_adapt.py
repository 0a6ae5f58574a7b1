"""Adaptations: at first the model is what it was, whatever is added; LoRA merged is LoRA."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model.proofs import apply, random_params

from t5x_lite.errors import UserError
from t5x_lite.model.transformer import initialise
from t5x_lite.resolve import text_data
from t5x_lite.training import loop
from t5x_lite.training.adapt import merge_low_rank, parse_adaptation

CELLS = [("masked_lm", "encoder"), ("causal_lm", "decoder"), ("span_corruption", "encoder_decoder")]


def first_row(make, objective, architecture):
    from t5x_lite.data.rows.batches import make_batches

    resolved, corpus = make(objective, architecture)
    config = resolved.config
    batches = make_batches(resolved.rows, config.data, config.seed, corpus, "train")
    return resolved.model, {key: jnp.asarray(value) for key, value in batches.batch_at(0).items()}


@pytest.mark.parametrize(
    ("objective", "architecture", "adapt"),
    [
        pytest.param(*CELLS[1], "lora(3)", marks=pytest.mark.slow),
        (*CELLS[1], "adapter(5)"),
        pytest.param(*CELLS[2], "lora(3)", marks=pytest.mark.slow),
        pytest.param(*CELLS[2], "adapter(5)", marks=pytest.mark.slow),
    ],
)
def test_nothing_changes_before_anything_is_learned(make, objective, architecture, adapt):
    model, row = first_row(make, objective, architecture)
    adaptation = parse_adaptation(adapt)
    adapted = replace(model, **adaptation.settings)
    base, drawn = initialise(model, 0), initialise(adapted, 0)
    trained, _ = adaptation.split(drawn)
    _, frozen = adaptation.split(base)
    params = adaptation.merge(trained, frozen)
    before = apply(model, base, row).hidden_states
    after = apply(adapted, params, row).hidden_states
    if adapt == "adapter(5)":  # the norms that are trained with it are as drawn
        np.testing.assert_allclose(before, after, atol=1e-6)
    else:
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(("objective", "architecture"), CELLS[:2])
@pytest.mark.parametrize("scan", [True, False])
def test_merged_low_rank_updates_are_the_updates(make, objective, architecture, scan):
    model, row = first_row(make, objective, architecture)
    targets = ("query", "value", "wi", "wo", "embedding")
    model = replace(model, scan=scan, lora_rank=3, lora_targets=targets, tie_embeddings=False)
    params = random_params(model, seed=1)
    adapted = apply(model, params, row).hidden_states
    merged_model, merged = merge_low_rank(model, params)
    assert not any("lora" in str(path) for path, _ in jax.tree_util.tree_leaves_with_path(merged))
    after = apply(merged_model, merged, row).hidden_states
    np.testing.assert_allclose(adapted, after, atol=1e-5)
    without = replace(merged_model, lora_rank=0)
    plain = jax.tree_util.tree_map_with_path(lambda path, leaf: leaf, merged)
    assert jax.tree.structure(plain) == jax.tree.structure(initialise(without, 0))


def test_a_prefix_is_seen_by_every_segment_and_a_prompt_by_none_without_its_ids(make):
    model, row = first_row(make, "masked_lm", "encoder")
    base = initialise(model, 0)
    hidden = apply(model, base, row).hidden_states
    for adapt, is_seen in (("prefix(4)", True), ("prompt(4)", False)):
        adaptation = parse_adaptation(adapt)
        adapted = replace(model, **adaptation.settings)
        trained, _ = adaptation.split(initialise(adapted, 1))
        trained = jax.tree.map(lambda leaf: leaf * 20, trained)
        params = adaptation.merge(trained, adaptation.split(base)[1])
        changed = np.abs(apply(adapted, params, row).hidden_states - hidden).max(-1)
        assert (changed > 1e-6).all() == is_seen
        assert (changed > 1e-6).any() == is_seen
        if adapt == "prompt(4)":
            with_prompt = row | {
                "encoder_tokens": jnp.where(
                    row["encoder_positions"] == 1, -1, row["encoder_tokens"]
                )
            }
            seen = apply(adapted, params, with_prompt).hidden_states
            assert np.abs(seen - hidden).max() > 1e-6


@pytest.mark.parametrize(
    ("adapt", "more"),
    [
        ("last(1)", {}),
        ("last(2)", {"model.num_layers": 4, "model.feed_forward": "experts(num=2, every=2)"}),
    ],
)
def test_last_layers_are_slices(make, adapt, more):
    resolved, _ = make("causal_lm", "decoder", **more)
    params = random_params(resolved.model, seed=1)
    adaptation = parse_adaptation(adapt)
    adaptation.check(resolved.model)
    trained, frozen = adaptation.split(params)
    for path, leaf in jax.tree_util.tree_leaves_with_path(trained["decoder"]["layers"]):
        assert leaf.shape[0] == 1, path
    again = adaptation.merge(trained, frozen)
    jax.tree.map(np.testing.assert_array_equal, again, params)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lore", "adapt=lore: no such adaptation; did you mean lora"),
        ("lora(0)", "rank: got 0, expected at least 1"),
        ("lora(1.5)", "rank: got 1.5, expected a whole number"),
        ("lora(8, 16, 3)", "got 3; expected options by name"),
        ("lora(size=8)", "lora has no option size; expected one of rank, alpha"),
        ("probe(3)", "got 3; it has no options"),
    ],
)
def test_what_is_no_adaptation(text, words):
    with pytest.raises(UserError, match=words):
        parse_adaptation(text)


def test_layers_that_repeat_are_trained_together(make):
    experts = {"model.num_layers": 4, "model.feed_forward": "experts(num=2, every=2)"}
    resolved, _ = make("causal_lm", "decoder", **experts)
    with pytest.raises(UserError, match="adapt=last: got 3, but layers repeat every 2"):
        parse_adaptation("last(3)").check(resolved.model)


def test_a_model_is_adapted_as_it_says_and_from_another(make, tmp_path):
    resolved, _ = make(adapt="lora(2)", **{"model.lora_rank": 8})
    words = r"model.lora_rank: got 8, but adapt=lora needs 2; set it to 2"
    with pytest.raises(UserError, match=words):
        parse_adaptation("lora(2)").check(resolved.model)
    resolved, corpus = make(adapt="last(1)")
    with pytest.raises(UserError, match=r"adapt=last\(1\): set init_from to the run directory"):
        loop.train(resolved, text_data(resolved, corpus), tmp_path / "run")
    assert not (tmp_path / "run").exists()
