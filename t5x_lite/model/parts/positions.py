"""How a model knows order: learned embeddings, sinusoids, rotary angles, ALiBi, and the relative
positions of Shaw, Transformer-XL and T5.

Each kind of positions overrides the methods that it needs: it may act in the embeddings (`embed`),
before every layer (`before_layer`), as a bias on the attention logits that all layers share
(`bias_module`), or inside attention (`attention_module`, `rotate`). To add one, derive a class from
NoPositions, and add its name to POSITIONS below.

A distance is the position of a key minus the position of a query: [T, S], or [B, T, S] if rows
differ.

Shapes: B rows, T queries, S keys, H heads, K head_dim, D d_model, W width of the embeddings, R
distances.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from t5x_lite.config import ModelDimensions
from t5x_lite.config.named import OneOf
from t5x_lite.config.ranges import NonNegative, Positive, Range
from t5x_lite.model.dense import Dense, Parameter, kernel_init, normal, parameter_dtype, with_axes
from t5x_lite.model.parts.contract import Setting
from t5x_lite.model.parts.options import make_part
from t5x_lite.model.parts.rotary_scaling import SCALINGS, find_scaling

Distances = Int[Array, "T S"] | Int[Array, "B T S"] | np.ndarray


@dataclass(frozen=True)
class NoPositions:
    """The kind "none", and the base class of all kinds: every method does nothing by default.

    Attributes:
        in_attention: True if it acts inside attention, so that other mixers would not know order.
        needs_logits: True if it changes attention in a way that only the plain kernel can compute.
        is_bias: True if it adds one bias, shared by all layers, to the attention logits.
        logits_cost: FLOPs of the products that compute logits and outputs, as a multiple of those
            of plain attention.
        has_mimetic_init: True if two heads can be initialised to attend to neighbouring tokens.
        drops_out_at_end: True if the stack applies dropout once more after its last norm, as in T5.
        same_when_wider: True if widening a model by copies of its features and heads gives each
            copy the same positions.
        only_rotates: True if `rotate` is all that it does, so that layers may use different kinds.
    """

    config: ModelDimensions

    in_attention = False
    needs_logits = False
    is_bias = False
    logits_cost = 1.0
    has_mimetic_init = False
    drops_out_at_end = False
    same_when_wider = True

    @property
    def only_rotates(self) -> bool:
        """True if a kind overrides none of the other methods of this class."""
        others = ("embed", "before_layer", "bias_module", "attention_module")
        return all(getattr(type(self), name) is getattr(NoPositions, name) for name in others)

    @property
    def limit(self) -> int | None:
        """Largest number of positions; None: no limit."""
        return None

    @property
    def table_rows(self) -> int:
        """Number of rows in the learned table of embeddings; 0: no table."""
        return 0

    def embed(
        self, positions: Int[Array, "B T"], table: Parameter | None
    ) -> Float[Array, "B T W"] | None:
        """Return what to add to the token embeddings; None: nothing."""
        return None

    def before_layer(
        self, positions: Int[Array, "B T"], depth: int | Int[Array, ""]
    ) -> Float[Array, "B T D"] | None:
        """Return what to add to the residual stream before a layer; None: nothing."""
        return None

    def bias_module(self) -> Any:
        """Return a module (distances, bidirectional) → [1 or B, H, T, S] that computes a bias for
        the attention logits; None: no bias.
        """
        return None

    def attention_module(self) -> tuple[str, Any] | None:
        """Return the name and the module of the parameters that it adds to attention, such as
        ShawRelative; None: no parameters.
        """
        return None

    def rotate(
        self, x: Float[Array, "B H T K"], positions: Int[Array, "B T"]
    ) -> Float[Array, "B H T K"]:
        """Rotate queries or keys by their positions."""
        return x

    def contradictions(self, setting: Setting) -> Iterator[str]:
        """Yield one message per incompatible setting; see contract.Part."""
        yield from ()


@dataclass(frozen=True)
class Learned(NoPositions):
    """A learned table of embeddings.

    Attributes:
        offset: number of table rows before the first position (RoBERTa: 2).
    """

    offset: NonNegative = 0

    @property
    def limit(self) -> int:
        """Number of positions in the table."""
        return self.config.max_length

    @property
    def table_rows(self) -> int:
        """Number of rows in the table, including those before the first position."""
        return self.offset + self.config.max_length

    def embed(self, positions: Int[Array, "B T"], table: Parameter | None) -> Float[Array, "B T W"]:
        """Look up the positions in the table."""
        assert table is not None, "learned positions have a table"
        return jnp.take(table, positions + self.offset, 0)


@dataclass(frozen=True)
class Sinusoidal(NoPositions):
    """Sinusoids added to the embeddings (Vaswani et al., 2017, §3.5)."""

    same_when_wider = False

    def embed(self, positions: Int[Array, "B T"], table: Parameter | None) -> Float[Array, "B T W"]:
        """Return the sinusoids of the positions."""
        return sinusoidal(positions, self.config.embedding_size)


@dataclass(frozen=True)
class Universal(NoPositions):
    """Sinusoids of position and depth, added before every layer (Dehghani et al., 2019, §2.1)."""

    same_when_wider = False

    def before_layer(
        self, positions: Int[Array, "B T"], depth: int | Int[Array, ""]
    ) -> Float[Array, "B T D"]:
        """Return the sum of the sinusoids of positions and depth."""
        width = self.config.d_model
        return sinusoidal(positions, width) + sinusoidal(jnp.asarray(depth), width)


@dataclass(frozen=True)
class Rotary(NoPositions):
    """Rotary positions (Su et al., 2021).

    Attributes:
        base: the slowest angle advances by about 1/base per position.
        fraction: share of each head's features that are rotated, starting from the first; the
            others carry no positions (GPT-NeoX: Black et al., 2022, §2.1.1).
        scaling: scaling of the angles, for texts longer than in pretraining: linear(factor=2),
            llama3(…), yarn(…) or none; see rotary_scaling.py.
    """

    base: Annotated[float, Range(1.0, 1e12)] = 10_000.0
    fraction: Annotated[float, Range(0.0, 1.0)] = 1.0
    scaling: Annotated[str, OneOf("scaling", SCALINGS)] = "none"

    in_attention = True

    @property
    def width(self) -> int:
        """Number of features per head that are rotated."""
        return int(self.config.head_dim * self.fraction)

    def rotate(
        self, x: Float[Array, "B H T K"], positions: Int[Array, "B T"]
    ) -> Float[Array, "B H T K"]:
        """Rotate pairs of features."""
        scaling = find_scaling(self.scaling)
        angles = scaling.angles(rotary_angles(self.base, self.width), self.base)
        rotated = rotate(x[..., : self.width], positions, angles) * scaling.magnitude
        return jnp.concatenate([rotated.astype(x.dtype), x[..., self.width :]], -1)

    def contradictions(self, setting: Setting) -> Iterator[str]:
        """Yield one message per incompatible setting; see contract.Part."""
        setting_name = f"model.positions={setting.config.positions}"
        if self.width % 2 or not self.width:
            reason = f"{self.width} features of a head are rotated, expected an even number"
            yield f"{setting_name}: {reason}; set model.head_dim"
        for reason in find_scaling(self.scaling).contradictions(self.base):
            yield f"{setting_name}: {reason}"


@dataclass(frozen=True)
class Alibi(NoPositions):
    """Biases that decrease with distance (Press et al., 2022)."""

    same_when_wider = False

    in_attention = True
    is_bias = True

    def bias_module(self) -> "AlibiBias":
        """Return the module of the biases, which has no parameters."""
        return AlibiBias(self.config)


@dataclass(frozen=True)
class Relative(NoPositions):
    """T5's learned biases, one per head and bucket of distances (Raffel et al., 2020, §2.1).

    Attributes:
        buckets: number of buckets of distances.
        distance: distance from which all keys share the last bucket.
        per_layer: True: each layer has its own biases (umT5: Chung et al., 2023, §3.1). False: all
            layers of a stack share them.
    """

    buckets: Annotated[int, Range(4)] = 32
    distance: Annotated[int, Range(5)] = 128
    per_layer: bool = False

    in_attention = True
    drops_out_at_end = True

    @property
    def is_bias(self) -> bool:  # pyrefly: ignore[bad-override]
        """True if all layers share one bias."""
        return not self.per_layer

    @property
    def needs_logits(self) -> bool:  # pyrefly: ignore[bad-override]
        """True if each layer adds its own bias to its logits."""
        return self.per_layer

    @property
    def has_mimetic_init(self) -> bool:  # pyrefly: ignore[bad-override]
        """True if the biases can be initialised so that two heads attend to neighbours."""
        return not self.per_layer

    def bias_module(self) -> "RelativeBias | None":
        """Return the table of biases that all layers share."""
        return None if self.per_layer else RelativeBias(self.config, self.buckets, self.distance)

    def attention_module(self) -> "tuple[str, LayerBias] | None":
        """Return a layer's own table of biases."""
        if not self.per_layer:
            return None
        return "relative_bias", LayerBias(self.config, self.buckets, self.distance)

    def contradictions(self, setting: Setting) -> Iterator[str]:
        """Yield one message per incompatible setting; see contract.Part."""
        if self.buckets % 2:
            yield f"model.positions: buckets={self.buckets}, expected an even number"
        if self.distance <= self.buckets // 2:
            expected = f"expected more than half of buckets={self.buckets}"
            yield f"model.positions: distance={self.distance}, {expected}"
        if setting.rows.looks_ahead:
            reason = "got relative, which tell a decoder nothing of what is ahead"
            yield f"model.positions: {reason} (the objective looks ahead); set rotary or learned"
        if self.per_layer and setting.config.prefix_length:
            yield "model.prefix_length: biases of each layer know no prefix; set it to 0"


