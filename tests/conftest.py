"""A small corpus of bytes, small configs, and the command line as a user has it."""

import io
import os
import random
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # compiles faster; the commands are run as users run them
ROOT = Path(__file__).parent.parent

LENGTHS = {
    "encoder": {"row": 34},
    "decoder": {"row": 40},
    "prefix_decoder": {"row": 40},
    "encoder_decoder": {"inputs": 32, "targets": 24},
}
# Every objective with every architecture that can learn it.
CELLS = [
    ("masked_lm", "encoder"),
    ("causal_lm", "decoder"),
    ("prefix_lm", "decoder"),
    ("prefix_lm(score_prefix=True)", "decoder"),
    *((f"{name}", a) for name in ("prefix_lm",) for a in ("prefix_decoder", "encoder_decoder")),
    *(
        (name, a)
        for name in ("span_corruption", "span_corruption(random_roll=True)", "iid_denoising")
        for a in ("decoder", "prefix_decoder", "encoder_decoder")
    ),
]
# Those that say nothing new about the model: their rows are proven, one of each kind is trained.
MORE_CELLS = [
    *((f"masked_lm(choice={choice!r})", "encoder") for choice in ("word", "span", "salient")),
    *((f"masked_lm({option})", "encoder") for option in ("second='next'", "second='order'", "static=True")),
    ("prefix_lm(split=0.75, mode='S')", "encoder_decoder"),
    ("fill_in_the_middle", "decoder"),
    ("fill_in_the_middle(fim_rate=1)", "prefix_decoder"),
    ("drop_tokens", "encoder_decoder"),
    ("mass_style", "encoder_decoder"),
    ("bert_style", "prefix_decoder"),
    ("deshuffling", "encoder_decoder"),
    ("sentence_permutation", "encoder_decoder"),
    ("text_infilling(permute_sentences=True)", "encoder_decoder"),
    ("ul2", "encoder_decoder"),
    ("ul2", "prefix_decoder"),
    ("causal_lm + span_corruption + fill_in_the_middle", "decoder"),
    ("masked_lm + masked_lm(noise_density=0.3)", "encoder"),
]
ALL_CELLS = CELLS + MORE_CELLS


def sentences(count: int, seed: int = 0) -> str:
    """Documents of a language so small that a tiny model learns it, one a block."""
    pick = random.Random(seed).choice
    nouns, verbs = ("cat", "dog", "bird", "fish"), ("sees", "hears", "likes")
    made = (
        f"the {pick(nouns)} {pick(verbs)} the {pick(nouns)} and the {pick(nouns)} {pick(verbs)} it."
        for _ in range(count)
    )
    return "\n\n".join(made)


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory):
    """Stores and compiled programs of the tests, away from the user's."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base  # what one worker compiled the other need not
    os.environ["T5X_LITE_CACHE"] = str(shared / "cache")


@pytest.fixture(scope="session")
def text_file(tmp_path_factory):
    """A text file of 400 documents."""
    path = tmp_path_factory.mktemp("text") / "sentences.txt"
    path.write_text(sentences(400))
    return path


def settings(text_file, objective="causal_lm", architecture="decoder", **more) -> dict:
    """A config, as nested dicts, that trains in seconds; `more` is keyed "model.width" and so on."""
    values = {
        "objective": objective,
        "data.source": str(text_file),
        "data.document": "block",
        "data.validation_fraction": 0.1,
        "data.tokenizer": "bytes",
        "data.batch_size": 8,
        "data.lengths": LENGTHS[architecture],
        "model.architecture": architecture,
        "model.layers": 2,
        "model.width": 16,
        "model.heads": 2,
        "training.steps": 6,
        "training.log_every": 1,
        **more,
    }
    nested = {}
    for key, value in values.items():
        *parents, last = key.split(".")
        at = nested
        for parent in parents:
            at = at.setdefault(parent, {})
        at[last] = value
    return nested


@pytest.fixture(scope="session")
def make(text_file):
    """A function that makes a checked RunConfig and its corpus."""
    from t5x_lite.config import RunConfig, check
    from t5x_lite.data.prepare import prepare
    from t5x_lite.settings import build

    def made(*args, **more):
        config = check(build(RunConfig, settings(text_file, *args, **more)))
        return config, prepare(config.data, say=lambda _: None)

    return made


@pytest.fixture
def config_file(tmp_path, text_file):
    """A function that writes a config file and returns its path."""

    def write(*args, **more):
        path = tmp_path / "config.py"
        path.write_text(f"def get_config():\n    return {settings(text_file, *args, **more)!r}\n")
        return path

    return write


def start(*args, **more) -> subprocess.Popen:
    """The command line in a process of its own."""
    command = [sys.executable, "-m", "t5x_lite", *map(str, args)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    env = {key: value for key, value in os.environ.items() if key != "JAX_DISABLE_MOST_OPTIMIZATIONS"}
    return subprocess.Popen(command, **{**pipes, "cwd": ROOT, "env": env, **more})


def run(*args, code: int = 0) -> tuple[str, str]:
    """Run a command to its end, in this process; its output and errors. The exit code must be `code`."""
    from t5x_lite.__main__ import main

    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        try:
            found = main([str(arg) for arg in args])
        except SystemExit as exit:  # argparse's
            found = exit.code
    assert found == code, f"exit code {found}\n{out.getvalue()}\n{err.getvalue()}"
    return out.getvalue(), err.getvalue()


def run_apart(*args, code: int = 0, **more) -> tuple[str, str]:
    """The same in a process of its own, as a user has it: nothing may be a traceback."""
    process = start(*args, **more)
    out, err = process.communicate(timeout=300)
    assert process.returncode == code, f"exit code {process.returncode}\n{out}\n{err}"
    assert "Traceback" not in err, err
    return out, err
