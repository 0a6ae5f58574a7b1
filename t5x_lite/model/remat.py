"""Which results of a layer are kept for the backward pass, and which are recomputed."""

from typing import Any

import jax.numpy as jnp

_ELEMENTWISE = {
    *("add", "sub", "mul", "div", "neg", "max", "min", "rsqrt", "square", "integer_pow", "pow"),
    *("exp", "log1p", "tanh", "one_minus_square", "logistic", "erf", "select_n"),
}


def keep_what_is_dear(computed_in: Any, primitive: Any, *inputs: Any, **params: Any) -> bool:
    """The policy of jax.checkpoint if parameters are gathered for each layer: keep everything
    except

    - parameters that were gathered from other devices, which would be kept for all layers at once;
    - reshaped arrays, and arrays cast to a wider dtype, which would be kept twice;
    - elementwise results in a wider dtype than the compute dtype, as in norms and activations.

    Args:
        computed_in: the compute dtype.
    """
    name = str(primitive)
    # Of the functions with a custom gradient, only the gathering of parameters is recomputed.
    if name == "custom_vjp_call":
        return not _gathers_parameters(params["call_jaxpr"].jaxpr)
    # A wider copy holds no more information than its source.
    if name == "convert_element_type":
        return inputs[0].dtype.itemsize >= params["new_dtype"].itemsize
    is_wider = any(x.dtype.itemsize > jnp.dtype(computed_in).itemsize for x in inputs)
    return name != "reshape" and not (is_wider and name in _ELEMENTWISE)


def _gathers_parameters(jaxpr: Any) -> bool:
    """True for parallel.gradient._gather, the only function that all-gathers over `fsdp`."""
    for equation in jaxpr.eqns:
        axes = equation.params.get("axis_name", ())
        if equation.primitive.name == "all_gather" and "fsdp" in axes:
            return True
    return False
