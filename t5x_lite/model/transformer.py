"""The one model family: encoders, decoders, prefix decoders and encoder-decoders of the same
blocks.

Shapes: B rows, T positions of a stack, E encoder and D decoder positions, W d_model.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_lite.config import ModelDimensions
from t5x_lite.model.blocks import Block, StackContext
from t5x_lite.model.heads import HEAD_MODULES, ModelOutput, Params, Row
from t5x_lite.model.layers import (
    Dense,
    Dropout,
    Norm,
    add_auxiliary,
    constrain,
    padded_with_zeros,
    parameter_dtype,
    with_axes,
)
from t5x_lite.model.masks import AttentionMask
from t5x_lite.model.matmul import matmul
from t5x_lite.model.parallel import (
    gather_stream,
    is_split,
    look_up,
    own_part,
    own_places,
    own_positions,
    own_stream,
    stream_places,
    sum_over_sequence,
    to_stream,
)
from t5x_lite.model.positions import RelativeBias, alibi, sinusoidal

# (name of a stack, the part of a layer's parameters that is here) → all of them
WholeLayer = Callable[[str, Params], Params]
_ELEMENTWISE = {
    *("add", "sub", "mul", "div", "neg", "max", "min", "rsqrt", "square", "integer_pow", "pow"),
    *("exp", "log1p", "tanh", "one_minus_square", "logistic", "erf", "select_n"),
}


def _may_be_kept(computed_in: Any, primitive: Any, *inputs: Any, **params: Any) -> bool:
    """Whether what this operation makes may be kept for the backward pass: all but parameters that
    are put together from several devices, what is the same array in another shape or in a wider
    type, which would keep them all the same, and elementwise results in a wider type than that of
    the computation, as within norms and activations.
    """
    name = str(primitive)
    if name == "custom_vjp_call":  # as parallelism.py puts them together
        operations = str(params["call_jaxpr"])
        return "all_gather" not in operations or "fsdp" not in operations
    if name == "convert_element_type":
        return inputs[0].dtype.itemsize >= params["new_dtype"].itemsize
    is_wider = any(x.dtype.itemsize > jnp.dtype(computed_in).itemsize for x in inputs)
    return name != "reshape" and not (is_wider and name in _ELEMENTWISE)


class Stack(nn.Module):
    """All blocks of an encoder or decoder, as one scan: parameters have a leading axis of layers,
    unless all layers share one block.
    """

    config: ModelDimensions
    depth: int
    share_layers: bool = False
    whole_layer: WholeLayer | None = None

    def setup(self):
        config = self.config
        if config.positions == "relative":
            self.relative_bias = RelativeBias(config)

        # One block, compiled once and run `depth` times: over a leading axis of its parameters, or
        # with the same ones. The depth is scanned over, the context is the same for all.
        if self.share_layers:
            variables: dict[str, Any] = {"variable_broadcast": "params"}
        else:
            variables = {"variable_axes": {"params": 0}}
        scan: Any = nn.scan
        blocks = scan(
            self._block(),
            split_rngs={"params": not self.share_layers, "dropout": True},
            in_axes=(0, nn.broadcast),
            length=self.depth,
            unroll=1 if config.scan else self.depth,
            metadata_params={nn.PARTITION_NAME: "layers"},
            **variables,
        )(config)
        if self.share_layers:
            self.block = blocks
        else:
            self.layers = blocks
        if config.norm_position == "pre":
            self.final_norm = Norm(config)
        self.dropout = Dropout(config.dropout)

    def _block(self) -> Any:
        """Block; of what it computes, and of parameters put together for it, as little is kept for
        the backward pass as the config says.
        """
        remat: Any = partial(nn.remat, prevent_cse=False)
        block: Any = Block
        if self.whole_layer is not None and not self.share_layers:
            whole = partial(self.whole_layer, self.name or "")
            block = nn.map_variables(
                block, "params", lambda split: {"params": whole(split["params"])}
            )
            if not self.config.remat:
                block = remat(block, policy=partial(_may_be_kept, self.config.dtype))
        return remat(block) if self.config.remat else block

    def context(self, mask: AttentionMask, bidirectional: bool, **fields: Any) -> StackContext:
        """What all blocks read besides x.

        Args:
            bidirectional: whether keys after a query have buckets of their own in T5's relative
                positions.
            fields: further fields of StackContext.
        """
        position_bias = self._position_bias(mask, bidirectional)
        cross_mask = fields.get("cross_mask")
        return StackContext(
            mask=mask,
            mask_bias=mask.bias(position_bias),
            position_bias=position_bias,
            cross_mask_bias=None if cross_mask is None else cross_mask.bias(),
            **fields,
        )

    def _position_bias(self, mask: AttentionMask, bidirectional: bool) -> Array | None:
        """What positions add to attention's logits, the same in all layers: [1 or B, H, T, S]."""
        config = self.config
        if config.positions == "relative":
            return self.relative_bias(mask.distances(), bidirectional)
        if config.positions == "alibi":
            bias = alibi(mask.distances(), config.num_heads)
            bias = jnp.asarray(bias, parameter_dtype(config))
            bias = bias[None] if bias.ndim == 3 else bias
            return own_part(bias, "tensor", 1)
        return None

    def finish(self, x_BTW, deterministic: bool = True, places: Any = None):
        """What follows the last block; places: the numbers of x's positions in the row."""
        if self.config.norm_position == "post":
            return x_BTW
        x_BTW = self.final_norm(x_BTW)
        if self.config.positions == "relative":  # T5 drops out once more
            x_BTW = self.dropout(x_BTW, deterministic, places)
        return x_BTW

    def __call__(self, x_BTW, context: StackContext) -> ModelOutput:
        blocks = self.block if self.share_layers else self.layers
        x_BTW, auxiliary = blocks(x_BTW, jnp.arange(self.depth), context)
        auxiliary = jax.tree.map(lambda losses: sum_over_sequence(losses.sum(0)), auxiliary)
        length = context.segments.shape[1]
        x_BTW = self.finish(x_BTW, context.deterministic, stream_places(length))
        return ModelOutput(gather_stream(x_BTW, length), auxiliary)


