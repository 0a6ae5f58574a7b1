"""FLOPs of the matrix products that the mathematics requires, and the peak of devices, for MFU.

A multiply-add counts as two, and the backward pass as twice the forward pass. Recomputation, norms
and softmax do not count. Causal attention counts half of its square. A prefix decoder, whose split
varies, counts all of it, and a mixture of both counts the mean over its rows. The output layer
counts scored positions only. Work that is done once for all rows, such as Transformer-XL's
distances, does not count. Frozen parameters count as if they were trained. Each part of a block and
each head states its own cost.
"""

from t5x_lite.config import ModelDimensions
from t5x_lite.data.rows.layouts import RowShape
from t5x_lite.hardware import chip_of
from t5x_lite.model.heads import head_layers
from t5x_lite.model.masks import visible_keys
from t5x_lite.model.parts.attention import CrossAttention
from t5x_lite.model.parts.contract import StackShape
from t5x_lite.model.parts.table import layers_of_period, make_feed_forward, make_mixer


def forward_flops(config: ModelDimensions, shape: RowShape, scored: float | int) -> float:
    """Return the FLOPs of one row's forward pass, without companions.

    Args:
        scored: mean number of positions per row at which the output layer is computed.
    """
    total = 0.0
    if config.is_factorised:
        total += 2 * config.embedding_size * config.d_model * (shape.encoder + shape.decoder)
    # The layers of each stack.
    if shape.encoder:
        visible = visible_keys(config, shape.encoder, True, config.num_layers)
        encoder = StackShape(shape.encoder, visible, bidirectional=True)
        total += _stack_flops(config, config.num_layers, encoder)
    if shape.decoder:
        layers = config.num_decoder_layers * (2 if config.backward_decoder else 1)
        # In a mixture of objectives, only a share of the decoder's rows is bidirectional.
        bidirectional = 1.0 if shape.bidirectional_prefix else shape.looks_ahead
        visible = 0.0
        for sees_ahead, share in ((True, bidirectional), (False, 1 - bidirectional)):
            if share:
                count = config.num_decoder_layers
                visible += share * visible_keys(config, shape.decoder, sees_ahead, count)
        total += _stack_flops(
            config, layers, StackShape(shape.decoder, visible, bidirectional=False)
        )
        # Cross-attention: every decoder position sees the whole encoder.
        if shape.encoder:
            cross = CrossAttention(config).cost(shape.decoder, shape.encoder, shape.encoder)
            total += layers * cross
    for head in head_layers(config).values():
        total += head.flops(config, shape.longest, scored)
    return total


def _stack_flops(config: ModelDimensions, layers: int, stack: StackShape) -> float:
    """Return the FLOPs of the mixers and feed-forward parts of a stack."""
    total = layers * make_mixer(config).flops(stack)
    of_layers = layers_of_period(config)
    for of_layer in of_layers:
        feed_forward = make_feed_forward(of_layer)
        if feed_forward is not None:
            total += layers / len(of_layers) * feed_forward.flops(stack)
    return total


def peak_flops(device_kind: str, dtype: str) -> float | None:
    """Return the peak FLOP/s of a device for a compute dtype; None if it is not known, as for every
    CPU.
    """
    chip = chip_of(device_kind)
    return chip.peak if chip and dtype == "bfloat16" else None
