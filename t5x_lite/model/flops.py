"""FLOPs of the matrix products that the mathematics requires, and the share of the device's peak they reach (MFU).

Multiply and add count as two; the backward pass is twice the forward. Recomputation, norms and softmax do not count;
causal attention counts half of its square, that of a prefix decoder, whose split varies, all of it; the output layer
counts scored positions alone.
"""

from t5x_lite.config import Model
from t5x_lite.data.layouts import Shape
from t5x_lite.model.layers import head_size

# Dense peak in FLOP/s of one device for bfloat16 inputs, by jax's device_kind; from the vendors' data sheets.
PEAK_BFLOAT16 = {
    "TPU v2": 22.5e12,  # per core, which is what jax calls a device
    "TPU v3": 61.5e12,
    "TPU v4": 275e12,
    "TPU v4 lite": 138e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,
    "TPU v6 lite": 918e12,
    "NVIDIA A100": 312e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H200": 989e12,
    "NVIDIA H200 NVL": 835e12,
}


def forward_flops(config: Model, shape: Shape, scored: float) -> float:
    """FLOPs of one row's forward pass. scored: positions that the output layer is asked at, a mean over rows."""
    inner = config.heads * head_size(config)
    feed_forward = (3 if config.gated else 2) * config.width * (config.ff_width or 4 * config.width)

    def stack(queries, keys, seen=1.0):
        """One attention: its projections and the two products with the T × S weights."""
        projections = 2 * config.width * inner * (2 * queries + 2 * keys)
        return projections + 4 * queries * keys * inner * seen

    layer = stack(shape.encoder, shape.encoder) + 2 * shape.encoder * feed_forward
    if shape.decoder:
        causal = 1.0 if shape.bidirectional_prefix else (shape.decoder + 1) / (2 * shape.decoder)
        layer += stack(shape.decoder, shape.decoder, causal) + 2 * shape.decoder * feed_forward
        if shape.encoder:
            layer += stack(shape.decoder, shape.encoder)
    head = config.vocab_size * config.width + (config.width**2 if config.mlm_head else 0)
    of_row = config.width * (config.width + config.classes) if config.classes else 0
    return config.layers * layer + 2 * (scored * head + of_row)


def step_flops(config: Model, shape: Shape, scored: float) -> float:
    """FLOPs of forward and backward for one row."""
    return 3 * forward_flops(config, shape, scored)


def peak_flops(device_kind: str, dtype: str) -> float | None:
    """Peak FLOP/s of a device for the compute type; None where it is not known (every CPU)."""
    names = sorted((name for name in PEAK_BFLOAT16 if device_kind.startswith(name)), key=len)
    return PEAK_BFLOAT16[names[-1]] if names and dtype == "bfloat16" else None