class Transformer(nn.Module):
    """`model.apply({"params": params}, row)` → ModelOutput; see heads.py for what is predicted from
    it.

    Attributes:
        packed: whether a row may hold several segments, so that a segment mask is needed.
        whole_layer: where the parameters of layers are split.
    """

    config: ModelDimensions
    packed: bool = True
    whole_layer: WholeLayer | None = None

    def setup(self):
        config, dtype = self.config, parameter_dtype(self.config)

        # Embeddings: tokens, learned positions, types.
        init = nn.initializers.normal(config.embedding_stddev)
        if config.init == "truncated":
            init = nn.initializers.truncated_normal(config.embedding_stddev)

        def table(name: str, rows: int, axis: str):
            shape = (rows, config.embedding_size)
            size = config.vocab_size if axis == "vocab" else rows
            draw = with_axes(padded_with_zeros(init, size, 0), axis, "embedding")
            return self.param(name, draw, shape, dtype)

        def low_rank_update(of: str):
            a_init = with_axes(nn.initializers.zeros, "vocab", "adapter")
            b_init = with_axes(nn.initializers.normal(1.0), "adapter", "embedding")
            rows, rank = config.embedding_rows, config.lora_rank
            a = self.param(f"{of}_lora_a", a_init, (rows, rank), dtype)
            b = self.param(f"{of}_lora_b", b_init, (rank, config.embedding_size), dtype)
            return a, b

        self.embedding = table("embedding", config.embedding_rows, "vocab")
        if config.has_low_rank_embeddings:
            self.embedding_update = low_rank_update("embedding")
        if not config.shared_embeddings:
            self.decoder_embedding = table("decoder_embedding", config.embedding_rows, "vocab")
            if config.has_low_rank_embeddings:
                self.decoder_embedding_update = low_rank_update("decoder_embedding")
        if config.has_position_table:
            rows = config.position_offset + config.max_length
            self.position_embedding = table("position_embedding", rows, "positions")
        if config.token_types:
            self.type_embedding = table("type_embedding", config.token_types, "types")
        if config.prompt_length:
            axes = with_axes(init, "adapter", "embedding")
            shape = (config.prompt_length, config.embedding_size)
            self.prompt = self.param("prompt", axes, shape, dtype)
        if config.embedding_norm:
            self.embedding_norm = Norm(config)
        if config.is_factorised:
            self.embedding_projection = Dense(config, config.d_model, ("factor", "embed"))

        # Stacks of blocks.
        shared = config.shared_layers
        stack = partial(Stack, config, whole_layer=self.whole_layer)
        if config.shared_stacks:
            self.stack = stack(config.num_layers, shared == "all")
        else:
            if config.architecture in ("encoder", "encoder_decoder"):
                self.encoder = stack(config.num_layers, shared in ("all", "encoder"))
            if config.architecture != "encoder":
                self.decoder = stack(config.num_decoder_layers, shared in ("all", "decoder"))
            if config.backward_decoder:
                self.backward_decoder = stack(config.num_layers, shared == "all")

        # Dropout of the embeddings, and what is predicted.
        self.dropout = Dropout(config.dropout)
        for name, head in HEAD_MODULES.items():
            if head.wanted(config):
                setattr(self, name, head.make(config))

    def embed(
        self, row: Row, stack: Literal["encoder", "decoder"], deterministic: bool = True
    ) -> Float[Array, "B T W"]:
        """Tokens (and types) of a stack as vectors, with positions where they are part of the
        embedding.
        """
        config = self.config
        tokens = own_positions(row[f"{stack}_tokens"])
        positions = own_stream(own_positions(row[f"{stack}_positions"]))
        length = tokens.shape[1]

        # Tokens.
        has_own_table = stack == "decoder" and not config.shared_embeddings
        x = look_up(self.decoder_embedding if has_own_table else self.embedding, tokens)
        if config.has_low_rank_embeddings:  # LoRA: one row of A for each token
            a, b = self.decoder_embedding_update if has_own_table else self.embedding_update
            x += matmul(look_up(a, tokens), b) * (config.lora_alpha / config.lora_rank)
        if is_split("vocab"):
            x = to_stream(x, config.dtype)
        if config.prompt_length:  # ids below 0: −1 is the first of the prompt
            tokens = own_stream(tokens)
            learned = jnp.take(self.prompt, jnp.maximum(-1 - tokens, 0), 0)
            x = jnp.where((tokens < 0)[..., None], learned, x)
        if config.scale_embeddings:
            x *= config.embedding_size**0.5

        # Positions and types.
        if config.has_position_table:
            x += jnp.take(self.position_embedding, positions + config.position_offset, 0)
        if config.positions == "sinusoidal":
            x += sinusoidal(positions, config.embedding_size)
        if config.token_types:
            types = jnp.zeros_like(positions)
            if config.token_types > 1 and f"{stack}_types" in row:  # RoBERTa has one: all are alike
                types = own_stream(own_positions(row[f"{stack}_types"]))
            x += jnp.take(self.type_embedding, types, 0)

        x = x.astype(config.dtype)
        if config.embedding_norm:
            x = self.embedding_norm(x)
        x = constrain(x, "batch", "sequence", None)
        x = self.dropout(x, deterministic, stream_places(length))
        if config.is_factorised:
            x = self.embedding_projection(x)
        return x

    def encode(self, row: Row, deterministic: bool = True) -> ModelOutput:
        """The encoder's hidden states [B, E, W]."""
        segments = row["encoder_segments"]
        own_segments = own_positions(segments)
        encoder = self.stack if self.config.shared_stacks else self.encoder
        context = encoder.context(
            AttentionMask(
                own_segments,
                segments,
                query_places=own_places(segments.shape[1]),
                packed=self.packed,
            ),
            bidirectional=True,
            segments=own_segments,
            positions=own_positions(row["encoder_positions"]),
            deterministic=deterministic,
        )
        return encoder(self.embed(row, "encoder", deterministic), context)

    def decode(
        self, row: Row, encoded: Array | None = None, deterministic: bool = True
    ) -> ModelOutput:
        """The decoder's hidden states [B, D, W]; it attends to those of an encoder [B, E, W] if
        there is one.
        """
        segments, prefix = row["decoder_segments"], row.get("decoder_prefix")
        own_segments = own_positions(segments)
        cross_mask = None
        if encoded is not None:
            cross_mask = AttentionMask(own_segments, row["encoder_segments"], packed=self.packed)
        decoder = self.stack if self.config.shared_stacks else self.decoder
        context = decoder.context(
            AttentionMask(
                own_segments,
                segments,
                prefix,
                query_places=own_places(segments.shape[1]),
                causal=True,
                packed=self.packed,
            ),
            bidirectional=self.config.architecture == "prefix_decoder",
            segments=own_segments,
            positions=own_positions(row["decoder_positions"]),
            cross_mask=cross_mask,
            encoded=encoded,
            deterministic=deterministic,
        )
        return decoder(self.embed(row, "decoder", deterministic), context)

    def decode_backward(self, row: Row, deterministic: bool = True) -> ModelOutput:
        """The hidden states [B, D, W] of the backward decoder: where the decoder has read
        decoder_tokens[: t + 1], it has read decoder_targets[t:], from the last on.
        """
        row = reversed_row(row)
        segments = row["decoder_segments"]
        context = self.backward_decoder.context(
            # What was padding after the text is now before it: only `packed` masks it.
            AttentionMask(segments, segments, causal=True, packed=True),
            bidirectional=False,
            segments=segments,
            positions=row["decoder_positions"],
            deterministic=deterministic,
        )
        output = self.backward_decoder(self.embed(row, "decoder", deterministic), context)
        return output._replace(hidden_states=jnp.flip(output.hidden_states, 1))

    def __call__(self, row: Row, deterministic: bool = True) -> ModelOutput:
        if self.config.architecture == "encoder":
            return self.encode(row, deterministic)
        if self.config.backward_decoder:
            forward = self.decode(row, None, deterministic)
            backward = self.decode_backward(row, deterministic)
            auxiliary = add_auxiliary(forward.auxiliary, backward.auxiliary)
            return ModelOutput(forward.hidden_states, auxiliary, backward.hidden_states)
        if not self.config.is_encoder_decoder:
            return self.decode(row, None, deterministic)
        encoded = self.encode(row, deterministic)
        decoded = self.decode(row, encoded.hidden_states, deterministic)
        auxiliary = add_auxiliary(encoded.auxiliary, decoded.auxiliary)
        return ModelOutput(decoded.hidden_states, auxiliary)

    def touch_all_parameters(self, row: Row) -> None:
        """Call every module once, for initialisation."""
        # Shared stacks are called through the decoder first, so that they have cross-attention.
        if self.config.shared_stacks:
            self.decode(row, self.embed(row, "encoder"))
        output = self(row)
        table = self.embedding if self.config.shared_embeddings else self.decoder_embedding
        for name, head in HEAD_MODULES.items():
            if head.wanted(self.config):
                head.call(getattr(self, name), output, table)


