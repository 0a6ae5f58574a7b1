"""Every model that ships leaves as a class of `transformers`, or is known to have none."""

import dataclasses

import pytest
from conftest import ROOT

from t5x_lite.config import files
from t5x_lite.errors import UserError
from t5x_lite.interop.families.table import find_family
from t5x_lite.resolve import resolve_without_text

EXPORTED = {
    "babylm:bert": "modernbert",
    "babylm:gpt": "modernbert-decoder",
    "babylm:gpt_bert": "modernbert-decoder",
    "babylm:t5": "t5",
    "bert_base": "bert",
    "bert_tiny": "esm",
    "gpt": "openai-gpt",
    "gpt2_small": "gpt2",
    "gpt_tiny": "gpt_neox",
    "llama_7b": "llama",
    "palm_540b": "cohere",
    "published:gpt3_175b": "gpt2",
    "published:megatron_8b": "gpt2",
    "published:palm_8b": "cohere",
    "published:t5_1_1_xxl": "t5",
    "roberta_large": "roberta",
    "shakespeare": "llama",
    "t5_1_1_base": "t5",
    "t5_base": "t5",
    "t5_tiny": "t5",
}
# Transformer-XL's positions in a decoder; sinusoids in two stacks, with an epsilon of 10⁻⁶. No
# class of `transformers` computes these.
WITHOUT_A_CLASS = ("gopher_280b", "published:chinchilla_70b", "transformer_base")


def model_of(name):
    return resolve_without_text(files.load(name, [])).model


@pytest.mark.parametrize("name", EXPORTED)
def test_a_model_that_ships_can_be_exported(name):
    assert find_family(model_of(name)) == EXPORTED[name]


def test_a_model_of_both_kinds_of_prediction_can_be_exported_for_each():
    """GPT-BERT's model is a causal decoder, and with --masked an encoder."""
    model = model_of("babylm:gpt_bert")
    encoder = dataclasses.replace(model, architecture="encoder", num_decoder_layers=0)
    assert find_family(encoder) == "modernbert"


@pytest.mark.parametrize("name", WITHOUT_A_CLASS)
def test_a_model_without_a_class_is_refused_by_what_differs(name):
    with pytest.raises(UserError, match=r"none of the families .* needs .*model\.positions="):
        find_family(model_of(name))


def test_every_config_is_in_one_of_the_two_lists():
    models = {path.stem for path in (ROOT / "configs").glob("*.py")}
    assert models - {"babylm", "published", "modifications"} <= {*EXPORTED, *WITHOUT_A_CLASS}
