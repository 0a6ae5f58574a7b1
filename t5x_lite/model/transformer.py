"""The one model family: encoders, decoders, prefix decoders and encoder-decoders of the same blocks.

Shapes: B rows, E encoder and D decoder positions, K scored positions, W width, V embedding rows.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5x_lite.config import Model
from t5x_lite.model.attention import Attention, hide, visible
from t5x_lite.model.layers import ACTIVATIONS, Dense, FeedForward, Norm, constrain, named, parameter_dtype
from t5x_lite.model.positions import RelativeBias, sinusoidal
from t5x_lite.model.products import product


class Block(nn.Module):
    """Self-attention, then attention to the encoder where there is one, then feed-forward; each with its residual.

    x [B, T, W] → (x, None), as a scan over layers wants it. `context` is what all blocks of a stack share.
    """

    config: Model
    deterministic: bool

    @nn.compact
    def __call__(self, x, context):
        config = self.config

        def add(name, x, part):
            """x + part(norm(x)), or norm(x + part(x)) as in the first Transformer."""
            norm = Norm(config, name=f"{name}_norm")
            y = part(norm(x) if config.norm_position == "pre" else x)
            y = x + nn.Dropout(config.dropout)(y, deterministic=self.deterministic)
            return constrain(y if config.norm_position == "pre" else norm(y), "batch", None, None)

        def attend(y):
            attention = Attention(config, name="attention")
            return attention(y, y, context["hidden"], context["positions"], self.deterministic)

        def attend_encoder(y):
            attention = Attention(config, name="cross_attention")
            return attention(y, context["encoded"], context["encoded_hidden"], None, self.deterministic)

        x = add("attention", x, attend)
        if "encoded" in context:
            x = add("cross_attention", x, attend_encoder)
        feed_forward = FeedForward(config, name="feed_forward")
        return add("feed_forward", x, lambda y: feed_forward(y, self.deterministic)), None


class Stack(nn.Module):
    """All blocks of an encoder or decoder, as one scan: parameters have a leading axis of layers."""

    config: Model
    bidirectional: bool  # whether a position may see what comes after it: T5's buckets depend on it

    @nn.compact
    def __call__(self, x, context, seen, deterministic):
        config = self.config
        bias = None
        if config.positions == "relative":
            bias = RelativeBias(config, self.bidirectional, name="relative_bias")(x.shape[1])
        block = nn.remat(Block, prevent_cse=False) if config.remat else Block
        layers = nn.scan(
            block,
            variable_axes={"params": 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=nn.broadcast,
            length=config.layers,
            unroll=1 if config.scan else config.layers,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )(config, deterministic, name="layers")
        x, _ = layers(x, {**context, "hidden": hide(seen, bias)})
        if config.norm_position == "pre":
            x = Norm(config, name="final_norm")(x)
            if config.positions == "relative":  # T5 drops out once more
                x = nn.Dropout(config.dropout)(x, deterministic=deterministic)
        return x


class Transformer(nn.Module):
    """`model.apply(variables, row)` → hidden states [B, K or D, W] of the stack that is scored; see `logits`.

    config.vocab_size and config.max_length must be set (see `resolve`). Embedding rows past the vocabulary, which
    make the table divisible, never win: their logits are −10⁹.
    """

    config: Model

    def setup(self):
        config, dtype = self.config, parameter_dtype(self.config)
        table = nn.initializers.normal(config.embedding_stddev)
        if config.init == "truncated":
            table = nn.initializers.truncated_normal(config.embedding_stddev)
        rows, width = embedding_rows(config), config.width
        self.embedding = self.param("embedding", named(table, "vocab", None), (rows, width), dtype)
        if config.positions == "learned":
            shape = (config.max_length, width)
            self.position_embedding = self.param("position_embedding", named(table, None, None), shape, dtype)
        if config.token_types:
            shape = (config.token_types, width)
            self.type_embedding = self.param("type_embedding", named(table, None, None), shape, dtype)
        if config.embedding_norm:
            self.embedding_norm = Norm(config)
        if config.architecture.startswith("encoder"):
            self.encoder = Stack(config, bidirectional=True)
        if config.architecture != "encoder":
            self.decoder = Stack(config, bidirectional=config.architecture == "prefix_decoder")
        self.dropout = nn.Dropout(config.dropout)
        self.head = Head(config)
        if config.classes:
            self.classifier = Classifier(config)

    def embed(self, row, name: str, deterministic: bool):
        """Tokens (and types) of a stack to vectors [B, T, W], positions added where they are."""
        config, positions = self.config, row[f"{name}_positions"]
        x = jnp.take(self.embedding, row[f"{name}_tokens"], 0)
        if config.positions == "learned":
            x += jnp.take(self.position_embedding, positions, 0)
        if config.positions == "sinusoidal":
            x += sinusoidal(positions, config.width)
        if config.token_types:
            x += jnp.take(self.type_embedding, row.get(f"{name}_types", jnp.zeros_like(positions)), 0)
        x = x.astype(config.dtype)
        if config.embedding_norm:
            x = self.embedding_norm(x)
        return self.dropout(constrain(x, "batch", None, None), deterministic=deterministic)

    def encode(self, row, deterministic: bool = True):
        """Hidden states [B, E, W] of the encoder."""
        segments = row["encoder_segments"]
        x = self.embed(row, "encoder", deterministic)
        return self.encoder(x, {"positions": row["encoder_positions"]}, visible(segments, segments), deterministic)

    def __call__(self, row, deterministic: bool = True):
        context, segments = {}, row.get("decoder_segments")
        if self.config.architecture.startswith("encoder"):
            x = self.encode(row, deterministic)
            if self.config.architecture == "encoder":
                return at_scored(row, x)
            context = {"encoded": x, "encoded_hidden": hide(visible(segments, row["encoder_segments"]))}
        seen = visible(segments, segments, causal=True, prefix=row.get("decoder_prefix"))
        x = self.embed(row, "decoder", deterministic)
        return self.decoder(x, {**context, "positions": row["decoder_positions"]}, seen, deterministic)

    def everything(self, row):
        """Touch every parameter, for initialisation."""
        hidden = self(row)
        return self.head(hidden, self.embedding.T), self.classifier(hidden[:, 0]) if self.config.classes else None


def at_scored(row, hidden):
    """Hidden states [B, E, W] at the positions that are asked [B, K, W]; all of them where none are named."""
    return jnp.take_along_axis(hidden, row["encoder_scored"][..., None], 1) if "encoder_scored" in row else hidden


class Classifier(nn.Module):
    """The first position [B, W] to logits [B, classes], float32: BERT's pooler and the layer on it (released code)."""

    config: Model

    @nn.compact
    def __call__(self, first):
        pooled = jnp.tanh(Dense(self.config, self.config.width, ("embed", None), name="pooler")(first))
        return Dense(self.config, self.config.classes, (None, None), name="output")(pooled).astype(jnp.float32)


