"""Each thing that doctor finds, made so."""

import fcntl
import os
from importlib import metadata

import pytest
from conftest import run

from t5x_lite import machine
from t5x_lite.errors import UserError
from t5x_lite.planning import doctor


def only(findings):
    (finding,) = findings
    return finding


def test_versions_that_do_not_fit():
    def version(name):
        return {"jaxlib": "0.4.1"}.get(name) or metadata.version(name)

    found = only(doctor.versions(version))
    assert found.is_fatal
    assert "jaxlib 0.4.1, jax needs " in found.what
    assert found.fix.startswith("pip install")
    assert not only(doctor.versions()).fix


def test_a_libtpu_of_another_jax():
    def version(name):
        return "0.0.1" if name == "libtpu" else metadata.version(name)

    found = only(doctor.versions(version))
    assert "libtpu 0.0.1, jax needs" in found.what
    assert "[tpu]" in found.fix


def test_a_plugin_of_another_jaxlib():
    def version(name):
        return "0.4.1" if name == "jax-cuda12-plugin" else metadata.version(name)

    found = only(doctor.versions(version))
    assert f"jax-cuda12-plugin 0.4.1, jaxlib is {metadata.version('jaxlib')}" in found.what
    assert "[cuda12]" in found.fix


@pytest.fixture
def gpus(tmp_path):
    """A /dev with two GPUs."""
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / name).touch()
    return tmp_path


def test_gpus_that_this_jax_cannot_use(gpus, monkeypatch):
    monkeypatch.setattr(machine, "can_use", lambda platform: platform == "cpu")
    found = only(doctor.devices({}, gpus))
    assert found.what == "devices: 2 GPUs are here, but this jax has only the CPU"
    assert found.fix.startswith("pip install -e '.[cuda12]' in the checkout")
    assert found.is_fatal
    # Whoever wants the CPU may have it.
    assert not only(doctor.devices({"JAX_PLATFORMS": "cpu"}, gpus, lambda: ("cpu", 1))).fix


def test_devices_that_jax_does_not_see(gpus, monkeypatch):
    monkeypatch.setattr(machine, "can_use", lambda platform: True)
    found = only(doctor.devices({}, gpus, lambda: ("gpu", 1)))
    assert found.what == "devices: jax sees 1 gpu, this host has 2"
    assert not only(doctor.devices({}, gpus, lambda: ("gpu", 2))).fix
    assert not only(doctor.devices({"CUDA_VISIBLE_DEVICES": "1"}, gpus, lambda: ("gpu", 1))).fix


def test_devices_that_jax_cannot_open(gpus, monkeypatch):
    def held():
        raise RuntimeError("Unable to initialize backend 'tpu': it is in use\nand more")

    monkeypatch.setattr(machine, "can_use", lambda platform: True)
    found = only(doctor.devices({}, gpus, held))
    assert found.what == (
        "devices: jax cannot open them (Unable to initialize backend 'tpu': it is in use)"
    )
    assert found.is_fatal


def test_what_is_handed_through_is_no_tpu(tmp_path):
    (tmp_path / "dev/vfio").mkdir(parents=True)
    (tmp_path / "dev/vfio/0").touch()
    vendor = tmp_path / "pci/0000:00:04.0/vendor"
    vendor.parent.mkdir(parents=True)
    for name, count in (("0x10de", 0), ("0x1ae0", 1)):
        vendor.write_text(f"{name}\n")
        assert machine.count_accelerators("tpu", tmp_path / "dev", tmp_path / "pci") == count


@pytest.mark.parametrize(
    ("named", "installed", "reason"),
    [
        ("cuda", False, "JAX_PLATFORMS=cuda: jax cannot use it; pip install"),
        ("cuda", True, "JAX_PLATFORMS=cuda: no GPU is here"),
        ("tpu", False, r"JAX_PLATFORMS=tpu: jax cannot use it; pip install -e '\.\[tpu\]'"),
        ("abacus", True, "JAX_PLATFORMS=abacus: no such platform; expected cuda"),
    ],
)
def test_platforms_that_are_not_here(named, installed, reason, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "can_use", lambda platform: installed)
    with pytest.raises(UserError, match=reason):
        machine.check_platforms({"JAX_PLATFORMS": f"{named},cpu"}, tmp_path)
    assert only(doctor.devices({"JAX_PLATFORMS": named}, tmp_path)).is_fatal


