"""Faults as a test suite: break a run in every way we know, many times, and see that it survives.

    python tests/faults/suite.py [--share=1.0] [--only=checkpoint,signals] [--jobs=2]

Every trial is a function of its row and number, so that a failure can be tried again. The table it
prints stands in BENCHMARKS.md. tests/faults/test_suite.py tries each row a few times.
"""

import argparse
import errno
import hashlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # as conftest does, after jax
import jax
import numpy as np
import orbax.checkpoint as ocp
from conftest import ROOT, run, sentences, settings, start, with_devices
from faults.disk import Call, Disk, fates, read_calls, watched
from faults.hostile import of_model, of_report, of_run, of_store, of_text, of_tokenizer
from faults.options import of_options, of_settings

from t5x_lite import manifest
from t5x_lite.config import RunConfig
from t5x_lite.config.files import build
from t5x_lite.data.store.corpus import open_store
from t5x_lite.data.store.prepare import prepare
from t5x_lite.data.tokenizers import tokenizer as tokenizers
from t5x_lite.errors import UserError, read_json
from t5x_lite.interop import convert
from t5x_lite.progress import messages_to
from t5x_lite.resolve import resolve, text_data
from t5x_lite.training import loaded_model, loop, run_directory, run_history
from t5x_lite.training.checkpoint import Checkpoints
from t5x_lite.training.checksums import checksums
from t5x_lite.training.log import read_metrics
from t5x_lite.training.verify import verify

STEPS, EVERY = 24, 4  # of the runs that are broken
KEPT = (STEPS - EVERY, STEPS)  # their checkpoints
MORE = {"training.steps": STEPS, "training.checkpoint_every": EVERY, "training.eval_every": 6}
FAMILIES = {
    "gpt": ("causal_lm", "decoder"),
    "t5": ("span_corruption", "encoder_decoder"),
    "bert": ("masked_lm", "encoder"),
}


# What is broken.


@dataclass(eq=False)
class Runs:
    """Whole runs to break copies of, made when they are needed."""

    directory: Path
    _made: dict[str, Path] = field(default_factory=dict)

    @cached_property
    def text(self) -> Path:
        """A file of text."""
        path = self.directory / "text.txt"
        path.write_text(sentences(400))
        return path

    def config(self, family: str = "gpt", **more: Any) -> Path:
        """A config file."""
        values = settings(self.text, *FAMILIES[family], **{**MORE, **more})
        name = "-".join([family, *(f"{key}={value}" for key, value in more.items())])
        path = self.directory / f"{name.replace('/', '_')}.py"
        path.write_text(f"def get_config():\n    return {values!r}\n")
        return path

    def whole(self, family: str = "gpt", **more: Any) -> Path:
        """The directory of a run that ended undisturbed."""
        config = self.config(family, **more)
        if config.stem not in self._made:
            workdir = self.directory / config.stem
            run("train", f"--config={config}", f"--workdir={workdir}")
            self._made[config.stem] = workdir
        return self._made[config.stem]

    @cached_property
    def examples(self) -> Path:
        """The examples of a task."""
        path = self.directory / "examples.tsv"
        lines = [f"a cat {number}\t{number % 2}" for number in range(40)]
        path.write_text("\n".join(["sentence\tlabel", *lines]))
        return path

    @cached_property
    def exported(self) -> Path:
        """An export of the run."""
        path = self.directory / "exported"
        run("export", f"--workdir={self.whole()}", path)
        return path

    def tokenizer(self, kind: str) -> Path:
        """The directory of a tokenizer in Hugging Face's or SentencePiece's files."""
        place = self.directory / f"{kind}_tokenizer"
        if not place.exists():
            name = "byte_level_bpe" if kind == "bpe" else "sentencepiece"
            made = tokenizers.make(f"{name}(vocab_size=600)", [self.text.read_text()])
            made.save(place)
        return place

    @cached_property
    def report(self) -> Path:
        """The report.json of a comparison of two cells."""
        workdir = self.directory / "compared"
        more = ("--grid=model.d_model=8,16", "--config.span_count=8", "--config.ngram=False")
        run("compare", f"--config={self.config()}", f"--workdir={workdir}", *more)
        return workdir / "report.json"

    @cached_property
    def tree(self) -> Path:
        """The config of a comparison whose cells share their first stages."""
        stages = ({"until": 8}, {"until": 16, "objective": "prefix_lm"}, {})
        masked = {"objective": "masked_lm", "model": {"architecture": "encoder"}}
        base = settings(self.text, **MORE, **{"model.positions": "rotary"})
        values = {
            "base": base | {"optimizer": {"schedule": "constant"}},
            "cells": {
                "causal": {"stages": (stages[0], {})},
                "prefix": {"stages": stages},
                "masked": {"stages": (*stages[:2], masked)},
            },
            "match": "steps",
            "span_count": 8,
            "ngram": False,
        }
        path = self.directory / "tree.py"
        path.write_text(f"def get_config():\n    return {values!r}\n")
        return path

    @cached_property
    def whole_tree(self) -> Path:
        """The directory of that comparison, which ended undisturbed."""
        workdir = self.directory / "whole_tree"
        run("compare", f"--config={self.tree}", f"--workdir={workdir}")
        return workdir

    @cache  # noqa: B019  it lives as long as the process
    def calls(self, command: str) -> tuple[Path, list[Call]]:
        """A directory in which a command has made another, and the calls that have written it."""
        top, log = self.directory / f"watched-{command}", self.directory / f"{command}.calls"
        top.mkdir()
        watching = os.environ | watched(self.directory, top, log=log)
        process = start(*WRITING[command](self, top / NEW), env=watching)
        process.communicate()
        assert process.returncode == 0
        return top, list(read_calls(log))

    @cached_property
    def store(self) -> Path:
        """A token store that was prepared for itself."""
        place = self.directory / "store"
        more = (f"--config.data.store={place}",)
        run("prepare", f"--config={self.config()}", *more)
        return place


