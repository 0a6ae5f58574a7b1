"""The one model family: encoders, decoders, prefix decoders and encoder-decoders of the same blocks.

Shapes: B rows, T positions of a stack, E encoder and D decoder positions, K scored positions, W width.
"""

from dataclasses import replace

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct

from t5x_lite.config import Model
from t5x_lite.model.attention import Attention
from t5x_lite.model.heads import Classifier, Head, at_scored, embedding_rows
from t5x_lite.model.kernels import Sight
from t5x_lite.model.layers import Dense, FeedForward, Norm, constrain, named, parameter_dtype
from t5x_lite.model.positions import RelativeBias, alibi, sinusoidal


class Context(struct.PyTreeNode):
    """What all blocks of a stack share."""

    positions: jax.Array  # [B, T]
    sight: Sight
    across: Sight | None = None  # who may look where in the encoder, …
    encoded: jax.Array | None = None  # … and its hidden states [B, E, W]
    bias: jax.Array | None = None  # of the positions, on attention's logits
    slot: jax.Array | int = 0  # of the caches, where keys and values of x go
    hidden: jax.Array | None = None  # what the two sights hide, computed once for all layers
    across_hidden: jax.Array | None = None
    deterministic: bool = struct.field(pytree_node=False, default=True)

    def prepared(self, bias):
        """With the bias, and what the sights hide."""
        across = None if self.across is None else self.across.hide()
        return self.replace(bias=bias, hidden=self.sight.hide(bias), across_hidden=across)


class Block(nn.Module):
    """Self-attention, then attention to the encoder where there is one, then feed-forward; each with its residual.

    x [B, T, W] → x and what is kept. `layer` is this layer's own: its number, and while text is written the caches of
    keys and values, ([B, G, S, K], the same), of itself and of the encoder; they are kept, with x's keys and values.
    """

    config: Model

    @nn.compact
    def __call__(self, x, layer, context: Context):
        config, kept = self.config, None
        attention, across = Attention(config, name="attention"), Attention(config, own=False, name="cross_attention")
        feed_forward = FeedForward(config, name="feed_forward")
        deterministic = context.deterministic

        def attend(y):
            nonlocal kept
            memory = attention.remember(y, context.positions)
            if "own" in layer:
                put = jax.lax.dynamic_update_slice_in_dim
                both = zip(layer["own"], memory, strict=True)
                memory = kept = tuple(put(old, new.astype(old.dtype), context.slot, 2) for old, new in both)
            return attention(y, memory, context.sight, context.hidden, context.bias, context.positions, deterministic)

        def attend_encoder(y):
            memory = layer["across"] if "across" in layer else across.remember(context.encoded)
            return across(y, memory, context.across, context.across_hidden, deterministic=deterministic)

        parts = {"attention": attend, "cross_attention": attend_encoder} if context.across else {"attention": attend}
        parts["feed_forward"] = lambda y: feed_forward(y, deterministic)
        if config.positions == "universal":  # sinusoids of place and depth (Dehghani et al., 2019, §2.1)
            places = sinusoidal(context.positions, config.width) + sinusoidal(layer["number"], config.width)
            x += places.astype(x.dtype)
        normed = Norm(config, name="norm")(x) if config.parallel else None
        for name, part in parts.items():
            norm = None if config.parallel else Norm(config, name=f"{name}_norm")
            y = normed if config.parallel else norm(x) if config.norm_position == "pre" else x
            y = nn.Dropout(config.dropout)(part(y), deterministic=deterministic)
            if config.rezero:
                share = self.param(f"{name}_share", named(nn.initializers.zeros), (), parameter_dtype(config))
                y *= share.astype(y.dtype)
            x = constrain(x + y if config.norm_position == "pre" else norm(x + y), "batch", None, None)
        return x, kept


