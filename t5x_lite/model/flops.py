"""FLOPs of the matrix products that the mathematics requires, and the peak of devices, for MFU.

Multiply and add count as two; the backward pass is twice the forward. Recomputation, norms and
softmax do not count; causal attention counts half of its square, that of a prefix decoder, whose
split varies, all of it; the output layer counts scored positions alone; what is computed once for
all rows, such as Transformer-XL's distances, does not count. Parameters that are not trained count
as if they were.
"""

from t5x_lite.config import ModelDimensions
from t5x_lite.data.rows.layouts import RowShape
from t5x_lite.hardware import chip_of


def forward_flops(config: ModelDimensions, shape: RowShape, scored: float | int) -> float:
    """FLOPs of one row's forward pass.

    Args:
        scored: positions at which the output layer is computed, a mean over rows.
    """
    d_model, embedding_size = config.d_model, config.embedding_size
    query_features = config.num_heads * config.head_dim
    kv_features = config.num_kv_heads * config.head_dim
    matrices = {"mlp": 2, "gated_mlp": 3, "none": 0}[config.feed_forward]
    feed_forward = 2 * matrices * d_model * config.d_ff
    # Queries times vectors of distances; Shaw et al. weigh such vectors, too.
    relative = {"transformer_xl": 1.5, "shaw": 2.0}.get(config.positions, 1.0)

    def attention(queries: int, keys: int, logits_cost: float = 1.0) -> float:
        """The projections, and the products for logits and values, times `logits_cost`: about ½
        where causal, more than 1 with terms of relative positions in the logits.
        """
        projections = 4 * d_model * (query_features * queries + kv_features * keys)
        return projections + 4 * queries * keys * query_features * logits_cost

    def mixer(positions: int, logits_cost: float, directions: int) -> float:
        if config.mixer == "attention":
            return attention(positions, positions, logits_cost)
        # An LSTM: four gates of the token and of the last output, and the projection.
        return 2.0 * directions * positions * (2 * 4 + 1) * d_model * config.lstm_cells

    total = 0.0
    if config.is_factorised:
        total += 2 * embedding_size * d_model * (shape.encoder + shape.decoder)
    if shape.encoder:
        layer = mixer(shape.encoder, relative, directions=2) + shape.encoder * feed_forward
        total += config.num_layers * layer
    if shape.decoder:
        sees_ahead = shape.bidirectional_prefix or shape.looks_ahead
        causal = 1.0 if sees_ahead else (shape.decoder + 1) / (2 * shape.decoder)
        layer = mixer(shape.decoder, causal * relative, directions=1)
        layer += shape.decoder * feed_forward
        if shape.encoder:
            layer += attention(shape.decoder, shape.encoder)
        total += config.num_decoder_layers * layer
        if config.backward_decoder:
            total += config.num_decoder_layers * layer
            scored *= 2

    # The head: what maps hidden states to the table's width, then the table, at scored positions.
    if config.lm_head:
        width = embedding_size if config.tie_embeddings else d_model
        head = config.vocab_size * width
        if config.mlm_head or width != d_model:
            head += d_model * width
        total += 2 * scored * head
    if config.num_classes:
        total += 2 * d_model * (d_model + config.num_classes)
    return total


def step_flops(config: ModelDimensions, shape: RowShape, scored: float | int) -> float:
    """FLOPs of forward and backward for one row."""
    return 3 * forward_flops(config, shape, scored)


def peak_flops(device_kind: str, dtype: str) -> float | None:
    """Peak FLOP/s of a device for the compute type; None where it is not known (every CPU)."""
    chip = chip_of(device_kind)
    return chip.peak if chip and dtype == "bfloat16" else None
