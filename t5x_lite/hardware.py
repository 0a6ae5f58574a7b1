"""Data about accelerators: their speed, memory, interconnect and price, and the names of
topologies, such as v5p:4x4x4.

A device is what jax calls a device: a whole chip, except on TPU v2, v3 and 7x, where each chip has
two cores and a device is one of them. Sources: Google Cloud's documentation of each TPU; for v2 to
v4, Jouppi et al. (2020, 2023); NVIDIA's data sheets. The network speeds and prices of GPUs are for
Amazon's p4de, p5 and p5en instances.
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
    """A kind of device. None means that a value is not known or not published.

    Attributes:
        kinds: prefixes of jax's `device_kind`.
        peak: FLOP/s of dense bfloat16 matrix products.
        memory: memory in GiB; for a TPU, what its compiler (libtpu 0.0.50) makes available to a
            program.
        bandwidth: bandwidth of that memory, in bytes per second.
        link: bytes per second in one direction: for a TPU, over one link of its torus; for a GPU,
            to all other GPUs of its node together.
        network: bytes per second in one direction to other slices or nodes.
        dimensions: number of dimensions of the TPU torus; 0 for devices that are all connected to
            each other within a node.
        wraps_from: shortest side of a 2D torus that wraps around. In a 3D torus all sides wrap
            around if all are multiples of 4, and none does otherwise.
        dollars: price per hour, see PRICES_AS_OF.
        watts: for a TPU, the mean power in production; for a GPU, the maximum power.
        clock: cycles per second of a TPU, where its peak and its matrix units determine them.
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
        """True for a TPU."""
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


# Names of NVIDIA GPUs before Ampere, with a compute capability below 8.0
_BEFORE_AMPERE = re.compile(r"Tesla|Quadro|TITAN|GTX|MX\d|RTX 20[5-8]0|\b[KPVT]\d{1,4}\b")
# Names of NVIDIA GPUs from Hopper on, with a compute capability of 9.0 and above
_HOPPER_OR_LATER = re.compile(r"\b(H20|H100|H200|H800|GH200|B100|B200|B300|GB200|GB300)\b")


def cuda_generation(device_kind: str) -> Literal["", "old", "ampere", "hopper"]:
    """Return the generation of an NVIDIA GPU from jax's `device_kind`: "old" is before Ampere,
    "ampere" from Ampere until Hopper, "hopper" from Hopper on. Return "" for other devices, such as
    AMD's.

    >>> [cuda_generation(kind) for kind in ("Tesla V100-SXM2-16GB", "Tesla T4", "NVIDIA A100")]
    ['old', 'old', 'ampere']
    >>> cuda_generation("NVIDIA H100 80GB HBM3"), cuda_generation("AMD Instinct MI300X")
    ('hopper', '')
    """
    if not device_kind.startswith(("NVIDIA", "Tesla", "Quadro", "GeForce")):
        return ""
    if _BEFORE_AMPERE.search(device_kind):
        return "old"
    return "hopper" if _HOPPER_OR_LATER.search(device_kind) else "ampere"


def chip_of(device_kind: str) -> Chip | None:
    """Return the chip with the longest matching prefix of jax's `device_kind`, or None.

    >>> chip_of("TPU v5 lite") is CHIPS["v5e"], chip_of("NVIDIA H100 80GB HBM3") is CHIPS["h100"]
    (True, True)
    """
    matching = {
        kind: chip for chip in CHIPS.values() for kind in chip.kinds if device_kind.startswith(kind)
    }
    return matching[max(matching, key=len)] if matching else None


class PlannedDevice(NamedTuple):
    """A stand-in for a device that this machine does not have. It has the part of jax's device
    interface that planning needs.

    Attributes:
        device_kind, platform, slice_index: as in a jax device.
    """

    device_kind: str
    platform: Literal["tpu", "gpu", "cpu"]
    slice_index: int = 0

    def memory_stats(self) -> None:
        """Return None: no memory use is measured."""
        return None