def arrays_of(workdir: Path, step: int = STEPS) -> dict[str, list]:
    """Shape, type and checksum of every array of a checkpoint: equal only if all bits are."""
    return manifest.read(workdir / f"checkpoints/{step}")["arrays"]


# How.


def files_below(directory: Path) -> list[Path]:
    """All files, in a fixed order where their names are not random."""
    files = [path for path in directory.rglob("*") if path.is_file() and path.stat().st_size]
    return sorted(files, key=lambda path: (path.stat().st_size, path.name))


def damage(path: Path, rng: np.random.Generator) -> None:
    """Flip a bit, cut the file, zero a page of it, or remove it."""
    content = bytearray(path.read_bytes())
    place = int(rng.integers(len(content)))
    kind = rng.choice(["flip", "cut", "zero", "remove"], p=[0.55, 0.15, 0.15, 0.15])
    if kind == "remove":
        path.unlink()
        return
    if kind == "flip":
        content[place] ^= 1 << int(rng.integers(8))
    elif kind == "cut":
        del content[place:]
    else:
        start = place // 4096 * 4096
        content[start : start + 4096] = bytes(len(content[start : start + 4096]))
    path.write_bytes(content)


# The trials. Each raises AssertionError, or any other error, if the fault was not survived.


def checkpoint(runs: Runs, rng: np.random.Generator, place: Path) -> None:
    """A damaged, renamed or mixed up checkpoint: noticed or harmless, the one before is used."""
    shutil.copytree(runs.whole(), place, dirs_exist_ok=True)
    saved = place / "checkpoints"
    kind = rng.choice(
        ["damage", "swap", "rename", "other run", "mix"], p=[0.7, 0.05, 0.05, 0.1, 0.1]
    )
    if kind == "damage":
        damage(Path(rng.choice(list(map(str, files_below(saved / str(STEPS)))))), rng)
    elif kind == "swap":
        for name, new in ((KEPT[0], "x"), (KEPT[1], KEPT[0]), ("x", KEPT[1])):
            (saved / str(name)).rename(saved / str(new))
    elif kind == "rename":
        (saved / str(STEPS)).rename(saved / str(STEPS + int(rng.integers(1, 9))))
    else:
        other = runs.whole(seed=1) / f"checkpoints/{STEPS}"
        if kind == "other run":
            shutil.rmtree(saved / str(STEPS))
            shutil.copytree(other, saved / str(STEPS))
        else:  # some files are those of another run
            for path in files_below(other):
                if rng.random() < 0.5:
                    target = saved / str(STEPS) / path.relative_to(other)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, target)

    # What is read is what was saved, or nothing is.
    try:
        loaded = loaded_model.load(place)
        step, sums = restore(place)
    except UserError:
        assert kind == "swap"  # both are damaged
        return
    assert loaded.step == step
    expected = arrays_of(runs.whole(), step)
    assert sums == {path: checksum for path, (_, _, checksum) in expected.items()}


