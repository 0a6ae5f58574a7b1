"""Know before you pay: what a run will need of devices that are not here, from its config alone.

The step is traced, not compiled (see trace.py); no text, no tokenizer and no accelerator is
needed. What is bound by what follows from a roofline (Williams et al., 2009): a step takes at least
as long as its products at the peak of the devices, its reads and writes at the bandwidth of their
memory, and what it sends over each mesh axis at that of the links; these can go on at once.
"""

import dataclasses
import json
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from t5x_lite import storage
from t5x_lite.config import RunConfig
from t5x_lite.config.grammar import AllowedCode, parse_sources
from t5x_lite.data.objectives.pairs import Pairs
from t5x_lite.data.rng import RowRng
from t5x_lite.data.rows.row_plan import Member, RowPlan
from t5x_lite.data.store.corpus import MANIFEST
from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.hardware import PRICES_AS_OF, Topology, axis_bandwidth
from t5x_lite.model.flops import forward_flops, peak_flops
from t5x_lite.model.transformer import count_parameters
from t5x_lite.planning import trace
from t5x_lite.resolve import resolve_without_text
from t5x_lite.training.program import Program

GiB = 2**30
_SAMPLED_ROWS = 16
_PF_DAY = 1e15 * 24 * 3600


@dataclass(frozen=True)
class Assumptions:
    """What is not known of a run, or of the devices; None: what hardware.py knows.

    Attributes:
        mfu: that will be reached; None: the one of the roofline.
        dollars: for a device and hour.
        watts: of a device.
        tflops: 10¹² FLOP/s of a device at its peak, in the type that the model computes in.
    """

    mfu: float | None = None
    dollars: float | None = None
    watts: float | None = None
    tflops: float | None = None


@dataclass(frozen=True)
class Tokens:
    """Tokens of a row, a mean; see the ledger of a run."""

    raw: float
    model: float
    loss: float


@dataclass(frozen=True)
class Split:
    """A parameter, and what a device holds of it."""

    path: str
    shape: tuple[int, ...]
    by: tuple[str, ...]  # of each axis the mesh axis that splits it; empty: none
    bytes: int  # on a device


