"""The Transformer: encoders, decoders, prefix decoders and encoder-decoders, made of the same
blocks.

Shapes: B rows, T positions of a stack, E encoder and D decoder positions, W d_model. In Stack, D is
d_model. C and P are a device's positions, see blocks.py.
"""

import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache, partial
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from t5x_lite.config import Companion, ModelDimensions
from t5x_lite.errors import BAD_CONFIG, UserError
from t5x_lite.model.blocks import Block, StackContext
from t5x_lite.model.dense import (
    Declaration,
    Dense,
    Parameter,
    constrain,
    look_up,
    normal,
    padded_with_zeros,
    parameter_dtype,
    truncated_normal,
    with_axes,
)
from t5x_lite.model.dropout import Dropout, Noise
from t5x_lite.model.heads import ModelOutput, Params, Row, head_layers
from t5x_lite.model.masks import AttentionMask, Known, find_rules
from t5x_lite.model.matmul import matmul
from t5x_lite.model.parts.contract import Auxiliary, add_auxiliary
from t5x_lite.model.parts.norms import make_norm
from t5x_lite.model.parts.positions import NoPositions, make_positions
from t5x_lite.model.parts.table import layers_of_period, part_of_parameter, runs_whole, splits_of
from t5x_lite.model.remat import keep_what_is_dear
from t5x_lite.model.threefry import fold_in, make_key
from t5x_lite.parallel.axes import AXES, Names
from t5x_lite.parallel.collectives import (
    gather_stream,
    own_dimensions,
    own_ids,
    own_part,
    own_places,
    own_positions,
    own_stream,
    part_number,
    parts,
    row_numbers,
    stream_places,
    sum_over_sequence,
    sum_to_stream,
)

STACKS = ("encoder", "decoder", "backward_decoder")

# (name of a stack, this device's shards of a layer) → the parameters that it computes with
ReadyLayer = Callable[[str, Params], Params]