def reversed_row(row: Row) -> Row:
    """A decoder's row read from its end: what was predicted is read, and what was read predicted.

    >>> row = {"tokens": [[0, 7, 8, 0, 4, 0]], "targets": [[7, 8, 9, 4, 5, 0]]}
    >>> row |= {"segments": [[1, 1, 1, 2, 2, 0]], "positions": [[0, 1, 2, 0, 1, 0]]}
    >>> row = reversed_row({f"decoder_{key}": jnp.array(value) for key, value in row.items()})
    >>> for key in "tokens", "targets", "segments", "positions":
    ...     print(key, row[f"decoder_{key}"][0])
    tokens [0 5 4 9 8 7]
    targets [0 4 0 8 7 0]
    segments [0 2 2 1 1 1]
    positions [0 0 1 0 1 2]
    """
    segments = jnp.flip(row["decoder_segments"], 1)
    place = jnp.arange(segments.shape[1])
    is_start = jnp.diff(segments, prepend=-1) != 0
    starts = jax.lax.cummax(jnp.where(is_start, place, 0), axis=1)
    return {
        "decoder_tokens": jnp.flip(row["decoder_targets"], 1),
        "decoder_targets": jnp.flip(row["decoder_tokens"], 1),
        "decoder_segments": segments,
        "decoder_positions": place - starts,
    }


