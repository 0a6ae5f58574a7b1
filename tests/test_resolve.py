"""What a run is, derived once from its settings and its tokenizer."""

import dataclasses

import pytest
from conftest import ALL_CELLS, settings

from t5x_lite import resolve as resolving
from t5x_lite.config import Model, ModelDimensions, RunConfig
from t5x_lite.config.files import build
from t5x_lite.config.permission import allow
from t5x_lite.data.rows.batches import make_batches
from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.errors import BAD_CONFIG, UserError
from t5x_lite.resolve import last_step, plan, resolve, resolve_model

VOCABULARY = Tokenizer().vocabulary
SIZES = ("head_dim", "num_kv_heads", "d_ff", "embedding_size", "vocab_size", "max_length")


def config_of(*args, **more) -> RunConfig:
    return build(RunConfig, settings("text.txt", *args, **more))


@pytest.mark.parametrize(("objective", "architecture"), ALL_CELLS)
def test_every_size_is_written_out(objective, architecture):
    config = config_of(objective, architecture)
    resolved = resolve(config, VOCABULARY)
    model = resolved.model
    assert type(model) is ModelDimensions
    assert all(getattr(model, size) > 0 for size in SIZES)
    assert (model.num_decoder_layers == 0) == (architecture == "encoder")
    assert model.vocab_size == VOCABULARY.size
    assert model.max_length == resolved.rows.shape.longest
    assert (model.head_dim, model.num_kv_heads, model.d_ff) == (8, 2, 64)
    assert (model.num_classes > 0) == ("second" in objective)
    assert resolved.config == config
    assert resolved.steps == config.training.steps
    assert resolved.heads[0] == ("mlm" if architecture == "encoder" else "lm")
    assert ("sequence_label" in resolved.heads) == ("second" in objective)


def test_sizes_that_are_given_stay():
    given = {
        "num_decoder_layers": 3,
        "head_dim": 5,
        "num_kv_heads": 1,
        "d_ff": 7,
        "embedding_size": 6,
        "vocab_size": 600,
        "max_length": 99,
        "num_classes": 4,
    }
    model = Model(architecture="encoder_decoder", num_heads=2, **given)
    resolved = resolve_model(model, vocab_size=512, max_length=40, num_classes=2)
    assert {name: getattr(resolved, name) for name in given} == given


def test_the_config_with_its_sizes_written_out_resolves_to_itself():
    resolved = resolve(config_of("span_corruption", "encoder_decoder"), VOCABULARY)
    written_out = build(RunConfig, resolved.written_out)
    again = resolve(written_out, VOCABULARY)
    assert again.model == resolved.model
    assert again.rows == resolved.rows


@pytest.mark.parametrize("size", SIZES)
def test_dimensions_refuse_what_is_not_resolved(size):
    dimensions = resolve_model(Model(), vocab_size=512, max_length=40)
    with pytest.raises(UserError, match=f"model.{size}: is not resolved") as caught:
        dataclasses.replace(dimensions, **{size: 0})
    assert caught.value.code == BAD_CONFIG


def test_dimensions_know_which_stacks_there_are():
    decoder = resolve_model(Model(), vocab_size=512, max_length=40)
    encoder = resolve_model(Model(architecture="encoder"), vocab_size=512, max_length=40)
    for dimensions, layers in ((decoder, 0), (encoder, 2)):
        with pytest.raises(UserError, match=r"model\.num_decoder_layers"):
            dataclasses.replace(dimensions, num_decoder_layers=layers)
    assert decoder.embedding_rows == 512
    assert dataclasses.replace(decoder, vocab_size=513).embedding_rows == 640
    assert not decoder.is_factorised
    assert dataclasses.replace(decoder, embedding_size=64).is_factorised


def test_a_model_may_have_more_ids_than_the_tokenizer_never_fewer():
    with pytest.raises(UserError, match=r"model\.vocab_size: got 100, but the tokenizer has 512"):
        resolve_model(Model(vocab_size=100), vocab_size=512, max_length=40)


# Plans.


@pytest.fixture
def plans(monkeypatch):
    """The objectives that were planned, in order."""
    planned = []
    plan_rows = resolving.plan_rows

    def counted(objective, *args):
        planned.append(objective)
        return plan_rows(objective, *args)

    monkeypatch.setattr(resolving, "plan_rows", counted)
    return planned


def test_rows_are_planned_exactly_once(plans):
    config = config_of("ul2", "encoder_decoder")
    rows = plan(config)
    resolved = resolve(config, VOCABULARY, rows)
    assert resolved.rows is rows
    assert plans == ["ul2"]
    assert resolve(config, VOCABULARY) == resolved
    assert plans == ["ul2", "ul2"]


def test_nothing_below_plans_again(make, plans):
    resolved, corpus = make("causal_lm + span_corruption", "decoder")
    config = resolved.config
    for split in ("train", "validation"):
        make_batches(resolved.rows, config.data, config.seed, corpus, split).batch_at(0)
    assert plans == ["causal_lm + span_corruption"]


def test_a_run_ends_with_its_epochs(make):
    resolved, corpus = make(**{"data.epochs": 1, "training.steps": 10_000})
    config = resolved.config
    batches = make_batches(resolved.rows, config.data, config.seed, corpus, "train")
    assert resolved.steps == 10_000
    end = last_step(config, batches)
    assert end == batches.streams[0].rows(1) // config.data.batch_size


# What contradicts.


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"data.split_documents": True}, "data.split_documents: a row is one sentence pair"),
        ({"model.token_types": 1}, "model.token_types: got 1"),
        ({"model.num_classes": 1}, "model.num_classes: got 1"),
    ],
)
def test_what_contradicts_sentence_pairs_is_refused(setting, words):
    with pytest.raises(UserError, match=words):
        plan(config_of("masked_lm(second='order')", "encoder", **setting))


@pytest.mark.parametrize(
    ("objective", "setting", "words"),
    [
        (
            "span_corruption",
            {"model.backward_decoder": True},
            "model.backward_decoder: predicts a text backward, but span_corruption is no text",
        ),
    ],
)
def test_what_an_objective_cannot_be_read_by_is_refused(objective, setting, words):
    with pytest.raises(UserError, match=words):
        plan(config_of(objective, "decoder", **setting))


def test_too_few_sentinels_are_refused_with_the_number_needed():
    more = {"data.lengths": {"inputs": 2400, "targets": 800}}
    config = config_of("iid_denoising", "encoder_decoder", **more)
    with pytest.raises(UserError, match=r"can need \d{3} sentinels, the tokenizer has 256"):
        resolve(config, VOCABULARY)


def test_code_that_is_not_allowed_is_not_planned(write_module):
    objective = "from t5x_lite.data.objectives.language import causal_lm as mine"
    mark = write_module("planned_code", objective)
    config = config_of("planned_code.mine")
    for refused in (lambda: plan(config), lambda: resolve(config, VOCABULARY)):
        with pytest.raises(UserError, match="--allow-code=planned_code"):
            refused()
        assert not mark.exists()
    with allow({"planned_code"}):
        assert resolve(config, VOCABULARY).rows.members[0].window == 40
    assert mark.exists()