@dataclass(frozen=True)
class Shaw(NoPositions):
    """Vectors per distance, which are added to keys and values (Shaw et al., 2018).

    Attributes:
        distance: distance from which all keys on the same side share one vector.
    """

    distance: Positive = 16

    in_attention = True
    needs_logits = True
    logits_cost = 2.0

    def attention_module(self) -> tuple[str, "ShawRelative"]:
        """Return the vectors of the distances."""
        return "shaw", ShawRelative(self.config, self.distance)

    def contradictions(self, setting: Setting) -> Iterator[str]:
        """Yield one message per incompatible setting; see contract.Part."""
        if setting.config.prefix_length:
            yield "model.prefix_length: positions shaw know no prefix; set it to 0"


@dataclass(frozen=True)
class XL(NoPositions):
    """Transformer-XL's relative positions (Dai et al., 2019, §3.3)."""

    same_when_wider = False

    in_attention = True
    needs_logits = True
    logits_cost = 1.5

    def attention_module(self) -> tuple[str, "TransformerXL"]:
        """Return the projection of the distances, and the biases u and v."""
        return "relative", TransformerXL(self.config)

    def contradictions(self, setting: Setting) -> Iterator[str]:
        """Yield one message per incompatible setting; see contract.Part."""
        if setting.config.prefix_length:
            yield "model.prefix_length: positions transformer_xl know no prefix; set it to 0"


