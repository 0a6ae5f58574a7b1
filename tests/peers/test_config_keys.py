"""The keys of `transformers`' own classes: each is read, or known to change nothing."""

import pytest

pytest.importorskip("transformers", reason="make test-peers has it")

import transformers

from t5x_lite.interop.config_keys import (
    GENERATION_HARMLESS,
    GENERATION_NEUTRAL,
)
from t5x_lite.interop.families.table import FAMILIES


@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_key_of_a_class_is_known_with_its_default(model_type):
    family = FAMILIES[model_type]
    config = transformers.AutoConfig.for_model(model_type).to_dict()
    config["vocab_size"] = config["vocab_size"] or 33  # ESM has no default
    # Command R's own factor of logits is none that we have: it is refused by its name.
    one = {"logit_scale": 1.0} if model_type == "cohere" else {}
    family.read_config(config | one)  # each setting is read, harmless or neutral
    for key, value in family.defaults.items():
        # Null is what a class makes of a setting that has no effect.
        assert config[key] in (value, None), key
    for key, value in family.supported.items():
        assert config.get(key, value) == value, key


def test_every_key_of_generation_is_known():
    config = transformers.GenerationConfig().to_dict()
    assert set(config) <= {*GENERATION_HARMLESS, *GENERATION_NEUTRAL}
    for key, values in GENERATION_NEUTRAL.items():
        assert config.get(key) in (None, *values), key
