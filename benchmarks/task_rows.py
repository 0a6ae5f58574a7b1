"""Measure how fast a task's examples become batches, in thousand positions per second, for each
architecture; and how long it takes to read the examples and to plan an epoch.

    python benchmarks/task_rows.py TASK TOKENIZER

TASK: as in `finetune --task`. TOKENIZER: the directory of a run's tokenizer.
"""

import statistics
import sys
import time
from pathlib import Path
from typing import Any

from record import keep

from t5x_lite.config import Lengths, Task
from t5x_lite.data.tasks.load import load_task
from t5x_lite.data.tasks.task_data import TaskData, plan_task
from t5x_lite.data.tokenizers import tokenizer as tokenizers
from t5x_lite.data.tokenizers.tokenizer import Tokenizer

BATCHES, ROUNDS, BATCH_SIZE = 100, 5, 8
LENGTHS = {
    "encoder": Lengths(sequence_length=130),
    "decoder": Lengths(sequence_length=128),
    "encoder_decoder": Lengths(inputs=116, targets=26),
}


def measure(task: Task, tokenizer: Tokenizer, architecture: Any) -> dict:
    """Return the seconds to read and to plan, and the rate in each round, for one architecture."""
    plan = plan_task(task, architecture, LENGTHS[architecture])
    data = TaskData(plan, tokenizer, BATCH_SIZE, seed=0)
    start = time.perf_counter()
    rows = data.train.rows
    read = time.perf_counter()
    rows.rows(1)
    planned = time.perf_counter()

    # Count the positions that hold text, not padding.
    batches, rates = data.batches("train"), []
    for _ in range(ROUNDS):
        begin, positions = time.perf_counter(), 0
        for step in range(BATCHES):
            batch = batches.batch_at(step)
            segments = [value for key, value in batch.items() if key.endswith("_segments")]
            positions += sum(int((value > 0).sum()) for value in segments)
        rates.append(positions / (time.perf_counter() - begin))
    return {
        "read_seconds": read - start,
        "plan_seconds": planned - read,
        "positions_per_second": rates,
    }


def main() -> None:
    """Measure and print all architectures."""
    task, directory = sys.argv[1:]
    tokenizer, measured = tokenizers.load(Path(directory)), {}
    for architecture in LENGTHS:
        one = measured[architecture] = measure(load_task(task), tokenizer, architecture)
        rate = statistics.median(one["positions_per_second"]) / 1000
        print(
            f"{architecture:<16}{rate:>8.0f} k positions/s, read in {one['read_seconds']:.1f} s, "
            f"an epoch planned in {one['plan_seconds']:.1f} s"
        )
    keep("task_rows", measured)


if __name__ == "__main__":
    main()