def restore(workdir: Path) -> tuple[int, dict[str, int]]:
    """Restore the newest usable checkpoint as a run does, which moves damaged ones aside: its step,
    and the checksum of every array.
    """
    resolved, tokenizer = run_directory.read(workdir)
    data = run_directory.open_data(workdir, resolved, tokenizer)
    trained = loop.Run(resolved, data)
    fixed = run_directory.fixed_settings(trained.resolved.written_out)
    checkpoints = Checkpoints(workdir / "checkpoints", fixed, run_history.identity(workdir))
    try:
        with trained.within():
            state = ocp.tree.to_flat_dict(trained.start(checkpoints), sep="/")
    finally:
        checkpoints.close()
    step = int(state["step"])
    return step, dict(zip(state, checksums(list(state.values())), strict=True))


def files(runs: Runs, rng: np.random.Generator, place: Path) -> None:
    """A damaged store, tokenizer, corpus.json, metrics or export: noticed, or harmless."""
    kind = rng.choice(["store", "tokenizer", "corpus.json", "metrics.jsonl", "export"])
    whole = {"store": runs.store, "export": runs.exported}.get(kind, runs.whole())
    shutil.copytree(whole, place, dirs_exist_ok=True)
    among = place if kind in ("store", "export") else place / kind
    path = among if among.is_file() else Path(rng.choice(list(map(str, files_below(among)))))
    damage(path, rng)
    try:
        if kind == "store":
            before, after = (open_store(one, check_again=True) for one in (whole, place))
            for split in ("train", "validation"):
                assert np.array_equal(before.tokens(split), after.tokens(split))
        elif kind == "tokenizer":
            before, after = (tokenizers.load(one / kind) for one in (whole, place))
            assert before.fingerprint == after.fingerprint
        elif kind == "corpus.json":
            resolved, tokenizer = run_directory.read(place)
            run_directory.check_same_text(
                place, run_directory.open_data(whole, resolved, tokenizer)
            )
        elif kind == "export":
            before, after = (convert.read(one).params for one in (whole, place))
            assert jax.tree.structure(before) == jax.tree.structure(after)
            assert all(map(np.array_equal, jax.tree.leaves(before), jax.tree.leaves(after)))
            assert manifest.read(place)["files"] == manifest.read(whole)["files"]
        else:
            (finding,) = [one for one in verify(place) if one.path.endswith(kind)]
            if not finding.damage:
                assert read_metrics(place / kind) == read_metrics(whole / kind)
    except UserError:
        pass  # noticed
    except manifest.Damage:
        pass


def kills(runs: Runs, rng: np.random.Generator, place: Path) -> None:
    """kill -9 at a random moment, in saves and evaluations too: the same end, to the last bit."""
    family = str(rng.choice(list(FAMILIES)))
    command = ("train", f"--config={runs.config(family)}", f"--workdir={place}")
    for _ in range(rng.integers(1, 4)):
        process, began = start(*command, env=dict(os.environ)), time.time()
        in_save, have = rng.random() < 0.4, len(read_metrics(place / "metrics.jsonl"))
        records = int(rng.integers(have, have + 12))
        while process.poll() is None:
            if in_save and is_saving(place, began):
                break
            if not in_save and len(read_metrics(place / "metrics.jsonl")) > records:
                time.sleep(float(rng.uniform(0, 0.05)))
                break
            time.sleep(0.0005)  # a save is short
        process.kill()
        process.communicate()
    run(*command)
    assert arrays_of(place) == arrays_of(runs.whole(family))


def trees(runs: Runs, rng: np.random.Generator, place: Path) -> None:
    """kill -9 of a comparison whose cells share stages: the same parameters, the same scores."""
    whole = runs.whole_tree
    command = ("compare", f"--config={runs.tree}", f"--workdir={place}")
    command += ("--jobs=2",) if rng.random() < 0.5 else ()
    for _ in range(2):
        process = start(*command, env=dict(os.environ))
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=float(rng.uniform(2, 14)))
        process.kill()
        process.communicate()
    run(*command)
    for name in ("causal", "prefix", "masked"):
        assert arrays_of(place / name) == arrays_of(whole / name), name
    before, after = (read_json(one / "report.json", "")["cells"] for one in (whole, place))
    for name, cell in before.items():
        for score, found in cell["scores"].items():
            assert found["mean"] == after[name]["scores"][score]["mean"], (name, score)


