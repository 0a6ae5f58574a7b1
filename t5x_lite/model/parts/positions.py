"""How a model knows order: sinusoids, rotary angles, ALiBi, and the relative positions of Shaw,
Transformer-XL and T5.

A kind of positions acts where its class says so: in the embeddings (`embed`), before every layer
(`before_layer`), as a bias on the logits of attention that all layers share (`bias_module`), or
within attention (`attention_module`, `rotate`). To add one: a class derived from NoPositions that
overrides what it needs, and its name in POSITIONS below.

A distance is the position of a key − that of a query, [T, S], or [B, T, S] where rows differ.

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
from t5x_lite.model.dense import Dense, Parameter, kernel_init, parameter_dtype, with_axes
from t5x_lite.model.parts.contract import Setting
from t5x_lite.model.parts.options import make_part
from t5x_lite.model.parts.rotary_scaling import SCALINGS, find_scaling

Distances = Int[Array, "T S"] | Int[Array, "B T S"] | np.ndarray


@dataclass(frozen=True)
class NoPositions:
    """The kind "none", and what all kinds do unless they say otherwise: nothing.

    Attributes:
        in_attention: True if it acts within attention, so that another mixer would not know order.
        needs_logits: True if it changes attention in a way that only plain attention can compute.
        is_bias: True if it adds a bias to attention's logits.
        logits_cost: FLOPs of the products for logits and values, as a multiple of plain
            attention's.
        has_mimetic_init: True if two heads can begin by attending to the tokens beside theirs.
        drops_out_at_end: True if the stack drops out once more after its last norm, as T5 does.
        same_when_wider: True if a model that is made wider by copies of its features and heads has
            the same positions in each copy.
        only_rotates: True if `rotate` is all that it does, so that layers may differ in it.
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
        """True if a kind leaves all other methods of this class as they are."""
        others = ("embed", "before_layer", "bias_module", "attention_module")
        return all(getattr(type(self), name) is getattr(NoPositions, name) for name in others)

    @property
    def limit(self) -> int | None:
        """Number of positions that there are; None: any number."""
        return None

    @property
    def table_rows(self) -> int:
        """Rows of a learned table of embeddings; 0: there is none."""
        return 0

    def embed(
        self, positions: Int[Array, "B T"], table: Parameter | None
    ) -> Float[Array, "B T W"] | None:
        """Return what is added to the embeddings of tokens; None: nothing."""
        return None

    def before_layer(
        self, positions: Int[Array, "B T"], depth: int | Int[Array, ""]
    ) -> Float[Array, "B T D"] | None:
        """Return what is added to the residual stream before a layer; None: nothing."""
        return None

    def bias_module(self) -> Any:
        """Return a module: (distances, bidirectional) → [1 or B, H, T, S], what is added to
        attention's logits; None: nothing.
        """
        return None

    def attention_module(self) -> tuple[str, Any] | None:
        """Return the name and the module of its parameters inside attention, such as ShawRelative;
        None: there are none.
        """
        return None

    def rotate(
        self, x: Float[Array, "B H T K"], positions: Int[Array, "B T"]
    ) -> Float[Array, "B H T K"]:
        """Rotate queries or keys by their positions."""
        return x

    def contradictions(self, setting: Setting) -> Iterator[str]:
        """Yield what contradicts these positions; see contract.Part."""
        yield from ()


