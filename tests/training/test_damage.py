"""Damaged checkpoints: noticed before anything is restored, moved aside, and the one before is
used. `make test-faults` tries many more.
"""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import run
from training.runs import saved_steps

from t5x_lite import manifest
from t5x_lite.errors import NO_FILE, UserError
from t5x_lite.manifest import verification
from t5x_lite.training.checkpoint import Checkpoints

SETTINGS = {"model.vocab_size": 8}
AXES = {"kernel": ("embed", "mlp"), "bias": ("mlp",)}


def state_of(step: int) -> dict:
    """A state that differs in every number from that of another step."""
    rng = np.random.default_rng(step)
    params = {"kernel": rng.standard_normal((64, 96)), "bias": rng.standard_normal(96)}
    arrays = {name: jnp.asarray(value, jnp.float32) for name, value in params.items()}
    return {"params": arrays, "step": jnp.int32(step)}


def save(directory, *steps, run="one", seed=0):
    """Save the states of steps, as a run does."""
    checkpoints = Checkpoints(directory, SETTINGS, run)
    for step in steps:
        checkpoints.save(step, state_of(step + seed))
    checkpoints.wait()
    checkpoints.close()


def restore(directory, run="one", read_only=False):
    """The newest step of a directory, and its state."""
    checkpoints = Checkpoints(directory, SETTINGS, run, read_only=read_only)
    try:
        here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        shardings = jax.tree.map(lambda _: here, state_of(0))
        step = checkpoints.newest
        return step, checkpoints.restore(step, state_of(0), shardings, {"params": AXES})
    finally:
        checkpoints.close()


def assert_restored(directory, step, **more):
    """The newest usable checkpoint is that of a step, and holds what was saved."""
    found, state = restore(directory, **more)
    assert found == step
    for name, array in state["params"].items():
        assert array.tobytes() == state_of(step)["params"][name].tobytes()


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory):
    """The checkpoints 5 and 10 of one run."""
    directory = tmp_path_factory.mktemp("damage") / "checkpoints"
    save(directory, 5, 10)
    return directory


@pytest.fixture
def checkpoints(two_steps, tmp_path):
    """A copy of them, to be damaged."""
    return shutil.copytree(two_steps, tmp_path / "checkpoints")


def flip(path, rng):
    content = bytearray(path.read_bytes())
    content[rng.integers(len(content))] ^= 1 << rng.integers(8)
    path.write_bytes(content)


def truncate(path, rng):
    content = path.read_bytes()
    path.write_bytes(content[: rng.integers(len(content))])


def zero(path, rng):
    content = path.read_bytes()
    start = rng.integers(len(content))
    rest = content[start + 4096 :]
    path.write_bytes(content[:start] + bytes(len(content) - start - len(rest)) + rest)


def delete(path, rng):
    path.unlink()


FAULTS = (flip, truncate, zero, delete)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_file_is_noticed_and_the_checkpoint_before_is_used(
    two_steps, tmp_path, fault, capsys
):
    """Every file of a checkpoint is tried."""
    names = [path.relative_to(two_steps / "10") for path in sorted((two_steps / "10").rglob("*"))]
    rng = np.random.default_rng(0)
    for number, name in enumerate(names):
        if not (two_steps / "10" / name).is_file():
            continue
        directory = shutil.copytree(two_steps, tmp_path / str(number))
        path = directory / "10" / name
        before = path.read_bytes()
        fault(path, rng)
        if path.exists() and path.read_bytes() == before:
            continue
        if str(name) in ("_CHECKPOINT_METADATA", "commit_success.txt"):
            assert_restored(directory, 10)  # not needed
            continue
        assert_restored(directory, 5, read_only=True)
        assert (directory / "10").exists()
        assert_restored(directory, 5)
        assert not (directory / "10").exists()
        reason = (directory / "10.damaged.txt").read_text()
        assert name.name in reason
        assert f"10 is damaged: {reason.strip()}; moved to 10.damaged" in capsys.readouterr().out


def exchange_steps(directory, other):
    (directory / "5").rename(directory / "x")
    (directory / "10").rename(directory / "5")
    (directory / "x").rename(directory / "10")


def name_a_step_otherwise(directory, other):
    (directory / "10").rename(directory / "15")