def is_saving(place: Path, since: float) -> bool:
    """Return True if a checkpoint is being written that was not there before."""
    with suppress(OSError):  # it has just been finished
        unfinished = place.glob("checkpoints/*.orbax-checkpoint-tmp")
        return any(path.stat().st_mtime > since for path in unfinished)
    return False


def signals(runs: Runs, rng: np.random.Generator, place: Path) -> None:
    """TERM, INT or HUP at a random moment: its exit code and one sentence; then it goes on."""
    number = int(rng.choice([signal.SIGTERM, signal.SIGINT, signal.SIGHUP]))
    steps = {"training.steps": 400, "training.checkpoint_every": 20, "training.eval_every": 30}
    config = f"--config={runs.config(**steps)}"
    commands: dict[str, tuple] = {
        "train": ("train", config, f"--workdir={place}"),
        "prepare": ("prepare", config, f"--config.data.store={place}"),
        "evaluate": ("evaluate", f"--workdir={runs.whole()}"),
        "verify": ("verify", runs.whole()),
    }
    name = str(rng.choice(list(commands), p=[0.7, 0.1, 0.1, 0.1]))
    out, err = place.with_suffix(".out"), place.with_suffix(".err")
    with out.open("w") as to_out, err.open("w") as to_err:
        process = start(*commands[name], env=dict(os.environ), stdout=to_out, stderr=to_err)
        # From when Python has begun: before that, no program can answer.
        time.sleep(float(rng.uniform(0.7, 6.0 if name == "train" else 2.0)))
        has_said = bool(out.read_text())
        process.send_signal(number)
        process.wait(timeout=60)
    lines = err.read_text().splitlines()
    # A shell says 130 either way. Python ends itself by SIGINT where that came while it imported.
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    if code == 0:  # it was at its end
        assert out.read_text()
        assert name != "train" or len(read_metrics(place / "metrics.jsonl")) >= 400
        assert not lines
    else:
        assert code == 128 + number, (name, process.returncode, lines)
        if lines or process.returncode > 0:
            assert len(lines) == 1, lines
            assert lines[0].startswith("t5x_lite: "), lines
        else:  # it had not begun
            assert not has_said
    if name == "train":
        run(*commands[name])
        assert arrays_of(place, 400) == arrays_of(runs.whole(**steps), 400)


NEW = "new/run"  # a directory that a command makes, in one that it makes as well
# What commands are given that write a directory, as a function of it.
WRITING: dict[str, Callable[[Runs, Path], list[Any]]] = {
    "train": lambda runs, new: ["train", f"--config={runs.config()}", f"--workdir={new}"],
    "prepare": lambda runs, new: [
        *("prepare", f"--config={runs.config()}", f"--config.data.store={new}")
    ],
    "finetune": lambda runs, new: [
        *("finetune", f"--init={runs.whole()}", f"--workdir={new}"),
        *(f"--task=classify({runs.examples}, text=sentence)", "--config.training.steps=4"),
    ],
    "compare": lambda runs, new: [
        *("compare", f"--config={runs.config()}", f"--workdir={new}"),
        *("--grid=model.d_model=8,16", "--config.span_count=8", "--config.ngram=False"),
    ],
    "import": lambda runs, new: ["import", "--from=hf", runs.exported, f"--workdir={new}"],
    "export": lambda runs, new: ["export", f"--workdir={runs.whole()}", new],
}


