"""Know before you pay: estimate what a run will need on devices that you do not have yet.

Only the config is needed: no text, tokenizer or accelerator. The step is traced, not compiled (see
trace.py). Its time is bounded by a roofline (Williams et al., 2009): a step takes at least as long
as its matrix products at the devices' peak, its reads and writes at their memory bandwidth, and its
traffic over each mesh axis at the bandwidth of the links. These can overlap, so the longest of them
is the bound.
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
from t5x_lite.config.grammar import parse_sources
from t5x_lite.data.rng import RowRng
from t5x_lite.data.rows.batches import count
from t5x_lite.data.rows.layouts import lay_out
from t5x_lite.data.rows.row_plan import Member, RowPlan
from t5x_lite.data.store.corpus import MANIFEST
from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.hardware import PRICES_AS_OF, Topology, axis_bandwidth
from t5x_lite.model.flops import peak_flops
from t5x_lite.model.transformer import count_active_parameters, count_parameters
from t5x_lite.planning import trace
from t5x_lite.resolve import resolve_without_text
from t5x_lite.training.loss import forward_flops_of, step_flops
from t5x_lite.training.program import Program

GiB = 2**30
_SAMPLED_ROWS = 16
_SENTENCE = b"a a b a ab a a a b a a b a ab a. "
_PF_DAY = 1e15 * 24 * 3600


@dataclass(frozen=True)
class Assumptions:
    """Facts that the user supplies; None means the default in hardware.py.

    Attributes:
        mfu: the MFU that the run is expected to reach; None: the highest that the roofline allows.
        dollars: the price of one device for one hour.
        watts: the power of one device.
        tflops: the peak of one device in the model's compute dtype, in 10¹² FLOP/s.
    """

    mfu: float | None = None
    dollars: float | None = None
    watts: float | None = None
    tflops: float | None = None


@dataclass(frozen=True)
class Tokens:
    """The mean number of tokens per row, counted as in the ledger of a run."""

    raw: float  # read from the text
    model: float  # in the encoder and the decoder
    loss: float  # scored by the loss, by their weights
    scored: float  # positions that are predicted, whatever their weights


@dataclass(frozen=True)
class Split:
    """A parameter, and how it is sharded."""

    path: str
    shape: tuple[int, ...]  # of the whole parameter
    by: tuple[str, ...]  # for each dimension, the mesh axis that shards it; empty: not sharded
    bytes: int  # per device


@dataclass(frozen=True)
class Plan:
    """The resources that a run needs.

    Attributes:
        config: the config of the run.
        topology: the devices that it is planned for.
        mesh: size of each mesh axis.
        arrangement: how mesh.preset was interpreted; empty without a preset.
        parameters: number of parameters of the model.
        active_parameters: number of parameters used for one token; fewer in a mixture of experts.
        modules: number of parameters in each module.
        splits: how each parameter is sharded.
        memory: bytes per device by purpose.
        state_in_all: bytes of parameters, gradients and optimizer state over all devices, with
            replicated arrays counted once.
        largest: the largest arrays in memory at the peak, without the state.
        tokens: mean number of tokens per row.
        flops: model FLOPs per step, without recomputation.
        computed_again: FLOPs per step for recomputing activations in the backward pass.
        peak: peak FLOP/s of a device in the model's compute dtype; None if it is not known.
        sent: bytes through a device per step, by mesh axis.
        seconds: lower bounds of the step time, by the resource that causes them.
        assumed: the assumptions of the plan.
    """

    config: RunConfig
    topology: Topology
    mesh: dict[str, int]
    arrangement: str
    parameters: int
    active_parameters: int
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
        """Number of rows in a batch."""
        return self.config.data.batch_size

    @property
    def memory_in_all(self) -> int:
        """Peak memory per device, in bytes."""
        return sum(self.memory.values())

    @property
    def state(self) -> int:
        """Bytes per device for parameters, gradients and optimizer state. They do not depend on the
        number of microbatches.
        """
        return 2 * self.memory["parameters"] + self.memory["optimizer"]

    @property
    def room(self) -> float | None:
        """Memory of a device in bytes; None if it is not known."""
        gib = self.topology.chip.memory
        return gib * GiB if gib else None

    @property
    def fits(self) -> bool | None:
        """True if the run fits into the memory of a device; None if that is not known."""
        return None if self.room is None else self.memory_in_all <= self.room

    @property
    def bound_by(self) -> str | None:
        """The resource that bounds the step time: "compute", "memory", or mesh axes. None if the
        device's peak is not known.
        """
        return max(self.seconds, key=lambda name: self.seconds[name]) if self.seconds else None

    @property
    def max_mfu(self) -> float | None:
        """The highest MFU that the roofline allows; None if the device's peak is not known."""
        if not self.seconds or not self.peak:
            return None
        at_peak = self.flops / (self.peak * self.topology.count)
        return at_peak / max(self.seconds.values())

    @property
    def exceeds_roofline(self) -> bool:
        """True if the assumed MFU is higher than the roofline allows."""
        return (self.assumed.mfu or 0.0) > (self.max_mfu or 1.0)

    @property
    def step_seconds(self) -> float | None:
        """Seconds per step at the assumed MFU, or else at the roofline's; None if not known."""
        mfu = self.assumed.mfu or self.max_mfu
        return self.flops / (self.peak * self.topology.count * mfu) if mfu and self.peak else None

    @property
    def days(self) -> float | None:
        """Duration of the run in days; None if it is not known."""
        seconds = self.step_seconds
        return None if seconds is None else seconds * self.config.training.steps / 86400

    @property
    def pf_days(self) -> float:
        """FLOPs of the run, in days at 10¹⁵ FLOP/s (Brown et al., 2020, table D.1)."""
        return self.flops * self.config.training.steps / _PF_DAY

    @property
    def unknown(self) -> list[str]:
        """Mesh axes that carry traffic but whose bandwidth is not known."""
        return [axes for axes in self.sent if self.seconds and axes not in self.seconds]

    @property
    def price(self) -> float | None:
        """Dollars per device and hour; None if it is not known."""
        given = self.assumed.dollars
        return self.topology.chip.dollars if given is None else given

    @property
    def dollars(self) -> float | None:
        """Cost of the run in dollars; None if it is not known."""
        price = self.price
        return None if price is None else _times(self.days, 24 * self.topology.count * price)

    @property
    def kilowatt_hours(self) -> float | None:
        """Energy in kWh that the devices use for the run, excluding their hosts; None if it is not
        known.
        """
        given = self.assumed.watts
        watts = self.topology.chip.watts if given is None else given
        return None if watts is None else _times(self.days, 24 * self.topology.count * watts / 1000)

    def tokens_of_sources(self) -> dict[str, float]:
        """Return the raw tokens that the run reads from each source, according to their rates."""
        total = self.tokens.raw * self.rows * self.config.training.steps
        sources = parse_sources(self.config.data.source, "data.source")
        if any(not rate for rate, _ in sources):  # without rates the sources are concatenated
            return {self.config.data.source: total}
        rates = sum(rate for rate, _ in sources)
        return {source: total * rate / rates for rate, source in sources}

    def epochs_of_sources(self) -> dict[str, float]:
        """Return the number of epochs over each source; empty without a data.store that says how
        long the sources are.
        """
        store = self.config.data.store
        if not store or not storage.exists(f"{store}/{MANIFEST}"):
            return {}
        records = json.loads(storage.read(f"{store}/{MANIFEST}"))["sources"]
        sizes = {record["source"]: record["train"]["tokens"] for record in records}
        if unique := self.config.data.unique_tokens:
            share = unique / sum(sizes.values())
            sizes = {source: share * size for source, size in sizes.items()}
        read = self.tokens_of_sources()
        if not set(read) <= set(sizes):  # the sources are concatenated
            sizes = {source: sum(sizes.values()) for source in read}
        return {source: tokens / max(sizes[source], 1) for source, tokens in read.items()}

    def with_sent(self, sent: Mapping[str, int]) -> "Plan":
        """Return the plan with communication times computed from other traffic.

        Args:
            sent: bytes through a device per step, by mesh axis, as in a compiled program.
        """
        if not self.seconds:
            return self
        seconds = _with_times_of(self.topology, self.mesh, self.seconds, sent)
        return dataclasses.replace(self, seconds=seconds)

    def as_json(self) -> dict[str, Any]:
        """Return the plan as plain data, in bytes, seconds and dollars."""
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del given["config"]
        properties = [name for name, value in vars(Plan).items() if isinstance(value, property)]
        return {
            **given,
            **{name: getattr(self, name) for name in properties},
            "topology": str(self.topology),
            "devices": self.topology.count,
            "tokens": dataclasses.asdict(self.tokens),
            "tokens_of_sources": self.tokens_of_sources(),
            "epochs_of_sources": self.epochs_of_sources(),
            "splits": [dataclasses.asdict(split) for split in self.splits],
            "largest": [value._asdict() for value in self.largest],
            "assumed": dataclasses.asdict(self.assumed),
            "prices_as_of": PRICES_AS_OF,
        }