class Stack(nn.Module):
    """All blocks of an encoder or decoder, as one scan: parameters have a leading axis of layers, unless all layers
    share one block.
    """

    config: Model
    depth: int
    shared: bool = False

    def setup(self):
        config = self.config
        if config.positions == "relative":
            self.relative_bias = RelativeBias(config)
        which = {"variable_broadcast": "params"} if self.shared else {"variable_axes": {"params": 0}}
        blocks = nn.scan(
            nn.remat(Block, prevent_cse=False) if config.remat else Block,
            split_rngs={"params": not self.shared, "dropout": True},
            in_axes=(0, nn.broadcast),
            length=self.depth,
            unroll=1 if config.scan else self.depth,
            metadata_params={nn.PARTITION_NAME: "layers"},
            **which,
        )(config)
        if self.shared:
            self.block = blocks
        else:
            self.layers = blocks
        if config.norm_position == "pre":
            self.final_norm = Norm(config)
        self.dropout = nn.Dropout(config.dropout)

    def bias(self, sight: Sight, bidirectional: bool):
        """What positions add to attention's logits, the same in all layers: [1 or B, H, T, S], or None.

        bidirectional: whether a position may see what comes after it; T5's buckets depend on it.
        """
        if self.config.positions == "relative":
            return self.relative_bias(sight.distance(), bidirectional)
        if self.config.positions == "alibi":
            bias = alibi(sight.distance(), self.config.heads).astype(parameter_dtype(self.config))
            return bias[None] if bias.ndim == 3 else bias
        return None

    def finish(self, x, deterministic: bool = True):
        """What follows the last block."""
        if self.config.norm_position == "post":
            return x
        x = self.final_norm(x)
        return self.dropout(x, deterministic) if self.config.positions == "relative" else x  # T5 drops out once more

    def __call__(self, x, context: Context, bidirectional: bool):
        context = context.prepared(self.bias(context.sight, bidirectional))
        blocks = self.block if self.shared else self.layers
        x, _ = blocks(x, {"number": jnp.arange(self.depth)}, context)
        return self.finish(x, context.deterministic)


class Transformer(nn.Module):
    """`model.apply(variables, row)` → hidden states [B, K or D, W] of the stack that is scored; see `heads.logits`.

    config.vocab_size and config.max_length must be set (see `rundir.resolve`). packed: whether a row may hold several
    segments; where it may not, attention needs no mask for them.
    """

    config: Model
    packed: bool = True

    def setup(self):
        config, dtype = self.config, parameter_dtype(self.config)
        init = nn.initializers.normal(config.embedding_stddev)
        if config.init == "truncated":
            init = nn.initializers.truncated_normal(config.embedding_stddev)
        width = config.embedding_size or config.width

        def table(name, rows, axis=None):
            return self.param(name, named(init, axis, None), (rows, width), dtype)

        self.embedding = table("embedding", embedding_rows(config), "vocab")
        if not config.shared_embeddings:
            self.decoder_embedding = table("decoder_embedding", embedding_rows(config), "vocab")
        if config.positions == "learned":
            self.position_embedding = table("position_embedding", config.position_offset + config.max_length)
        if config.token_types:
            self.type_embedding = table("type_embedding", config.token_types)
        if config.embedding_norm:
            self.embedding_norm = Norm(config)
        if config.embedding_size:
            self.embedding_projection = Dense(config, config.width, (None, "embed"))
        shared = config.shared_layers
        if config.shared_stacks:
            self.stack = Stack(config, config.layers, shared == "all")
        else:
            if config.architecture.startswith("encoder"):
                self.encoder = Stack(config, config.layers, shared in ("all", "encoder"))
            if config.architecture != "encoder":
                self.decoder = Stack(config, config.decoder_layers or config.layers, shared in ("all", "decoder"))
        self.dropout = nn.Dropout(config.dropout)
        self.head = Head(config)
        if config.classes:
            self.classifier = Classifier(config)

    def embed(self, row, name: str, deterministic: bool = True):
        """Tokens (and types) of a stack to vectors [B, T, W], positions added where they are."""
        config, positions = self.config, row[f"{name}_positions"]
        separate = name == "decoder" and not config.shared_embeddings
        x = jnp.take(self.decoder_embedding if separate else self.embedding, row[f"{name}_tokens"], 0)
        if config.scale_embeddings:
            x *= x.shape[-1] ** 0.5
        if config.positions == "learned":
            x += jnp.take(self.position_embedding, positions + config.position_offset, 0)
        if config.positions == "sinusoidal":
            x += sinusoidal(positions, x.shape[-1])
        if config.token_types:
            x += jnp.take(self.type_embedding, row.get(f"{name}_types", jnp.zeros_like(positions)), 0)
        x = x.astype(config.dtype)
        if config.embedding_norm:
            x = self.embedding_norm(x)
        x = self.dropout(constrain(x, "batch", None, None), deterministic=deterministic)
        return self.embedding_projection(x) if config.embedding_size else x

    def encode(self, row, deterministic: bool = True):
        """Hidden states [B, E, W] of the encoder."""
        segments = row["encoder_segments"]
        sight = Sight(segments, segments, packed=self.packed)
        context = Context(row["encoder_positions"], sight, deterministic=deterministic)
        encoder = self.stack if self.config.shared_stacks else self.encoder
        return encoder(self.embed(row, "encoder", deterministic), context, bidirectional=True)

    def decode(self, row, encoded=None, deterministic: bool = True):
        """Hidden states [B, D, W] of the decoder, which reads those of an encoder [B, E, W] if there is one."""
        segments, prefix, across = row["decoder_segments"], row.get("decoder_prefix"), None
        if encoded is not None:
            across = Sight(segments, row["encoder_segments"], packed=self.packed)
        sight = Sight(segments, segments, prefix, causal=True, packed=self.packed)
        context = Context(row["decoder_positions"], sight, across, encoded, deterministic=deterministic)
        decoder = self.stack if self.config.shared_stacks else self.decoder
        x = self.embed(row, "decoder", deterministic)
        return decoder(x, context, bidirectional=self.config.architecture == "prefix_decoder")

    def __call__(self, row, deterministic: bool = True):
        if self.config.architecture == "encoder":
            return at_scored(row, self.encode(row, deterministic))
        encoded = None
        if self.config.architecture == "encoder_decoder":
            encoded = self.encode(row, deterministic)
        return self.decode(row, encoded, deterministic)

    def everything(self, row):
        """Touch every parameter, for initialisation."""
        if self.config.shared_stacks:  # its blocks are made as they are first met: with the attention between stacks
            self.decode(row, self.embed(row, "encoder"))
        hidden = self(row)
        kernel = self.embedding if self.config.shared_embeddings else self.decoder_embedding
        return self.head(hidden, kernel.T), self.classifier(hidden[:, 0]) if self.config.classes else None