class Head(nn.Module):
    """Hidden states [..., W] and a kernel [W, V], the embedding table transposed, to logits [..., V], float32."""

    config: Model

    @nn.compact
    def __call__(self, hidden, kernel):
        config, dtype = self.config, parameter_dtype(self.config)
        rows, width = embedding_rows(config), config.width
        if config.mlm_head:
            hidden = ACTIVATIONS[config.activation](Dense(config, width, ("embed", None), name="dense")(hidden))
            hidden = Norm(config, name="norm")(hidden)
        if not config.tied:
            init = nn.initializers.normal(width**-0.5 if config.init == "fan_in" else config.init_stddev)
            kernel = self.param("output", named(init, None, "vocab"), (width, rows), dtype)
        if config.tied and config.scale_logits:
            hidden = hidden * width**-0.5
        y = product(hidden.reshape(-1, width).astype(config.dtype), kernel)
        if config.mlm_head:
            y += self.param("bias", named(nn.initializers.zeros, "vocab"), (rows,), dtype)
        if rows > config.vocab_size:
            y = jnp.where(jnp.arange(rows) < config.vocab_size, y, -1e9)
        return constrain(y, "batch", "vocab").reshape(*hidden.shape[:-1], rows)


def head_weights(params: dict) -> dict:
    """The part of a model's parameters that `logits` reads."""
    head = params.get("head", {})
    return {"head": head, "kernel": None if "output" in head else params["embedding"].T}


def logits(config: Model, weights: dict, hidden):
    """Hidden states [..., W] to logits [..., V], by the weights that `head_weights` picks."""
    return Head(config).apply({"params": weights["head"]}, hidden, weights["kernel"])


def embedding_rows(config: Model) -> int:
    """vocab_size rounded up to vocab_multiple."""
    return -(-config.vocab_size // config.vocab_multiple) * config.vocab_multiple


def blank_row(config: Model, length: int = 8) -> dict:
    """A batch of one row of zeros, for shapes."""
    stacks = {"encoder": ["encoder"], "encoder_decoder": ["encoder", "decoder"]}.get(config.architecture, ["decoder"])
    keys = [f"{stack}_{kind}" for stack in stacks for kind in ("tokens", "segments", "positions")]
    return {key: jnp.zeros((1, length), jnp.int32) for key in keys}


def initialise(config: Model, key):
    """Fresh variables, boxed with their axis names."""
    return Transformer(config).init(key, blank_row(config), method=Transformer.everything)


def count_parameters(config: Model) -> int:
    """Parameters of a model, embedding rows of padding left out; nothing is allocated."""
    shapes = jax.eval_shape(lambda: nn.meta.unbox(initialise(config, jax.random.key(0))))
    total = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    per_row = config.width * (1 if config.tied else 2) + config.mlm_head
    return total - (embedding_rows(config) - config.vocab_size) * per_row
