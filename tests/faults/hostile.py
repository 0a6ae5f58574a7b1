"""Files as nobody should make them: values of other types and sizes, cut off, of other encodings,
and with names of code and files that are not theirs. One trial is one such file and one command.
"""

import copy
import io
import json
import shutil
import signal
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
from outside import MODULE, SECRET, watching

from t5x_lite.__main__ import main
from t5x_lite.terminal import visible

SECONDS = 20  # that a command may take
CODES = (0, 2, 65, 66, 69, 71, 74, 76, 78)

# What may stand in JSON in place of any value.
VALUES: list[Any] = [
    *(None, True, -1, 0, 2**62, 10**400, 1e308, float("nan"), float("inf"), -0.5),
    *("", " ", "\x1b[2J", "\ud800", "x" * 20_000, "../../etc", "\0", "a\nb", "🐈", "(", "a,b=("),
    *([], {}, [None], {"a": {"b": 1}}, [[]], ["x"] * 3000),
    *(f"{MODULE}.thing", f"python:{MODULE}.thing", f"/{SECRET}/x.txt", f"http://{SECRET}/x"),
]


def call(*words: object) -> tuple[int, str]:
    """Run a command in this process, and return its exit code and what it said.

    Raises:
        AssertionError: for a traceback, a hang, an unknown exit code, or anything outside.
    """

    def too_long(*_: object) -> None:
        raise TimeoutError(f"took more than {SECONDS} s")

    err = io.StringIO()
    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(SECONDS)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(err), watching() as events:
            try:
                code = main([str(word) for word in words])
            except SystemExit as exit:  # of --help and --version
                code = exit.code
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    said = err.getvalue()
    assert code in CODES, (code, said[-300:])
    assert "Traceback" not in said, said[-1000:]
    assert not events, events[:3]
    assert len(said.splitlines()[-1] if said else "") < 2000, len(said)
    assert visible(said) == said, repr(said[-300:])
    return code, said


# Changing what is there.


def change_json(path: Path, rng: np.random.Generator) -> None:
    """Put another value somewhere into a JSON file, or remove or add a key."""
    value = json.loads(path.read_text())
    for _ in range(rng.integers(1, 3)):
        place, key = _random_place(value, rng)
        if place is None:
            continue
        how = rng.random()
        if how < 0.1:
            del place[key]
        elif how < 0.15 and isinstance(place, dict):
            place["another"] = copy.deepcopy(VALUES[rng.integers(len(VALUES))])
        else:
            place[key] = copy.deepcopy(VALUES[rng.integers(len(VALUES))])
    path.write_text(json.dumps(value))


