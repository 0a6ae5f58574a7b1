"""Which checkpoint of a run an address names, and which are kept."""

import json
import shutil

import numpy as np
import pytest
from conftest import run, sentences, settings
from training.runs import saved_steps

import t5x_lite
from t5x_lite import manifest
from t5x_lite.config.amounts import parse_amount
from t5x_lite.training.checksums import checksum_on_host
from t5x_lite.training.log import read_metrics


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
