"""The whole way in Python, as a notebook has it."""

import math

import numpy as np
import pytest
from conftest import settings

import t5x_lite
from t5x_lite.config import RunConfig
from t5x_lite.config.files import build
from t5x_lite.data.rows.batches import make_batches
from t5x_lite.errors import UserError
from t5x_lite.resolve import plan


def test_from_text_to_a_trained_and_evaluated_model(tmp_path, text_file):
    config, workdir = settings(text_file), tmp_path / "run"
    corpus = t5x_lite.prepare(config)
    inspected = t5x_lite.inspect(config, examples=1)
    assert inspected.state_bytes == pytest.approx(3 * inspected.gradient_bytes, rel=0.01)
    for words in ("row 0", "loss tokens", f"{inspected.parameters:,}", "GFLOP/s"):
        assert words in str(inspected)

    records: list[dict] = []
    model = t5x_lite.train(config, workdir, on_log=records.append)
    assert [record["step"] for record in records if record["split"] == "train"] == [*range(1, 7)]
    assert repr(model).startswith("LanguageModel(decoder, ")
    assert repr(model).endswith(" parameters, causal_lm, step 6)")
    assert model.dimensions.d_model == 16

    figures = t5x_lite.evaluate(workdir)
    assert figures["loss"] == pytest.approx(records[-1]["loss"], rel=1e-6)
    assert figures["perplexity"] == pytest.approx(math.exp(figures["loss"]))
    assert figures["step"] == 6

    assert isinstance(model.generate("the cat", max_new_tokens=3), str)
    assert len(model.generate(["the cat", "the"], max_new_tokens=3)) == 2
    assert model.score("the cat").nats < 0

    # The bare function of parameters and a row.
    run = build(RunConfig, config)
    batches = make_batches(plan(run), run.data, run.seed, corpus, "validation")
    row = batches.rows([0])
    logits = np.asarray(model.apply(model.params, row))
    assert logits.shape[:2] == row["decoder_tokens"].shape
    assert (logits.argmax(-1) < corpus.tokenizer.vocabulary.size).all()


def test_a_config_is_a_name_settings_or_a_dataclass(text_file):
    by_name = t5x_lite.get_config("gpt_tiny", **{"training.steps": 7})
    assert by_name.training.steps == 7
    of_dict = t5x_lite.inspect(settings(text_file), 0)
    of_dataclass = t5x_lite.inspect(build(RunConfig, settings(text_file)), 0)
    assert of_dict == of_dataclass
    with pytest.raises(UserError, match="no such file; did you mean gpt_tiny"):
        t5x_lite.inspect("gpt_tinny")
    with pytest.raises(UserError, match="did you mean learning_rate"):
        t5x_lite.inspect({"optimizer": {"lerning_rate": 1.0}})


OWN_CODE = """
from t5x_lite.data.objectives.language import causal_lm as words
from t5x_lite.model.parts.feed_forward import MLP as Part
"""


def test_a_model_with_code_of_ones_own_is_used_where_that_is_permitted(
    tmp_path, text_file, write_module
):
    mark = write_module("researched", OWN_CODE)
    own = {"objective": "researched.words", "model.feed_forward": "researched.Part"}
    model = t5x_lite.train(settings(text_file, **own), tmp_path / "run")
    assert mark.exists()
    expected = model.score("the cat")  # the code is still permitted
    for use in (
        t5x_lite.load,
        t5x_lite.evaluate,
        lambda run: t5x_lite.finetune(run, "which_module", tmp_path / "tuned"),
        lambda run: t5x_lite.train(str(run), tmp_path / "again"),
    ):
        with pytest.raises(UserError, match="if you trust researched"):
            use(tmp_path / "run")
    with t5x_lite.allow(["researched"]):
        again = t5x_lite.load(tmp_path / "run")
    assert repr(again) == repr(model)
    assert again.score("the cat") == expected
    assert isinstance(again.generate("the", max_new_tokens=2), str)
    assert again.embed("the cat").shape == (16,)