def sinusoidal(
    positions: Int[Array, "*rows"] | np.ndarray, width: int
) -> Float[Array, "*rows width"]:
    """Return sines and cosines with wavelengths from 2π to 10,000 · 2π (Vaswani et al., 2017,
    §3.5): [B, T] → [B, T, width].

    >>> sinusoidal(jnp.array([[0]]), 4).tolist()
    [[[0.0, 0.0, 1.0, 1.0]]]
    """
    # Half of the features are sines, half cosines; an odd width has one more sine.
    half = (width + 1) // 2
    frequencies = jnp.asarray(10000.0 ** (-np.arange(half) / max(half, 1)))
    angles = jnp.asarray(positions)[..., None].astype(frequencies.dtype) * frequencies
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)[..., :width]


def rotary_angles(base: float, width: int) -> np.ndarray:
    """Return the angle by which each pair of features turns per position: [width / 2].

    >>> rotary_angles(10_000.0, 4)
    array([1.  , 0.01])
    """
    half = width // 2
    return base ** (-np.arange(half) / half)


def rotate(
    x: Float[Array, "B H T K"], positions: Int[Array, "B T"], angles_per_position: np.ndarray
) -> Float[Array, "B H T K"]:
    """Rotate each pair of a head's features by an angle proportional to its position (Su et al.,
    2021).

    K is even, and feature i is paired with feature i + K/2. Logits then depend only on the distance
    between two positions.
    """
    # The angles are the same for all heads.
    half = x.shape[-1] // 2
    frequencies = jnp.asarray(angles_per_position)
    angles = positions[:, None, :, None].astype(frequencies.dtype) * frequencies
    sin = jnp.sin(angles).astype(x.dtype)
    cos = jnp.cos(angles).astype(x.dtype)
    # A rotation in the plane of each pair.
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def alibi(distances: Distances, num_heads: int) -> Any:
    """Return ALiBi's biases [..., H, T, S]: each head's logits decrease with distance, with a slope
    of its own (Press et al., 2022, §3).

    The slopes are 2^(-8/H), 2^(-16/H), …, 2^-8. If H is not a power of two, they are the slopes of
    the next lower power of two, and then every other slope of the next higher one.

    >>> alibi(np.array([[-2, 0, 1]]), 2).tolist()
    [[[-0.125, -0.0, -0.0625]], [[-0.0078125, -0.0, -0.00390625]]]
    """
    power_of_two = 2 ** int(np.log2(num_heads))
    # The slopes of the power of two up to H, then every other slope of the next one.
    slopes = [2.0 ** (-8 * (i + 1) / power_of_two) for i in range(power_of_two)]
    more = range(0, 2 * (num_heads - power_of_two), 2)
    slopes += [2.0 ** (-4 * (i + 1) / power_of_two) for i in more]
    slopes_H11 = -np.array(slopes)[:, None, None]
    return slopes_H11 * abs(distances)[..., None, :, :]


