"""A model that was tuned on conversations replies, in Python and on the page."""

import json
from functools import partial

import pytest
from conftest import refusal, run, slow

import t5x_lite
from t5x_lite.errors import USAGE
from t5x_lite.pages.play import actions_of, answer

OBJECTIVES = {"decoder": "causal_lm", "encoder_decoder": "span_corruption"}


@pytest.fixture
def talks(tmp_path):
    path = tmp_path / "talks.jsonl"
    with path.open("w") as file:
        for number in range(24):
            hi = {"role": "user", "content": f"{number}?"}
            yes = {"role": "assistant", "content": "yes" if number % 3 else "no"}
            print(json.dumps({"messages": [hi, yes]}), file=file)
    return f"chat({path}, text=messages, validation_fraction=0.5, turn='{{role}}:{{content}} ')"


@pytest.mark.parametrize(
    ("architecture", "adapt"),
    [("decoder", "full"), slow("encoder_decoder", "lora(2)")],
)
def test_a_tuned_model_replies(make, talks, tmp_path, architecture, adapt):
    resolved, _ = make(
        OBJECTIVES[architecture], architecture, **{"training.steps": 1, "model.positions": "rotary"}
    )
    base = t5x_lite.train(resolved.config, tmp_path / "base")
    expected = f"reply: this model was trained on {OBJECTIVES[architecture]}; use generate"
    turns = [{"role": "user", "content": "1?"}]
    assert refusal(base.reply, turns, code=USAGE) == expected
    assert "reply" not in actions_of(base)
    steps = {"training.steps": 2, "optimizer.learning_rate": 1e-2, "data.epochs": 0}
    workdir = tmp_path / "tuned"
    results = t5x_lite.finetune(tmp_path / "base", talks, workdir, adapt=adapt, **steps)
    assert set(results["reached"]) >= {"exact_match", "token_f1"}
    model = t5x_lite.load(workdir)
    assert repr(model).endswith(", talks, step 1)")
    said = model.reply(turns, max_new_tokens=6)
    assert said == model.generate("user:1? assistant:", max_new_tokens=6)
    message = refusal(partial(model.reply, turns, stop=("x",)), code=USAGE)
    assert message.startswith("generate: stop is not for a text that is shown token by token")
    # On the page, with what was said before
    assert actions_of(model)[0] == "reply"
    request = {"action": "reply", "text": "2?", "max_new_tokens": 6}
    request["turns"] = [*turns, {"role": "assistant", "content": said}]
    *pieces, last = answer(model, request)
    whole = f"user:1? assistant:{said} user:2? assistant:"
    written = model.generate(whole, max_new_tokens=6)
    assert "".join(piece["piece"] for piece in pieces) == written
    assert "".join(token["text"] for token in last["tokens"]) == written
    message = refusal(list, answer(model, request | {"turns": [1]}), code=65)
    assert message == "reply: turn 0: expected a dict with texts as role and content, got 1"
    # Other conversations are answered as those were that it learned, whatever their file is called.
    (tmp_path / "other.jsonl").write_text((tmp_path / "talks.jsonl").read_text())
    for task in (talks, f"chat({tmp_path}/other.jsonl, text=messages, turn={{role}}-{{content}})"):
        out, _ = run("evaluate", f"--workdir={workdir}", f"--task={task}")
        assert "by as trained on talks" in out
    # A conversation that is too long for a row loses its beginning.
    long = [{"role": "user", "content": "a" * 100}, *turns]
    room = model.dimensions.max_length - (6 if architecture == "decoder" else 0)
    end = model.render(long)[-room + (architecture == "encoder_decoder") :]
    assert model.reply(long, max_new_tokens=6) == model.generate(end, max_new_tokens=6)
