"""What a run takes from another one that it starts from, and what it cannot start from."""

import shutil
from dataclasses import replace

import jax
import numpy as np
import pytest
from conftest import run
from flax.traverse_util import flatten_dict
from model.proofs import random_params

from t5x_lite.errors import UserError
from t5x_lite.progress import messages_to
from t5x_lite.resolve import text_data
from t5x_lite.training import run_directory, starting
from t5x_lite.training.checkpoint import Checkpoints
from t5x_lite.training.loop import Run


def make_run_directory(workdir, make, *args, dtype="float32", **settings):
    """A run directory of random parameters, and these."""
    with jax.enable_x64(dtype == "float64"):
        resolved, corpus = make(*args, **settings, **{"model.dtype": dtype})
        params = jax.device_put(random_params(resolved.model))
        run_directory.create(workdir, resolved.config, corpus.tokenizer, params)
    return params


def start(resolved, corpus, directory):
    """The state that a run starts with, a fresh one, and what it says."""
    said = []
    run = Run(resolved, text_data(resolved, corpus))
    checkpoints = Checkpoints(directory, {})
    try:
        with run.within(), messages_to(said.append):
            return run.start(checkpoints), run.fresh_state(), said
    finally:
        checkpoints.close()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_run_starts_from_another_and_draws_the_heads_it_lacks(tmp_path, make, dtype):
    """Here the sequence label head; a run of float64 is read in float32."""
    theirs = make_run_directory(tmp_path / "theirs", make, "masked_lm", "encoder", dtype=dtype)
    init_from = {"init_from": str(tmp_path / "theirs")}
    resolved, corpus = make("masked_lm(second='next')", "encoder", **init_from)
    starting.check_init_from(resolved, corpus.tokenizer)
    state, fresh, said = start(resolved, corpus, tmp_path / "checkpoints")
    found, drawn, loaded = (flatten_dict(p, sep="/") for p in (state.params, fresh.params, theirs))
    new = {path for path in found if path.startswith("classifier/")}
    assert len(new) == 4
    assert set(found) - new == set(loaded)
    for path, leaf in found.items():
        expected = drawn[path] if path in new else np.asarray(loaded[path], np.float32)
        assert leaf.dtype == np.float32
        np.testing.assert_array_equal(leaf, expected, err_msg=path)
        assert leaf.sharding == drawn[path].sharding
    assert state.step == 0
    assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), state.opt_state, fresh.opt_state))
    assert said == [
        f"init_from: {len(loaded)} arrays loaded from {tmp_path / 'theirs'}"
        f"; newly drawn: {', '.join(path for path in found if path in new)}"
    ]


def test_heads_that_a_run_does_not_have_are_left_out(tmp_path, make):
    """From tied embeddings and a sequence label head to an output layer of its own, and to another
    padding of the vocabulary.
    """
    theirs = make_run_directory(tmp_path / "theirs", make, "masked_lm(second='next')", "encoder")
    settings = {"init_from": str(tmp_path / "theirs"), "model.tie_embeddings": False}
    settings["model.vocab_multiple"] = 100
    resolved, corpus = make("masked_lm", "encoder", **settings)
    starting.check_init_from(resolved, corpus.tokenizer)
    state, fresh, (said,) = start(resolved, corpus, tmp_path / "checkpoints")
    ids = resolved.model.vocab_size
    assert len(state.params["embedding"]) != len(theirs["embedding"])
    np.testing.assert_array_equal(state.params["embedding"][:ids], theirs["embedding"][:ids])
    np.testing.assert_array_equal(state.params["head"]["output"], fresh.params["head"]["output"])
    left_out = sorted(path for path in flatten_dict(theirs, sep="/") if "classifier" in path)
    assert said.endswith(f"; left out: {', '.join(left_out)}; newly drawn: head/output")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model.d_model": 20}, "model.d_model: got 20, but init_from="),
        ({"model.num_layers": 3}, "model.num_layers: got 3, but init_from="),
        ({"model.positions": "rotary"}, "model.positions: got 'rotary', but init_from="),
        ({"model.feed_forward": "gated_mlp"}, "model.feed_forward: got 'gated_mlp'"),
        ({"model.token_types": 2}, "model.token_types: got 2"),
    ],
)
def test_a_run_of_another_body_is_refused_by_name(tmp_path, make, settings, words):
    make_run_directory(tmp_path / "theirs", make, "masked_lm", "encoder")
    init_from = {"init_from": str(tmp_path / "theirs")}
    resolved, corpus = make("masked_lm", "encoder", **init_from, **settings)
    with pytest.raises(UserError) as caught:
        starting.check_init_from(resolved, corpus.tokenizer)
    assert words in str(caught.value)
    assert caught.value.code == 78