def relative_buckets(
    distances: Distances, bidirectional: bool, num_buckets: int, max_distance: int
) -> Distances:
    """Return T5's buckets of distances (Raffel et al., 2020, §2.1): exact when near, logarithmic
    when far.

    If bidirectional, half of the buckets are for keys ahead of the query. Otherwise all keys ahead
    share bucket 0.

    >>> relative_buckets(np.array([-200, -9, -1, 0, 1, 9]), True, 32, 128).tolist()
    [15, 8, 1, 0, 17, 24]
    >>> relative_buckets(np.array([-200, -20, -1, 0, 1]), False, 32, 128).tolist()
    [31, 17, 1, 0, 0]
    """
    # Distances that are known while tracing become constants of the program.
    xp = np if isinstance(distances, np.ndarray) else jnp

    # Bidirectional: each sign gets half of the buckets. Otherwise all keys ahead count as distance
    # 0.
    if bidirectional:
        num_buckets //= 2
        offset = xp.where(distances > 0, num_buckets, 0)
        distances = abs(distances)
    else:
        offset = 0
        distances = xp.maximum(-distances, 0)

    # Half of these buckets are exact; the others grow logarithmically up to max_distance.
    exact = num_buckets // 2
    far_ratio = xp.maximum(distances, 1).astype(np.float32) / exact
    log_ratio = xp.log(far_ratio) / np.log(max_distance / exact)
    far_bucket = exact + (log_ratio * (num_buckets - exact)).astype(np.int32)
    far_bucket = xp.minimum(far_bucket, num_buckets - 1)
    return offset + xp.where(distances < exact, distances, far_bucket)


def _looking_at_neighbours(init: Any) -> Any:
    """Return an initialiser of the table [buckets, heads] of a bidirectional stack. It makes the
    first head attend to the previous token, and the second head to the next one (similar to ConViT:
    d'Ascoli et al., 2021, §3).
    """

    def looking(key: Array, shape: tuple[int, int], dtype: Any) -> Array:
        num_buckets = shape[0]
        before, after = relative_buckets(np.array([-1, 1]), True, num_buckets, num_buckets)
        # Each of the two heads attends e⁶ times as much to its neighbour as to any other token.
        table = init(key, shape, dtype)
        return table.at[before, 0].add(6.0).at[after, 1].add(6.0)

    return looking


