"""What is known of accelerators: how fast they compute, how much they hold, how fast they talk, and
what they cost; and how a slice of them is named, v5p:4x4x4.

A device is what jax calls one: a chip, but one of two cores of a TPU v2, v3 or 7x. Sources: Google
Cloud's documentation of each TPU; for v2 to v4 Jouppi et al. (2020, 2023); data sheets of NVIDIA.
Networks and prices of GPUs are those of Amazon's p4de, p5 and p5en instances.
"""

import itertools
import math
import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

from t5x_lite.errors import USAGE, UserError, nearest

PRICES_AS_OF = "2025-12"  # on demand, list price, the cheapest region in the USA


@dataclass(frozen=True)
class Chip:
    """A kind of device.

    Attributes:
        kinds: how jax's `device_kind` begins.
        peak: FLOP/s of dense products of bfloat16; None: not known.
        memory: GiB; of a TPU those that its compiler (libtpu 0.0.50) gives to a program.
        bandwidth: of that memory, bytes a second.
        link: bytes a second, in one direction, of one link of a TPU's torus, or of all of a GPU's
            to the others of its node.
        network: bytes a second, in one direction, to other slices or nodes.
        dimensions: of the torus; 0: the devices of a node are all connected.
        wraps_from: how long a side of a torus of two dimensions is for its ends to be connected. Of
            three all sides are rings, where all are multiples of 4.
        dollars: an hour, see PRICES_AS_OF.
        watts: the mean of TPUs in production, the most that a GPU draws; None: not published.
        clock: cycles a second of a TPU, where it follows from its peak and its matrix units.
    """

    kinds: tuple[str, ...]
    peak: float | None = None
    memory: float | None = None
    bandwidth: float | None = None
    link: float | None = None
    network: float | None = None
    dimensions: int = 0
    wraps_from: int = 4
    dollars: float | None = None
    watts: float | None = None
    clock: float | None = None

    @property
    def is_tpu(self) -> bool:
        """Whether it is a TPU."""
        return self.dimensions > 0


CHIPS = {
    "v2": Chip(("TPU v2",), 22.5e12, 7.48, 350e9, 31e9, None, 2, 16, 0.5625, clock=0.7e9),
    "v3": Chip(("TPU v3",), 61.5e12, 15.48, 450e9, 41e9, None, 2, 16, 1.0, 110, 0.94e9),
    "v4": Chip(("TPU v4",), 275e12, 30.75, 1228e9, 50e9, 6.25e9, 3, 4, 3.22, 170, 1.05e9),
    "v4i": Chip(("TPU v4 lite",), 138e12, 8, 614e9, 50e9, None, 2),
    "v5e": Chip(
        ("TPU v5 lite", "TPU v5e"), 197e12, 15.75, 819e9, 50e9, 3.125e9, 2, 16, 1.2, clock=1.5e9
    ),
    "v5p": Chip(("TPU v5",), 459e12, 95.73, 2765e9, 100e9, 6.25e9, 3, 4, 4.2, clock=1.75e9),
    "v6e": Chip(("TPU v6 lite", "TPU v6e"), 918e12, 31.24, 1638e9, 100e9, 12.5e9, 2, 16, 2.7),
    "7x": Chip(("TPU7x",), 1153.5e12, 94.74, 3690e9, 50e9, 6.25e9, 3, 4, 6.0),
    "a100": Chip(("NVIDIA A100",), 312e12, 80, 2039e9, 300e9, 6.25e9, dollars=3.43, watts=400),
    "h100": Chip(("NVIDIA H100",), 989e12, 80, 3350e9, 450e9, 50e9, dollars=6.88, watts=700),
    "h100_pcie": Chip(("NVIDIA H100 PCIe",), 756e12, 80, 2000e9, 64e9, watts=350),
    "h100_nvl": Chip(("NVIDIA H100 NVL",), 835e12, 94, 3900e9, 64e9, watts=400),
    "h200": Chip(("NVIDIA H200",), 989e12, 140, 4800e9, 450e9, 50e9, dollars=7.91, watts=700),
    "h200_nvl": Chip(("NVIDIA H200 NVL",), 835e12, 140, 4800e9, 450e9, watts=600),
    "cpu": Chip(("cpu",)),
}