def test_commands_answer_a_platform_that_is_not_here(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "abacus")
    _, err = run("train", "--config=gpt_tiny", "--workdir=nowhere", code=2)
    assert "JAX_PLATFORMS=abacus" in err


def test_a_lock_of_libtpu(tmp_path):
    path = tmp_path / "libtpu_lockfile"
    assert not list(doctor.libtpu_lock(path, True))
    path.touch()
    assert not list(doctor.libtpu_lock(path, has_tpu=False))
    left = only(doctor.libtpu_lock(path, True))
    assert "no process holds it" in left.what
    assert not left.is_fatal
    with open(path) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        found = only(doctor.libtpu_lock(path, True))
    assert "another process uses the TPU" in found.what
    assert found.is_fatal


def test_a_wrong_number_of_processes():
    slurm = {"SLURM_NTASKS": "4"}
    assert not only(doctor.processes(slurm, 4)).fix
    assert "SLURM_NTASKS says 4, expected 8" in only(doctor.processes(slurm, 8)).what
    hosts = {"TPU_WORKER_HOSTNAMES": "a,b"}
    assert "says 2, expected 3" in only(doctor.processes(hosts, 3)).what
    ours = {"T5X_LITE_PROCESSES": "2", "T5X_LITE_PROCESS": "2"}
    assert only(doctor.processes(ours)).fix == "number them from 0"
    assert not list(doctor.processes({}))


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    found = only(doctor.place(str(tmp_path / "file/run")))
    assert found.is_fatal
    assert "cannot be written" in found.what
    assert only(doctor.place("nowhere://bucket/run")).is_fatal


def test_a_place_that_is_slow_or_has_another_clock(tmp_path):
    ticks = iter((0.0, 16.0))
    rate, clock = doctor.place(str(tmp_path), timer=lambda: next(ticks))
    assert "1.0 MB/s" in rate.what
    assert rate.fix
    rate, clock = doctor.place(str(tmp_path), clock=lambda: 1000.0)
    assert not rate.fix
    assert clock.what.startswith("clock: ")
    assert "chronyc" in clock.fix
    assert not any(finding.fix for finding in doctor.place(str(tmp_path / "new/run")))
    assert not list(tmp_path.glob("**/.doctor*"))


def test_a_disk_that_is_full(tmp_path):
    found = only(doctor.disk(str(tmp_path / "not/there"), lambda path: 10**9))
    assert f"1.0 GB free at {tmp_path}" in found.what
    assert "make room" in found.fix
    assert not only(doctor.disk(str(tmp_path), lambda path: 10**12)).fix


def test_pages_that_are_small(tmp_path):
    setting = tmp_path / "enabled"
    setting.write_text("always madvise [never]\n")
    assert "echo madvise" in only(doctor.huge_pages(setting, {}, has_tpu=False)).fix
    assert "echo always" in only(doctor.huge_pages(setting, {}, has_tpu=True)).fix
    setting.write_text("always [madvise] never\n")
    assert "launch/cpu.env" in only(doctor.huge_pages(setting, {}, has_tpu=False)).fix
    used = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    assert not only(doctor.huge_pages(setting, used, has_tpu=False)).fix


def test_command(tmp_path):
    out, _ = run("doctor", f"--workdir={tmp_path}")
    assert "versions: jax " in out
    assert "can be written" in out
    (tmp_path / "file").touch()
    out, err = run("doctor", f"--workdir={tmp_path / 'file/run'}", code=69)
    assert "wrong  " in out
    assert "one thing is wrong" in err
    assert os.listdir(tmp_path) == ["file"]