def test_a_run_of_other_tokens_is_refused_and_one_whose_arrays_do_not_fit(tmp_path, make):
    theirs = tmp_path / "theirs"
    make_run_directory(theirs, make, "masked_lm", "encoder")
    resolved, corpus = make("masked_lm", "encoder", **{"init_from": str(theirs)})
    tokenizer = corpus.tokenizer
    other = type(tokenizer)()
    other.fingerprint = "another"
    with pytest.raises(
        UserError, match=r"data.tokenizer: its ids are not those .*theirs/tokenizer"
    ):
        starting.check_init_from(resolved, other)
    body, _ = make("masked_lm", "encoder", **{"init_from": str(theirs), "model.d_ff": 48})
    run = Run(body, text_data(body, corpus))
    with (
        run.within(),
        pytest.raises(UserError, match=r"the parameter encoder/layers/feed_forward/"),
    ):
        starting.merge_parameters(body, run.fresh_state().params, run.program.mesh)


@pytest.mark.parametrize("tied", [True, False])
def test_a_larger_vocabulary_keeps_what_is_known(tmp_path, make, tied):
    """New ids get the mean of the others, in tables, output layer and bias; padding stays zero."""
    head = {"model.mlm_head": True, "model.tie_embeddings": tied}
    theirs = make_run_directory(tmp_path / "theirs", make, "masked_lm", "encoder", **head)
    ids = make("masked_lm", "encoder", **head)[0].model.vocab_size
    init_from = {"init_from": str(tmp_path / "theirs")}
    more = init_from | head | {"model.vocab_size": ids + 200}
    resolved, corpus = make("masked_lm", "encoder", **more)
    starting.check_init_from(resolved, corpus.tokenizer)
    run = Run(resolved, text_data(resolved, corpus))
    with run.within():
        fresh = run.fresh_state().params
        params, _ = starting.merge_parameters(resolved, fresh, run.program.mesh)
    assert jax.tree.map(np.shape, params) == jax.tree.map(np.shape, fresh)
    grown, known = (flatten_dict(tree, sep="/") for tree in (params, theirs))
    for path, axis in {"embedding": 0, "head/output": 1, "head/bias": 0}.items():
        if path not in grown:
            continue
        old = np.moveaxis(known[path], axis, 0)[:ids]
        new = np.moveaxis(np.asarray(grown[path]), axis, 0)
        np.testing.assert_array_equal(new[:ids], old)
        mean = np.broadcast_to(old.mean(0), new[ids : ids + 200].shape)
        np.testing.assert_allclose(new[ids : ids + 200], mean, rtol=1e-5, atol=1e-7)
        assert (new[ids + 200 :] == 0).all()
    assert ("head/output" in grown) != tied
    smaller, _ = make("masked_lm", "encoder", **head | init_from)
    bigger = make_run_directory(tmp_path / "bigger", make, "masked_lm", "encoder", **more)
    assert len(bigger["embedding"]) > len(theirs["embedding"])
    other = replace(smaller.config, init_from=str(tmp_path / "bigger"))
    with pytest.raises(UserError, match=r"model.vocab_size: got .*; set it to that, or more"):
        starting.check_init_from(replace(smaller, config=other), corpus.tokenizer)


def test_a_larger_vocabulary_is_not_for_adapted_models(tmp_path, make):
    """Their base would lack the new ids."""
    make_run_directory(tmp_path / "theirs", make, "masked_lm", "encoder")
    ids = make("masked_lm", "encoder")[0].model.vocab_size
    more = {"init_from": str(tmp_path / "theirs"), "model.vocab_size": ids + 1}
    resolved, corpus = make("masked_lm", "encoder", **more, adapt="lora(2)")
    with pytest.raises(UserError, match=r"model\.vocab_size: got"):
        starting.check_init_from(resolved, corpus.tokenizer)


def test_the_command_says_what_it_starts_from_and_only_once(trained, tmp_path):
    theirs, command = trained
    *command, _ = command
    workdir = tmp_path / "ours"
    starts = (*command, f"--workdir={workdir}", f"--config.init_from={theirs}")
    out, _ = run(*starts, "--config.training.steps=2")
    assert f"arrays loaded from {theirs}\n" in out
    _, err = run(*command, f"--workdir={theirs}", f"--config.init_from={theirs}", code=2)
    assert "holds the model that the run starts from" in err
    shutil.rmtree(theirs)  # what continues needs it no more
    out, _ = run(*starts, "--config.training.steps=3")
    assert "arrays loaded" not in out
    assert "step 3/3" in out


# Kept checkpoints.