def _times(days: float | None, rate: float) -> float | None:
    """Multiply a duration by a rate per day; None if the duration is not known."""
    return None if days is None else days * rate


def make_plan(
    config: RunConfig,
    topology: Topology,
    assumed: Assumptions = Assumptions(),
) -> Plan:
    """Plan a pretraining run on the devices of a topology.

    Args:
        config: the config of the run.
        topology: the devices.
        assumed: values that override hardware.py, and the expected MFU.

    Raises:
        UserError: if the objective does not suit the architecture, or if sizes cannot be divided
            over the mesh.
    """
    resolved = resolve_without_text(config)
    rows = resolved.rows
    assert isinstance(rows, RowPlan)
    tokens = expected_tokens(rows)
    program = Program(resolved, tokens.raw * config.data.batch_size, topology.devices)
    step = trace.of_device(program.trace().jaxpr)
    splits = _splits(program)

    # Memory per device: the sharded state, and what the step needs in addition.
    of_optimizer = _optimizer_state(program)
    memory = {
        "parameters": sum(split.bytes for split in splits),
        "optimizer": sum(map(_bytes, of_optimizer)),
        **_memory_of_step(step),
    }

    # FLOPs, where a backward pass counts as two forward passes; traffic over axes with more than
    # one device.
    batch_size, model, shape = config.data.batch_size, resolved.model, rows.shape
    flops = batch_size * step_flops(resolved, shape, tokens.scored)
    computed_again = batch_size * forward_flops_of(resolved, shape, 0) if model.remat else 0.0
    mesh = dict(program.mesh.shape)
    sent = _sent(step, mesh)

    # Inputs of the roofline and the advice: peak FLOP/s, the whole state, the bytes moved.
    known = peak_flops(topology.chip.kinds[0], model.dtype)
    peak = known if assumed.tflops is None else assumed.tflops * 1e12
    state = 2 * sum(map(_bytes_in_all, program.parameters.values()))
    state += sum(map(_bytes_in_all, of_optimizer))
    # The optimizer reads and writes its whole state and the parameters, and reads the gradient.
    moved = step.moved + 3 * memory["parameters"] + 2 * memory["optimizer"]
    return Plan(
        config=config,
        topology=topology,
        mesh=mesh,
        arrangement=program.arrangement,
        parameters=count_parameters(model),
        active_parameters=count_active_parameters(model),
        modules=_modules(program),
        splits=splits,
        memory=memory,
        state_in_all=state,
        largest=tuple(step.alive[:_LARGEST]),
        tokens=tokens,
        flops=flops,
        computed_again=computed_again,
        peak=peak,
        sent=sent,
        seconds=_roofline(topology, mesh, flops + computed_again, moved, sent, peak),
        assumed=assumed,
    )