def take_from_another_run(directory, other):
    shutil.rmtree(directory / "10")
    shutil.copytree(other / "10", directory / "10")


@pytest.fixture(scope="module")
def other_run(tmp_path_factory):
    """The checkpoints 5 and 10 of a run with the same settings, but other numbers."""
    directory = tmp_path_factory.mktemp("other") / "checkpoints"
    save(directory, 5, 10, run="other", seed=100)
    return directory


@pytest.mark.parametrize(
    ("mix_up", "used", "words"),
    [
        (exchange_steps, None, "10: it is the checkpoint of step 5; 5: it is the"),
        (name_a_step_otherwise, 5, "it is the checkpoint of step 10"),
        (take_from_another_run, 5, "it is a checkpoint of another run (other, not one)"),
    ],
)
def test_checkpoints_that_are_mixed_up_are_noticed(
    checkpoints, other_run, mix_up, used, words, capsys
):
    mix_up(checkpoints, other_run)
    if used is None:
        with pytest.raises(UserError) as caught:
            restore(checkpoints)
        assert caught.value.code == NO_FILE
        assert words in str(caught.value)
    else:
        assert_restored(checkpoints, used)
        assert words in capsys.readouterr().out


def test_a_checkpoint_that_is_put_together_from_two_is_noticed(checkpoints, other_run, tmp_path):
    """Each file in turn is that of another run or of another step, if its bytes differ."""
    names = sorted(manifest.read(checkpoints / "10")["files"])
    noticed = 0
    for number, name in enumerate([*names, "manifest.json"]):
        for source in (other_run / "10", checkpoints / "5"):
            if not (source / name).exists():  # orbax names data files at random
                continue
            directory = shutil.copytree(checkpoints, tmp_path / f"{number}-{source.name}")
            path = directory / "10" / name
            if (source / name).read_bytes() == path.read_bytes():
                continue
            shutil.copy(source / name, path)
            assert_restored(directory, 5)
            noticed += 1
    assert noticed >= 4


def test_an_array_that_is_not_what_was_in_memory_is_noticed(checkpoints, capsys):
    """Its files are what was written, so only the checksum of the array can tell."""
    facts = manifest.read(checkpoints / "10")
    facts["arrays"]["params/kernel"][2] ^= 1
    manifest.write(checkpoints / "10", facts)
    reason = "params/kernel is not what was in memory when it was saved"
    with pytest.raises(UserError, match=f"{reason}; use an earlier checkpoint"):
        restore(checkpoints, read_only=True)
    for level in ("files", "off"):
        with verification(level):
            assert_restored(checkpoints, 10, read_only=True)
    with pytest.raises(UserError, match=f"{reason}; give the same command again"):
        restore(checkpoints)
    assert_restored(checkpoints, 5)


def test_nothing_is_checked_if_the_user_says_so(checkpoints):
    with open(checkpoints / "10/_METADATA", "a") as file:
        file.write("\n")
    with verification("off"):
        assert_restored(checkpoints, 10)
    assert_restored(checkpoints, 5)


def test_a_second_damaged_checkpoint_of_a_step_has_a_name_of_its_own(checkpoints):
    for count in (1, 2):
        (checkpoints / "10/manifest.json").unlink()
        assert_restored(checkpoints, 5)
        assert len(list(checkpoints.glob("10.damaged*.txt"))) == count
        save(checkpoints, 10)


def test_what_a_killed_process_left_is_removed_and_nothing_else(checkpoints, capsys):
    for name in ("15.orbax-checkpoint-tmp", "3.removed"):
        shutil.copytree(checkpoints / "10", checkpoints / name)
    for name in ("20.orbax-checkpoint-tmp", "notes", "4.removed"):
        (checkpoints / name).mkdir()
        (checkpoints / name / "thesis.txt").write_text("mine")
    (checkpoints / "6.removed").symlink_to(checkpoints / "5")
    assert_restored(checkpoints, 10, read_only=True)
    assert (checkpoints / "3.removed").exists()
    assert_restored(checkpoints, 10)
    names = {path.name for path in checkpoints.iterdir()}
    assert names == {"5", "10", "notes", "kept-20.orbax-checkpoint-tmp", "kept-4.removed"}
    assert "no run wrote thesis.txt in it" in capsys.readouterr().out
    save(checkpoints, 20, 30, 40)
    assert (checkpoints / "kept-20.orbax-checkpoint-tmp/thesis.txt").read_text() == "mine"
    assert (checkpoints / "kept-4.removed/thesis.txt").read_text() == "mine"


