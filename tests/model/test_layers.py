import pytest
from flax import linen as nn
from model.proofs import check_gradients, context, small

from t5x_lite.config import ModelDimensions
from t5x_lite.model import layers
from t5x_lite.model.layers import ACTIVATIONS, FEED_FORWARDS, Norm


@pytest.mark.parametrize("kind", FEED_FORWARDS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_of_feed_forward_parts(kind, activation):
    part = FEED_FORWARDS[kind](small(feed_forward=kind, activation=activation))
    check_gradients(part, lambda part, x: part(x, context())[0])


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_gradients_of_norms(norm):
    check_gradients(Norm(small(norm=norm)), lambda part, x: part(x))


def test_unknown_axis_names_raise():
    with pytest.raises(ValueError, match="unknown axis names"):
        layers.with_axes(nn.initializers.zeros, "embde")


def test_every_feed_forward_part_and_mixer_has_a_setting():
    """What is written into a table can be named in a config, and the other way round."""
    from typing import get_args

    from t5x_lite.config import type_hints
    from t5x_lite.model.blocks import MIXERS

    hints = type_hints(ModelDimensions)
    assert set(get_args(hints["feed_forward"])) == {*FEED_FORWARDS, "none"}
    assert set(get_args(hints["mixer"])) == set(MIXERS)
    assert set(get_args(hints["activation"])) == set(ACTIVATIONS)