def power(runs: Runs, rng: np.random.Generator, place: Path) -> None:
    """Power is lost after any call that writes: the old or the new checkpoint, the same end."""
    command = str(rng.choice(["train", "prepare"], p=[0.9, 0.1]))
    top, calls = runs.calls(command)
    done = calls[: rng.integers(len(calls)) + 1] if rng.random() < 0.9 else calls
    has_ended = len(done) == len(calls)  # and all that it has made stays
    disk, place = Disk(top), place / NEW
    for call in done:
        disk.do(call)
    for fate in fates(rng):
        disk.write(place.parents[1], fate)
        if command == "train":
            named = [call.target.name for call in done if call.name == "rename"]
            new = max((int(name) for name in named if name.isdecimal()), default=0)
            if new:
                check_old_or_new(runs, place, new, 0 if has_ended else EVERY)
            if rng.random() < 0.1:
                run(*WRITING[command](runs, place))
                assert arrays_of(place) == arrays_of(runs.whole())
        else:
            if not has_ended:
                run(*WRITING[command](runs, place))
            for one in files_below(top / NEW):
                found = place.parents[1] / one.relative_to(top)
                assert found.read_bytes() == one.read_bytes(), one
        shutil.rmtree(place.parents[1])


def check_old_or_new(runs: Runs, place: Path, new: int, before: int) -> None:
    """A run restores its newest checkpoint, or the one so many steps before it, and has the metrics
    up to there.
    """
    step, sums = restore(place)
    assert step in (new, new - before), (step, new)
    if step:
        whole = runs.whole(**{"training.keep_every": EVERY})
        assert sums == {path: of[2] for path, of in arrays_of(whole, step).items()}
        steps = {record["step"] for record in read_metrics(place / "metrics.jsonl")}
        assert steps >= set(range(1, step + 1)), (step, steps)


DISK_ERRORS = ("ENOSPC", "EDQUOT", "EIO", "EFBIG", "EROFS", "EACCES")


def disk(runs: Runs, rng: np.random.Generator, place: Path) -> None:
    """A full, failing or read-only disk, at any call: 74, the old checkpoint whole, same end."""
    command = str(rng.choice(list(WRITING), p=[0.6, *[0.4 / (len(WRITING) - 1)] * 5]))
    top, calls = runs.calls(command)
    no_inodes = rng.random() < 0.1
    failing = {
        "error": errno.ENOSPC if no_inodes else getattr(errno, str(rng.choice(DISK_ERRORS))),
        "start": int(rng.integers(len(calls))) + 1,
        "times": int(rng.choice([1, len(calls)])),
        "names": int(no_inodes),
    }
    watching = os.environ | watched(runs.directory, place.parent, **failing)
    if rng.random() < 0.2:  # the cache is on that disk, too
        watching["T5X_LITE_CACHE"] = str(place.parent / "cache")
    process = start(*WRITING[command](runs, place), env=watching)
    _, err = process.communicate(timeout=120)
    assert process.returncode in (0, 74), (process.returncode, failing, err)
    assert "Traceback" not in err, (failing, err)
    checkpoints = place / "checkpoints"
    for finding in verify(place) if (place / "tokenizer").is_dir() and checkpoints.is_dir() else ():
        assert "checkpoints" not in finding.path or not finding.damage, (failing, finding)
    if process.returncode:
        run(*WRITING[command](runs, place))
    assert made(place) == made(top / NEW), (command, failing)


def made(directory: Path) -> dict[str, Any]:
    """What a command has made, as far as it is the same each time: the arrays of checkpoints, the
    files of exports, the tokens of stores.
    """
    found: dict[str, Any] = {}
    for path in sorted(directory.rglob("manifest.json")):
        name = path.relative_to(directory).as_posix()
        if not manifest.is_in(path.parent):
            found[name] = {
                one.name: hashlib.sha256(one.read_bytes()).hexdigest()
                for one in path.parent.glob("*.bin")
            }
            continue
        facts = manifest.read(path.parent)
        found[name] = facts.get("arrays") or facts["files"]
    assert found
    return found