def test_an_unhealthy_checkpoint_replaces_no_healthy_one(tmp_path):
    checkpoints = Checkpoints(tmp_path, SETTINGS, "one")
    kept = []
    for step, healthy in enumerate([True, True, True, False, False, True, True], 1):
        checkpoints.save(step, state_of(step), healthy=healthy)
        checkpoints.wait()
        kept.append(sorted(int(path.name) for path in tmp_path.iterdir()))
    checkpoints.close()
    assert kept == [[1], [1, 2], [2, 3], [2, 3, 4], [2, 3, 5], [3, 6], [6, 7]]


def test_a_run_goes_on_from_the_checkpoint_before_and_ends_the_same(tmp_path, config_file):
    config = config_file(**{"training.steps": 6, "training.checkpoint_every": 2})
    run("train", f"--config={config}", f"--workdir={tmp_path / 'whole'}")
    shutil.copytree(tmp_path / "whole", tmp_path / "damaged")
    saved = tmp_path / "damaged/checkpoints"
    assert saved_steps(tmp_path / "damaged") == [4, 6]
    (saved / "6/_METADATA").unlink()
    out, _ = run("evaluate", f"--workdir={tmp_path / 'damaged'}", "--json")
    assert json.loads(out.splitlines()[-1])["step"] == 4
    out, _ = run("train", f"--config={config}", f"--workdir={tmp_path / 'damaged'}")
    assert "6 is damaged: _METADATA is missing; moved to 6.damaged" in out
    assert "continuing from step 4 of 6" in out
    arrays = [
        manifest.read(tmp_path / name / "checkpoints/6")["arrays"] for name in ("whole", "damaged")
    ]
    assert arrays[0] == arrays[1]


def test_checkpoints_may_be_links_and_other_names_do_not_matter(checkpoints, tmp_path):
    """A link is removed, and not what it leads to; nothing is written through it."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for step in ("5", "10"):
        (checkpoints / step).rename(elsewhere / step)
        (checkpoints / step).symlink_to(elsewhere / step)
    (checkpoints / "99").write_text("a file")
    (checkpoints / "²").mkdir()
    (checkpoints / "007").mkdir()
    assert_restored(checkpoints, 10)
    (elsewhere / "10/_METADATA").write_text("{}")
    assert_restored(checkpoints, 5)
    assert (checkpoints / "10.damaged").is_symlink()
    assert not (elsewhere / "10/damage.txt").exists()
    save(checkpoints, 20, 30)
    assert not (checkpoints / "5").exists()
    assert (elsewhere / "5/manifest.json").exists()


def test_a_damaged_manifest_is_trusted_if_the_user_says_so(checkpoints):
    path = checkpoints / "10/manifest.json"
    path.write_text(path.read_text().replace('"healthy": true', '"healthy": false'))
    with verification("off"):
        assert_restored(checkpoints, 10)
    assert_restored(checkpoints, 5)


def test_a_checkpoint_of_an_earlier_version_is_named_as_such(tmp_path):
    (tmp_path / "7/default").mkdir(parents=True)
    (tmp_path / "7/default/_METADATA").write_text("{}")
    with pytest.raises(UserError, match="7: an earlier version wrote it, and can read it"):
        restore(tmp_path)


def test_a_run_that_lost_its_identity_takes_it_from_a_checkpoint(tmp_path, config_file):
    more = {"training.steps": 6, "training.checkpoint_every": 3}
    command = ("train", f"--config={config_file(**more)}", f"--workdir={tmp_path / 'run'}")
    run(*command)
    before = (tmp_path / "run/run.json").read_text()
    (tmp_path / "run/run.json").unlink()
    run(*command, "--config.training.steps=7")
    assert (tmp_path / "run/run.json").read_text() == before
    for text, words in (("{", "cannot be read"), ('{"id": "a"}', "no run wrote this")):
        (tmp_path / "run/run.json").write_text(text)
        _, err = run(*command, "--config.training.steps=7", code=66)
        assert words in err