class Stack(nn.Module):
    """The blocks of an encoder or decoder, as one scan: parameters have a leading axis of layers,
    unless all layers share one block.
    """

    config: ModelDimensions
    depth: int
    share_layers: bool = False
    ready_layer: ReadyLayer | None = None

    def setup(self) -> None:
        config = self.config
        # One position bias serves all layers. If it can be split, make it for this device's heads.
        self.bias_splits = ()
        bias = make_positions(config).bias_module()
        if bias is not None:
            self.bias_splits = bias.splits
            own = own_dimensions(config) if "tensor" in bias.splits else config
            self.relative_bias = make_positions(own).bias_module()

        # One period of blocks is compiled once and run depth / period times: over a leading axis of
        # its parameters, or with the same parameters each time. The depth is scanned over; the
        # context is the same for all blocks.
        if self.share_layers:
            variables: dict[str, Any] = {"variable_broadcast": "params"}
        else:
            variables = {"variable_axes": {"params": 0}}
        turns = self.depth // self.period
        scan: Any = nn.scan
        blocks = scan(
            self._blocks(),
            split_rngs={"params": not self.share_layers, "dropout": True},
            in_axes=(0, nn.broadcast),
            length=turns,
            unroll=1 if config.scan else turns,
            # The check traces the block once more; only a block that all layers share needs it, to
            # make its parameters.
            check_constancy_invariants=self.share_layers and self.is_initializing(),
            metadata_params={nn.PARTITION_NAME: "layers"},
            **variables,
        )(config)
        if self.share_layers:
            self.block = blocks
        else:
            self.layers = blocks
        # Only post-norm normalises the residual sum. Otherwise the last block is followed by one
        # more norm.
        if config.norm_position != "post":
            self.final_norm = make_norm(config)
        self.dropout = Dropout(config.dropout)

    @property
    @nn.nowrap
    def period(self) -> int:
        """Number of layers after which their parts repeat."""
        return len(layers_of_period(self.config))

    def _blocks(self) -> Any:
        """Return the module that is scanned. In the backward pass it gathers its parameters again,
        and recomputes what the config says.
        """
        remat: Any = partial(nn.remat, prevent_cse=False)
        blocks: Any = Block if self.period == 1 else Period
        # Make parameters ready, for example by gathering them, for one turn of the scan at a time.
        if self.ready_layer is not None and not self.share_layers:
            ready = partial(self.ready_layer, self.name or "")
            blocks = nn.map_variables(
                blocks, "params", lambda shards: {"params": ready(shards["params"])}
            )
            # Do not keep gathered parameters for the backward pass: those of all layers would exist
            # at once.
            if parts("fsdp") > 1 and not self.config.remat:
                blocks = remat(blocks, policy=partial(keep_what_is_dear, self.config.dtype))
        return remat(blocks) if self.config.remat else blocks

    def context(
        self,
        mask: AttentionMask,
        bidirectional: bool,
        positions: Int[Array, "B T"],
        noise: Noise,
        **fields: Any,
    ) -> StackContext:
        """Make the inputs that all blocks share besides x.

        Args:
            bidirectional: True if T5's relative positions have separate buckets for keys after a
                query.
            fields: further fields of StackContext.
        """
        position_bias = None
        if self.config_positions.is_bias:
            position_bias = self.relative_bias(mask.distances(), bidirectional)
            # A bias that was computed for all heads: select this device's heads.
            if "tensor" not in self.bias_splits:
                position_bias = own_part(position_bias, "tensor", 1)
        # Turn masks into biases here, once for all layers of a kind.
        cross_mask = fields.get("cross_mask")
        mask_bias = mask.bias(position_bias)
        local_mask_bias = None
        if self.config.layer_pattern:
            local_rules = find_rules(self.config.local_rules)
            local_mask_bias = mask.replace(rules=local_rules).bias(position_bias)
            # A layer picks one of the two biases, so a kernel that reads the mask itself may be
            # chosen only if no layer has rules.
            mask = mask.replace(rules=mask.rules + local_rules)
        return StackContext(
            segments=mask.query_segments,
            positions=positions,
            mask=mask,
            bidirectional=bidirectional,
            mask_bias=mask_bias,
            local_mask_bias=local_mask_bias,
            noise=noise,
            position_bias=position_bias,
            cross_mask_bias=None if cross_mask is None else cross_mask.bias(),
            **fields,
        )

    @property
    @nn.nowrap
    def config_positions(self) -> NoPositions:
        """The positions of the model."""
        return make_positions(self.config)

    def finish(self, x_BPD: Float[Array, "B P D"], noise: Noise, places: Any = None) -> Array:
        """Apply the last norm and, in T5, dropout.

        Args:
            places: indices of x's positions in the row.
        """
        if self.config.norm_position == "post":  # the last block has normalised its sum
            return x_BPD
        x_BPD = self.final_norm(x_BPD)
        if self.config_positions.drops_out_at_end:
            x_BPD = self.dropout(x_BPD, noise, places)
        return x_BPD

    def __call__(
        self, x_BPD: Float[Array, "B P D"], context: StackContext
    ) -> tuple[Float[Array, "B C D"], Auxiliary]:
        blocks = self.block if self.share_layers else self.layers
        # Each turn of the scan reads one depth, or the depths of one period.
        depths = jnp.arange(self.depth)
        if self.period > 1:
            depths = depths.reshape(-1, self.period)
        x_BPD, auxiliary = blocks(x_BPD, depths, context)
        # Auxiliary losses are summed over layers, and over the devices that share rows.
        auxiliary = jax.tree.map(lambda losses: sum_over_sequence(losses.sum(0)), auxiliary)
        length = context.segments.shape[1]
        x_BPD = self.finish(x_BPD, context.noise, stream_places(length))
        return gather_stream(x_BPD, length), auxiliary


class Period(nn.Module):
    """A sequence of blocks that differ, such as one with experts after others without."""

    config: ModelDimensions

    @nn.compact
    def __call__(
        self, x: Float[Array, "B P W"], depths: Int[Array, " period"], context: StackContext
    ) -> tuple[Float[Array, "B P W"], Auxiliary]:
        auxiliary: Auxiliary = {}
        for place, of_layer in enumerate(layers_of_period(self.config)):
            block: Any = Block(of_layer, name=f"block_{place}")
            x, losses = block(x, depths[place], context)
            auxiliary = add_auxiliary(auxiliary, losses)
        return x, auxiliary


