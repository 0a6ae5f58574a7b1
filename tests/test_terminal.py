"""Text of others never reaches a terminal with its control characters."""

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest
from conftest import settings

from t5x_lite.__main__ import main
from t5x_lite.errors import shortened
from t5x_lite.progress import bar, say
from t5x_lite.terminal import raw_stderr, visible, visible_output

EVIL = "\x1b]0;title\x07\x1b[2J\x9b31m\r\u202etxt\x7f"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_every_control_character_but_line_ends_and_tabs_is_shown():
    controls = [chr(number) for number in [*range(0x20), *range(0x7F, 0xA0)]]
    for character in controls:
        assert (visible(character) == character) == (character in "\n\t")
    assert visible(EVIL).isprintable()
    assert visible("café 猫 🐈 a\tb\n") == "café 猫 🐈 a\tb\n"


def test_a_terminal_shows_them_and_a_pipe_gets_them(monkeypatch):
    for out, expected in ((Terminal(), visible(EVIL)), (io.StringIO(), EVIL)):
        monkeypatch.setattr(sys, "stdout", out)
        with visible_output():
            say(EVIL)
        assert out.getvalue() == f"{expected}\n"
        assert sys.stdout is out


def test_bars_still_draw(monkeypatch):
    err = Terminal()
    monkeypatch.setattr(sys, "stderr", err)
    with visible_output(), bar("reading") as progress:
        assert raw_stderr() is err
        progress.add_task("", line="50 %")
    assert "50 %" in err.getvalue()
    assert "\x1b[" in err.getvalue()
    assert "\\x1b" not in err.getvalue()


@pytest.mark.parametrize(
    "key", ["objective", "model.activation", "data.source", "init_from", "task.name", EVIL]
)
def test_settings_of_others_in_errors(key, tmp_path, text_file):
    values = settings(text_file, **{key: EVIL})
    (tmp_path / "config.json").write_text(json.dumps(values))
    for arguments in (
        ["inspect"],
        ["train", f"--workdir={tmp_path}/new"],
        ["plan", "--topology=cpu:1"],
    ):
        with redirect_stderr(io.StringIO()) as err, redirect_stdout(io.StringIO()):
            main([*arguments, f"--config={tmp_path}"])
        assert visible(err.getvalue()) == err.getvalue()


def test_a_long_message_keeps_its_beginning_and_its_end():
    message = shortened("a=" + "x" * 10_000 + ": expected b; fix c")
    assert len(message) < 1600
    assert message.startswith("a=xxx")
    assert message.endswith(": expected b; fix c")
    assert "characters) …" in message
    assert shortened("short") == "short"