class AlibiBias(nn.Module):
    """ALiBi as a module: distances → the bias [1 or B, H, T, S] of all heads."""

    config: ModelDimensions
    splits = ()

    def __call__(self, distances: Distances, bidirectional: bool) -> Float[Array, "B H T S"]:
        bias = jnp.asarray(alibi(distances, self.config.num_heads), parameter_dtype(self.config))
        return bias[None] if bias.ndim == 3 else bias


class RelativeBias(nn.Module):
    """T5's learned bias per head and bucket, shared by all layers of a stack: distances →
    [1 or B, H, T, S].
    """

    config: ModelDimensions
    buckets: int
    distance: int
    splits = ("tensor",)

    @nn.compact
    def __call__(self, distances: Distances, bidirectional: bool) -> Float[Array, "B H T S"]:
        config = self.config
        stddev = config.d_model**-0.5 if config.init == "fan_in" else config.init_stddev
        init = normal(stddev)
        # A causal stack cannot attend to the next token.
        if config.mimetic_init and bidirectional:
            init = _looking_at_neighbours(init)
        init = with_axes(init, "buckets", "heads")
        shape = (self.buckets, config.num_heads)
        table = self.param("embedding", init, shape, parameter_dtype(config))
        buckets = relative_buckets(distances, bidirectional, self.buckets, self.distance)
        if buckets.ndim == 2:  # [T, S], the same in all rows
            return table.T[None, :, buckets]
        return jnp.moveaxis(table[buckets], -1, 1)


class LayerBias(RelativeBias):
    """T5's learned bias inside one layer's attention, with the methods of ShawRelative."""

    adds_to_values = False

    def query(self, q: Float[Array, "B H T K"], scale: float) -> Float[Array, "B H T K"]:
        """Return the queries for the product with keys, here unchanged."""
        return q

    def logits(
        self,
        q: Float[Array, "B H T K"],
        distances: Distances,
        longest: int,
        scale: float,
        bidirectional: bool,
    ) -> Float[Array, "#B H T S"]:
        """Return the bias of the distances."""
        return self(distances, bidirectional)


def gather_distances(
    scores: Float[Array, "B H T R"], offset: int, distances: Distances
) -> Float[Array, "B H T S"]:
    """Look up the score of each query and key by their distance, which is d in column offset + d.
    Distances past the first or last column share that column.
    """
    columns = jnp.clip(jnp.asarray(distances) + offset, 0, scores.shape[-1] - 1)
    if columns.ndim == 2:
        columns = columns[None, None]
    else:
        columns = columns[:, None]
    return jnp.take_along_axis(scores, columns, -1)


def shift_distances(scores: Float[Array, "B H T R"]) -> Float[Array, "B H T S"]:
    """Do the same as gather_distances, without indices, if the columns are the distances from 1 − T
    to S − 1 (Dai et al., 2019, appendix B).

    Each query's keys begin one column before those of the query above. So they line up when the
    flattened scores are read as rows that are one column shorter.

    >>> shift_distances(jnp.array([[[[-1.0, 0, 1, 2], [-1, 0, 1, 2]]]]))[0, 0].tolist()
    [[0.0, 1.0, 2.0], [-1.0, 0.0, 1.0]]
    """
    B, H, T, R = scores.shape
    S = R - T + 1
    if T == 1:
        return scores
    # Start at the distance of the first query and the first key: 0, in column T − 1.
    rows = scores.reshape(B, H, T * R)[..., T - 1 : T - 1 + T * (R - 1)]
    return rows.reshape(B, H, T, R - 1)[..., :S]