@dataclass(frozen=True)
class Topology:
    """Devices of one kind, and how they are connected.

    Attributes:
        name: name of the chip, a key of CHIPS.
        bounds: for TPUs, the number of chips along each side of a slice's torus; for GPUs, the
            number of nodes and the number of GPUs per node; for CPUs, the number of devices.
        slices: number of TPU slices, which are connected by a slower network.
    """

    name: str
    bounds: tuple[int, ...]
    slices: int = 1

    @property
    def chip(self) -> Chip:
        """The data of the chip."""
        return CHIPS[self.name]

    @property
    def devices(self) -> list["PlannedDevice"]:
        """One PlannedDevice per device, slice by slice."""
        chip = self.chip
        platform = "tpu" if chip.is_tpu else "cpu" if self.name == "cpu" else "gpu"
        a_slice = self.count // self.slices
        return [
            PlannedDevice(chip.kinds[0], platform, number // a_slice)
            for number in range(self.count)
        ]

    @property
    def cores(self) -> int:
        """Number of devices per chip."""
        return 2 if self.name in ("v2", "v3", "7x") else 1

    @property
    def is_ring(self) -> tuple[bool, ...]:
        """For each side of the torus, True if it wraps around."""
        if self.chip.dimensions == 3:
            return (all(bound % 4 == 0 for bound in self.bounds),) * 3
        return tuple(bound >= self.chip.wraps_from for bound in self.bounds)

    @property
    def count(self) -> int:
        """Number of devices in all slices."""
        return self.slices * self.cores * math.prod(self.bounds)

    def __str__(self) -> str:
        shape = "x".join(map(str, self.bounds))
        return f"{self.slices}*{self.name}:{shape}" if self.slices > 1 else f"{self.name}:{shape}"


MOST_CHIPS = {  # chips in the largest slice
    "v2": 256,
    "v3": 1024,
    "v4": 4096,
    "v4i": 4,
    "v5e": 256,
    "v5p": 8960,
    "v6e": 256,
    "7x": 9216,
}
_MOST_DEVICES = 1 << 16  # the most that `plan` accepts
_MOST_IN_NODE = 8


def parse_topology(text: str) -> Topology:
    """Parse the name of a topology: one TPU slice (v5e:4x4, v5p:8x8x8), several slices
    (2*v5p:8x8x8), GPU nodes (h100:4x8 is four nodes of eight GPUs), or CPU devices (cpu:8).

    >>> parse_topology("2*v5p:4x4x8").count
    256

    Raises:
        UserError: for any other text, and for shapes that do not exist.
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
    """Estimate the bytes per second through one device in a collective along a mesh axis.

    On TPUs a mesh axis is laid along one or more sides of the torus, and uses the links of all of
    them. A side that wraps around counts in both directions. A side that does not, or that the axis
    covers only in part, counts in one. On GPUs an axis that extends beyond a node uses the network
    connections of all its devices in the node at once.

    Args:
        topology: the devices.
        mesh: size of each mesh axis; devices along the last axes are closest to each other.
        axis: the mesh axis.

    Returns:
        bytes per second; None if they are not known.

    >>> v5p = parse_topology("v5p:8x8x8")
    >>> [axis_bandwidth(v5p, {"fsdp": 64, "tensor": 8}, axis) / 1e9 for axis in ("fsdp", "tensor")]
    [400.0, 200.0]
    >>> v5p = parse_topology("v5p:8x8x16")
    >>> [axis_bandwidth(v5p, {"fsdp": 128, "tensor": 8}, axis) / 1e9 for axis in ("fsdp", "tensor")]
    [400.0, 200.0]
    """
    chip = topology.chip
    names = list(mesh)
    # Distance, in devices, between neighbours along the axis.
    within = math.prod(mesh[name] for name in names[names.index(axis) + 1 :])
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
    """Return the bandwidth of the data axis across slices: a reduce-scatter inside each slice, then
    an all-reduce of each shard over the network.
    """
    chip, within = topology.chip, mesh["data"] // topology.slices
    if not chip.network or not chip.link or within <= 1:
        return chip.network
    one_slice = Topology(topology.name, topology.bounds)
    links = _links(one_slice, {**mesh, "data": within})
    return 1 / (1 / (chip.link * links) + 1 / (chip.network * within))


def _links(topology: Topology, mesh: dict[str, int]) -> int:
    """Return how many links of a TPU the first axis of a mesh uses.

    The axes take sides of the torus in the order in which jax arranges a mesh, the last axis first.
    Each takes the largest number of whole sides whose product is its size, or else parts of sides.
    """
    sides = list(zip(topology.bounds, topology.is_ring, strict=True))
    if topology.cores > 1:
        sides.append((topology.cores, False))  # the cores of a chip form one more side
    links = 1
    for size in reversed(mesh.values()):
        # All sets of remaining sides that the axis would fill exactly, the largest sets first.
        subsets = [
            subset
            for count in range(len(sides), 0, -1)
            for subset in itertools.combinations(sides, count)
            if math.prod(side for side, _ in subset) == size
        ]
        # Take the sides of the first set, or parts of the longest sides, and count their links. The
        # rest of a side is left as a line for the other axes.
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