@dataclass(frozen=True)
class Plan:
    """What a run needs.

    Attributes:
        mesh: sizes by axis.
        arrangement: how mesh.preset was understood.
        modules: parameters by the module that holds them.
        memory: bytes of a device, by what they are for.
        largest: what takes the most of it besides the state.
        flops: of a step, those that count.
        computed_again: of a step, besides.
        seconds: what a step takes at least, by what bounds it.
        sent: bytes through a device, by mesh axis.
    """

    config: RunConfig
    topology: Topology
    mesh: dict[str, int]
    arrangement: str
    parameters: int
    modules: dict[str, int]
    splits: tuple[Split, ...]
    memory: dict[str, int]
    state_in_all: int
    largest: tuple[trace.Value, ...]
    tokens: Tokens
    flops: float
    computed_again: float
    peak: float | None
    sent: dict[str, int]
    seconds: dict[str, float]
    assumed: Assumptions

    @property
    def rows(self) -> int:
        """Of a batch."""
        return self.config.data.batch_size

    @property
    def memory_in_all(self) -> int:
        """Bytes of a device in use at a time."""
        return sum(self.memory.values())

    @property
    def state(self) -> int:
        """Bytes of a device for parameters, gradients and optimizer, in whatever microbatches."""
        return 2 * self.memory["parameters"] + self.memory["optimizer"]

    @property
    def room(self) -> float | None:
        """Bytes that a device has; None: not known."""
        gib = self.topology.chip.memory
        return gib * GiB if gib else None

    @property
    def fits(self) -> bool | None:
        """Whether a device has room for it; None: not known."""
        return None if self.room is None else self.memory_in_all <= self.room

    @property
    def bound_by(self) -> str | None:
        """What takes the longest."""
        return max(self.seconds, key=lambda name: self.seconds[name]) if self.seconds else None

    @property
    def max_mfu(self) -> float | None:
        """The MFU of the roofline."""
        if not self.seconds or not self.peak:
            return None
        at_peak = self.flops / (self.peak * self.topology.count)
        return at_peak / max(self.seconds.values())

    @property
    def step_seconds(self) -> float | None:
        """Of a step, at the MFU that is assumed, else at that of the roofline."""
        mfu = self.assumed.mfu or self.max_mfu
        return self.flops / (self.peak * self.topology.count * mfu) if mfu and self.peak else None

    @property
    def days(self) -> float | None:
        """Of the run."""
        seconds = self.step_seconds
        return None if seconds is None else seconds * self.config.training.steps / 86400

    @property
    def pf_days(self) -> float:
        """The FLOPs of the run in days of 10¹⁵ FLOP/s (Brown et al., 2020, table D.1)."""
        return self.flops * self.config.training.steps / _PF_DAY

    @property
    def unknown(self) -> list[str]:
        """The axes over which something is sent, and nobody knows how fast."""
        return [axes for axes in self.sent if self.seconds and axes not in self.seconds]

    @property
    def price(self) -> float | None:
        """Dollars for a device and hour."""
        given = self.assumed.dollars
        return self.topology.chip.dollars if given is None else given

    @property
    def dollars(self) -> float | None:
        """Of the run."""
        price = self.price
        return None if price is None else _times(self.days, 24 * self.topology.count * price)

    @property
    def kilowatt_hours(self) -> float | None:
        """Of the run, of the devices alone."""
        given = self.assumed.watts
        watts = self.topology.chip.watts if given is None else given
        return None if watts is None else _times(self.days, 24 * self.topology.count * watts / 1000)

    def tokens_of_sources(self) -> dict[str, float]:
        """Raw tokens that the run reads of each source, by their rates."""
        total = self.tokens.raw * self.rows * self.config.training.steps
        sources = parse_sources(self.config.data.source, "data.source")
        if any(not rate for rate, _ in sources):  # as they come
            return {self.config.data.source: total}
        rates = sum(rate for rate, _ in sources)
        return {source: total * rate / rates for rate, source in sources}

    def epochs_of_sources(self) -> dict[str, float]:
        """How often the run reads each source; none where no data.store says how long they are."""
        store = self.config.data.store
        if not store or not storage.exists(f"{store}/{MANIFEST}"):
            return {}
        records = json.loads(storage.read(f"{store}/{MANIFEST}"))["sources"]
        sizes = {record["source"]: record["train"]["tokens"] for record in records}
        read = self.tokens_of_sources()
        if not set(read) <= set(sizes):  # all of them, as they come
            sizes = {source: sum(sizes.values()) for source in read}
        return {source: tokens / max(sizes[source], 1) for source, tokens in read.items()}

    def with_sent(self, sent: Mapping[str, int]) -> "Plan":
        """The plan with the times of what the compiler sends, by axis."""
        if not self.seconds:
            return self
        seconds = _with_times_of(self.topology, self.mesh, self.seconds, sent)
        return dataclasses.replace(self, seconds=seconds)

    def as_json(self) -> dict[str, Any]:
        """All of it as plain data; bytes, seconds, dollars."""
        known = ("mesh", "arrangement", "parameters", "modules", "memory", "flops", "sent")
        derived = ("memory_in_all", "room", "fits", "seconds", "unknown", "bound_by", "max_mfu")
        of_run = ("step_seconds", "days", "pf_days", "dollars", "kilowatt_hours")
        return {
            "topology": str(self.topology),
            "devices": self.topology.count,
            **{name: getattr(self, name) for name in (*known, *derived, *of_run)},
            "computed_again": self.computed_again,
            "tokens": dataclasses.asdict(self.tokens),
            "tokens_of_sources": self.tokens_of_sources(),
            "epochs_of_sources": self.epochs_of_sources(),
            "splits": [dataclasses.asdict(split) for split in self.splits],
            "largest": [value._asdict() for value in self.largest],
            "assumed": dataclasses.asdict(self.assumed),
            "prices_as_of": PRICES_AS_OF,
        }


def _times(days: float | None, rate: float) -> float | None:
    return None if days is None else days * rate


def make_plan(
    config: RunConfig,
    topology: Topology,
    assumed: Assumptions = Assumptions(),
    allowed: AllowedCode = None,
) -> Plan:
    """What a run that learns an objective needs on devices like these.

    Raises:
        UserError: for what cannot be laid out, or does not divide over the mesh.
    """
    resolved = resolve_without_text(config, allowed)
    rows = resolved.rows
    assert isinstance(rows, RowPlan)
    tokens = expected_tokens(rows)
    program = Program(resolved, tokens.raw * config.data.batch_size, topology.devices)
    step = trace.of_device(program.trace().jaxpr)
    splits = _splits(program)
    of_optimizer = jax.tree.map(
        lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where),
        program.shapes.opt_state,
        program.shardings.opt_state,
    )
    memory = {
        "parameters": sum(split.bytes for split in splits),
        "optimizer": sum(map(_bytes, jax.tree.leaves(of_optimizer))),
        **_memory_of_step(step),
    }
    batch_size, model, shape = config.data.batch_size, resolved.model, rows.shape
    flops = batch_size * 3 * forward_flops(model, shape, tokens.loss)
    computed_again = batch_size * forward_flops(model, shape, 0) if model.remat else 0.0
    mesh = dict(program.mesh.shape)
    sent = defaultdict(int)
    for axes, size in step.sent.items():
        axes = tuple(axis for axis in axes if mesh[axis] > 1)
        sent[" × ".join(axes)] += size
    sent.pop("", None)
    peak = peak_flops(topology.chip.kinds[0], model.dtype)
    if assumed.tflops is not None:
        peak = assumed.tflops * 1e12
    state = 2 * sum(map(_bytes_in_all, program.parameters.values()))
    state += sum(map(_bytes_in_all, jax.tree.leaves(of_optimizer)))
    # The optimizer reads and writes all of its state and the parameters, and reads the gradient.
    moved = step.moved + 3 * memory["parameters"] + 2 * memory["optimizer"]
    return Plan(
        config=config,
        topology=topology,
        mesh=mesh,
        arrangement=program.arrangement,
        parameters=count_parameters(model),
        modules=_modules(program),
        splits=splits,
        memory=memory,
        state_in_all=state,
        largest=tuple(step.alive[:_LARGEST]),
        tokens=tokens,
        flops=flops,
        computed_again=computed_again,
        peak=peak,
        sent=dict(sent),
        seconds=_roofline(topology, mesh, flops + computed_again, moved, sent, peak),
        assumed=assumed,
    )