class Transformer(nn.Module):
    """`model.apply({"params": params}, row)` → ModelOutput, from which heads predict (heads.py).

    Attributes:
        packed: True if a row may hold several segments, so that a segment mask is needed.
        ready_layer: see ReadyLayer; None: the parameters of layers need no preparation.
    """

    config: ModelDimensions
    packed: bool = True
    ready_layer: ReadyLayer | None = None

    def setup(self) -> None:
        config, dtype = self.config, parameter_dtype(self.config)

        # Embeddings: tokens, learned positions, types.
        init = normal(config.embedding_stddev)
        if config.init == "truncated":
            init = truncated_normal(config.embedding_stddev)

        embedding_rows = own_dimensions(config).embedding_rows

        def table(name: str, rows: int, axis: str) -> Parameter:
            shape = (rows, config.embedding_size)
            size = config.vocab_size if axis == "vocab" else rows
            draw = with_axes(padded_with_zeros(init, size, 0), axis, "embedding")
            return self.param(name, draw, shape, dtype)

        # Encoder and decoder share one table of tokens, or have one each.
        self.embedding = table("embedding", embedding_rows, "vocab")
        if config.has_low_rank_embeddings:
            self.embedding_update = self._low_rank_update("embedding")
        if not config.shared_embeddings:
            self.decoder_embedding = table("decoder_embedding", embedding_rows, "vocab")
            if config.has_low_rank_embeddings:
                self.decoder_embedding_update = self._low_rank_update("decoder_embedding")
        self.position_embedding = None
        decoder_has_own = not config.shared_input_layers  # position table and embedding norm
        if make_positions(config).table_rows:
            rows = make_positions(config).table_rows
            self.position_embedding = table("position_embedding", rows, "positions")
            if decoder_has_own:
                self.decoder_position_embedding = table(
                    "decoder_position_embedding", rows, "positions"
                )
        if config.token_types:
            self.type_embedding = table("type_embedding", config.token_types, "types")
        # A learned prompt, and the layers after the sum of all embeddings.
        if config.prompt_length:
            axes = with_axes(init, "adapter", "embedding")
            shape = (config.prompt_length, config.embedding_size)
            self.prompt = self.param("prompt", axes, shape, dtype)
        if config.embedding_norm:
            self.embedding_norm = make_norm(config)
            if decoder_has_own:
                self.decoder_embedding_norm = make_norm(config)
        if config.is_factorised:
            self.embedding_projection = Dense(config, config.d_model, ("factor", "embed"))

        # Stacks of blocks.
        shared = config.shared_layers
        stack = partial(Stack, config, ready_layer=self.ready_layer)
        if config.shared_stacks:
            self.stack = stack(config.num_layers, shared == "all")
        else:
            if config.architecture in ("encoder", "encoder_decoder"):
                self.encoder = stack(config.num_layers, shared in ("all", "encoder"))
            if config.architecture != "encoder":
                self.decoder = stack(config.num_decoder_layers, shared in ("all", "decoder"))
            if config.backward_decoder:
                self.backward_decoder = stack(config.num_layers, shared == "all")

        # Dropout of the embeddings, and the heads.
        self.dropout = Dropout(config.dropout)
        for name, head in head_layers(config).items():
            setattr(self, name, head.make(config))

    def _low_rank_update(self, of: str) -> tuple[Array, Array]:
        """Declare a LoRA update of an embedding table: [V, R] and [R, D]."""
        config, dtype = self.config, parameter_dtype(self.config)
        rows, rank = own_dimensions(config).embedding_rows, config.lora_rank
        a_init = with_axes(nn.initializers.zeros, "vocab", "adapter")
        b_init = with_axes(normal(1.0), "adapter", "embedding")
        a = self.param(f"{of}_lora_a", a_init, (rows, rank), dtype)
        b = self.param(f"{of}_lora_b", b_init, (rank, config.embedding_size), dtype)
        return a, b

    def embed(
        self, row: Row, stack: Literal["encoder", "decoder"], noise: Noise | None = None
    ) -> Float[Array, "B P W"]:
        """Embed the tokens (and types) of a stack, with positions if they are part of the
        embedding, at this device's positions of the residual stream.
        """
        config = self.config
        tokens = own_positions(row[f"{stack}_tokens"])
        positions = own_stream(own_positions(row[f"{stack}_positions"]))
        length = tokens.shape[1]
        noise = noise or _noise(tokens, deterministic=True)

        # Tokens. A device that has only part of the table finds zeros for all other ids.
        has_own_table = stack == "decoder" and not config.shared_embeddings
        table = self.decoder_embedding if has_own_table else self.embedding
        ids, is_here = own_ids(tokens, len(table))

        def found(table: Any) -> Array:
            x = look_up(table, ids)
            return x if is_here is None else jnp.where(is_here[..., None], x, 0)

        x = found(table)
        if config.has_low_rank_embeddings:  # LoRA: one row of A for each token
            a, b = self.decoder_embedding_update if has_own_table else self.embedding_update
            x += matmul(found(a), b) * (config.lora_alpha / config.lora_rank)
        x = sum_to_stream(x, config.dtype)
        if config.prompt_length:  # ids below 0 are the prompt's: −1 is its first position
            tokens = own_stream(tokens)
            learned = jnp.take(self.prompt, jnp.maximum(-1 - tokens, 0), 0)
            x = jnp.where((tokens < 0)[..., None], learned, x)
        if config.scale_embeddings:
            x *= config.embedding_size**0.5

        # Positions and types.
        has_own_input = stack == "decoder" and not config.shared_input_layers
        position_table = self.position_embedding
        if has_own_input and position_table is not None:
            position_table = self.decoder_position_embedding
        embedded = make_positions(config).embed(positions, position_table)
        if embedded is not None:
            x += embedded
        if config.token_types:
            types = jnp.zeros_like(positions)
            if config.token_types > 1 and f"{stack}_types" in row:  # RoBERTa has only one type
                types = own_stream(own_positions(row[f"{stack}_types"]))
            x += jnp.take(self.type_embedding, types, 0)

        x = x.astype(config.dtype)
        # Norm, dropout, and the projection of embeddings that are narrower than the model.
        if config.embedding_norm:
            x = self.decoder_embedding_norm(x) if has_own_input else self.embedding_norm(x)
        x = constrain(x, "batch", "sequence", None)
        x = self.dropout(x, noise, stream_places(length))
        if config.is_factorised:
            x = self.embedding_projection(x)
        return x

    def _context(
        self,
        stack: Stack,
        row: Row,
        name: Literal["encoder", "decoder"],
        noise: Noise,
        encoded: Float[Array, "B E W"] | None = None,
    ) -> StackContext:
        """Return the inputs that a stack's blocks share, for this device's positions. If devices
        share rows but a part runs whole, they also cover whole rows.
        """
        segments, positions = row[f"{name}_segments"], row[f"{name}_positions"]
        is_decoder = name == "decoder"
        # Queries in the prefix of a prefix decoder also see later keys.
        bidirectional = not is_decoder or self.config.architecture == "prefix_decoder"

        # `own` selects the positions of the queries; the keys are those of the whole row.
        def context(own: Callable[[Array], Array], **of_mask: Any) -> StackContext:
            mask = self_attention_mask(self.config, row, name, self.packed, own, **of_mask)
            cross_mask = None
            if encoded is not None:
                cross_mask = AttentionMask(
                    own(segments), row["encoder_segments"], packed=self.packed
                )
            return stack.context(
                mask, bidirectional, own(positions), noise, cross_mask=cross_mask, encoded=encoded
            )

        shards = parts("sequence")
        if shards == 1:
            return context(lambda x: x)
        # Queries know their places in the whole row, since the causal mask depends on them.
        places, shard = own_places(segments.shape[1]), part_number("sequence")
        shared = context(own_positions, query_places=places, shard=shard, shards=shards)
        if runs_whole(self.config):
            shared = shared.replace(whole=context(lambda x: x))
        return shared

    def encode(self, row: Row, deterministic: bool = True) -> ModelOutput:
        """Compute the encoder's hidden states [B, C, W]."""
        noise = _noise(row["encoder_tokens"], deterministic)
        encoder = self.stack if self.config.shared_stacks else self.encoder
        context = self._context(encoder, row, "encoder", noise)
        states, auxiliary = encoder(self.embed(row, "encoder", noise), context)
        return ModelOutput(states, {"encoder": auxiliary})

    def decode(
        self, row: Row, encoded: Array | None = None, deterministic: bool = True
    ) -> ModelOutput:
        """Compute the decoder's hidden states [B, C, W]. The decoder attends to those of the
        encoder, if there is one.
        """
        noise = _noise(row["decoder_tokens"], deterministic)
        decoder = self.stack if self.config.shared_stacks else self.decoder
        context = self._context(decoder, row, "decoder", noise, encoded)
        states, auxiliary = decoder(self.embed(row, "decoder", noise), context)
        return ModelOutput(states, {"decoder": auxiliary})

    def decode_backward(self, row: Row, deterministic: bool = True) -> ModelOutput:
        """Compute the hidden states [B, D, W] of the backward decoder. At position t, the decoder
        has read decoder_tokens[: t + 1], and the backward decoder decoder_targets[t:], starting
        from the last.
        """
        row = reversed_row(row)
        segments = row["decoder_segments"]
        noise = _noise(segments, deterministic)
        # Padding is now before the text instead of after it, and only `packed` masks it.
        mask = self_attention_mask(self.config, row, "decoder", packed=True)
        context = self.backward_decoder.context(mask, False, row["decoder_positions"], noise)
        states, auxiliary = self.backward_decoder(self.embed(row, "decoder", noise), context)
        # Restore the order of the row.
        return ModelOutput(jnp.flip(states, 1), {"backward_decoder": auxiliary})

    def __call__(self, row: Row, deterministic: bool = True) -> ModelOutput:
        if self.config.architecture == "encoder":
            return self.encode(row, deterministic)
        # ELMo: two decoders read the same row, one from each end.
        if self.config.backward_decoder:
            forward = self.decode(row, None, deterministic)
            backward = self.decode_backward(row, deterministic)
            auxiliary = forward.auxiliary | backward.auxiliary
            return ModelOutput(forward.hidden_states, auxiliary, backward.hidden_states)
        if not self.config.is_encoder_decoder:
            return self.decode(row, None, deterministic)
        encoded = self.encode(row, deterministic)
        decoded = self.decode(row, encoded.hidden_states, deterministic)
        return ModelOutput(decoded.hidden_states, encoded.auxiliary | decoded.auxiliary)

    def touch_all_parameters(self, row: Row) -> None:
        """Call every module once, for initialisation."""
        # Call shared stacks through the decoder first, so that they get cross-attention.
        if self.config.shared_stacks:
            self.decode(row, self.embed(row, "encoder"))
        # Heads are not part of `__call__`: call each on its output.
        output = self(row)
        table = self.embedding if self.config.shared_embeddings else self.decoder_embedding
        for name, head in head_layers(self.config).items():
            head.call(getattr(self, name), output, table)