@dataclass(frozen=True)
class Learned(NoPositions):
    """A learned table of embeddings.

    Attributes:
        offset: rows of the table before the first position (RoBERTa: 2).
    """

    offset: NonNegative = 0

    @property
    def limit(self) -> int:
        """Number of positions that the table has."""
        return self.config.max_length

    @property
    def table_rows(self) -> int:
        """Rows of the table, those before the first position included."""
        return self.offset + self.config.max_length

    def embed(self, positions: Int[Array, "B T"], table: Parameter | None) -> Float[Array, "B T W"]:
        """Return the rows of the table."""
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
    """Sinusoids of position and depth before every layer (Dehghani et al., 2019, §2.1)."""

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
        base: the slowest angle advances by about 1/base a position.
        fraction: of each head's features, the first, which are rotated; the others know no order
            (GPT-NeoX: Black et al., 2022, §2.1.1).
        scaling: of the angles, for texts longer than those of pretraining: linear(factor=2),
            llama3(…), yarn(…), none; see rotary_scaling.py.
    """

    base: Annotated[float, Range(1.0, 1e12)] = 10_000.0
    fraction: Annotated[float, Range(0.0, 1.0)] = 1.0
    scaling: Annotated[str, OneOf("scaling", SCALINGS)] = "none"

    in_attention = True

    @property
    def width(self) -> int:
        """Number of features of a head that are rotated."""
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
        """Yield what contradicts these positions; see contract.Part."""
        setting_name = f"model.positions={setting.config.positions}"
        if self.width % 2 or not self.width:
            reason = f"{self.width} features of a head are rotated, expected an even number"
            yield f"{setting_name}: {reason}; set model.head_dim"
        for reason in find_scaling(self.scaling).contradictions(self.base):
            yield f"{setting_name}: {reason}"


@dataclass(frozen=True)
class Alibi(NoPositions):
    """Biases that fall with the distance (Press et al., 2022)."""

    same_when_wider = False

    in_attention = True
    is_bias = True

    def bias_module(self) -> "AlibiBias":
        """Return the biases, which have no parameters."""
        return AlibiBias(self.config)


@dataclass(frozen=True)
class Relative(NoPositions):
    """T5's learned biases of buckets of distances (Raffel et al., 2020, §2.1).

    Attributes:
        buckets: of distances.
        distance: from which all share the last bucket.
        per_layer: each layer has biases of its own (umT5: Chung et al., 2023, §3.1), instead of all
            layers of a stack the same.
    """

    buckets: Annotated[int, Range(4)] = 32
    distance: Annotated[int, Range(5)] = 128
    per_layer: bool = False

    in_attention = True
    drops_out_at_end = True

    @property
    def is_bias(self) -> bool:
        """True if one bias is made for all layers."""
        return not self.per_layer

    @property
    def needs_logits(self) -> bool:
        """True if each layer adds its own bias to its logits."""
        return self.per_layer

    @property
    def has_mimetic_init(self) -> bool:
        """True if the biases can be drawn so that two heads attend to the neighbours."""
        return not self.per_layer

    def bias_module(self) -> "RelativeBias | None":
        """Return the table of biases."""
        return None if self.per_layer else RelativeBias(self.config, self.buckets, self.distance)

    def attention_module(self) -> "tuple[str, LayerBias] | None":
        """Return a layer's own table of biases."""
        if not self.per_layer:
            return None
        return "relative_bias", LayerBias(self.config, self.buckets, self.distance)

    def contradictions(self, setting: Setting) -> Iterator[str]:
        """Yield what contradicts these positions; see contract.Part."""
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
    """Relative vectors that are added to keys and values (Shaw et al., 2018).

    Attributes:
        distance: from which all share one vector, on either side.
    """

    distance: Positive = 16

    in_attention = True
    needs_logits = True
    logits_cost = 2.0

    def attention_module(self) -> tuple[str, "ShawRelative"]:
        """Return the vectors of the distances."""
        return "shaw", ShawRelative(self.config, self.distance)

    def contradictions(self, setting: Setting) -> Iterator[str]:
        """Yield what contradicts these positions; see contract.Part."""
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
        """Yield what contradicts these positions; see contract.Part."""
        if setting.config.prefix_length:
            yield "model.prefix_length: positions transformer_xl know no prefix; set it to 0"


def sinusoidal(
    positions: Int[Array, "*rows"] | np.ndarray, width: int
) -> Float[Array, "*rows width"]:
    """Sines and cosines of wavelengths 2π … 10,000 · 2π (Vaswani et al., 2017, §3.5): [B, T] → [B,
    T, width].

    >>> sinusoidal(jnp.array([[0]]), 4).tolist()
    [[[0.0, 0.0, 1.0, 1.0]]]
    """
    # Half of the features are sines, half cosines; an odd width has one sine more.
    half = (width + 1) // 2
    frequencies = jnp.asarray(10000.0 ** (-np.arange(half) / max(half, 1)))
    angles = jnp.asarray(positions)[..., None].astype(frequencies.dtype) * frequencies
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)[..., :width]


def rotary_angles(base: float, width: int) -> np.ndarray:
    """Return by how much the angle of each pair of features grows a position: [width / 2].

    >>> rotary_angles(10_000.0, 4)
    array([1.  , 0.01])
    """
    half = width // 2
    return base ** (-np.arange(half) / half)


