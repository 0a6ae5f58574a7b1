"""Scaling laws of a comparison: what its cells are made of is found again, and shown."""

import copy
import dataclasses
import itertools
import math

import pytest

from t5x_lite.comparison import ladder, scaling, scaling_report
from t5x_lite.comparison.repeats import RepeatsLaw
from t5x_lite.comparison.scaling import ScalingLaw
from t5x_lite.report.page import Chart, Table

GPT = ScalingLaw(E=1.0, A=60.0, alpha=0.3, B=900.0, beta=0.5, k=7.0, q=0.9)
# Learns the same from half of the text.
BERT = dataclasses.replace(GPT, B=GPT.B / 2**GPT.beta, k=4.0)
SIZES = (1e5, 2e5, 4e5, 8e5, 1.6e6)
BUDGETS = (4e11, 8e11, 1.6e12, 3.2e12)


def cells_of(score="loss", seeds=1, sizes=SIZES, budgets=BUDGETS, **laws):
    """As compare has them."""
    return {
        f"{name}-{size:.0f}-{budget:.0f}": {
            "objective": name,
            "architecture": "decoder",
            "parameters": size,
            "raw_tokens": (tokens := law.tokens_for(budget, size)),
            "flops": budget,
            "scores": {score: {"seeds": [law.loss(size, tokens)] * seeds}},
        }
        for name, law in laws.items()
        for size in sizes
        for budget in budgets
    }


def laws_of(cells):
    return ladder.laws_of(cells, {})


@pytest.fixture(scope="module")
def of_two():
    """The laws of two objectives that are measured alike."""
    return laws_of(cells_of("span_bits_left", gpt=GPT, bert=BERT))


def test_a_rate_that_each_size_chose_does_not_part_a_law():
    cells = cells_of(gpt=GPT)
    rates = {name: of["parameters"] for name, of in cells.items()}
    recipes = {"optimizer.learning_rate": rates}
    assert ladder.laws_of(cells, recipes) == {}
    found = ladder.laws_of(cells, recipes, ["optimizer.learning_rate"])
    assert list(found["loss"]["objectives"]) == ["gpt, decoder"]


def test_laws_are_found_in_cells():
    found = laws_of(cells_of(gpt=GPT, bert=BERT, seeds=2))["loss"]
    assert list(found["objectives"]) == ["gpt, decoder", "bert, decoder"]
    for label, law in (("gpt, decoder", GPT), ("bert, decoder", BERT)):
        of_one = found["objectives"][label]
        assert len(of_one["points"]) == 2 * len(SIZES) * len(BUDGETS)
        for name, (value, low, high) in of_one["law"].items():
            assert value == pytest.approx(getattr(law, name), rel=1e-3), name
            if name not in ("k", "q"):
                assert low <= value <= high
        assert [best["flops"] for best in of_one["best"]] == [*BUDGETS, 3.2e13]
        for best in of_one["best"]:
            assert best["parameters"][0] == pytest.approx(law.optimum(best["flops"])[0], rel=1e-3)
            assert best["value"][0] == pytest.approx(law.best_loss(best["flops"]), rel=1e-4)
            more = law.flops_for(0.99 * law.best_loss(best["flops"])) / best["flops"]
            assert best["for_one_percent"][0] == pytest.approx(more, rel=1e-2)
        # From budget to budget the lowest loss falls as the power law says: the grid is coarse.
        lowest = [min(p["value"] for p in of_one["points"] if p["flops"] == b) for b in BUDGETS]
        steps = [math.log(a / b) / math.log(2) for a, b in itertools.pairwise(lowest)]
        assert min(steps) < of_one["exponent_of_compute"] < max(steps)
    assert found["multipliers"] == []  # losses of different objectives


def test_one_objective_costs_more_than_another(of_two):
    """BERT needs half the text and 4/7 of the compute of a token."""
    found = of_two["span_bits_left"]
    (one,) = found["multipliers"]
    assert (one["objective"], one["against"]) == ("bert, decoder", "gpt, decoder")
    assert one["value"] == pytest.approx(GPT.best_loss(3.2e12), rel=1e-4)
    assert one["multiplier"][0] == pytest.approx(0.5 * 4 / 7, rel=1e-3)
    (said,) = scaling_report.sentences({"span_bits_left": found})
    assert "bert, decoder needs 0.2857 (0.2857 to 0.2857) times the compute of gpt, dec" in said


REPEATS = RepeatsLaw(GPT, tokens_decay=4.0, parameters_decay=2.0)


@pytest.fixture
def fitted(monkeypatch):
    """Return the points that each law is fitted to. The laws are known, and nothing is fitted."""
    fitted = []

    def fit(points, **compute):
        fitted.append(points)
        return scaling.Fit(GPT, (GPT,) * 3, freedom=9)

    monkeypatch.setattr(ladder, "fit", fit)
    monkeypatch.setattr(ladder, "errors_left_out", lambda points, groups: {})
    return fitted


def of_text(cells, unique):
    """The same cells, trained on a text of so many tokens."""
    for cell in cells.values():
        size = cell["parameters"], cell["raw_tokens"]
        cell["epochs"] = cell["raw_tokens"] / unique
        loss = REPEATS.loss(*size, unique) if cell["epochs"] > 1 else GPT.loss(*size)
        cell["scores"] = {"loss": {"seeds": [loss] * 2}}
    return cells


