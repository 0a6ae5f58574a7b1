"""What a run may be continued with, who may write it, and what another run takes from it."""

import json
import os
import re
import shutil
from dataclasses import replace

import jax
import numpy as np
import pytest
from conftest import run, sentences, settings
from flax.traverse_util import flatten_dict
from model.proofs import random_params
from training.runs import figures, saved_steps

import t5x_lite
from t5x_lite import manifest
from t5x_lite.config.amounts import parse_amount
from t5x_lite.errors import UserError
from t5x_lite.progress import messages_to
from t5x_lite.resolve import text_data
from t5x_lite.training import run_directory
from t5x_lite.training.checkpoint import Checkpoints
from t5x_lite.training.checksums import checksum_on_host
from t5x_lite.training.log import read_metrics
from t5x_lite.training.loop import Run, train


def test_a_second_run_in_the_same_directory_is_refused(tmp_path, config_file, make):
    """While the first one goes on, and not once it has ended."""
    workdir = tmp_path / "run"
    resolved, corpus = make(**{"training.steps": 3})
    command = ("train", f"--config={config_file(**{'training.steps': 3})}", f"--workdir={workdir}")
    refused = []

    def start_another(record):
        if record["step"] == 2:
            refused.append(run(*command, code=2)[1])

    train(resolved, text_data(resolved, corpus), workdir, start_another)
    assert len(refused) == 1
    assert "another run is going on there" in refused[0]
    run(*command)


def test_going_on_with_other_settings_or_text(trained, tmp_path, text_file):
    workdir, command = trained
    before = (workdir / "config.json").read_text()
    _, err = run(*command, "--config.optimizer.learning_rate=0.5", code=78)
    assert "optimizer.learning_rate: the run in" in err
    assert "0.001, now it is 0.5" in err
    run(*command, "--config.data.validation_fraction=0.3", code=78)
    store = f"--config.data.store={tmp_path / 'store'}"
    written, text = text_file.stat(), text_file.read_text()
    try:
        text_file.write_text(text + "\n\nand more")
        _, err = run(*command, store, code=65)
        assert "another text" in err
    finally:
        text_file.write_text(text)
        os.utime(text_file, ns=(written.st_atime_ns, written.st_mtime_ns))
    assert (workdir / "config.json").read_text() == before

    out, _ = run(*command, "--config.training.steps=8")
    assert "step 7/8" in out
    assert json.loads((workdir / "config.json").read_text())["training"]["steps"] == 8
    out, _ = run("evaluate", f"--workdir={workdir}", "--json")
    evaluated = json.loads(out.splitlines()[-1])
    assert evaluated["step"] == 8
    assert evaluated["loss"] == pytest.approx(figures(workdir)[-1]["loss"], rel=1e-6)
    assert evaluated["perplexity"] == pytest.approx(np.exp(evaluated["loss"]))
    out, _ = run("evaluate", f"--workdir={workdir}")
    assert f"{evaluated['loss']:,.4f}" in out


def test_fewer_steps_are_refused_and_more_say_what_becomes_of_the_schedule(trained):
    workdir, command = trained
    _, err = run(*command, "--config.training.steps=4", code=78)
    assert f"training.steps: got 4, but the run in {workdir} has done 6" in err
    out, _ = run(*command, "--config.training.steps=7")
    assert "the last step: 6 before, 7 now" in out
    assert "the learning rate decays to the new end" in out
    out, _ = run(*command, "--config.training.steps=7")
    assert "the new end" not in out


def test_more_epochs_move_the_end_as_more_steps_do(tmp_path, config_file):
    text = tmp_path / "short.txt"
    text.write_text(sentences(30))
    settings = {"data.source": str(text), "data.epochs": 1, "training.steps": 100}
    command = ("train", f"--config={config_file(**settings)}", f"--workdir={tmp_path / 'run'}")
    end = int(re.search(r"step \d+/(\d+)", run(*command)[0])[1])
    out, _ = run(*command, "--config.training.steps=200")  # the epochs end the run where they did
    assert f"already at step {end} of {end}" in out
    assert "the new end" not in out
    out, _ = run(*command, "--config.data.epochs=2")
    later = int(re.search(r"step \d+/(\d+)", out)[1])
    assert later > end
    assert f"the last step: {end} before, {later} now" in out