def rotate(
    x: Float[Array, "B H T K"], positions: Int[Array, "B T"], angles_per_position: np.ndarray
) -> Float[Array, "B H T K"]:
    """Rotary positions (Su et al., 2021): rotate each pair of features of a head by an angle ∝ its
    position.

    K is even, and feature i is paired with i + K/2. Logits then depend on the distance of two
    positions alone.
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
    """ALiBi (Press et al., 2022, §3): each head's logits fall with the distance, by a slope of its
    own: [..., H, T, S].

    The slopes are 2^(-8/H), 2^(-16/H), …, 2^-8; for H between powers of two, those of the power
    below and then every other one of the power above.

    >>> alibi(np.array([[-2, 0, 1]]), 2).tolist()
    [[[-0.125, -0.0, -0.0625]], [[-0.0078125, -0.0, -0.00390625]]]
    """
    power_of_two = 2 ** int(np.log2(num_heads))
    # Slopes of the power of two below H, and from the power above those that it lacks.
    slopes = [2.0 ** (-8 * (i + 1) / power_of_two) for i in range(power_of_two)]
    more = range(0, 2 * (num_heads - power_of_two), 2)
    slopes += [2.0 ** (-4 * (i + 1) / power_of_two) for i in more]
    slopes_H11 = -np.array(slopes)[:, None, None]
    return slopes_H11 * abs(distances)[..., None, :, :]


def relative_buckets(
    distances: Distances, bidirectional: bool, num_buckets: int, max_distance: int
) -> Distances:
    """T5's buckets of distances (Raffel et al., 2020, §2.1): exact when near, logarithmic when far.

    bidirectional: half of the buckets are for keys ahead; otherwise all keys ahead share bucket 0.

    >>> relative_buckets(np.array([-200, -9, -1, 0, 1, 9]), True, 32, 128).tolist()
    [15, 8, 1, 0, 17, 24]
    >>> relative_buckets(np.array([-200, -20, -1, 0, 1]), False, 32, 128).tolist()
    [31, 17, 1, 0, 0]
    """
    # Distances known beforehand become constants of the program.
    xp = np if isinstance(distances, np.ndarray) else jnp

    # The sign: half of the buckets, or none.
    if bidirectional:
        num_buckets //= 2
        offset = xp.where(distances > 0, num_buckets, 0)
        distances = abs(distances)
    else:
        offset = 0
        distances = xp.maximum(-distances, 0)

    # Half of what is left is exact; the rest grows logarithmically up to max_distance.
    exact = num_buckets // 2
    far_ratio = xp.maximum(distances, 1).astype(np.float32) / exact
    log_ratio = xp.log(far_ratio) / np.log(max_distance / exact)
    far_bucket = exact + (log_ratio * (num_buckets - exact)).astype(np.int32)
    far_bucket = xp.minimum(far_bucket, num_buckets - 1)
    return offset + xp.where(distances < exact, distances, far_bucket)


def _looking_at_neighbours(init: Any) -> Any:
    """Return the initialiser of a table [buckets, heads] of a bidirectional stack, with which the
    first head attends to the token before, and the second to the one after (in the manner of
    ConViT: d'Ascoli et al., 2021, §3).
    """

    def looking(key: Array, shape: tuple[int, int], dtype: Any) -> Array:
        num_buckets = shape[0]
        before, after = relative_buckets(np.array([-1, 1]), True, num_buckets, num_buckets)
        # Each of the two heads attends e⁶ times as much to this neighbour as to any other token.
        table = init(key, shape, dtype)
        return table.at[before, 0].add(6.0).at[after, 1].add(6.0)

    return looking


class AlibiBias(nn.Module):
    """ALiBi as a bias: distances → [1 or B, H, T, S], for all heads."""

    config: ModelDimensions
    splits = ()

    def __call__(self, distances: Distances, bidirectional: bool) -> Float[Array, "B H T S"]:
        bias = jnp.asarray(alibi(distances, self.config.num_heads), parameter_dtype(self.config))
        return bias[None] if bias.ndim == 3 else bias


class RelativeBias(nn.Module):
    """T5's learned bias per head and bucket, shared by all layers of a stack: distances → [1 or B,
    H, T, S].
    """

    config: ModelDimensions
    buckets: int
    distance: int
    splits = ("tensor",)

    @nn.compact
    def __call__(self, distances: Distances, bidirectional: bool) -> Float[Array, "B H T S"]:
        config = self.config
        stddev = config.d_model**-0.5 if config.init == "fan_in" else config.init_stddev
        init = nn.initializers.normal(stddev)
        # A causal stack cannot look at the token after.
        if config.mimetic_init and bidirectional:
            init = _looking_at_neighbours(init)
        init = with_axes(init, "buckets", "heads")
        shape = (self.buckets, config.num_heads)
        table = self.param("embedding", init, shape, parameter_dtype(config))
        buckets = relative_buckets(distances, bidirectional, self.buckets, self.distance)
        if buckets.ndim == 2:  # [T, S], alike in all rows
            return table.T[None, :, buckets]
        return jnp.moveaxis(table[buckets], -1, 1)


class LayerBias(RelativeBias):
    """T5's learned bias as a part of one layer's attention, with the methods of ShawRelative."""

    adds_to_values = False

    def query(self, q: Float[Array, "B H T K"], scale: float) -> Float[Array, "B H T K"]:
        """Return the queries for keys, unchanged."""
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
    """Return the score of the distance of each query and key, for scores that have distance d in
    column offset + d. Distances past the first and the last column share that column.
    """
    columns = jnp.clip(jnp.asarray(distances) + offset, 0, scores.shape[-1] - 1)
    if columns.ndim == 2:
        columns = columns[None, None]
    else:
        columns = columns[:, None]
    return jnp.take_along_axis(scores, columns, -1)


def shift_distances(scores: Float[Array, "B H T R"]) -> Float[Array, "B H T S"]:
    """Do the same as gather_distances where columns are the distances from 1 − T to S − 1 (Dai et
    al., 2019, appendix B): each row begins one column before the row above, so that reading on as
    if rows were one column shorter gives the keys of every query, without an index for each.

    >>> shift_distances(jnp.array([[[[-1.0, 0, 1, 2], [-1, 0, 1, 2]]]]))[0, 0].tolist()
    [[0.0, 1.0, 2.0], [-1.0, 0.0, 1.0]]
    """
    B, H, T, R = scores.shape
    S = R - T + 1
    if T == 1:
        return scores
    # Start at the first query's distance to the first key: 0, in column T − 1.
    rows = scores.reshape(B, H, T * R)[..., T - 1 : T - 1 + T * (R - 1)]
    return rows.reshape(B, H, T, R - 1)[..., :S]


class ShawRelative(nn.Module):
    """Relative vectors that are added to keys and to values (Shaw et al., 2018, eqs. 3 and 4), the
    same for all heads; distances are clipped to ± distance.
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
        """Return the queries for keys, unchanged."""
        return q

    def logits(
        self,
        q: Float[Array, "B H T K"],
        distances: Distances,
        longest: int,
        scale: float,
        bidirectional: bool,
    ) -> Float[Array, "B H T S"]:
        """Multiply queries by the vectors of the distances."""
        scores = jnp.einsum("bhtk,rk->bhtr", q, self.keys.astype(q.dtype))
        return gather_distances(scores, self.distance, distances)

    def weighted_sum(
        self, weights: Float[Array, "B H T S"], distances: Distances
    ) -> Float[Array, "B H T K"]:
        """Sum the vectors that are added to the values, by their weights."""
        furthest = self.distance
        rows = jnp.clip(jnp.asarray(distances), -furthest, furthest) + furthest
        vectors = self.values.astype(weights.dtype)[rows]
        equation = "bhts,tsk->bhtk" if vectors.ndim == 3 else "bhts,btsk->bhtk"
        return jnp.einsum(equation, weights, vectors)