def _sent(step: trace.Step, mesh: dict[str, int]) -> dict[str, int]:
    """Add up the bytes that a step sends, by the mesh axes that have several devices."""
    sent: dict[str, int] = defaultdict(int)
    for axes, size in step.sent.items():
        sent[" × ".join(axis for axis in axes if mesh[axis] > 1)] += size
    sent.pop("", None)
    return dict(sent)


_LARGEST = 8


def expected_tokens(rows: RowPlan) -> Tokens:
    """Return the mean tokens per row, counted over a few rows of placeholder text.

    The objectives of a mixture are weighted by their rates.
    """
    vocabulary = Tokenizer().vocabulary
    total = np.zeros(4)
    for member in rows.members:
        progress = np.linspace(0, 1, _SAMPLED_ROWS)
        rng = RowRng(0, np.arange(_SAMPLED_ROWS), progress=progress)
        mean = np.array([member.window, 0, 0, 0], float)
        for pairs in member.objective(_any_text(member), rng, vocabulary):
            counted = count(lay_out(pairs, rows.shape, vocabulary))
            of_rows = [0, counted.tokens, counted.loss_tokens, counted.scored]
            mean += np.array(of_rows) / _SAMPLED_ROWS
        total += member.rate * mean
    return Tokens(*total.tolist())