def apply(
    config: ModelDimensions,
    params: Params,
    row: Row,
    packed: bool = True,
    dropout_key: Array | None = None,
    whole_layer: WholeLayer | None = None,
) -> ModelOutput:
    """The Transformer as a pure function.

    Args:
        packed: whether a row may hold several segments.
        dropout_key: for dropout; None: none.
        whole_layer: where the parameters of layers are split.
    """
    rngs = {} if dropout_key is None else {"dropout": dropout_key}
    model: Any = Transformer(config, packed, whole_layer)
    return model.apply({"params": params}, row, dropout_key is None, rngs=rngs)


def blank_row(config: ModelDimensions, length: int = 8) -> Row:
    """A batch of one row of zeros, for shapes."""
    stacks = {"encoder": ["encoder"], "encoder_decoder": ["encoder", "decoder"]}
    row = {}
    for stack in stacks.get(config.architecture, ["decoder"]):
        for kind in ("tokens", "segments", "positions"):
            row[f"{stack}_{kind}"] = jnp.zeros((1, length), jnp.int32)
    if config.backward_decoder:
        row["decoder_targets"] = jnp.zeros((1, length), jnp.int32)
    return row


def initialise(config: ModelDimensions, key: Array) -> Params:
    """Fresh parameters, boxed with their axis names. They are the same whatever kernel is
    wanted.
    """
    model = Transformer(replace(config, attention_kernel="plain"))
    variables: Any = model.init(key, blank_row(config), method=Transformer.touch_all_parameters)
    return variables["params"]


