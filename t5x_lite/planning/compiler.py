"""What Google's compiler makes of a training step for TPUs that are not here: libtpu runs on any
x86 machine.
"""

import importlib.util
import os
import re
from dataclasses import dataclass
from typing import Any

from t5x_lite.errors import NO_FILE, UserError, install_line, user_errors
from t5x_lite.hardware import Topology
from t5x_lite.planning.collectives import Collective, by_axis, collectives, expected_cycles
from t5x_lite.resolve import Resolved
from t5x_lite.training.program import Program

# libtpu looks for the machine that it runs on, and for other processes that use it.
_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


@dataclass(frozen=True)
class Compiled:
    """A step as it is compiled; bytes of a device.

    Attributes:
        arguments, temporaries: as the compiler states them; None: it did not fit. Their sum is not
            what has to fit: room is used again.
        peak: the most in use at a time, arguments included; of a step that does not fit, what the
            compiler says it would need.
        fits: whether the compiler found room.
        cycles: that it expects, without what is sent, and without kernels written by hand.
    """

    arguments: int | None
    temporaries: int | None
    peak: int
    fits: bool
    cycles: int = 0
    sent: tuple[Collective, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """All of it as plain data."""
        known = ("arguments", "temporaries", "peak", "fits", "cycles")
        return {name: getattr(self, name) for name in known} | {"sent": by_axis([*self.sent])}

    def seconds(self, topology: Topology) -> float | None:
        """What the cycles take; None: the clock is not known."""
        clock = topology.chip.clock
        return self.cycles / clock if clock and self.cycles else None


def is_installed() -> bool:
    """Whether libtpu is here."""
    return importlib.util.find_spec("libtpu") is not None


def devices_of(topology: Topology) -> Any:
    """The devices of slices, as the compiler knows them; sides that are long enough are rings.

    Raises:
        UserError: where libtpu is not installed, or knows no such slice.
    """
    if not is_installed():
        raise UserError(NO_FILE, f"{topology}: needs libtpu: {install_line('tpu')}")
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from jax.experimental import topologies

    name, sides = topology.name, "x".join(map(str, topology.bounds))
    options: dict[str, Any] = {"num_slices": topology.slices}
    if topology.chip.dimensions == 3:
        # Named v5p, the slice would have no links that wrap around, and other collectives.
        name = "v5" if name == "v5p" else "tpu7x" if name == "7x" else name
        options |= {"chips_per_host_bounds": (2, 2, 1), "wrap": topology.is_ring}
        if topology.name in ("v4", "v5p"):
            options["chip_config_name"] = "megacore"
    unknown = "the compiler knows no such slice: add --no-compile"
    with user_errors(NO_FILE, f"--topology={topology}: {unknown}"):
        described = topologies.get_topology_desc(f"{name}:{sides}", platform="tpu", **options)
    return described.devices


def compile_step(resolved: Resolved, raw_tokens: float, topology: Topology) -> Compiled:
    """The step of a run on text, compiled: tens of seconds.

    Args:
        raw_tokens: that a batch reads.
    """
    program = Program(resolved, raw_tokens, devices_of(topology))
    lowered = program.trace().lower()
    try:
        compiled = lowered.compile()
    except Exception as error:  # the compiler's own, of no public class
        needed = re.search(r"memory required for HLO temporaries \(([\d.]+)G\)", str(error))
        if "CompileTimeHbmOom" not in str(error) or not needed:
            reason = str(error).strip().splitlines()[0][:200]
            fix = "--no-compile shows the estimates"
            raise UserError(NO_FILE, f"plan: the compiler failed ({reason}); {fix}") from error
        return Compiled(None, None, round(float(needed[1]) * 2**30), fits=False)
    text, memory = compiled.as_text(), compiled.memory_analysis()
    assert text is not None
    assert memory is not None
    return Compiled(
        arguments=memory.argument_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        peak=memory.peak_memory_in_bytes,
        fits=True,
        cycles=expected_cycles(text),
        sent=tuple(collectives(text, program.mesh)),
    )