def test_text_may_move_between_two_starts_but_not_change(tmp_path, config_file):
    old, new, workdir = tmp_path / "old.txt", tmp_path / "new.txt", tmp_path / "run"
    old.write_text(sentences(100))
    command = ("train", f"--config={config_file(**{'training.steps': 2})}", f"--workdir={workdir}")
    run(*command, f"--config.data.source={old}")
    old.rename(new)
    out, _ = run(*command, f"--config.data.source={new}", "--config.training.steps=4")
    assert "step 3/4" in out
    run("evaluate", f"--workdir={workdir}")
    new.write_text(sentences(100, seed=1))
    for name in ("evaluate", "report"):
        _, err = run(name, f"--workdir={workdir}", code=65)
        assert "was started on another text" in err


def test_what_is_not_ours_is_left_alone(tmp_path, config_file):
    path = config_file()
    other = tmp_path / "other"
    other.mkdir()
    (other / "metrics.jsonl").write_text("mine")
    _, err = run("train", f"--config={path}", f"--workdir={other}", code=2)
    assert "holds a metrics.jsonl that no run wrote" in err
    assert (other / "metrics.jsonl").read_text() == "mine"
    assert not (other / "config.json").exists()
    (other / "metrics.jsonl").rename(other / "tokenizer")
    _, err = run("train", f"--config={path}", f"--workdir={other}", code=2)
    assert "holds a tokenizer that no run wrote" in err
    (tmp_path / "file").write_text("mine")
    _, err = run("train", f"--config={path}", f"--workdir={tmp_path / 'file'}", code=74)
    assert "cannot be written" in err
    assert (tmp_path / "file").read_text() == "mine"


def test_a_config_json_is_checked_like_any_config(trained):
    workdir, _ = trained
    config = json.loads((workdir / "config.json").read_text())
    wrong = config | {"model": config["model"] | {"num_heads": 3}}
    (workdir / "config.json").write_text(json.dumps(wrong))
    _, err = run("evaluate", f"--workdir={workdir}", code=78)
    assert "model.num_heads: 3 does not divide" in err


# Starting from another run.


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
    run_directory.check_init_from(resolved, corpus.tokenizer)
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
    run_directory.check_init_from(resolved, corpus.tokenizer)
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
        run_directory.check_init_from(resolved, corpus.tokenizer)
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
        run_directory.check_init_from(resolved, other)
    body, _ = make("masked_lm", "encoder", **{"init_from": str(theirs), "model.d_ff": 48})
    run = Run(body, text_data(body, corpus))
    with (
        run.within(),
        pytest.raises(UserError, match=r"the parameter encoder/layers/feed_forward/"),
    ):
        run_directory.merge_parameters(body, run.fresh_state().params, run.program.mesh)


@pytest.mark.parametrize("tied", [True, False])
def test_a_larger_vocabulary_keeps_what_is_known(tmp_path, make, tied):
    """New ids get the mean of the others, in tables, output layer and bias; padding stays zero."""
    head = {"model.mlm_head": True, "model.tie_embeddings": tied}
    theirs = make_run_directory(tmp_path / "theirs", make, "masked_lm", "encoder", **head)
    ids = make("masked_lm", "encoder", **head)[0].model.vocab_size
    init_from = {"init_from": str(tmp_path / "theirs")}
    more = init_from | head | {"model.vocab_size": ids + 200}
    resolved, corpus = make("masked_lm", "encoder", **more)
    run_directory.check_init_from(resolved, corpus.tokenizer)
    run = Run(resolved, text_data(resolved, corpus))
    with run.within():
        fresh = run.fresh_state().params
        params, _ = run_directory.merge_parameters(resolved, fresh, run.program.mesh)
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
        run_directory.check_init_from(replace(smaller, config=other), corpus.tokenizer)