def blank_row(config: Model, length: int = 8) -> dict:
    """A batch of one row of zeros, for shapes."""
    stacks = {"encoder": ["encoder"], "encoder_decoder": ["encoder", "decoder"]}.get(config.architecture, ["decoder"])
    keys = [f"{stack}_{kind}" for stack in stacks for kind in ("tokens", "segments", "positions")]
    return {key: jnp.zeros((1, length), jnp.int32) for key in keys}


def initialise(config: Model, key):
    """Fresh variables, boxed with their axis names. They are the same whatever kernel is wanted."""
    model = Transformer(replace(config, attention="plain"))
    return model.init(key, blank_row(config), method=Transformer.everything)


def shapes(config: Model) -> dict:
    """The parameter tree as shapes; nothing is allocated."""
    return jax.eval_shape(lambda: nn.meta.unbox(initialise(config, jax.random.key(0)))["params"])


def sizes(config: Model) -> dict:
    """The parameter tree as shapes, embedding rows of padding left out; nothing is allocated."""
    boxed = jax.eval_shape(lambda: initialise(config, jax.random.key(0)))["params"]

    def real(box):
        axes = zip(box.value.shape, box.names, strict=True)
        return jax.ShapeDtypeStruct([config.vocab_size if name == "vocab" else n for n, name in axes], box.value.dtype)

    return jax.tree.map(real, boxed, is_leaf=lambda x: isinstance(x, nn.meta.AxisMetadata))


def count_parameters(config: Model) -> int:
    """Parameters of a model, embedding rows of padding left out.

    >>> count_parameters(Model(layers=1, width=8, heads=2, vocab_size=10, max_length=4, bias=False))
    904
    """
    return sum(leaf.size for leaf in jax.tree.leaves(sizes(config)))
