"""Worker of step_time.py: times training steps of a tiny config, dropout off, as many as each line of input says."""

import json
import sys
import time

import jax

from t5x_lite import settings
from t5x_lite.data.prepare import prepare
from t5x_lite.training.loop import Run, setup_jax
from t5x_lite.training.step import create_state

setup_jax()
config = settings.load(f"{sys.argv[1]}_tiny", sys.argv[2:])
run = Run(config, prepare(config.data, say=lambda _: None))
with run.within():
    state = create_state(run.config, run.optimizer, run.mesh)
    batch = run.batch(run.batches, 0)
    for _ in range(3):
        state, sums = run.train_step(state, batch)
    jax.block_until_ready(state)
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            start = time.perf_counter()
            state, sums = run.train_step(state, batch)
            jax.block_until_ready((state, sums))
            times.append(time.perf_counter() - start)
        print(json.dumps(times), flush=True)