def chip_of(device_kind: str) -> Chip | None:
    """What jax calls so; None: not in the table.

    >>> chip_of("TPU v5 lite") is CHIPS["v5e"], chip_of("NVIDIA H100 80GB HBM3") is CHIPS["h100"]
    (True, True)
    """
    matching = {
        kind: chip for chip in CHIPS.values() for kind in chip.kinds if device_kind.startswith(kind)
    }
    return matching[max(matching, key=len)] if matching else None


class PlannedDevice(NamedTuple):
    """Stands for a device that is not here: what can be asked of it is what jax's devices answer.

    Attributes:
        device_kind, platform, slice_index: as of those.
    """

    device_kind: str
    platform: Literal["tpu", "gpu", "cpu"]
    slice_index: int = 0

    def memory_stats(self) -> None:
        """Nothing is measured."""
        return None


@dataclass(frozen=True)
class Topology:
    """Devices of one kind, and how they lie.

    Attributes:
        name: of the chip, a key of CHIPS.
        bounds: chips along each side of the torus of a slice; of GPUs: nodes, and those of a node.
        slices: that a slower network connects.
    """

    name: str
    bounds: tuple[int, ...]
    slices: int = 1

    @property
    def chip(self) -> Chip:
        """What each of them is."""
        return CHIPS[self.name]

    @property
    def devices(self) -> list["PlannedDevice"]:
        """All of them."""
        chip = self.chip
        platform = "tpu" if chip.is_tpu else "cpu" if self.name == "cpu" else "gpu"
        a_slice = self.count // self.slices
        return [
            PlannedDevice(chip.kinds[0], platform, number // a_slice)
            for number in range(self.count)
        ]

    @property
    def cores(self) -> int:
        """Devices of a chip."""
        return 2 if self.name in ("v2", "v3", "7x") else 1

    @property
    def is_ring(self) -> tuple[bool, ...]:
        """Of each side of the torus, whether its ends are connected."""
        if self.chip.dimensions == 3:
            return (all(bound % 4 == 0 for bound in self.bounds),) * 3
        return tuple(bound >= self.chip.wraps_from for bound in self.bounds)

    @property
    def count(self) -> int:
        """Of devices."""
        return self.slices * self.cores * math.prod(self.bounds)

    def __str__(self) -> str:
        shape = "x".join(map(str, self.bounds))
        return f"{self.slices}*{self.name}:{shape}" if self.slices > 1 else f"{self.name}:{shape}"


MOST_CHIPS = {  # of the largest slice
    "v2": 256,
    "v3": 1024,
    "v4": 4096,
    "v4i": 4,
    "v5e": 256,
    "v5p": 8960,
    "v6e": 256,
    "7x": 9216,
}
_MOST_DEVICES = 1 << 16  # that are planned for
_MOST_IN_NODE = 8


def parse_topology(text: str) -> Topology:
    """A slice of TPUs (v5e:4x4, v5p:8x8x8), several (2*v5p:8x8x8), nodes of GPUs (h100:4x8: four of
    eight), or cpu:8.

    >>> parse_topology("2*v5p:4x4x8").count
    256

    Raises:
        UserError: for anything else.
    """
    found = re.fullmatch(r"(?:(\d+)\*)?(\w+):(\d+(?:x\d+)*)", text.lower())
    example = "expected such as v5e:4x4, v5p:8x8x8, 2*v6e:16x16, h100:8x8 or cpu:8"
    if not found:
        is_type = re.fullmatch(r"v\w+-\d+", text)
        reason = "an accelerator type, whose shape is needed; " if is_type else ""
        raise UserError(USAGE, f"--topology={text}: {reason}{example}")
    slices, name, shape = found.groups()
    if name not in CHIPS:
        raise UserError(USAGE, f"--topology={text}: no chip {name!r}; {nearest(name, CHIPS)}")
    topology = Topology(name, tuple(map(int, shape.split("x"))), int(slices or 1))
    if not topology.count:
        raise UserError(USAGE, f"--topology={text}: has no device; {example}")
    sides = topology.chip.dimensions or (1 if name == "cpu" else 2)
    if len(topology.bounds) != sides:
        reason = f"got {len(topology.bounds)} sides, {name} has {sides}"
        raise UserError(USAGE, f"--topology={text}: {reason}; {example}")
    most = MOST_CHIPS.get(name, math.inf)
    if math.prod(topology.bounds) > most:
        reason = f"{math.prod(topology.bounds):,} chips, where there are at most {most:,}"
        raise UserError(USAGE, f"--topology={text}: {reason}; name several slices, 2*{name}:…")
    if topology.count > _MOST_DEVICES:
        reason = f"{topology.count:,} devices, expected at most {_MOST_DEVICES:,}"
        raise UserError(USAGE, f"--topology={text}: {reason}")
    if topology.chip.link and not topology.chip.is_tpu and topology.bounds[-1] > _MOST_IN_NODE:
        reason = f"a node has at most {_MOST_IN_NODE} GPUs, here it is {topology.bounds[-1]}"
        raise UserError(USAGE, f"--topology={text}: {reason}; {example}")
    if topology.slices > 1 and not topology.chip.is_tpu:
        raise UserError(USAGE, f"--topology={text}: only TPUs come in slices; {example}")
    return topology


def axis_bandwidth(topology: Topology, mesh: dict[str, int], axis: str) -> float | None:
    """Bytes a second through one device where all devices along a mesh axis exchange something; an
    estimate from how the axis may lie. None: not known.

    On TPUs an axis lies along sides of the torus, and uses the links of all of them: both
    directions of a side that is a ring, one of a line, as any part of a side is. An axis of GPUs
    that leaves a node uses the network of all its devices there at once.

    Args:
        mesh: sizes by axis, the last of which are the nearest.

    >>> v5p = parse_topology("v5p:8x8x8")
    >>> [axis_bandwidth(v5p, {"fsdp": 64, "tensor": 8}, axis) / 1e9 for axis in ("fsdp", "tensor")]
    [400.0, 200.0]
    >>> v5p = parse_topology("v5p:8x8x16")
    >>> [axis_bandwidth(v5p, {"fsdp": 128, "tensor": 8}, axis) / 1e9 for axis in ("fsdp", "tensor")]
    [400.0, 200.0]
    """
    chip = topology.chip
    names = list(mesh)
    within = math.prod(mesh[name] for name in names[names.index(axis) + 1 :])  # devices apart
    if chip.is_tpu:
        if axis == "data" and topology.slices > 1:
            return _over_slices(topology, mesh)
        links = _links(topology, {name: mesh[name] for name in names[names.index(axis) :]})
        return chip.link * links if chip.link else None
    node = topology.bounds[-1]
    if within * mesh[axis] <= node:
        return chip.link
    if not chip.network or not chip.link:
        return None
    return min(chip.link, chip.network * max(node // within, 1))


def _over_slices(topology: Topology, mesh: dict[str, int]) -> float | None:
    """Of the data axis of several slices. First those of a slice reduce, each a part; then each
    sends its part over the network.
    """
    chip, within = topology.chip, mesh["data"] // topology.slices
    if not chip.network or not chip.link or within <= 1:
        return chip.network
    one_slice = Topology(topology.name, topology.bounds)
    links = _links(one_slice, {**mesh, "data": within})
    return 1 / (1 / (chip.link * links) + 1 / (chip.network * within))


def _links(topology: Topology, mesh: dict[str, int]) -> int:
    """How many links of a TPU its first axis uses. As jax arranges a mesh, the last axis chooses
    its sides first: as many whole ones as have its size, else parts.
    """
    sides = list(zip(topology.bounds, topology.is_ring, strict=True))
    if topology.cores > 1:
        sides.append((topology.cores, False))  # within a chip
    links = 1
    for size in reversed(mesh.values()):
        subsets = [
            subset
            for count in range(len(sides), 0, -1)
            for subset in itertools.combinations(sides, count)
            if math.prod(side for side, _ in subset) == size
        ]
        links = 0
        for side, is_ring in subsets[0] if subsets else sorted(sides, reverse=True):
            part = math.gcd(side, size)
            if part == 1:
                continue
            size //= part
            links += 2 if is_ring and part == side else 1
            sides.remove((side, is_ring))
            if part < side:
                sides.append((side // part, False))
    return max(links, 1)