def test_runs_that_read_their_text_again_show_what_that_is_worth(fitted):
    """The law itself is that of the others."""
    sizes = {"sizes": (1e6, 2e6, 4e6), "budgets": (1e11, 1e12, 2e12, 2e13, 1e14)}
    cells = cells_of(gpt=GPT, **sizes)
    # A smaller size that read its text once under one budget only changes nothing.
    cells |= cells_of(gpt=GPT, sizes=(3e5,), budgets=(1e11, 2e13, 1e14))
    laws = laws_of(of_text(cells, unique=1.5e6))
    assert max(point.tokens for point in fitted[0]) < 1.5e6
    of_one = laws["loss"]["objectives"]["gpt, decoder"]
    assert len([point for point in of_one["points"] if point["epochs"] > 1]) == 2 * 8
    for name, (value, low, high) in of_one["repeats"].items():
        assert value == pytest.approx(getattr(REPEATS, name), rel=1e-3), name
        assert low <= value <= high
    for point in of_one["points"]:
        assert point["predicted"] == pytest.approx(point["value"], rel=1e-5)
    parts = scaling_report.parts(laws, {"loss": "loss"})
    shown = [part for part in parts if isinstance(part, Table)][2]
    assert shown.heading == ["objective", "R*_D", "R*_N"]
    assert shown.rows == [["gpt, decoder", "4 (4 to 4)", "2 (2 to 2)"]]
    assert "Laws and lines are of text that is read once" in parts[-1]


def test_laws_that_are_compared_count_repeats_alike(fitted):
    """Too few cells of the second objective read their text once."""
    sizes = {"sizes": (1e6, 2e6, 4e6), "budgets": (1e11, 1e12, 2e12, 2e13, 1e14)}
    cells = of_text(cells_of(gpt=GPT, **sizes), unique=1.5e6)
    laws = laws_of(cells | of_text(cells_of(bert=BERT, **sizes), unique=1e5))
    assert [len(points) for points in fitted] == [2 * 15, 2 * 15]
    assert {one["repeats"] for one in laws["loss"]["objectives"].values()} == {None}


def test_where_too_few_read_their_text_once_repeats_count_as_new_text(fitted):
    laws = laws_of(of_text(cells_of(gpt=GPT), unique=1e5))
    assert len(fitted[0]) == 2 * len(SIZES) * len(BUDGETS)
    assert laws["loss"]["objectives"]["gpt, decoder"]["repeats"] is None
    assert "count repeats as new text" in scaling_report.parts(laws, {"loss": "loss"})[-1]


@pytest.mark.parametrize("few", [{"sizes": SIZES[:2]}, {"budgets": BUDGETS[:2]}])
def test_too_few_points_have_no_law(few):
    assert laws_of(cells_of(gpt=GPT, **few)) == {}


@pytest.mark.slow
def test_cells_of_another_recipe_are_another_law():
    cells = cells_of(gpt=GPT) | {f"{name}-muon": cell for name, cell in cells_of(gpt=BERT).items()}
    muon = {name: "muon" if name.endswith("muon") else "adamw" for name in cells}
    recipes = {"optimizer.name": muon, "model.d_model": dict.fromkeys(cells, 8)}
    found = ladder.laws_of(cells, recipes)["loss"]["objectives"]
    assert list(found) == [
        "gpt, decoder, optimizer.name=adamw",
        "gpt, decoder, optimizer.name=muon",
    ]


def test_a_cell_that_failed_is_left_out():
    cells = cells_of(gpt=GPT)
    cells[f"gpt-{SIZES[0]:.0f}-{BUDGETS[3]:.0f}"]["scores"] = {}
    of_one = laws_of(cells)["loss"]["objectives"]["gpt, decoder"]
    assert len(of_one["points"]) == len(SIZES) * len(BUDGETS) - 1
    assert of_one["law"]["alpha"][0] == pytest.approx(GPT.alpha, rel=1e-3)


def test_the_report_shows_what_is_unbounded(of_two):
    found = copy.deepcopy(of_two)
    bounds = found["span_bits_left"]["objectives"]["gpt, decoder"]["law"]["alpha"]
    bounds[2] = None
    parts = scaling_report.parts(found, {"span_bits_left": "bits"})
    coefficients, best, *rest = parts
    assert isinstance(coefficients, Table)
    assert isinstance(best, Table)
    assert coefficients.rows[0][3] == "0.3 (undetermined)"
    assert len(best.rows) == 2 * (len(BUDGETS) + 1)
    charts = [part for part in rest if isinstance(part, Chart)]
    assert len(charts) == 3  # the same compute, of each; and by compute, of both
    assert "nan" not in str(charts).lower()


@pytest.mark.slow
def test_exponents_of_noise_alone_are_finite_or_unbounded():
    """A loss that does not fall has no law; nothing breaks, and JSON has no word for infinity."""
    flat = cells_of(gpt=dataclasses.replace(GPT, A=1e-9, B=1e-9))
    for number, cell in enumerate(flat.values()):
        cell["scores"]["loss"]["seeds"] = [3.0 + 0.01 * math.sin(7 * number)]
    laws = laws_of(flat)
    of_one = laws["loss"]["objectives"]["gpt, decoder"]
    for bounded in of_one["law"].values():
        assert all(number is None or math.isfinite(number) for number in bounded)
    scaling_report.parts(laws, {"loss": "loss"})