def test_a_larger_vocabulary_is_not_for_adapted_models(tmp_path, make):
    """Their base would lack the new ids."""
    make_run_directory(tmp_path / "theirs", make, "masked_lm", "encoder")
    ids = make("masked_lm", "encoder")[0].model.vocab_size
    more = {"init_from": str(tmp_path / "theirs"), "model.vocab_size": ids + 1}
    resolved, corpus = make("masked_lm", "encoder", **more, adapt="lora(2)")
    with pytest.raises(UserError, match=r"model\.vocab_size: got"):
        run_directory.check_init_from(resolved, corpus.tokenizer)


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


@pytest.fixture(scope="module")
def several(tmp_path_factory, text_file):
    """A run that has kept steps 2, 4 and 6."""
    directory = tmp_path_factory.mktemp("several")
    more = {"training.steps": 6, "training.keep_every": 2}
    config = f"def get_config():\n    return {settings(text_file, **more)!r}\n"
    (directory / "config.py").write_text(config)
    run("train", f"--config={directory / 'config.py'}", f"--workdir={directory / 'run'}")
    return directory


def test_any_kept_step_can_be_read(several, tmp_path):
    workdir = several / "run"
    tokens = manifest.read(workdir / "checkpoints/4")["raw_tokens"]
    losses = {r["step"]: r["loss"] for r in read_metrics(workdir / "metrics.jsonl")}
    assert losses[2] > losses[6]
    evaluated = {}
    for mark in ("", "@2", "@4", f"@{tokens}-tokens", f"@{tokens / 1000}k-tokens", "@6"):
        out, _ = run("evaluate", f"--workdir={workdir}{mark}", "--json")
        evaluated[mark] = json.loads(out)
    steps = {mark: result["step"] for mark, result in evaluated.items()}
    assert list(steps.values()) == [6, 2, 4, 4, 4, 6]
    assert evaluated["@2"]["loss"] > evaluated["@4"]["loss"] > evaluated["@6"]["loss"]
    run("generate", f"--workdir={workdir}@2", "the", "--max-new-tokens=2")
    run("export", f"--workdir={workdir}@2", tmp_path / "exported")
    assert manifest.read(tmp_path / "exported")["step"] == 2


def test_amounts_of_text_are_kept_and_exported_as_revisions(several, text_file, tmp_path):
    workdir, exported = tmp_path / "run", tmp_path / "exported"
    facts = manifest.read(several / "run/checkpoints/2")
    # Words as wc counts them; the tokens are bytes, and one that ends each document.
    documents = text_file.read_text().split("\n\n")
    words_per_token = sum(len(text.split()) for text in documents) / sum(
        len(text) + 1 for text in documents
    )
    assert facts["words"] == pytest.approx(facts["raw_tokens"] * words_per_token, rel=0.02)

    two, five = (f"{facts['words'] / 2 * steps:.0f}" for steps in (2, 5.2))
    kept = f"--config.training.keep_at=('{two}-words','{five}-words','3','10k-words')"
    command = ("train", f"--config={several / 'config.py'}", f"--workdir={workdir}", kept)
    run(*command, "--config.training.keep_every=0", "--config.training.steps=9")
    assert saved_steps(workdir) == [2, 3, 5, 9]
    out, _ = run("evaluate", f"--workdir={workdir}@{five}-words", "--json")
    assert json.loads(out)["step"] == 5
    for _ in range(2):  # the second time it finds all of them there
        run("export", "--revisions", f"--workdir={workdir}", exported)
    names = {f"chck_{two}": 2, f"chck_{five}": 5, "step3": 3, "step9": 9}
    steps = {path.name: manifest.read(path)["step"] for path in exported.iterdir()}
    assert steps == names
    _, err = run("export", "--revisions", f"--workdir={workdir}@3", exported, code=2)
    assert "got 3 after the @, but --revisions writes all checkpoints" in err
    again = ("export", "--revisions", f"--workdir={workdir}", exported, "--dtype=bfloat16")
    _, err = run(*again, code=2)
    assert f"chck_{two} holds an export with dtype=float32, not bfloat16; remove it" in err
    shutil.rmtree(exported / "step3")
    (exported / "step3").mkdir()  # as a process leaves it that is killed at once
    for address in (exported, f"file://{tmp_path}/elsewhere"):
        run("export", "--revisions", f"--workdir={workdir}", address)
    for name in names:
        elsewhere = tmp_path / "elsewhere" / name
        assert manifest.read(exported / name) == manifest.read(elsewhere)
        manifest.check_files(elsewhere, manifest.read(elsewhere))


