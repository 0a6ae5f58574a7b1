import pytest
from flax import linen as nn
from model.proofs import check_gradients, context, small

from t5x_lite.model import dense
from t5x_lite.model.parts.activations import ACTIVATIONS
from t5x_lite.model.parts.norms import NORMS, make_norm
from t5x_lite.model.parts.table import make_feed_forward


@pytest.mark.parametrize("kind", ["mlp", "gated_mlp"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_of_feed_forward_parts(kind, activation):
    part = make_feed_forward(small(feed_forward=kind, activation=activation))
    check_gradients(part, lambda part, x: part(x, context())[0])


@pytest.mark.parametrize("norm", sorted(set(NORMS) - {"none"}))
def test_gradients_of_norms(norm):
    check_gradients(make_norm(small(norm=norm)), lambda part, x: part(x))


def test_unknown_axis_names_raise():
    with pytest.raises(ValueError, match="unknown axis names"):
        dense.with_axes(nn.initializers.zeros, "embde")


@pytest.mark.parametrize("axes", [("own", "own"), ("width",)])
def test_each_axis_of_a_parameter_has_a_name_of_its_own(axes):
    dense.with_axes(nn.initializers.zeros, "own", "heads")
    with pytest.raises(ValueError, match="axis names"):
        dense.with_axes(nn.initializers.zeros, *axes)