def _any_text(member: Member) -> np.ndarray:
    """Return placeholder text as tokens of one letter each: [rows, tokens], or [rows, windows,
    tokens] for an objective that reads several windows per row. Words and sentences are about as
    long as those of English in tokens of a usual vocabulary.
    """
    windows = member.objective.traits.windows_per_row
    shape = (_SAMPLED_ROWS, windows, member.window)[:: 2 if windows == 1 else 1]
    return np.resize(np.frombuffer(_SENTENCE, np.uint8), shape).astype(np.int32)


def _splits(program: Program) -> tuple[Split, ...]:
    """Return how each parameter is sharded."""
    splits = []
    for path, leaf in program.parameters.items():
        spec = leaf.sharding.spec
        names = [*spec, *[None] * (leaf.ndim - len(spec))]  # trailing axes may be left out
        axes = tuple(name or "" for name in names)
        splits.append(Split("/".join(path), leaf.shape, axes, _bytes(leaf)))
    return tuple(splits)


def _optimizer_state(program: Program) -> list[jax.ShapeDtypeStruct]:
    """Return the arrays of the optimizer's state as shapes, each with its sharding."""
    state = jax.tree.map(
        lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where),
        program.shapes.opt_state,
        program.shardings.opt_state,
    )
    return jax.tree.leaves(state)


def _bytes(leaf: jax.ShapeDtypeStruct) -> int:
    """Return the bytes of an array's shard on one device."""
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize


def _bytes_in_all(leaf: jax.ShapeDtypeStruct) -> int:
    """Return the bytes of a whole array, however it is sharded."""
    return math.prod(leaf.shape) * leaf.dtype.itemsize


def _modules(program: Program) -> dict[str, int]:
    """Return the number of parameters in each top-level module."""
    modules: dict[str, int] = defaultdict(int)
    for path, leaf in program.parameters.items():
        modules[path[0]] += leaf.size
    return dict(modules)


def _memory_of_step(step: trace.Step) -> dict[str, int]:
    """Return the bytes in use at the peak besides the state, by purpose."""
    memory = {"kept for the backward pass": 0, "gradients": 0, "at work": 0}
    for value in step.alive:
        memory[_purpose(value)] += value.size
    return memory


def _purpose(value: trace.Value) -> str:
    """Return the purpose of an array, as a key of Plan.memory.

    The stacked results of a scan over layers are gradients if the scan belongs to the backward
    pass, and saved activations otherwise.
    """
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
    """Return lower bounds of a step's seconds, by resource, as if each were the only one in use.

    Args:
        topology: the devices.
        mesh: size of each mesh axis.
        flops: FLOPs per step on all devices.
        moved: bytes that one device reads from or writes to its memory.
        sent: bytes through one device, by mesh axis.
        peak: FLOP/s of one device.

    Returns:
        seconds for "compute", "memory" and each mesh axis whose bandwidth is known; empty if the
        peak is not known.
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
    """Return the given seconds of compute and memory, with the seconds that `sent` takes over each
    mesh axis whose bandwidth is known.
    """
    seconds = {name: seconds[name] for name in ("compute", "memory") if name in seconds}
    for axes, size in sent.items():
        # Traffic that crosses several axes is as slow as the slowest of them.
        speeds = [axis_bandwidth(topology, mesh, axis) for axis in axes.split(" × ")]
        known = [speed for speed in speeds if speed is not None]
        if len(known) == len(speeds):
            seconds[axes] = size / min(known)
    return seconds