@pytest.mark.parametrize(
    "amount",
    [
        *("10M", "many", "0", "-3", "1e6", "5 M-words", "0-words"),
        *("9" * 400, "9" * 400 + "-words", "\u0663M-words"),
    ],
    ids=lambda amount: amount[:9],
)
def test_what_is_no_amount_is_refused(several, tmp_path, amount):
    command = ("train", f"--config={several / 'config.py'}", f"--workdir={tmp_path / 'run'}")
    _, err = run(*command, f"--config.training.keep_at=('{amount}',)", code=78)
    assert f"training.keep_at: got {amount}, expected a number of steps, tokens or words" in err


def test_a_number_that_python_does_not_read_is_no_amount():
    assert parse_amount("9" * 5000) is None


def test_what_was_kept_stays_with_other_settings(several, tmp_path):
    shutil.copytree(several / "run", tmp_path / "run")
    command = ("train", f"--config={several / 'config.py'}", f"--workdir={tmp_path / 'run'}")
    more = ("--config.training.keep_every=0", "--config.training.keep_at=('1k-words','1-words')")
    out, _ = run(*command, *more)  # nothing is left to do
    assert "training.keep_at: 1k-words would be step" in out
    assert saved_steps(tmp_path / "run") == [2, 4, 6]
    run(*command, *more, "--config.training.steps=9", "--config.training.checkpoint_every=1")
    assert saved_steps(tmp_path / "run") == [2, 4, 6, 8, 9]


def test_the_first_step_is_the_nearest_to_the_smallest_amounts(several, tmp_path):
    command = ("train", f"--config={several / 'config.py'}", f"--workdir={tmp_path / 'run'}")
    run(*command, "--config.training.keep_every=0", "--config.training.keep_at=('1-words',)")
    assert saved_steps(tmp_path / "run") == [1, 6]
    out, _ = run("evaluate", f"--workdir={tmp_path / 'run'}@1-words", "--json")
    assert json.loads(out)["step"] == 1


def test_the_end_of_the_last_epoch_is_kept_as_that_much_text(config_file, text_file, tmp_path):
    """Epochs end with a whole batch, which is less text than they have; more text is after them."""
    words = len(text_file.read_text().split())
    (tmp_path / "held_out.txt").write_text(sentences(40, seed=1))
    held_out = {"data.validation_source": str(tmp_path / "held_out.txt")}
    config = config_file(**held_out, **{"data.epochs": 3})
    command = ("train", f"--config={config}", f"--workdir={tmp_path / 'run'}")
    command += ("--config.training.steps=100000", "--config.training.log_every=1000")
    amounts = [f"{number * words}-words" for number in (1, 3, 4)]
    out, _ = run(*command, f"--config.training.keep_at=({','.join(map(repr, amounts))})")
    kept = saved_steps(tmp_path / "run")
    assert f"{amounts[2]} would be step" in out
    assert amounts[1] not in out
    assert kept == [round(kept[1] / 3), kept[1]]
    for amount, step in zip(amounts, kept, strict=False):
        out, _ = run("evaluate", f"--workdir={tmp_path / 'run'}@{amount}", "--json")
        assert json.loads(out)["step"] == step
    # A number of steps is no amount of text.
    more = ("--config.training.steps=6", "--config.training.keep_at=('7',)")
    out, _ = run(*command[:2], f"--workdir={tmp_path / 'short'}", *more)
    assert "training.keep_at: 7 would be step 7, after the last, 6" in out