_LARGEST = 8


def expected_tokens(rows: RowPlan) -> Tokens:
    """Tokens of a row, counted over a few rows of text that stands for any."""
    vocabulary = Tokenizer().vocabulary
    total = np.zeros(3)
    for member in rows.members:
        rng = RowRng(0, np.arange(_SAMPLED_ROWS))
        parts = member.objective(_any_text(member), rng, vocabulary)
        raw = np.array([_raw_tokens(member), 0, 0])
        total += member.rate * (raw + sum(map(_tokens_of, parts)))
    return Tokens(*total.tolist())


def _raw_tokens(member: Member) -> int:
    return member.window * member.objective.traits.windows_per_row


def _any_text(member: Member) -> np.ndarray:
    """Raw tokens, all alike: [rows, tokens], or [rows, windows, tokens]."""
    windows = member.objective.traits.windows_per_row
    shape = (_SAMPLED_ROWS, windows, member.window)[:: 2 if windows == 1 else 1]
    return np.full(shape, ord("a"), np.int32)


def _tokens_of(pairs: Pairs) -> np.ndarray:
    """0, model tokens and loss tokens of the mean row."""
    is_aligned = pairs.scored is not None
    model = pairs.inputs.lengths.sum() + (0 if is_aligned else pairs.targets.lengths.sum())
    loss = pairs.weights.values.sum() + (pairs.inputs.lengths * pairs.score_inputs).sum()
    return np.array([0, model, loss]) / _SAMPLED_ROWS


def _splits(program: Program) -> tuple[Split, ...]:
    """Of each parameter what a device holds."""
    splits = []
    for path, leaf in program.parameters.items():
        spec = leaf.sharding.spec
        axes = tuple(axis or "" for axis in (*spec, *[None] * (leaf.ndim - len(spec))))
        splits.append(Split("/".join(path), leaf.shape, axes, _bytes(leaf)))
    return tuple(splits)


def _bytes(leaf: jax.ShapeDtypeStruct) -> int:
    """On a device."""
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize


def _bytes_in_all(leaf: jax.ShapeDtypeStruct) -> int:
    """On all devices, counted once."""
    return math.prod(leaf.shape) * leaf.dtype.itemsize


def _modules(program: Program) -> dict[str, int]:
    modules: dict[str, int] = defaultdict(int)
    for path, leaf in program.parameters.items():
        modules[path[0]] += leaf.size
    return dict(modules)


def _memory_of_step(step: trace.Step) -> dict[str, int]:
    """The bytes that are in use besides the state, by what they are."""
    memory = {"kept for the backward pass": 0, "gradients": 0, "at work": 0}
    for value in step.alive:
        memory[_purpose(value)] += value.size
    return memory


def _purpose(value: trace.Value) -> str:
    if value.operation != "scan":
        return "at work"
    return "gradients" if "transpose(" in value.place else "kept for the backward pass"


def _roofline(
    topology: Topology,
    mesh: dict[str, int],
    flops: float,
    moved: int,
    sent: Mapping[str, int],
    peak: float | None,
) -> dict[str, float]:
    """Seconds of a step by what it needs, each as if it had the devices for itself: products at
    their peak, memory and links at their bandwidth. Empty where the peak is not known.
    """
    if not peak:
        return {}
    seconds = {"compute": flops / (peak * topology.count)}
    if topology.chip.bandwidth:
        seconds["memory"] = moved / topology.chip.bandwidth
    return _with_times_of(topology, mesh, seconds, sent)


def _with_times_of(
    topology: Topology,
    mesh: dict[str, int],
    seconds: Mapping[str, float],
    sent: Mapping[str, int],
) -> dict[str, float]:
    """The seconds of compute and memory, and those of what is sent, as far as they are known."""
    seconds = {name: seconds[name] for name in ("compute", "memory") if name in seconds}
    for axes, size in sent.items():
        # What crosses several axes is slowed down by the slowest.
        speeds = [axis_bandwidth(topology, mesh, axis) for axis in axes.split(" × ")]
        known = [speed for speed in speeds if speed is not None]
        if len(known) == len(speeds):
            seconds[axes] = size / min(known)
    return seconds