class ShawRelative(nn.Module):
    """Vectors per distance that are added to keys and to values (Shaw et al., 2018, eqs. 3 and 4).
    All heads share them. Distances are clipped to ± distance.
    """

    config: ModelDimensions
    distance: int
    adds_to_values = True

    def setup(self) -> None:
        config = self.config
        shape = (2 * self.distance + 1, config.head_dim)
        init = with_axes(kernel_init(config, config.head_dim), "distance", "head_dim")
        self.keys = self.param("keys", init, shape, parameter_dtype(config))
        self.values = self.param("values", init, shape, parameter_dtype(config))

    def query(self, q: Float[Array, "B H T K"], scale: float) -> Float[Array, "B H T K"]:
        """Return the queries for the product with keys, here unchanged."""
        return q

    def logits(
        self,
        q: Float[Array, "B H T K"],
        distances: Distances,
        longest: int,
        scale: float,
        bidirectional: bool,
    ) -> Float[Array, "B H T S"]:
        """Multiply queries by the vectors that are added to the keys."""
        scores = jnp.einsum("bhtk,rk->bhtr", q, self.keys.astype(q.dtype))
        return gather_distances(scores, self.distance, distances)

    def weighted_sum(
        self, weights: Float[Array, "B H T S"], distances: Distances
    ) -> Float[Array, "B H T K"]:
        """Return the weighted sum of the vectors that are added to the values."""
        furthest = self.distance
        rows = jnp.clip(jnp.asarray(distances), -furthest, furthest) + furthest
        vectors = self.values.astype(weights.dtype)[rows]
        equation = "bhts,tsk->bhtk" if vectors.ndim == 3 else "bhts,btsk->bhtk"
        return jnp.einsum(equation, weights, vectors)


class TransformerXL(nn.Module):
    """Relative positions of Transformer-XL (Dai et al., 2019, §3.3): the logits are
    (q + u) k + (q + v) W r, where r are the sinusoids of the distance. Gopher and Chinchilla use
    them (Rae et al., 2021, §3.1).
    """

    config: ModelDimensions
    adds_to_values = False

    def setup(self) -> None:
        config = self.config
        shape, dtype = (config.num_heads, config.head_dim), parameter_dtype(config)
        zeros = with_axes(nn.initializers.zeros, "heads", "head_dim")
        self.u = self.param("u", zeros, shape, dtype)
        self.v = self.param("v", zeros, shape, dtype)
        features = config.num_heads * config.head_dim
        self.project = Dense(config, features, ("embed", "heads"), use_bias=False)

    def query(self, q: Float[Array, "B H T K"], scale: float) -> Float[Array, "B H T K"]:
        """Return the queries for the product with keys: q + u."""
        return q + self.u[:, None].astype(q.dtype) * scale

    def logits(
        self,
        q: Float[Array, "B H T K"],
        distances: Distances,
        longest: int,
        scale: float,
        bidirectional: bool,
    ) -> Float[Array, "B H T S"]:
        """Compute (q + v) W r. q is already scaled, and distances are at most `longest` in either
        direction.
        """
        # If positions follow from the order of the arrays, the distances are known while tracing.
        in_order = isinstance(distances, np.ndarray)
        if in_order:
            known = jnp.arange(1 - distances.shape[0], distances.shape[1])
        else:
            known = jnp.arange(-longest, longest + 1)
        # W r for every possible distance.
        r = sinusoidal(known, self.config.d_model).astype(q.dtype)
        r = self.project(r).reshape(len(r), *self.v.shape)
        # (q + v) · W r for every distance, from which each key takes the entry of its own.
        q = q + self.v[:, None].astype(q.dtype) * scale
        scores = jnp.einsum("bhtk,rhk->bhtr", q, r)
        return shift_distances(scores) if in_order else gather_distances(scores, longest, distances)


POSITIONS = {
    "learned": Learned,
    "sinusoidal": Sinusoidal,
    "relative": Relative,
    "rotary": Rotary,
    "alibi": Alibi,
    "shaw": Shaw,
    "transformer_xl": XL,
    "universal": Universal,
    "none": NoPositions,
}


def position_limit(config: ModelDimensions) -> int | None:
    """Return the largest number of positions of a model; None: no limit."""
    return make_positions(config).limit


def make_positions(config: ModelDimensions, setting: str = "positions") -> NoPositions:
    """Make the positions of a model, or of its local layers if setting is "local_positions"."""
    return make_part(POSITIONS, setting, config)