def self_attention_mask(
    config: ModelDimensions,
    row: Row,
    stack: str,
    packed: bool,
    own: Callable[[Array], Array] = lambda x: x,
    **of_mask: Any,
) -> AttentionMask:
    """Return the mask of self-attention within a stack.

    Args:
        own: selects the positions of the queries, if several devices share a row.
        of_mask: further fields of AttentionMask.
    """
    rules = find_rules(config.attention_rules)
    known = _known(row, stack) if rules or config.local_rules else {}
    return AttentionMask(
        own(row[f"{stack}_segments"]),
        row[f"{stack}_segments"],
        row.get(f"{stack}_prefix"),
        causal=stack == "decoder",
        packed=packed,
        rules=rules,
        of_queries={key: own(value) for key, value in known.items()},
        of_keys=known,
        **of_mask,
    )


def _known(row: Row, stack: str) -> Known:
    """Select the arrays with a value for each position of a stack, by name without the stack's
    prefix.
    """
    shape = row[f"{stack}_segments"].shape
    prefix = f"{stack}_"
    return {
        key.removeprefix(prefix): value
        for key, value in row.items()
        if key.startswith(prefix) and value.shape == shape
    }


def _noise(tokens: Array, deterministic: bool) -> Noise:
    """Return the coordinates from which dropout draws its random numbers."""
    return Noise(row_numbers(len(tokens)), part_number("tensor"), not deterministic)


