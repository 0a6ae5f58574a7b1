"""Do shorter tries choose the same settings? Each cell of a comparison is tuned with its whole
budget and with shares of it (`tune_budget`). A row of the table is a cell: the choice of the whole
budget and its loss, and the choice of each share and how much higher its loss is after the whole
budget.

python benchmarks/tune_budget.py --config=compare/worlds:facts,ten --workdir=DIR --jobs=2
"""

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from record import keep

from t5x_lite.comparison.cells import plan_cells
from t5x_lite.comparison.tune import plan_tries, run_tries, tuned_cells
from t5x_lite.config.files import load_comparison
from t5x_lite.progress import columns, say


def main() -> None:
    """Tune with each share of the budget, print the table and keep it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="compare/worlds:facts,ten")
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.5, 0.25])
    options = parser.parse_args()

    config = load_comparison(options.config)
    cells = plan_cells(config, options.workdir)
    tuned: dict[float, dict[str, Any]] = {}
    for share in (1.0, *options.shares):
        of_share = dataclasses.replace(config, tune_budget=share)
        workdir = options.workdir / f"{share:g}"
        tries = plan_tries(of_share, cells, workdir)
        failed = run_tries(tries, options.jobs, workdir / "logs")
        for name, error in failed.items():
            raise SystemExit(f"{name}: {error}")
        _, tuned[share], _ = tuned_cells(cells, tries)

    whole = tuned[1.0]
    rows = [["cell", "whole budget", *(f"{share:g} of it" for share in options.shares)]]
    for name, of in whole.items():
        best = of["losses"][of["chosen"]]
        row = [name, f"{of['chosen']} ({best:.4f})"]
        for share in options.shares:
            chosen = tuned[share][name]["chosen"]
            row.append(f"{chosen} (+{of['losses'][chosen] - best:.4f})")
        rows.append(row)
    say(columns(rows, "<" * len(rows[0])))
    for share in options.shares:
        same = sum(tuned[share][name]["chosen"] == of["chosen"] for name, of in whole.items())
        say(f"{share:g} of the budget: the same in {same} of {len(whole)} cells")
    keep("tune_budget", {"config": options.config, "tuned": tuned})


if __name__ == "__main__":
    main()