class TransformerXL(nn.Module):
    """Relative positions of Transformer-XL (Dai et al., 2019, §3.3): logits (q + u) k + (q + v) W
    r, where r are the sinusoids of the distance. Gopher and Chinchilla have them (Rae et al., 2021,
    §3.1).
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
        """Return the queries for keys: q + u."""
        return q + self.u[:, None].astype(q.dtype) * scale

    def logits(
        self,
        q: Float[Array, "B H T K"],
        distances: Distances,
        longest: int,
        scale: float,
        bidirectional: bool,
    ) -> Float[Array, "B H T S"]:
        """Compute (q + v) W r, for q scaled already and distances up to `longest` either way."""
        # Where positions follow from the order of the arrays, each row of distances is known.
        in_order = isinstance(distances, np.ndarray)
        if in_order:
            known = jnp.arange(1 - distances.shape[0], distances.shape[1])
        else:
            known = jnp.arange(-longest, longest + 1)
        # W r for every distance there is.
        r = sinusoidal(known, self.config.d_model).astype(q.dtype)
        r = self.project(r).reshape(len(r), *self.v.shape)
        # (q + v) · W r, of which each key takes that of its distance.
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
    """Return the number of positions that a model has; None: any number."""
    return make_positions(config).limit


def make_positions(config: ModelDimensions, setting: str = "positions") -> NoPositions:
    """Make the positions of a model, or those of its local layers: setting "local_positions"."""
    return make_part(POSITIONS, setting, config)
