"""All cells of a comparison read equally many tokens a row, and no row is cut."""

import numpy as np
import pytest
from conftest import LENGTHS, settings

from t5x_lite.comparison import cells as study_cells
from t5x_lite.comparison.adaptation import plan_adaptation, plan_adapted_run
from t5x_lite.comparison.cells import plan_cells, with_equal_windows
from t5x_lite.config import Architecture, Lengths
from t5x_lite.config.files import build_comparison, load_comparison
from t5x_lite.config.stages import each_stage
from t5x_lite.data.objectives import OBJECTIVES
from t5x_lite.data.objectives.mixture import parse_objective
from t5x_lite.data.rows.batches import ledger
from t5x_lite.data.rows.row_plan import fit_window, plan_rows
from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.errors import UserError
from t5x_lite.report.papers import check_papers
from t5x_lite.resolve import plan_objective

PRESETS = [
    "adapt:small", "adapt:tiny", "antlm:base", "antlm:tiny", "bert_recipes", "clm_then_mlm:base",
    "clm_then_mlm:tiny", "diffusion:small", "diffusion:tiny", "encdec_or_decoder:small",
    "encdec_or_decoder:tiny", "ettin:base", "ettin:tiny", "gpt_bert:small", "gpt_bert:tiny",
    "lm_adapt:base", "lm_adapt:tiny", "modifications", "modifications:tiny",
    "objectives", "optimizers", "python_docs", "quickstart", "raffel_table2", "raffel_table2:small",
    "raffel_table2:tiny", "rnn_to_transformer", "scaling:small", "scaling:tiny",
    "worlds:facts", "worlds:facts,ten",
]  # fmt: skip


def windows(cells) -> set[int]:
    plans = [plan for cell in cells.values() for plan in each_stage(cell, plan_objective)]
    return {member.window for plan in plans for member in plan.members}


def all_that_can_be_laid_out() -> dict[str, dict]:
    """A cell of every objective on every architecture that can learn it."""
    cells = {}
    for name in OBJECTIVES:
        for architecture in Architecture.__args__:
            lengths = LENGTHS[architecture]
            try:
                plan_rows(name, architecture, Lengths(**lengths))
            except UserError:
                continue
            cells[f"{name}-{architecture}"] = {
                "objective": name,
                "model": {"architecture": architecture},
                "data": {"lengths": lengths},
            }
    return cells


def test_the_window_is_the_largest_that_fits_every_objective_and_layout(monkeypatch):
    monkeypatch.setattr(study_cells, "_SHORTEST_WINDOW", 0.0)
    config = build_comparison({"base": {}, "cells": all_that_can_be_laid_out()})
    assert len(config.cells) > 2 * len(OBJECTIVES)
    (equal,) = windows(with_equal_windows(config.cells))
    own = min(windows(config.cells))
    assert equal <= own
    for larger in range(equal + 1, own + 1):
        taken = set()
        for cell in config.cells.values():
            objective = parse_objective(cell.objective).for_architecture(cell.model.architecture)
            arguments = (objective, cell.model.architecture, cell.data.lengths)
            taken.add(fit_window(*arguments, longest=larger)[0])
        assert taken != {larger}


@pytest.mark.parametrize("preset", PRESETS)
def test_the_cells_of_every_preset_read_equal_windows(preset):
    config = load_comparison(f"compare/{preset}", [], [])
    cells = config.cells
    equal = with_equal_windows(cells)
    assert len(windows(equal)) == 1
    assert min(windows(equal)) > 0.98 * min(windows(cells))
    assert {cell.data.block for cell in equal.values()} == {0}
    check_papers(config.papers)
    # Every model that writes text can be adapted in these windows.
    adaptation = plan_adaptation(config.adapt_tokens, map(plan_objective, equal.values()))
    if adaptation:
        vocabulary = Tokenizer().vocabulary
        adapting = {
            plan_adapted_run(cell, adaptation, vocabulary).rows.members[0].window
            for cell in equal.values()
            if cell.model.architecture != "encoder"
        }
        assert adapting == windows(equal)


def test_all_presets_are_listed():
    from t5x_lite.config.files import find

    names = {path.stem for path in find("compare/quickstart").parent.glob("*.py")}
    assert names == {preset.partition(":")[0] for preset in PRESETS}


def test_windows_that_differ_much_are_left_to_the_user(text_file, tmp_path):
    base = settings(text_file)
    cells = {
        name: {"data": {"lengths": {"sequence_length": length}}}
        for name, length in (("short", 24), ("long", 40))
    }
    written = {"base": base, "cells": cells, "span_count": 0}
    expected = r"cells: .* different windows, 24 to 40 raw tokens; .* equal_windows=False"
    with pytest.raises(UserError, match=expected):
        plan_cells(build_comparison(written), tmp_path)
    config = build_comparison({**written, "equal_windows": False})
    short, long = plan_cells(config, tmp_path)
    # Blocks are those of the longest window, so that both read the same text in one order.
    assert (short.cost.rows_cut, long.cost.rows_cut) == (pytest.approx(0.4, abs=0.01), 0.0)


@pytest.mark.parametrize("window", [0, 7, 24, 31])
@pytest.mark.parametrize("block", [0, 24, 31, 50])
def test_rows_are_cut_where_their_tokens_are_not_neighbours(batches_of, window, block):
    batches = batches_of(**{"data.block": block, "data.window": window})
    windows = batches.streams[0].windows
    rows = np.arange(min(4096, batches.streams[0].rows(1)))
    first, last = (windows.places(rows, np.full(len(rows), at)) for at in (0, windows.size - 1))
    size = len(windows.tokens)
    expected = np.mean((last - first) % size != windows.size - 1)
    cut = ledger(batches).cut
    # Two blocks may follow each other in the shuffled order as they do in the text.
    assert expected <= cut <= expected + 0.02
    assert (cut > 0) == bool(block and block % windows.size)


def test_a_window_that_is_too_short_is_refused():
    with pytest.raises(UserError, match=r"data\.window=1: too short for span_corruption"):
        plan_rows("span_corruption", "decoder", Lengths(sequence_length=32), longest_window=1)
