"""The schema: dataclasses refuse bad values and contradictions however they are built."""

import dataclasses
import inspect
import math
import re

import pytest
from conftest import refusal

from t5x_lite.config import (
    CompareConfig,
    Data,
    Lengths,
    Mesh,
    Model,
    Optimizer,
    RunConfig,
    TextCleaning,
    Training,
    default,
    schema,
    to_dict,
    type_hints,
)
from t5x_lite.config.files import build, build_comparison
from t5x_lite.data.tasks.kinds.table import KINDS
from t5x_lite.model.parts.norms import NORMS
from t5x_lite.model.parts.positions import POSITIONS
from t5x_lite.model.parts.table import FEED_FORWARDS, MIXERS
from t5x_lite.training.adapt import ADAPTATIONS
from t5x_lite.training.averaging import AVERAGES
from t5x_lite.training.loggers import LOGGERS
from t5x_lite.training.optimizer import OPTIMIZERS
from t5x_lite.training.schedules import SCHEDULES

LM = RunConfig(data=Data(lengths=Lengths(sequence_length=40)))
SECTIONS = (Lengths, TextCleaning, Data, Model, Mesh, Optimizer, Training)


BAD_VALUES = [
    (Optimizer, {"schedule_unit": "step"}, "optimizer.schedule_unit: got 'step'; did you mean"),
    (Optimizer, {"learning_rate": math.nan}, "optimizer.learning_rate: got nan, expected a number"),
    (Optimizer, {"learning_rate": math.inf}, "optimizer.learning_rate: got inf, expected a number"),
    (Optimizer, {"learning_rate": "1e-3"}, "optimizer.learning_rate: got '1e-3', expected a num"),
    (Optimizer, {"beta1": 1.0}, "optimizer.beta1: got 1.0, expected between 0.0 and 0.9999"),
    (Model, {"init": "normla"}, "model.init: got 'normla'; did you mean normal?"),
    (Model, {"dropout": 0.95}, "model.dropout: got 0.95, expected between 0.0 and 0.9"),
    (Model, {"scan": 1}, "model.scan: got 1, expected True or False"),
    (Model, {"num_heads": True}, "model.num_heads: got True, expected a whole number"),
    (Model, {"num_layers": 0}, "model.num_layers: got 0, expected at least 1"),
    (Model, {"head_dim": None}, "model.head_dim: got None, expected a whole number"),
    (Training, {"steps": -5}, "training.steps: got -5, expected at least 1"),
    (Training, {"steps": 1.5}, "training.steps: got 1.5, expected a whole number"),
    (Training, {"z_loss": math.nan}, "training.z_loss: got nan, expected a number"),
    (Training, {"profile": 5}, "training.profile: got 5, expected a list"),
    (Data, {"batch_size": 0}, "data.batch_size: got 0, expected at least 1"),
    (Data, {"lengths": {"inputs": 5}}, "data.lengths: got {'inputs': 5}, expected Lengths"),
    (Data, {"source": b"a.txt"}, "data.source: got b'a.txt', expected text"),
    (Lengths, {"inputs": 2**24 + 1}, "data.lengths.inputs: got 16777217, expected between 0 and"),
    (TextCleaning, {"nul": "replac"}, "data.text_cleaning.nul: got 'replac'; did you mean replace"),
    (Mesh, {"fsdp": 0}, "mesh.fsdp: got 0, expected at least 1"),
    (RunConfig, {"seed": 2**31}, "seed: got 2147483648, expected between 0 and 2147483647"),
    (RunConfig, {"model": Mesh()}, "model: got Mesh("),
    (CompareConfig, {"cells": {"a": 5}}, "cells.a: got 5, expected a RunConfig"),
]


@pytest.mark.parametrize(("schema", "values", "words"), BAD_VALUES)
def test_a_bad_value_is_refused_where_it_is_written(schema, values, words):
    assert refusal(lambda: schema(**values)).startswith(words)


@pytest.mark.parametrize(("schema", "values", "words"), BAD_VALUES)
def test_a_bad_value_is_refused_when_it_replaces_a_good_one(schema, values, words):
    good = {RunConfig: LM, CompareConfig: CompareConfig(cells={"a": LM})}
    config = good.get(schema) or schema()
    assert refusal(lambda: dataclasses.replace(config, **values)).startswith(words)


def means_the_same_as_text(case) -> bool:
    """Text from a command line is read as a literal; sections are dicts there."""
    schema, values, _ = case
    return schema in (Data, RunConfig, CompareConfig) or "1e-3" in values.values()


@pytest.mark.parametrize(
    ("schema", "values", "words"),
    [case for case in BAD_VALUES if not means_the_same_as_text(case)],
)
def test_a_bad_value_is_refused_from_nested_dicts(schema, values, words):
    nested = to_dict(LM)
    section = nested
    for name in schema.SECTION.split("."):
        section = section[name]
    section |= values
    assert refusal(lambda: build(RunConfig, nested)).startswith(words)


def test_values_are_as_their_types_want_them():
    optimizer = Optimizer(learning_rate=1)
    assert type(optimizer.learning_rate) is float
    assert Training(profile=[1, 2]).profile == (1, 2)