def reversed_row(row: Row) -> Row:
    """Reverse a decoder's row: targets become inputs, and inputs become targets.

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
    # Positions restart in each segment: each is its place minus the place where its segment starts.
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
    ready_layer: ReadyLayer | None = None,
) -> ModelOutput:
    """Apply the Transformer to a batch of rows, as a pure function.

    Args:
        packed: True if a row may hold several segments.
        dropout_key: random key of dropout; None: no dropout.
        ready_layer: see ReadyLayer.
    """
    rngs = {} if dropout_key is None else {"dropout": dropout_key}
    model: Any = Transformer(config, packed, ready_layer)
    return model.apply({"params": params}, row, dropout_key is None, rngs=rngs)


def blank_row(config: ModelDimensions, length: int = 8) -> Row:
    """Return a batch of one row of zeros, for finding shapes."""
    stacks = {"encoder": ["encoder"], "encoder_decoder": ["encoder", "decoder"]}
    row = {}
    for stack in stacks.get(config.architecture, ["decoder"]):
        for kind in ("tokens", "segments", "positions"):
            row[f"{stack}_{kind}"] = jnp.zeros((1, length), jnp.int32)
    if config.backward_decoder:
        row["decoder_targets"] = jnp.zeros((1, length), jnp.int32)
    return row


def initialise(config: ModelDimensions, seed: int, shardings: Any = None) -> Params:
    """Draw fresh parameters. Each is a function of only the seed, its path and its layer.

    Args:
        shardings: the sharding of each parameter; None: none is split.
    """
    declared: Any = flatten_dict(boxed_shapes(config), sep="/")
    on: Any = dict.fromkeys(declared) if shardings is None else flatten_dict(shardings, sep="/")
    drawn = {}
    for path, box in declared.items():
        shape, of_layers = box.value.shape, box.names[:1] == ("layers",)
        key = fold_in(make_key(seed), zlib.crc32(path.encode()))
        if of_layers:
            key, shape = fold_in(key, np.arange(shape[0])), shape[1:]
        if shardings is not None:
            key = jax.device_put(key, NamedSharding(on[path].mesh, PartitionSpec()))
        drawn[path] = _drawing(box.init, shape, box.value.dtype, of_layers, on[path])(key)
    return unflatten_dict(drawn, sep="/")


@lru_cache(1024)
def _drawing(init: Any, shape: tuple, dtype: Any, of_layers: bool, sharding: Any) -> Any:
    """Return a compiled function: key → parameter, or the keys of layers → their parameters. All
    parameters that are drawn alike share it.
    """

    def draw(data: Any) -> Array:
        return init(jax.random.wrap_key_data(data, impl="threefry2x32"), shape, dtype)

    return jax.jit(jax.vmap(draw) if of_layers else draw, out_shardings=sharding)


def _declare(config: ModelDimensions) -> Params:
    """Return the parameters, boxed with what is declared of them. They depend neither on the
    attention kernel nor on `scan`.
    """
    # One block for all layers is traced in the time of one layer.
    model = Transformer(
        replace(config, scan=True, attention_kernel="plain", attention_rules=(), local_rules=())
    )
    key, row = jax.random.key(0), blank_row(config)
    variables: Any = model.init(key, row, method=Transformer.touch_all_parameters)
    params = dict(variables["params"])
    # The parameters of companions are stored beside the model's, without those that they share.
    for companion in config.companions:
        own = _declare(companion.model)
        shared = shared_params(companion, params)
        params[companion.name] = {name: box for name, box in own.items() if name not in shared}
    return params


def shared_params(companion: Companion, params: Params) -> Params:
    """Select the parameters of a model that its companion also reads."""
    return {name: params[name] for name in companion.shares if name in params}


def companion_params(companion: Companion, params: Params) -> Params:
    """Select the parameters of a companion, own and shared ones, from those of a whole run."""
    return params[companion.name] | shared_params(companion, params)


# Cached, since tracing takes a while. Callers must not modify the results.
@cache
def boxed_shapes(config: ModelDimensions) -> Params:
    """Return the parameter tree as shapes, boxed with what is declared of them; nothing is
    allocated. Raise UserError for a parameter that is declared without with_axes.
    """
    # Costs are counted before a run enables 64 bits.
    with jax.enable_x64(config.dtype == "float64"):
        boxes: Any = jax.eval_shape(lambda: _declare(config))
    for path, leaf in flatten_dict(boxes, sep="/").items():
        if not isinstance(leaf, Declaration):
            reason = "is not declared by with_axes, which says how it is drawn and split"
            raise UserError(BAD_CONFIG, f"the parameter {path} {reason}")
    return boxes


@cache
def parameter_shapes(config: ModelDimensions) -> Params:
    """Return the parameter tree as shapes; nothing is allocated."""
    return jax.tree.map(lambda box: box.value, boxed_shapes(config), is_leaf=_is_box)


def _is_box(leaf: Any) -> bool:
    return isinstance(leaf, Declaration)


@cache
def parameter_axes(config: ModelDimensions) -> Params:
    """Return the parameter tree as tuples of logical axis names."""
    return jax.tree.map(lambda box: tuple(box.names), boxed_shapes(config), is_leaf=_is_box)


@cache
def split_axes(config: ModelDimensions) -> Params:
    """Return the parameter tree as tuples of the axis names that the mesh may split. In a part that
    does not declare that heads, features or experts can be split, these are None.
    """
    axes: Any = flatten_dict(parameter_axes(config))
    return unflatten_dict({path: _split_names(config, path, axes[path]) for path in axes})


def _split_names(config: ModelDimensions, path: tuple[str, ...], names: Names) -> tuple:
    part = part_of_parameter(config, path)
    if part is None:
        return names
    splits = splits_of(part)
    return tuple(
        None
        if AXES[name].split_by in ("tensor", "expert") and AXES[name].split_by not in splits
        else name
        for name in names
    )


@cache
def unpadded_shapes(config: ModelDimensions) -> Params:
    """Return the parameter tree as shapes, without the embedding rows that are padding."""

    def unpad(box: Declaration) -> jax.ShapeDtypeStruct:
        axes = zip(box.value.shape, box.names, strict=True)
        shape = [config.vocab_size if name == "vocab" else size for size, name in axes]
        return jax.ShapeDtypeStruct(shape, box.value.dtype)

    return jax.tree.map(unpad, boxed_shapes(config), is_leaf=_is_box)


def count_parameters(config: ModelDimensions) -> int:
    """Count the parameters of a model, without the embedding rows that are padding.

    >>> from t5x_lite.config import Model
    >>> from t5x_lite.resolve import resolve_model
    >>> model = Model(num_layers=1, d_model=8, num_heads=2, bias=False)
    >>> count_parameters(resolve_model(model, vocab_size=10, max_length=4))
    904
    """
    return sum(leaf.size for leaf in jax.tree.leaves(unpadded_shapes(config)))


def count_active_parameters(config: ModelDimensions) -> int:
    """Count the parameters that one token uses: all except those of experts that it is not sent to.

    >>> from t5x_lite.config import Model
    >>> from t5x_lite.resolve import resolve_model
    >>> sizes = {"num_layers": 1, "d_model": 8, "num_heads": 2, "bias": False}
    >>> model = Model(feed_forward="experts(num=4, top_k=1)", **sizes)
    >>> config = resolve_model(model, vocab_size=10, max_length=4)
    >>> count_parameters(config), count_active_parameters(config)
    (2472, 936)
    """
    shapes: Any = flatten_dict(unpadded_shapes(config))
    axes: Any = flatten_dict(parameter_axes(config))
    # A token uses only a share of the experts' parameters, such as top_k / num.
    count = 0.0
    for path, leaf in shapes.items():
        is_of_experts = "experts" in axes[path]
        share = part_of_parameter(config, path).share_in_use if is_of_experts else 1
        count += leaf.size * share
    return round(count)