@cache
def boxed_shapes(config: ModelDimensions) -> Params:
    """The parameter tree as shapes, boxed with their axis names; nothing is allocated."""
    return jax.eval_shape(lambda: initialise(config, jax.random.key(0)))


def parameter_shapes(config: ModelDimensions) -> Params:
    """The parameter tree as shapes; nothing is allocated."""
    return jax.tree.map(lambda box: box.value, boxed_shapes(config), is_leaf=_is_box)


def _is_box(leaf: Any) -> bool:
    return isinstance(leaf, nn.meta.AxisMetadata)


def parameter_axes(config: ModelDimensions) -> Params:
    """The parameter tree as tuples of logical axis names."""
    return jax.tree.map(lambda box: tuple(box.names), boxed_shapes(config), is_leaf=_is_box)


def unpadded_shapes(config: ModelDimensions) -> Params:
    """The parameter tree as shapes, embedding rows of padding left out."""

    def unpad(box):
        axes = zip(box.value.shape, box.names, strict=True)
        shape = [config.vocab_size if name == "vocab" else size for size, name in axes]
        return jax.ShapeDtypeStruct(shape, box.value.dtype)

    return jax.tree.map(unpad, boxed_shapes(config), is_leaf=_is_box)


def count_parameters(config: ModelDimensions) -> int:
    """Parameters of a model, embedding rows of padding left out.

    >>> from t5x_lite.config import Model
    >>> from t5x_lite.resolve import resolve_model
    >>> model = Model(num_layers=1, d_model=8, num_heads=2, bias=False)
    >>> count_parameters(resolve_model(model, vocab_size=10, max_length=4))
    904
    """
    return sum(leaf.size for leaf in jax.tree.leaves(unpadded_shapes(config)))