def test_a_run_may_start_from_a_kept_step(several, tmp_path):
    command = ("train", f"--config={several / 'config.py'}", "--config.training.steps=1")
    base = f"--config.init_from={several / 'run'}"
    out, _ = run(*command, f"{base}@2", f"--workdir={tmp_path / 'a'}")
    assert f"arrays loaded from {several / 'run'}@2" in out
    _, err = run(*command, f"{base}@3", f"--workdir={tmp_path / 'b'}", code=66)
    assert "run@3: no such checkpoint; expected a step that was kept (2, 4, 6), best" in err
    start = manifest.read(several / "run/checkpoints/2")["arrays"]
    theirs = t5x_lite.load(f"{several / 'run'}@2").params["embedding"]
    assert checksum_on_host(np.asarray(theirs)) == start["params/embedding"][2]


@pytest.mark.parametrize(
    ("mark", "words"),
    [
        ("@best", "no best checkpoint; only runs on a task keep one"),
        ("@99M-tokens", "no such checkpoint"),
        ("@newest", "no such checkpoint"),
    ],
)
def test_checkpoints_that_are_not_there_are_named(several, mark, words):
    _, err = run("evaluate", f"--workdir={several / 'run'}{mark}", code=66)
    assert words in err


def test_an_address_that_ends_in_its_mark_is_refused(several):
    _, err = run("evaluate", f"--workdir={several / 'run'}@", code=2)
    assert "got nothing after the @, expected a step" in err


def test_a_damaged_step_is_refused_if_it_is_named(several, tmp_path):
    shutil.copytree(several / "run", tmp_path / "run")
    (tmp_path / "run/checkpoints/4/_METADATA").unlink()
    _, err = run("evaluate", f"--workdir={tmp_path / 'run'}@4", code=66)
    assert "4: _METADATA is missing; name another checkpoint" in err
    run("evaluate", f"--workdir={tmp_path / 'run'}@2")


def test_a_run_may_not_hide_a_checkpoint(several):
    command = ("train", f"--config={several / 'config.py'}", f"--workdir={several / 'run@4'}")
    _, err = run(*command, code=2)
    assert "would hide a checkpoint of the run in" in err
    assert not (several / "run@4").exists()  # or it would hide it from now on


def test_the_name_of_a_directory_may_have_an_at(several, tmp_path):
    shutil.copytree(several / "run", tmp_path / "me@home" / "run@4")
    for name in ("run@4", "run@4@2"):
        out, _ = run("evaluate", f"--workdir={tmp_path / 'me@home' / name}", "--json")
        assert json.loads(out)["step"] == (6 if name == "run@4" else 2)


def test_directories_that_are_not_for_runs_are_refused(tmp_path, config_file, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    config = f"--config={config_file()}"
    (home / "mine.txt").touch()
    for place in ("/", "/usr", home):
        _, err = run("train", config, f"--workdir={place}", code=2)
        assert "is no directory of its own, and holds files; name a new one" in err
    assert sorted(path.name for path in home.iterdir()) == ["mine.txt"]
    if os.getuid() == 0:
        theirs = tmp_path / "theirs"
        theirs.mkdir()
        (theirs / "a.txt").touch()
        os.chown(theirs, 12345, 12345)
        _, err = run("train", config, f"--workdir={theirs}", code=2)
        assert "belongs to somebody else" in err
