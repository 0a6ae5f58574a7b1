"""Answers of a run are kept, and are those of the checkpoint that was asked."""

import json
import shutil

import pytest
from conftest import run

from t5x_lite.comparison import evaluations
from t5x_lite.comparison.evaluations import Questions, measure
from t5x_lite.comparison.span_bits import Span
from t5x_lite.comparison.writing import GivenTexts
from t5x_lite.training import loaded_model

ASKED = Questions(
    spans=(Span("the cat sees ", "the dog", " and the cat hears it.", 0),),
    given=GivenTexts(prompts=("the cat",)),
)


@pytest.fixture
def workdir(tmp_path, config_file):
    """A run of four steps, with a checkpoint after each second one."""
    more = {"training.steps": 4, "training.checkpoint_every": 2}
    run("train", f"--config={config_file(**more)}", f"--workdir={tmp_path / 'run'}")
    return tmp_path / "run"


def key_of(path):
    return json.loads(path.read_text())["of"]


def test_a_run_that_stopped_after_its_checkpoint_is_asked_again_when_it_went_on(workdir):
    whole = measure(workdir, ASKED)
    # As it was when step 3 was logged, but not saved: what is asked is step 2.
    shutil.rmtree(workdir / "checkpoints/4")
    stopped = measure(workdir, ASKED)
    assert key_of(workdir / "span_bits.json")["step"] == 2
    assert stopped.span_bits != whole.span_bits
    assert [one["step"] for one in stopped.written] == [2]
    assert {path.name for path in (workdir / "written").iterdir()} == {"2.json", "4.json"}


def test_who_asks_less_takes_no_answers_away(workdir, monkeypatch):
    answers = measure(workdir, ASKED)
    nothing = measure(workdir, Questions())
    assert nothing.span_bits == {}
    assert nothing.written == []
    # They are even there when the parameters are not.
    shutil.rmtree(workdir / "checkpoints")
    monkeypatch.setattr(loaded_model, "load", None)
    assert measure(workdir, ASKED) == answers


def test_other_texts_are_asked(workdir):
    measure(workdir, ASKED)
    (again,) = measure(workdir, Questions(given=GivenTexts(prompts=("a bird",)))).written
    assert again["text"] == "a bird"


def test_checkpoints_that_were_not_kept_are_named(workdir, capsys):
    lines: list[str] = []
    with evaluations.messages_to(lines.append):
        found = measure(workdir, Questions(given=ASKED.given, curves=True))
    assert [one["step"] for one in found.written] == [2, 4]
    assert f"{workdir}: was trained without score_curves, and has only kept step 2, 4" in lines
