import json
import shutil
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import run
from training.runs import assert_same, saved_steps

from t5x_lite import manifest
from t5x_lite.errors import BAD_CONFIG, IO_ERROR, UserError
from t5x_lite.resolve import text_data
from t5x_lite.training import loaded_model
from t5x_lite.training.checkpoint import Checkpoints
from t5x_lite.training.loop import train


def test_a_checkpoint_that_cannot_be_read_is_one_sentence(trained):
    workdir, command = trained
    _, err = run("evaluate", f"--workdir={workdir.parent}", code=66)
    assert f"name one: {workdir}" in err
    _, err = run("evaluate", f"--workdir={workdir / 'none'}", code=66)
    assert "no such directory" in err
    for path in (workdir / "checkpoints/6").rglob("*"):
        if path.is_file() and path.stat().st_size > 100 and path.name != "manifest.json":
            path.write_bytes(b"\0" * 50)
    (workdir / "checkpoints/8").mkdir()
    for again in ((*command, "--config.training.steps=9"), ("evaluate", f"--workdir={workdir}")):
        _, err = run(*again, code=66)
        assert "no usable checkpoint (8: manifest.json is missing; 6: _METADATA has 50 bytes" in err
    # A run that began again from nothing would hide what was lost.
    assert saved_steps(workdir) == [6, 8]


def test_a_checkpoint_of_other_settings_is_refused_though_its_shapes_are_the_same(trained):
    workdir, command = trained
    config = json.loads((workdir / "config.json").read_text())
    other = config | {"model": config["model"] | {"num_heads": 4}}
    (workdir / "config.json").write_text(json.dumps(other))
    for again in (
        ("evaluate", f"--workdir={workdir}"),
        (*command, "--config.model.num_heads=4", "--config.training.steps=9"),
    ):
        _, err = run(*again, code=78)
        assert "model.num_heads: now 4" in err
        assert "checkpoints/6 was made with 2; restore the old value" in err


@pytest.mark.parametrize("factored", [pytest.param(False, marks=pytest.mark.slow), True])
def test_padding_may_change_but_not_what_is_averaged_over_it(tmp_path, config_file, factored):
    """Adafactor averages over the rows and columns of larger tables."""
    settings = {"optimizer.name": "adafactor", "model.d_model": 128 if factored else 16}
    command = ("train", f"--config={config_file(**settings)}", f"--workdir={tmp_path / 'run'}")
    run(*command, "--config.training.steps=1")
    again = (*command, "--config.training.steps=2", "--config.model.vocab_multiple=100")
    _, err = run(*again, code=BAD_CONFIG if factored else 0)
    fix = "restore the old model, or the old model.vocab_multiple and mesh.tensor"
    assert (fix in err) == factored


def test_a_parameter_of_another_shape_is_refused_by_name(tmp_path):
    settings = {"model.vocab_size": 5}
    axes = {"kernel": ("embed", "mlp"), "embedding": ("vocab", "embedding")}
    saved = {"kernel": jnp.ones((8, 8)), "embedding": jnp.ones((6, 2))}
    checkpoints = Checkpoints(tmp_path, settings)
    checkpoints.save(0, {"params": saved})
    checkpoints.wait()
    checkpoints.close()
    checkpoints = Checkpoints(tmp_path, settings, read_only=True)
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])

    def restore(**sizes):
        shapes = {
            name: jax.ShapeDtypeStruct(sizes.get(name, array.shape), array.dtype)
            for name, array in saved.items()
        }
        return checkpoints.restore_parameters(0, shapes, dict.fromkeys(shapes, here), axes)

    assert restore(embedding=(5, 2))["embedding"].sum() == 10
    assert restore(embedding=(9, 2))["embedding"].sum() == 12
    for sizes in ({"kernel": (4, 8)}, {"kernel": (8,)}, {"embedding": (4, 2)}):
        with pytest.raises(UserError, match=f"params/{next(iter(sizes))}: got shape"):
            restore(**sizes)
    checkpoints.close()


def test_the_newest_checkpoint_and_every_nth_are_kept(tmp_path, config_file):
    settings = {"training.checkpoint_every": 2, "training.keep_every": 3, "training.steps": 7}
    run("train", f"--config={config_file(**settings)}", f"--workdir={tmp_path / 'run'}")
    # 3 is kept although no checkpoint_every falls there
    assert saved_steps(tmp_path / "run") == [3, 6, 7]


def test_a_full_disk_is_one_sentence_and_the_run_goes_on_when_there_is_room(
    tmp_path, make, monkeypatch
):
    resolved, corpus = make(**{"training.steps": 4})
    room = [10**9, 1000, 10**9]
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=room[0]))
    train(resolved, text_data(resolved, corpus), tmp_path / "whole")
    room.pop(0)
    message = r"no room for .* step 4 .* needed, 0.0 MB free"
    with pytest.raises(UserError, match=message) as caught:
        train(resolved, text_data(resolved, corpus), tmp_path / "run")
    assert caught.value.code == IO_ERROR
    room.pop(0)
    train(resolved, text_data(resolved, corpus), tmp_path / "run")
    assert_same(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize(("spare", "is_refused"), [(-1, True), (0, False)])
def test_room_is_needed_for_an_array_once_not_for_each_copy(
    tmp_path, monkeypatch, spare, is_refused
):
    def on_four_devices(size: int, copies: int) -> SimpleNamespace:
        """An array of float32, of which a device has a part, and others the same part."""
        part = np.zeros(size * copies // 4, np.float32)
        shards = [SimpleNamespace(data=part, replica_id=number % copies) for number in range(4)]
        return SimpleNamespace(addressable_shards=shards)

    state = {"split": on_four_devices(100, 1), "copied": on_four_devices(100, 4)}
    state["both"] = on_four_devices(100, 2)
    # Three arrays of 100 numbers, and what the files take besides.
    disk = SimpleNamespace(free=1200 * 1.05 + 2**20 + spare)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: disk)
    checkpoints = Checkpoints(tmp_path / "checkpoints", {})
    if is_refused:
        with pytest.raises(UserError, match="no room for the checkpoint of step 3"):
            checkpoints._check_room(3, state)
    else:
        checkpoints._check_room(3, state)
    checkpoints.close()


def test_a_setting_that_did_not_exist_yet_had_its_default(make, tmp_path):
    resolved, corpus = make(**{"training.steps": 1})
    train(resolved, text_data(resolved, corpus), tmp_path / "run")
    checkpoint = tmp_path / "run/checkpoints/1"
    facts = manifest.read(checkpoint)
    for key in [key for key in facts["settings"] if key.startswith("task.") or key == "adapt"]:
        del facts["settings"][key]
    manifest.write(checkpoint, facts)
    assert loaded_model.load(tmp_path / "run").step == 1
