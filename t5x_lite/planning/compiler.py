"""Compile a training step for TPUs that this machine does not have: libtpu, which contains the TPU
compiler, runs on any x86 machine.
"""

import importlib.util
import os
import re
from dataclasses import dataclass
from typing import Any

from t5x_lite.errors import NO_FILE, UserError, install_line, user_errors
from t5x_lite.hardware import Topology
from t5x_lite.planning.traffic import Collective, by_axis, collectives, expected_cycles
from t5x_lite.resolve import Resolved
from t5x_lite.training.program import Program

# By default libtpu detects the TPU machine that it runs on, and refuses to be loaded by a second
# process. These settings replace the detection and allow several processes.
_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


@dataclass(frozen=True)
class Compiled:
    """A compiled training step; memory is in bytes per device.

    Attributes:
        arguments, temporaries: sizes stated by the compiler, None if the step does not fit. Memory
            is reused, so their sum is not the memory that the step needs.
        peak: peak memory, including arguments; for a step that does not fit, the memory that the
            compiler says it needs.
        fits: True if the compiler found enough memory.
        cycles: clock cycles estimated by the compiler, without communication and hand-written
            kernels.
        sent: all collectives of the program.
    """

    arguments: int | None
    temporaries: int | None
    peak: int
    fits: bool
    cycles: int = 0
    sent: tuple[Collective, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the result as plain data, with the bytes sent summed by mesh axis."""
        known = ("arguments", "temporaries", "peak", "fits", "cycles")
        return {name: getattr(self, name) for name in known} | {"sent": by_axis([*self.sent])}

    def seconds(self, topology: Topology) -> float | None:
        """Return the seconds that the estimated cycles take; None if the cycles or the clock rate
        of the chip are not known.
        """
        clock = topology.chip.clock
        return self.cycles / clock if clock and self.cycles else None


def is_installed() -> bool:
    """Return True if libtpu is installed."""
    return importlib.util.find_spec("libtpu") is not None


def devices_of(topology: Topology) -> Any:
    """Return the compiler's device objects for a topology.

    The sides of the torus wrap around if they do in a real slice.

    Raises:
        UserError: if libtpu is not installed, or does not know such a slice.
    """
    if not is_installed():
        raise UserError(NO_FILE, f"{topology}: needs libtpu: {install_line('tpu')}")
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from jax.experimental import topologies

    name, sides = topology.name, "x".join(map(str, topology.bounds))
    options: dict[str, Any] = {"num_slices": topology.slices}
    if topology.chip.dimensions == 3:
        # Under the name v5p, the slice would have no wraparound links and thus other collectives.
        name = "v5" if name == "v5p" else "tpu7x" if name == "7x" else name
        options |= {"chips_per_host_bounds": (2, 2, 1), "wrap": topology.is_ring}
        if topology.name in ("v4", "v5p"):
            options["chip_config_name"] = "megacore"
    unknown = "the compiler does not know such a slice: add --no-compile"
    with user_errors(NO_FILE, f"--topology={topology}: {unknown}"):
        described = topologies.get_topology_desc(f"{name}:{sides}", platform="tpu", **options)
    return described.devices


def compile_step(resolved: Resolved, raw_tokens: float, topology: Topology) -> Compiled:
    """Compile the training step of a pretraining run for a TPU topology, in tens of seconds.

    Args:
        resolved: the run.
        raw_tokens: raw tokens that a batch reads.
        topology: the TPU slices to compile for.

    Returns:
        the compiled step; if it does not fit into memory, only `peak` and `fits` are meaningful.

    Raises:
        UserError: if libtpu is missing, does not know the topology, or fails for any reason other
            than memory.
    """
    program = Program(resolved, raw_tokens, devices_of(topology))
    lowered = program.trace().lower()
    try:
        compiled = lowered.compile()
    except Exception as error:  # the compiler's errors have no public class
        needed = re.search(r"memory required for HLO temporaries \(([\d.]+)G\)", str(error))
        if "CompileTimeHbmOom" not in str(error) or not needed:
            reason = str(error).strip().splitlines()[0][:200]
            fix = "--no-compile shows the estimates"
            raise UserError(NO_FILE, f"plan: the compiler failed ({reason}); {fix}") from error
        return Compiled(None, None, round(float(needed[1]) * 2**30), fits=False)
    # It fits: read sizes, estimated cycles and collectives from the compiled program.
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