def divergence(runs: Runs, rng: np.random.Generator, place: Path) -> None:
    """A poisoned batch: left out, or gone back from and skipped; the same again after a stop."""
    # The batch of step bad + 1.
    bad, kind = int(rng.integers(8, STEPS - 1)), str(rng.choice(["nan", "inf", "spike"]))
    remedy = rng.choice(["training.rollback", "training.skip_step"])
    values = settings(runs.text, **MORE, **{remedy: 1 if remedy.endswith("rollback") else True})
    config = build(RunConfig, values)
    corpus = prepare(config.data)
    resolved = resolve(config, corpus.tokenizer.vocabulary)
    batch = loop.Run.batch

    def poisoned(self: Any, batches: Any, number: int) -> dict:
        made = batch(self, batches, number)
        if batches is self.batches and number == bad:
            weights = made["decoder_weights"]
            # Of a spike they nearly add up to 0, which the loss is divided by.
            rest = weights.sum() - weights[0, 0]
            value = 1e-3 - rest if kind == "spike" else float(kind)
            made = {**made, "decoder_weights": weights.at[0, 0].set(value)}
        return made

    loop.Run.batch = poisoned  # type: ignore[method-assign]
    try:
        ends = []
        for name in ("a", "b"):
            with messages_to(lambda line: None):
                loop.train(resolved, text_data(resolved, corpus), place / name)
                if name == "b":
                    shutil.rmtree(place / name / f"checkpoints/{STEPS}")
                    loop.train(resolved, text_data(resolved, corpus), place / name)
            ends.append(arrays_of(place / name))
            for step in (KEPT[0], STEPS):
                assert manifest.read(place / name / f"checkpoints/{step}")["healthy"]
            went_back = any(one["event"] == "rollback" for one in run_history.events(place / name))
            records = read_metrics(place / name / "metrics.jsonl")
            left_out = any(record.get("skipped_steps") for record in records)
            # A run goes back from what is not finite, and from a spike that would be saved.
            is_seen = kind != "spike" or (bad + 1) % EVERY == 0
            assert went_back == (remedy == "training.rollback" and is_seen)
            assert left_out == (remedy == "training.skip_step")
        assert ends[0] == ends[1]
        loaded = loaded_model.load(place / "a")
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(loaded.params)]
        assert all(np.isfinite(leaf).all() for leaf in leaves)
    finally:
        loop.Run.batch = batch  # type: ignore[method-assign]


SERVING = {"play", "watch"}  # until Ctrl-C: tests/pages tries them


def given(runs: Runs, new: Path) -> dict[str, list[Any]]:
    """Return what each command is given to do what it is for."""
    config, whole, text = f"--config={runs.config()}", f"--workdir={runs.whole()}", "the cat"
    small = ("--config.training.steps=2", "--config.training.checkpoint_every=2")
    task = f"--task=classify({runs.examples}, text=sentence)"
    return {
        "prepare": [config],
        "plan": [config],
        "train": [config, f"--workdir={new}", *small],
        "finetune": [f"--init={runs.whole()}", task, f"--workdir={new}", *small],
        "evaluate": [whole],
        "generate": [whole, text],
        "fill": [f"--workdir={runs.whole('bert')}", "the ___ sees"],
        "score": [whole, text],
        "embed": [whole, text],
        "compare": [config, "--grid=model.d_model=8,16", f"--workdir={new}", "--dry-run"],
        "report": [f"--workdir={new}", runs.whole()],
        "rerun": [runs.report, f"--workdir={new}"],
        "inspect": [config],
        "import": ["--from=hf", runs.exported, f"--workdir={new}"],
        "export": [whole, new],
        "verify": [runs.whole()],
        "list": [],
        "doctor": [],
        "completion": ["bash"],
    }


def options(runs: Runs, rng: np.random.Generator, place: Path) -> None:
    """Random settings and options of every command: refused in one line, or meant."""
    commands = given(runs, place / "new")
    here = Path.cwd()
    place.mkdir()
    os.chdir(place)  # what an option may name is written here
    try:
        if rng.random() < 0.6:
            of_settings(runs.config(), rng, place / "new")
        else:
            of_options(commands, rng)
    finally:
        os.chdir(here)


