"""The command line: what it refuses, at once and in one sentence."""

import shlex
import subprocess
import sys

import pytest
from conftest import ROOT, run

from t5x_lite.commands import COMMANDS
from t5x_lite.commands.line import parse

BAD_COMMANDS = [
    ("train --config=gpt_tiny --config.model.d_modl=5 --workdir={}", 78, "did you mean d_model?"),
    ("train --config=gpt_tiny --config.model.width=5 --workdir={}", 78, "no such setting"),
    ("train --config=no_such --workdir={}", 66, "no such file"),
    ("train --config=gpt_tiny", 2, "--workdir=DIR is missing"),
    ("train --workdir={}", 2, "--config=FILE is missing"),
    (
        "train --config=gpt_tiny --config.objective=masked_lm --workdir={}",
        78,
        "use architecture encoder",
    ),
    ("train --config=compare/quickstart --workdir={}", 78, "command compare"),
    ("compare --config=gpt_tiny --workdir={}", 78, "command train"),
    ("evaluate --workdir={}/none", 66, "no such directory"),
    ("evaluate --workdir={}", 66, "has no config.json"),
    ("trian", 2, "trian: no such command; did you mean train?"),
    ("inspect --config=gpt_tiny --store=here", 2, "give one of them"),
    ("prepare --config=gpt_tiny --config.data.validation_fraction=0", 78, "hold a share out"),
    (
        "prepare --config=gpt_tiny --config.data.validation_source=python_docs",
        78,
        "it is trained on too",
    ),
    ("train --config=gpt_tiny --config.seed --workdir={}", 2, "--config.seed: got no value"),
]


def test_each_command_has_an_example_that_can_be_parsed():
    for name, module in COMMANDS.items():
        program, *words = shlex.split(module.EXAMPLE)
        assert program == "t5x_lite"
        assert parse(words).command == name


@pytest.mark.parametrize("what", ["configs", "compare", "objectives", "tasks", ""])
def test_what_ships_is_listed(what):
    out, _ = run("list", *filter(None, [what]))
    expected = {"configs": "gpt_tiny", "compare": "compare/quickstart", "objectives": "causal_lm"}
    assert expected.get(what, "label(FILE, …)") in out


@pytest.mark.parametrize(("command", "code", "words"), BAD_COMMANDS)
def test_bad_commands_are_refused_and_leave_nothing(tmp_path, command, code, words):
    _, err = run(*command.format(tmp_path).split(), code=code)
    assert words in err
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_they_are_refused_before_jax_is_imported(tmp_path):
    code = """
import sys
from t5x_lite.__main__ import main
for command in sys.argv[1:]:
    try:
        main(command.split())
    except SystemExit:
        pass
    assert "jax" not in sys.modules, command
"""
    commands = [command.format(tmp_path) for command, _, _ in BAD_COMMANDS]
    subprocess.run([sys.executable, "-c", code, *commands], check=True, cwd=ROOT)


@pytest.mark.parametrize(
    "option",
    [
        "--max-new-tokens=-5",
        "--max-new-tokens=0",
        "--temperature=-1",
        "--top-k=-3",
        "--top-p=0",
        "--temperature=nan",
    ],
)
def test_options_out_of_range_are_refused(tmp_path, option):
    _, err = run("generate", option, f"--workdir={tmp_path}", "text", code=2)
    assert "expected a number" in err
    assert "number at least " in err or "number from " in err


def test_bash_completes_commands_and_settings(tmp_path):
    out, _ = run("completion", "bash")
    ask = """
        source "$1"; COMP_WORDS=(t5x_lite train --config.model.num_l); COMP_CWORD=2
        _shtab_t5x_lite; echo "${COMPREPLY[@]}"
    """
    (tmp_path / "completion").write_text(out)
    command = ["bash", "-c", ask, "bash", str(tmp_path / "completion")]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert found == ["--config.model.num_layers"]


STUCK = """
import threading
from t5x_lite import __main__, storage
main = __main__.main

def command():
    storage.atexit.register(print, "at its exit")
    threading.Thread(target=threading.Event().wait).start()
    return main()

__main__.main, __main__._JOIN_WITHIN = command, 0.1
__main__.script()
"""


def test_a_thread_that_waits_for_ever_does_not_keep_a_command_that_failed():
    command = [sys.executable, "-c", STUCK, "trian"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "at its exit\n")
    assert done.stderr.startswith("t5x_lite: trian: no such command")
