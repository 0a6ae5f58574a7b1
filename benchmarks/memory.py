"""Show the memory that the compiler plans for a training step of GPT-2 small, on 8 rows of 1024
tokens in bfloat16: with and without recomputed activations, with the loss in chunks of 128
positions or all at once, and with only LoRA trained.

    python benchmarks/memory.py [TOPOLOGY]

Without TOPOLOGY, the step is compiled for the device of this machine. With a TOPOLOGY such as
v5e:2x2, it is compiled with splash attention for a TPU, which this machine need not have
(`pip install libtpu`).
"""

import os
import sys
from typing import Any

if sys.argv[1:]:
    os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "JAX_PLATFORMS": "cpu"}

import jax
from compile_time import lowered
from jax.experimental import topologies
from record import keep


def main(topology: str = "") -> None:
    """Print the size of the state, and the memory that each variant needs beyond it."""
    results = []
    devices = jax.devices()
    if topology:
        devices = topologies.get_topology_desc(topology, platform="tpu").devices
    device = devices[0]
    print(device.device_kind)
    ways = [(adapt, remat, 128) for adapt in ("full", "lora(8)") for remat in (True, False)]
    ways += [("full", remat, 1024) for remat in (True, False)]  # all positions at once
    for adapt, remat, chunk in ways:
        more = f"model.remat={remat}", f"training.loss_chunk={chunk}"
        step = lowered(8, 1024, *more, adapt=adapt, device=device)
        plan: Any = step.compile().memory_analysis()
        state, beyond = (
            size / 2**30 for size in (plan.argument_size_in_bytes, plan.temp_size_in_bytes)
        )
        print(
            f"{adapt:8} remat {remat!s:5} loss_chunk {chunk:4}: {beyond:5.2f} GiB beyond the "
            f"state's {state:.2f}",
            flush=True,
        )
        results.append(
            {
                "adapt": adapt,
                "remat": remat,
                "loss_chunk": chunk,
                "state_GiB": state,
                "beyond_GiB": beyond,
            }
        )
    keep(f"memory_{'tpu' if topology else 'cpu'}", results)


if __name__ == "__main__":
    main(*sys.argv[1:])