def meshes(runs: Runs, rng: np.random.Generator, place: Path) -> None:
    """Other devices or processes at each start: the same tokens and losses; bits, if exact."""
    family, exact = str(rng.choice(list(FAMILIES))), bool(rng.random() < 0.4)
    more = {"data.batch_size": 16} | ({"training.exact": True} if exact else {})
    on_devices = rng.random() < 0.7
    counts = rng.permutation([8, 4, 2, 1, 8]) if on_devices else rng.permutation([1, 2, 4, 1])
    for number, count in enumerate(map(int, counts), 1):
        until = STEPS if number == len(counts) else number * EVERY
        command = [
            *("train", f"--config={runs.config(family, **more)}", f"--workdir={place}"),
            f"--config.training.steps={until}",
            *([] if exact else random_mesh(count, rng)),
        ]
        if on_devices:
            process = start(*command, env=with_devices(count))
        else:
            process = subprocess.Popen(
                [sys.executable, ROOT / "launch/local", str(count), *command],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, (counts, count, out[-500:] + err[-500:])
    whole = runs.whole(family, **more)
    # Each start evaluates at its end, so there are more evaluations.
    one, other = (
        [record for record in read_metrics(run / "metrics.jsonl") if record["split"] == "train"]
        for run in (whole, place)
    )
    for a, b in zip(one, other, strict=True):
        for key in ("step", "loss_tokens", "raw_tokens"):
            assert a[key] == b[key], (key, a[key], b[key], counts)
        difference = abs(a["loss"] - b["loss"]) / a["loss"]
        assert difference <= (0 if exact else 1e-6), (a["step"], difference, counts)
    if exact:
        assert arrays_of(place) == arrays_of(whole)


def random_mesh(count: int, rng: np.random.Generator) -> list[str]:
    """Options that arrange so many devices, for a model of two heads."""
    tensor = int(rng.choice([1, 2])) if count > 1 else 1
    fsdp = int(rng.choice([n for n in (1, 2, 4, 8) if count // tensor % n == 0]))
    return [f"--config.mesh.tensor={tensor}", f"--config.mesh.fsdp={fsdp}"]


@dataclass(frozen=True)
class Use:
    """What a process holds at one moment."""

    memory: float  # megabytes
    descriptors: int
    threads: int

    @classmethod
    def of(cls, process: int) -> "Use":
        """Read it from /proc."""
        place = Path(f"/proc/{process}")
        pages = int((place / "statm").read_text().split()[1])
        descriptors, threads = (len(list((place / name).iterdir())) for name in ("fd", "task"))
        return cls(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, descriptors, threads)


def use_over_time(
    command: list[Any], done: Callable[[], int], whole: int, directory: Path
) -> dict[int, list[Use]]:
    """Run a command to its end: what it holds in each quarter of its work, and in its temporary
    directory nothing afterwards.
    """
    temporary = directory / "tmp"
    temporary.mkdir()
    environment = os.environ | {"TMPDIR": str(temporary)}
    quarters: dict[int, list[Use]] = {}
    with (directory / "stderr.txt").open("w") as said:
        process = start(*command, env=environment, stdout=subprocess.DEVNULL, stderr=said)
        while process.poll() is None:
            quarter = min(4 * done() // whole, 3)
            with suppress(OSError):  # it has just ended
                quarters.setdefault(quarter, []).append(Use.of(process.pid))
            time.sleep(0.2)
    assert process.returncode == 0, (directory / "stderr.txt").read_text()[-500:]
    assert not list(temporary.iterdir())
    return quarters


def check_flat(quarters: dict[int, list[Use]]) -> None:
    """From the second quarter to the last nothing grows but memory, by 3 % and 5 MB at most.

    Of each the median: a save that is going on has ten descriptors more.
    """
    names = ("memory", "descriptors", "threads")
    use = {
        name: [float(np.median([getattr(use, name) for use in quarters[of]])) for of in (1, 3)]
        for name in names
    }
    print(use, file=sys.stderr)
    before, after = use["memory"]
    assert after < before * 1.03 + 5, use
    for name in names[1:]:
        before, after = use[name]
        assert after <= before + 1, use


def long_run(runs: Runs, rng: np.random.Generator, place: Path) -> None:
    """20,000 steps, evaluations and saves: nothing grows but memory, by 3 % and 5 MB at most."""
    steps = 20_000
    more = {"checkpoint_every": 500, "eval_every": 1000, "log_every": 50, "steps": steps}
    words = [f"--config.training.{name}={value}" for name, value in more.items()]
    command = ["train", f"--config={runs.config()}", f"--workdir={place}", *words]
    kept = []

    def done() -> int:
        saved = [path for path in place.glob("checkpoints/*") if path.name.isdecimal()]
        kept.append(len(saved))
        return max((int(path.name) for path in saved), default=0)

    check_flat(use_over_time(command, done, steps, place.parent))
    assert max(kept) <= 3, max(kept)  # the newest two, and one that is being removed


def many_cells(runs: Runs, rng: np.random.Generator, place: Path) -> None:
    """20 cells in one process: nothing grows but memory, by 3 % and 5 MB at most."""
    rates = ",".join(f"{rate:.1e}" for rate in np.geomspace(1e-4, 1e-2, 20))
    words = [f"--grid=optimizer.learning_rate={rates}", "--config.span_count=8"]
    command = ["compare", f"--config={runs.config()}", f"--workdir={place}", *words]

    def done() -> int:
        return len(list(place.glob("*/checkpoints")))

    check_flat(use_over_time(command, done, 20, place.parent))


def hostile(runs: Runs, rng: np.random.Generator, place: Path) -> None:
    """A dirty or hostile file: one sentence, no code is run, nothing outside is opened, 20 s."""
    kind = rng.random()
    if kind < 0.35:
        made: tuple = (of_run, runs.whole(family=str(rng.choice(list(FAMILIES)))))
    elif kind < 0.6:
        made = (of_text, runs.text)
    elif kind < 0.7:
        made = (of_tokenizer, runs.tokenizer(str(rng.choice(["bpe", "sentencepiece"]))))
    elif kind < 0.85:
        made = (of_model, runs.exported)
    elif kind < 0.95:
        made = (of_report, runs.report)
    else:
        made = (of_store, runs.store)
    trial, whole = made
    trial(whole, rng, place)


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    trial: Callable[[Runs, np.random.Generator, Path], None]
    tries: int

    @property
    def name(self) -> str:
        """Name of the function."""
        return self.trial.__name__

    @property
    def meaning(self) -> str:
        """What its docstring says."""
        return " ".join((self.trial.__doc__ or "").split()).rstrip(".")


ROWS = (
    Row(checkpoint, 1000),
    Row(files, 500),
    Row(kills, 200),
    Row(trees, 25),
    Row(signals, 150),
    Row(power, 500),
    Row(disk, 60),
    Row(divergence, 40),
    Row(hostile, 2000),
    Row(meshes, 20),
    Row(long_run, 1),
    Row(many_cells, 1),
    Row(options, 5000),
)


def attempt(row: Row, number: int, runs: Runs) -> str:
    """Do one trial; return what went wrong, or nothing."""
    with tempfile.TemporaryDirectory(dir=runs.directory) as place:
        try:
            with messages_to(lambda line: None):
                rng = np.random.default_rng([zlib.crc32(row.name.encode()), number])
                row.trial(runs, rng, Path(place) / "run")
        except Exception as error:  # any error is a fault that was not survived
            return f"{row.name} {number}: {type(error).__name__}: {str(error)[:500]}"
    return ""


runs_of_worker: Runs


def start_worker(started: Any, jobs: int, directory: Path) -> None:
    """Give a process that makes trials its share of the processors, a cache, and whole runs.

    Args:
        started: shared by all, the number of workers that have started.
    """
    global runs_of_worker
    with started.get_lock():
        worker = started.value
        started.value += 1
    processors = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, processors[worker::jobs] or processors)
    place = directory / str(worker)
    place.mkdir()
    os.environ["T5X_LITE_CACHE"] = str(place / "cache")
    runs_of_worker = Runs(place)


def attempt_in_worker(row: int, number: int) -> str:
    """Do one trial in a worker; see attempt."""
    return attempt(ROWS[row], number, runs_of_worker)


def main() -> int:
    """Run all rows, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--share", type=float, default=1.0, help="part of the tries of each row")
    parser.add_argument("--only", default="", help="names of rows, NAME,NAME")
    parser.add_argument("--jobs", type=int, default=1, help="number of trials at once")
    arguments = parser.parse_args()
    wanted = arguments.only.split(",") if arguments.only else [row.name for row in ROWS]
    failures, lines = [], ["| fault | tries | survived | seconds |", "|---|--:|--:|--:|"]
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory:
        of_worker = (spawn.Value("i", 0), arguments.jobs, Path(directory))
        with ProcessPoolExecutor(arguments.jobs, spawn, start_worker, of_worker) as workers:
            for row in ROWS:
                if row.name not in wanted:
                    continue
                tries, since = max(round(row.tries * arguments.share), 1), time.monotonic()
                again = [ROWS.index(row)] * tries
                failed = list(filter(None, workers.map(attempt_in_worker, again, range(tries))))
                failures += failed
                seconds = time.monotonic() - since
                survived = tries - len(failed)
                lines.append(f"| {row.meaning} | {tries:,} | {survived:,} | {seconds:.0f} |")
                print(lines[-1], file=sys.stderr, flush=True)
    print("\n".join(lines))
    print("\n".join(failures), file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