def _random_place(value: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    """Return a dict or list inside of a value, and one of its keys; a deep one as likely as any."""
    places = []
    stack = [value]
    while stack and len(places) < 5000:
        one = stack.pop()
        keys = list(one) if isinstance(one, dict) else range(len(one))
        for key in list(keys)[:200]:
            places.append((one, key))
            if isinstance(one[key], dict | list):
                stack.append(one[key])
    return places[rng.integers(len(places))] if places else (None, None)


def change_bytes(path: Path, rng: np.random.Generator) -> None:
    """Make something else of a file's bytes."""
    content = path.read_bytes()
    noise = rng.integers(0, 256, 4000, dtype=np.uint8).tobytes()
    text = content.decode("utf-8", "replace")
    changed: list[Callable[[], bytes]] = [
        lambda: content[: rng.integers(len(content) + 1)],
        lambda: noise,
        lambda: content[: len(content) // 2] + noise + content[len(content) // 2 :],
        lambda: text.encode("utf-16"),
        lambda: text.encode("utf-16-le"),
        lambda: b"\xef\xbb\xbf" + content,
        lambda: content.replace(b"\n", b"\r\n"),
        lambda: content.replace(b"a", b"\0"),
        lambda: b"",
        lambda: b"[" * 100_000,
        lambda: b'{"a":' * 100_000,
        lambda: b"%PDF-1.7" + content,
        lambda: content * 20,
        lambda: text.replace(" ", "\x1b[2J ").encode("utf-8", "replace"),
        lambda: text.replace("\t", ",").replace(",", "\t\t").encode("utf-8", "replace"),
    ]
    path.write_bytes(changed[rng.integers(len(changed))]())


def change(path: Path, rng: np.random.Generator) -> None:
    """Change a file in either way; or put a link or a directory in its place."""
    try:
        is_json = path.suffix == ".json" and bool(json.loads(path.read_text()))
    except ValueError:  # JSON lines
        is_json = False
    how = rng.random()
    if is_json and how < 0.8:
        change_json(path, rng)
    elif how < 0.97:
        change_bytes(path, rng)
    else:
        path.unlink()
        if rng.random() < 0.5:
            path.mkdir()
        else:
            path.symlink_to(f"/{SECRET}/{path.name}")


# What is changed, and the command that reads it.


def of_run(whole: Path, rng: np.random.Generator, place: Path) -> None:
    """A run of somebody else's."""
    shutil.copytree(whole, place)
    names = ["config.json"] * 6 + ["run.json", "corpus.json", "metrics.jsonl"]
    names += ["tokenizer/vocabulary.json"]
    change(place / names[rng.integers(len(names))], rng)
    new = place.parent / "new"
    off = "--verify=off"
    commands = [
        ("inspect", f"--config={place}", "--examples=1"),
        ("plan", f"--config={place}", "--topology=cpu:1"),
        ("prepare", f"--config={place}"),
        ("generate", f"--workdir={place}", "the cat", "--max-new-tokens=2", off),
        ("score", f"--workdir={place}", "the cat", off),
        ("embed", f"--workdir={place}", "the cat", off),
        ("fill", f"--workdir={place}", "the ___ sat", off),
        ("evaluate", f"--workdir={place}", off),
        ("export", f"--workdir={place}", new, off),
        ("verify", place),
        ("report", f"--workdir={new}", place),
        (
            "compare",
            f"--config={place}",
            f"--workdir={new}",
            "--grid=model.d_model=8,16",
            "--dry-run",
        ),
        ("train", f"--config={place}", f"--workdir={new}", "--config.training.steps=1"),
    ]
    call(*commands[rng.integers(len(commands))])


def of_text(text: Path, rng: np.random.Generator, place: Path) -> None:
    """A text, whatever its name says."""
    place.mkdir()
    endings = [
        ".txt",
        ".jsonl",
        ".json",
        ".csv",
        ".tsv",
        ".parquet",
        ".txt.gz",
        ".txt.zst",
        ".jsonl.xz",
    ]
    path = place / f"a{endings[rng.integers(len(endings))]}"
    lines = text.read_text().split("\n\n")[:60]
    if "json" in path.name:
        path.write_text("\n".join(json.dumps({"text": line, "label": 1}) for line in lines))
    elif path.suffix in (".csv", ".tsv"):
        path.write_text("\n".join(["text\tlabel", *(f"{line}\t1" for line in lines)]))
    else:
        path.write_text("\n".join(lines))
    change(path, rng)
    unit = ["file", "line", "block"][rng.integers(3)]
    kinds = ["classify", "regress", "generate", "choose", "extract", "label", "complete", "prefer"]
    commands = [
        ("prepare", "--config=gpt_tiny", f"--config.data.source={path}"),
        ("prepare", "--config=gpt_tiny", f"--config.data.source={place}"),
        (
            *("inspect", "--config=gpt_tiny", "--config.data.tokenizer=bytes"),
            f"--task={kinds[rng.integers(len(kinds))]}({path}, text=text, label=label)",
        ),
    ]
    more = ("--config.data.tokenizer=bytes", f"--config.data.document={unit}")
    call(*commands[rng.integers(len(commands))], *more)


def of_tokenizer(tokenizer: Path, rng: np.random.Generator, place: Path) -> None:
    """The files of a tokenizer."""
    shutil.copytree(tokenizer, place)
    files = sorted(path for path in place.iterdir() if path.is_file())
    path = files[rng.integers(len(files))]
    change(path, rng)
    named = place if rng.random() < 0.5 else path
    call(
        "prepare",
        "--config=gpt_tiny",
        "--config.data.source=world:facts",
        f"--config.data.tokenizer={named}",
    )


def of_model(exported: Path, rng: np.random.Generator, place: Path) -> None:
    """A model in Hugging Face's files."""
    shutil.copytree(exported, place)
    (place / "manifest.json").unlink(missing_ok=True)  # which would notice any change
    files = sorted(path for path in place.iterdir() if path.is_file())
    change(files[rng.integers(len(files))], rng)
    commands = [
        ("import", place, f"--workdir={place.parent / 'new'}"),
        ("generate", f"--workdir={place}", "the cat", "--max-new-tokens=2"),
    ]
    call(*commands[rng.integers(len(commands))])


def of_report(report: Path, rng: np.random.Generator, place: Path) -> None:
    """The results of a comparison."""
    place.mkdir()
    shutil.copy(report, place / "report.json")
    change(place / "report.json", rng)
    if rng.random() < 0.7:
        call("report", f"--workdir={place}")
    else:
        call("rerun", place / "report.json", f"--workdir={place.parent / 'new'}")


def of_store(store: Path, rng: np.random.Generator, place: Path) -> None:
    """A token store."""
    shutil.copytree(store, place)
    change(place / "manifest.json", rng)
    call("inspect", f"--store={place}", "--examples=1")