def test_nothing_can_be_changed_unchecked():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Training().steps = -5


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Data(validation_fraction=0), "data.validation_fraction: got 0; hold a share out"),
        (
            lambda: Data(source="a.txt + b.txt", validation_source="b.txt"),
            "data.validation_source=b.txt: it is trained on too",
        ),
        (
            lambda: Data(source="3 * a.txt + b.txt", validation_source="a.txt"),
            "data.validation_source=a.txt: it is trained on too",
        ),
        (lambda: Model(num_heads=3), "model.num_heads: 3 does not divide model.d_model 128"),
        (
            lambda: Model(lora_rank=2, lora_targets=("query", "embedding")),
            "model.lora_targets: embedding is also the output layer",
        ),
        (lambda: Model(num_decoder_layers=2), "model.num_decoder_layers: architecture decoder has"),
        (lambda: Model(shared_stacks=True), "model.shared_stacks: architecture decoder has one"),
        (lambda: Model(shared_embeddings=False), "model.shared_embeddings: architecture decoder"),
        (lambda: Model(shared_layers="encoder"), "model.shared_layers: got encoder, but archi"),
        (
            lambda: Model(architecture="encoder_decoder", shared_stacks=True, num_decoder_layers=2),
            "model.shared_stacks: needs as many num_decoder_layers as num_layers",
        ),
        (
            lambda: Model(
                architecture="encoder_decoder", shared_stacks=True, shared_layers="decoder"
            ),
            "model.shared_layers: got decoder, but shared_stacks makes both one",
        ),
        (
            lambda: Model(parallel_residual=True, norm_position="post"),
            "model.parallel_residual: needs norm_position pre",
        ),
        (
            lambda: Model(first_norm=False, norm_position="post"),
            "model.first_norm: the norm that it leaves out is the first of norm_position pre",
        ),
        (lambda: Model(layer_pattern=("locl",)), "model.layer_pattern: got 'locl', expected"),
        (lambda: Model(layer_pattern=(["local"],)), "model.layer_pattern: got ['local'], expected"),
        (
            lambda: Model(architecture="encoder", backward_decoder=True),
            "model.backward_decoder: got architecture encoder, expected decoder",
        ),
        (
            lambda: Model(backward_decoder=True, prompt_length=3),
            "model.prompt_length: backward_decoder reads no prompt",
        ),
        (lambda: Mesh(data=0), "mesh.data: got 0, expected -1"),
        (
            lambda: Optimizer(decay_steps=50),
            "optimizer.decay_steps: got 50, expected more than optimizer.warmup_steps 100",
        ),
        (lambda: Training(profile=(3, 2)), "training.profile: got [3, 2], expected [first, last]"),
        (
            lambda: Training(profile=(True, 2)),
            "training.profile: got True, expected a whole number",
        ),
        (lambda: RunConfig(), "data.lengths.sequence_length: got 0; a row of architecture decoder"),
        (
            lambda: dataclasses.replace(LM, data=Data(lengths=Lengths(40, inputs=5))),
            "data.lengths.inputs: architecture decoder has no such length",
        ),
        (
            lambda: dataclasses.replace(LM, training=Training(microbatches=7)),
            "training.microbatches: 7 does not divide data.batch_size 32",
        ),
        (lambda: CompareConfig(), "cells: got none"),
        (lambda: CompareConfig(cells={"../x": LM}), "cells: got the name '../x', expected that"),
        (lambda: CompareConfig(cells={5: LM}), "cells: got the name 5, expected that"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(make, words):
    assert refusal(make).startswith(words)


def test_a_config_survives_json():
    assert build(RunConfig, to_dict(LM)) == LM
    compare = CompareConfig(cells={"a": LM, "b": LM}, prompts=("x",))
    assert build_comparison(to_dict(compare)) == compare


@pytest.mark.parametrize("schema", [RunConfig, *SECTIONS])
def test_a_config_file_starts_from_the_defaults_and_every_setting_has_a_type(schema):
    defaults = default(schema).to_dict()
    assert set(defaults) == set(type_hints(schema))
    if schema is not RunConfig:  # which lacks its lengths
        assert build(schema, defaults) == schema()


def test_a_typo_fails_where_it_is_written():
    config = default()
    with pytest.raises(AttributeError, match="num_layer"):
        config.model.num_layer = 2
    with pytest.raises(KeyError, match="btach_size"):
        config.data.update(btach_size=3)


# Settings whose values name entries of a table.
TABLES = {
    "kind": KINDS,
    "loggers": LOGGERS,
    r"name: Annotated\[str, CODE\]": OPTIMIZERS,
    "schedule": SCHEDULES,
    "mixer": MIXERS,
    "feed_forward": FEED_FORWARDS,
    "norm": NORMS,
    "positions": POSITIONS,
    "adapt": ADAPTATIONS,
    "average": AVERAGES,
}


@pytest.mark.parametrize("setting", TABLES)
def test_the_comment_of_a_setting_lists_its_table(setting):
    """People read the choices there, and in the manual, which is made from it."""
    lines = inspect.getsource(schema).splitlines()
    comments = []
    for number, line in enumerate(lines):
        if not re.match(rf"    {setting}(\W.*)? = ", line):
            continue
        first = number
        while lines[first - 1].strip().startswith("#"):
            first -= 1
        comments.append(" ".join(lines[first : number + 1]))
    missing = [
        [name for name in TABLES[setting] if not re.search(rf"\b{name}\b", comment)]
        for comment in comments
    ]
    assert [] in missing, missing
