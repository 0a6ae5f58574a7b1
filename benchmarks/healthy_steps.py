"""Count how often a step of a run that converged is called unhealthy (training/health.py).

    python benchmarks/healthy_steps.py DIR…      (finds every metrics.jsonl below DIR)

Steps that were not recorded are missing, so the window of Health reaches further back than in a
run.
"""

import sys
from pathlib import Path

from record import keep

from t5x_lite.training.health import Health
from t5x_lite.training.log import read_metrics


def main(directories: list[str]) -> None:
    """Count runs, recorded steps, and those that would be unhealthy."""
    counts = {"runs": 0, "steps": 0, "unhealthy": 0}
    for path in (path for name in directories for path in Path(name).rglob("metrics.jsonl")):
        records = [record for record in read_metrics(path) if record["split"] == "train"]
        if len(records) < 20:
            continue
        counts["runs"] += 1
        health = Health()
        for number, record in enumerate(records, 1):
            counts["steps"] += 1
            is_healthy = health.record(number, record["total_loss"], record["gradient_norm"])
            counts["unhealthy"] += not is_healthy
    print(counts)
    keep("healthy_steps", counts)


if __name__ == "__main__":
    main(sys.argv[1:])
