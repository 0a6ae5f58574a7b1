"""A comparison from its config to its report, and what it refuses."""

import csv
import io
import json
import os
import random
import shutil
import time
from html.parser import HTMLParser

import numpy as np
import pytest
from conftest import run, settings, start
from scipy.stats import kendalltau

import t5x_lite
from t5x_lite.comparison import cells as study_cells
from t5x_lite.comparison import report
from t5x_lite.comparison import run as compare
from t5x_lite.comparison.budget import spent, steps_of_cells
from t5x_lite.comparison.evaluations import whole_text_objectives
from t5x_lite.config import Lengths
from t5x_lite.config.files import build_comparison
from t5x_lite.data.rows.row_plan import plan_rows
from t5x_lite.errors import UserError
from t5x_lite.training import computation
from t5x_lite.training.step import make_train_step

LENGTHS = {
    "bert": {"sequence_length": 42},
    "t5": {"inputs": 37, "targets": 9},
    "gpt": {"sequence_length": 40},
}
CELLS = {
    "bert": {"objective": "masked_lm", "model": {"architecture": "encoder"}},
    "t5": {"objective": "span_corruption", "model": {"architecture": "encoder_decoder"}},
    "gpt": {},
}


def comparison(text_file, **more) -> dict:
    """Three families, small."""
    base = settings(text_file)
    del base["data"]["lengths"]
    cells = {name: {**cell, "data": {"lengths": LENGTHS[name]}} for name, cell in CELLS.items()}
    return {
        "title": "A <test>",
        "base": base,
        "cells": cells,
        "budget": 12 * 8 * 40,
        "evaluations": 2,
        "span_count": 20,
        "span_context": 6,
        "blanks": ["the ___ sees"],
        "spans": ["the ___ sees"],
        "prompts": ["the"],
        **more,
    }


@pytest.fixture
def written(tmp_path, text_file):
    """A function that writes a comparison and returns the command that trains it."""

    def write(**more):
        path = tmp_path / "config.py"
        values = comparison(text_file, **more)
        path.write_text(f"def get_config():\n    return {values!r}\n")
        return ("compare", f"--config={path}", f"--workdir={tmp_path / 'run'}")

    return write


def test_a_comparison_from_end_to_end(tmp_path, written):
    command, workdir = written(), tmp_path / "run"
    out, err = run(*command)
    assert "Traceback" not in out + err
    assert "matched by raw tokens; 3 cells × 1 seed:" in out

    results = json.loads((workdir / "report.json").read_text())
    gpt = results["cells"]["gpt"]
    assert gpt["raw_tokens"] == gpt["loss_tokens"] == 12 * 8 * 40
    assert {cell["raw_tokens"] for cell in results["cells"].values()} == {12 * 8 * 40}
    num_bytes = results["corpus"]["validation"]["bytes"]
    tokens = results["corpus"]["validation"]["tokens"]
    bits, loss = (gpt["scores"][name]["mean"] for name in ("bits_per_byte", "loss"))
    assert bits == pytest.approx(loss * tokens / np.log(2) / num_bytes)
    counted = results["counting"]
    for name in ("bits_per_byte", "span_bits_left"):
        assert counted["Kneser-Ney trigram"][name] < counted["unigram"][name] < 8
    contexts = {
        name: [score for score in cell["scores"] if score.startswith("span_bits")]
        for name, cell in results["cells"].items()
    }
    both = ["span_bits_left", "span_bits_both"]
    assert contexts == {"bert": both, "t5": both, "gpt": both[:1]}
    assert not results["texts"]  # all read the same, in the same order
    assert results["recipes"]["objective"]["t5"] == "span_corruption"

    html = (workdir / "report.html").read_text()
    HTMLParser().feed(html)
    assert "A &lt;test&gt;" in html
    assert "A <test>" not in html
    for text in (html, (workdir / "report.md").read_text()):
        assert "span bits per byte" in text
        assert all(name in text for name in CELLS)
    lines = list(csv.DictReader(io.StringIO((workdir / "report.csv").read_text())))
    assert [line["run"] for line in lines] == ["bert", "t5", "gpt"]
    assert float(lines[2]["loss"]) == loss

    # Evaluated once more, the same bits per byte.
    out, _ = run("evaluate", f"--workdir={workdir / 'gpt'}", "--json")
    evaluated = json.loads(out.splitlines()[-1])
    assert evaluated["bits_per_byte"] == pytest.approx(bits, rel=1e-6)

    # Reports are written again, of all, of one, and of some side by side.
    (workdir / "report.html").unlink()
    run("report", f"--workdir={workdir}")
    assert (workdir / "report.html").read_text() == html
    run("report", f"--workdir={workdir / 'gpt'}")
    assert (workdir / "gpt/report.html").exists()
    run("report", f"--workdir={tmp_path / 'two'}", workdir / "gpt", workdir / "t5")
    two = json.loads((tmp_path / "two/report.json").read_text())
    assert list(two["cells"]) == ["gpt", "t5"]
    assert two["cells"]["gpt"]["scores"]["loss"]["mean"] == loss

    # The same command trains nothing anew, and reaches the same.
    before = (workdir / "report.json").read_text()
    out, _ = run(*command)
    assert "step 1/12" not in out
    assert (workdir / "report.json").read_text() == before
    for setting, words in [
        ("cells.gpt.seed=3", "seed: cells have different seeds"),
        ("prompts=[5]", "prompts: got 5, expected text"),
        ("blanks=['no blank']", "expected a text with ___"),
        (f"prompts=['{'x' * 90}']", "is longer than a row of bert, 42 tokens"),
        ("cells.gtp.seed=1", "no such cell; did you mean gpt?"),
        ("cells=5", "expected"),
        ("budget=3", "but a step of bert costs 320 raw tokens; raise it"),
        ("match=flop", "match: got"),
        ("budget=960", "it was planned for 12 steps, now for 3"),
        ("data.epochs=2", "cells.bert.data.epochs: the budget says how long"),
        ("tasks=('nosuch',)", "nosuch"),
    ]:
        _, err = run(*command, "--dry-run", f"--config.{setting}", code=78)
        assert words in err
    _, err = run(*command, "--dry-run", "--cells=gtp", code=2)
    assert "did you mean gpt?" in err
    _, err = run(
        "report", f"--workdir={tmp_path / 'same'}", workdir / "gpt", workdir / "gpt", code=2
    )
    assert "two runs are called gpt" in err


@pytest.mark.slow
def test_cells_are_trained_at_once_and_one_that_fails_does_not_lose_the_others(tmp_path, written):
    lengths = {"data": {"lengths": LENGTHS["gpt"]}}
    cells = {"good": lengths, "bad": {**lengths, "optimizer": {"learning_rate": 0.1}}}
    command = written(cells=cells, blanks=[], spans=[], seeds=2)
    out, err = run(*command, "--cells=good")
    assert "no report yet: run the same command without --cells to train the rest" in out
    assert not (tmp_path / "run/report.json").exists()
    # Where the bad cell would be trained, another run is.
    shutil.copytree(tmp_path / "run/good", tmp_path / "run/bad")
    out, err = run(*command, "--jobs=2", code=78)
    assert "1 of 4 runs failed: bad: optimizer.learning_rate" in err
    results = json.loads((tmp_path / "run/report.json").read_text())
    assert list(results["failed"]) == ["bad"]
    assert len(results["cells"]["bad"]["scores"]["loss"]["seeds"]) == 1
    good = results["cells"]["good"]["scores"]["loss"]
    assert len(good["seeds"]) == 2
    assert good["low"] < min(good["seeds"]) < max(good["seeds"]) < good["high"]
    assert "Failed: bad: optimizer.learning_rate" in (tmp_path / "run/report.md").read_text()
    _, err = run(*command, "--cells=god", code=2)
    assert "did you mean good?" in err


def test_runs_at_once_share_a_cpu_and_nothing_else(written, monkeypatch):
    monkeypatch.setattr(compare.jax, "default_backend", lambda: "gpu")
    cells = {"a": {"data": {"lengths": LENGTHS["gpt"]}}}
    _, err = run(*written(cells=cells, blanks=[], spans=[]), "--jobs=2", code=2)
    assert "--jobs=2: parallel runs need a CPU, but this backend is a gpu; remove --jobs" in err


@pytest.mark.slow
def test_a_cell_without_any_run_is_left_out_of_the_report(tmp_path, written, monkeypatch):
    objectives = {"lm": "causal_lm", "bad": "fill_in_the_middle", "next": "masked_next_token"}
    cells = {
        name: {"objective": objective, "data": {"lengths": LENGTHS["gpt"]}}
        for name, objective in objectives.items()
    }
    command = written(cells=cells, blanks=[], spans=[], span_count=1)
    train_stages = compare.train_stages

    def fail(stages, *rest):
        if stages[-1].resolved.config.objective == "fill_in_the_middle":
            raise RuntimeError("RESOURCE_EXHAUSTED: 5 TB")  # as jax says it
        return train_stages(stages, *rest)

    monkeypatch.setattr(compare, "train_stages", fail)
    out, err = run(*command, "--cells=bad", code=71)
    assert "no report yet" in out
    assert "1 of 1 runs failed: bad: out of memory" in err
    run(*command, code=71)
    text = (tmp_path / "run/report.md").read_text()
    assert "Failed: bad: out of memory" in text
    assert "| bad | – | – | – |" in text  # under each objective
    # One span is a span, too: its bits are divided by its bytes.
    results = json.loads((tmp_path / "run/report.json").read_text())
    bits = json.loads((tmp_path / "run/lm/span_bits.json").read_text())["answer"]
    scores = results["cells"]["lm"]["scores"]
    expected = bits["left"]["without_end"][0]
    assert scores["span_bits_left"]["mean"] == pytest.approx(expected / results["spans"]["bytes"])


@pytest.mark.slow
def test_losses_of_other_texts_do_not_compare(tmp_path, text_file, written):
    other = tmp_path / "other.txt"
    lines = text_file.read_text().splitlines()
    other.write_text("\n".join(lines[::-1][: len(lines) // 2]) + "\n")
    lengths = {"lengths": LENGTHS["gpt"]}
    cells = {"one": {"data": lengths}, "two": {"data": {**lengths, "source": str(other)}}}
    run(*written(cells=cells, blanks=[], spans=[], budget=2 * 8 * 40))
    results = json.loads((tmp_path / "run/report.json").read_text())
    compared = [
        name for name, of in results["cells"]["two"]["scores"].items() if "difference" in of
    ]
    assert compared == ["span_bits_left"]
    marked = [
        name
        for name in results["cells"]["one"]["scores"]
        if len(results["cells"]["one"]["scores"][name]["among"]) > 1
    ]
    assert marked == ["span_bits_left"]
    text = (tmp_path / "run/report.md").read_text()
    assert "Another cell may have been trained on some of it" in text


@pytest.mark.slow
def test_what_the_runs_learn_of_tasks(tmp_path, written):
    lines = [f"the {noun} sees it\t{noun}" for noun in ("cat", "dog") * 12]
    for split in ("train", "validation"):
        (tmp_path / f"{split}.tsv").write_text("\n".join(["sentence\tanimal", *lines]) + "\n")
    file = f"{tmp_path}/{{split}}.tsv, text=sentence, label=animal, test="
    spelled = f"generate({file}, name=spelled, metrics=exact_match)"
    cells = {name: {**CELLS[name], "data": {"lengths": LENGTHS[name]}} for name in ("bert", "gpt")}
    command = written(
        cells=cells,
        tasks=[f"classify({file}, name=animals)", spelled],
        finetune=["data.epochs=1"],
        from_scratch=True,
        span_count=0,
        budget=2 * 8 * 40,
        evaluations=1,
        **{"blanks": [], "spans": [], "prompts": []},
    )
    out, _ = run(*command)
    assert "bert cannot learn spelled" in out
    results = json.loads((tmp_path / "run/report.json").read_text())
    scores = {name: list(cell["scores"]) for name, cell in results["cells"].items()}
    animals = ["animals: accuracy", "animals: accuracy, from scratch"]
    spelled = [text.replace("animals: accuracy", "spelled: exact match") for text in animals]
    assert [name for name in scores["bert"] if ":" in name] == animals
    assert [name for name in scores["gpt"] if ":" in name] == animals[:1] + spelled[:1] + [
        *animals[1:],
        *spelled[1:],
    ]
    learned = json.loads((tmp_path / "run/gpt/tasks/animals/report.json").read_text())
    accuracy = learned["reached"]["accuracy"]["mean"]
    assert results["cells"]["gpt"]["scores"][animals[0]]["mean"] == accuracy
    assert learned["title"] == "animals, from gpt: full"
    page = (tmp_path / "run/report.md").read_text()
    assert "animals: accuracy, from scratch" in page
    _, err = run(*command, "--config.tasks=('clasify(x.tsv)',)", code=78)
    assert "clasify" in err
    _, err = run(*command, "--config.finetune=('data.epoch=1',)", code=78)
    assert "did you mean" in err


def cells_that_go_on(text_file, tmp_path, objective="causal_lm"):
    """Train a run for 4 steps of 8 rows of 40 tokens; return it, and a cell that starts afresh
    beside one that goes on from it.
    """
    first = settings(text_file, **{"training.steps": 4})
    first["objective"], first["data"]["lengths"] = objective, LENGTHS["gpt"]
    (tmp_path / "first.py").write_text(f"def get_config():\n    return {first!r}\n")
    before = tmp_path / "before"
    run("train", f"--config={tmp_path / 'first.py'}", f"--workdir={before}")
    tokens = f"{before}/tokenizer"
    data = {"lengths": LENGTHS["gpt"], "tokenizer": tokens}
    cell = {"data": data, "objective": objective}
    return before, {"fresh": cell, "going_on": {**cell, "init_from": str(before)}}


def test_what_a_cell_starts_from_is_part_of_its_budget(text_file, tmp_path):
    before, cells = cells_that_go_on(text_file, tmp_path)
    cell = cells["fresh"]
    config = comparison(text_file, cells=cells, blanks=(), spans=(), budget=12 * 8 * 40)
    fresh, going_on = study_cells.plan_cells(build_comparison(config), tmp_path)
    assert (fresh.resolved.steps, going_on.resolved.steps) == (12, 8)
    assert fresh.inherited == {}
    inherited = going_on.inherited
    assert inherited.keys() == spent(fresh.cost, fresh.seconds_per_step[0]).keys()
    assert (inherited["steps"], inherited["raw_tokens"]) == (4, 4 * 8 * 40)
    assert inherited["flops"] == pytest.approx(4 * fresh.cost.flops)
    assert inherited["model_tokens"] == pytest.approx(4 * fresh.cost.model_tokens)

    # Steps after the last checkpoint are lost, labels of a task are counted as tokens are, and an
    # imported model starts from itself.
    records = [json.loads(line) for line in (before / "metrics.jsonl").read_text().splitlines()]
    later = {**records[-1], "split": "train", "step": 6}
    text = "".join(json.dumps(record) + "\n" for record in [*records, later])
    (before / "metrics.jsonl").write_text(text.replace('"loss_tokens"', '"loss_labels"'))
    written = json.loads((before / "config.json").read_text())
    (before / "config.json").write_text(json.dumps({**written, "init_from": str(before)}))
    _, again = study_cells.plan_cells(build_comparison(config), tmp_path)
    assert again.inherited == inherited

    # What all inherit alike changes nothing.
    both = {name: {**cell, "init_from": str(before)} for name in cells}
    config = comparison(text_file, cells=both, blanks=(), spans=(), budget=12 * 8 * 40)
    planned = study_cells.plan_cells(build_comparison(config), tmp_path)
    assert [one.resolved.steps for one in planned] == [12, 12]

    # And who has inherited the whole budget learns nothing more.
    config = comparison(text_file, cells=cells, blanks=(), spans=(), budget=4 * 8 * 40)
    expected = "going_on costs 320 raw tokens, and it has inherited 1,280 more than others"
    with pytest.raises(UserError, match=expected):
        study_cells.plan_cells(build_comparison(config), tmp_path)


def test_padding_is_neither_spent_nor_inherited(text_file, tmp_path):
    """I.i.d. denoising masks a random number of spans, so its rows have padding."""
    _, cells = cells_that_go_on(text_file, tmp_path, "iid_denoising")
    config = comparison(text_file, cells=cells, blanks=(), spans=(), budget=4_000)
    config["match"] = "model_tokens"
    fresh, going_on = study_cells.plan_cells(build_comparison(config), tmp_path)
    assert fresh.cost.padding > 0.02
    inherited = going_on.inherited["model_tokens"]
    assert inherited == round(4 * fresh.cost.model_tokens)
    assert going_on.resolved.steps == round((4_000 - inherited) / fresh.cost.model_tokens)


def test_a_dry_run_says_what_it_would_cost_and_trains_nothing(tmp_path, written):
    out, _ = run(*written(match="flops", budget=0.0, seeds=5), "--dry-run")
    assert "matched by flops; 3 cells × 5 seeds" in out
    assert not (tmp_path / "run/gpt").exists()


def test_a_step_that_was_timed_is_not_compiled_again(written, monkeypatch):
    """Where cells are trained in the process that plans them."""
    made = []

    def counted(*args):
        made.append(args)
        return make_train_step(*args)

    monkeypatch.setattr(computation, "make_train_step", counted)
    cells = {"gpt": {"data": {"lengths": LENGTHS["gpt"]}}}
    more = {"span_count": 0, "ngram": False, "other_objectives": False, "evaluations": 1}
    run(*written(cells=cells, match="seconds", budget=0, blanks=[], spans=[], **more))
    assert len(made) == 1


def test_shares_of_a_mixture_add_up(text_file, tmp_path):
    """Those of UL2 are seven times a seventh."""
    cells = {
        name: {"objective": name, "model": {"architecture": "encoder_decoder"}}
        for name in ("ul2", "prefix_lm")
    }
    more = {"match": "steps", "budget": 4, "equal_windows": False, "blanks": (), "spans": ()}
    values = comparison(text_file, cells=cells, **more)
    values["base"]["data"]["lengths"] = {"inputs": 128, "targets": 128}
    ul2, prefix_lm = study_cells.plan_cells(build_comparison(values), tmp_path)
    assert study_cells.order_of_text(ul2) == study_cells.order_of_text(prefix_lm)


@pytest.mark.parametrize("match", ["steps", "raw_tokens", "model_tokens", "flops", "seconds"])
def test_all_cells_spend_the_same(text_file, tmp_path, match, monkeypatch):
    monkeypatch.setattr(
        study_cells.Timings,
        "of",
        lambda self, resolved, *rest: 0.5 if resolved.config.objective == "causal_lm" else 1.0,
    )
    config = build_comparison(comparison(text_file, match=match, budget=0.0))
    cells = study_cells.plan_cells(config, tmp_path)
    first = cells[0]
    assert first.resolved.steps == config.cells["bert"].training.steps
    for cell in cells:
        half_a_step = spent(cell.cost, cell.seconds_per_step[0])[match] / 2
        assert cell.total[match] == pytest.approx(first.total[match], abs=half_a_step)
        training = cell.resolved.config.training
        assert training.eval_every == -(-training.steps // 2)
    # Whatever it is, they read the same text in the same order.
    orders = [study_cells.order_of_text(cell) for cell in cells]
    assert all(order == orders[0] for order in orders)


def test_the_batch_may_differ_and_steps_follow(text_file, tmp_path, monkeypatch):
    monkeypatch.setattr(study_cells.Timings, "of", lambda *_: 1.0)
    lengths = {"lengths": LENGTHS["gpt"]}
    cells = {"small": {"data": {**lengths, "batch_size": 4}}, "large": {"data": lengths}}
    config = build_comparison(comparison(text_file, cells=cells, blanks=(), spans=()))
    small, large = study_cells.plan_cells(config, tmp_path)
    assert (small.resolved.steps, large.resolved.steps) == (24, 12)
    assert small.resolved.config.optimizer.warmup_steps == round(100 * 24 / 6)


def test_steps_follow_from_the_budget():
    config = build_comparison(
        {
            "base": {"data": {"lengths": {"sequence_length": 8}}},
            "cells": {"a": {}, "b": {}},
            "match": "flops",
            "budget": 1000.0,
        }
    )
    costs = {"a": [{"flops": 10.0}], "b": [{"flops": 3.0}]}
    assert steps_of_cells(config, 1000.0, costs) == {"a": (100,), "b": (333,)}
    assert steps_of_cells(config, 0.0, costs) == {"a": (1000,), "b": (3333,)}


def test_each_cell_is_trained_under_each_budget(text_file, tmp_path):
    settings = comparison(text_file, blanks=(), spans=())
    settings = {key: value for key, value in settings.items() if key != "budget"}
    config = build_comparison(settings | {"budgets": (2400, 4800)})
    cells = study_cells.plan_cells(config, tmp_path)
    names = list(config.cells)
    assert [cell.name for cell in cells] == [
        *(f"{name}-2400" for name in names), *(f"{name}-4800" for name in names)
    ]  # fmt: skip
    for less, more in zip(cells[: len(names)], cells[len(names) :], strict=True):
        assert more.total[config.match] == pytest.approx(2 * less.total[config.match], rel=0.1)
        assert more.resolved.config.model == less.resolved.config.model


def test_a_report_says_how_often_a_smaller_budget_decides_alike(tmp_path, written):
    """The share of pairs in the same order is (1 + Kendall's tau) / 2."""
    cells = {
        str(rate): {"optimizer": {"learning_rate": rate}, "data": {"lengths": LENGTHS["gpt"]}}
        for rate in (1e-3, 1.0)
    }
    less = {"budgets": (640, 1920), "budget": 0.0, "span_count": 0, "ngram": False}
    run(*written(cells=cells, blanks=[], spans=[], prompts=[], **less))
    results = json.loads((tmp_path / "run/report.json").read_text())
    small, large = (
        [results["cells"][f"{cell}-{budget}"]["scores"]["loss"]["mean"] for cell in cells]
        for budget in (640, 1920)
    )
    (found,) = results["decisions"]["loss"]
    assert (found["budget"], found["largest"], found["pairs"]) == (640, 1920, 1)
    assert found["accuracy"] == pytest.approx((1 + kendalltau(small, large).statistic) / 2)
    shown = (tmp_path / "run/report.md").read_text()
    assert f"640 raw tokens (×0.33) | {found['accuracy']:.0%} | 1 | – | 0 |" in shown
    assert "magnusson2025" in (tmp_path / "run/report.bib").read_text()


@pytest.mark.parametrize(
    ("budgets", "expected"),
    [
        ((0,), "got 0.0, expected above 0.0"),
        ((float("inf"),), "got inf, expected a number"),
        ((float("nan"),), "got nan, expected a number"),
        (("1e6",), "got '1e6', expected a number"),
        ((1e6, 1e6), r"got \(1000000.0, 1000000.0\), expected each once"),
    ],
)
def test_budgets_that_are_none_are_refused(budgets, expected):
    base = {"data": {"lengths": {"sequence_length": 8}}}
    with pytest.raises(UserError, match=f"budgets: {expected}"):
        build_comparison({"base": base, "cells": {"a": {}}, "budgets": budgets})


def without_times(results: dict) -> dict:
    """The results, without what depends on the day and on how fast the machine was."""
    results.pop("hours")
    results.pop("date")
    for cell in results["cells"].values():
        cell.pop("seconds")
        for summary in cell["runs"].values():
            summary.pop("seconds")
            summary.pop("tokens_per_second")
            summary["curve"].pop("tokens_per_second")
    return results


@pytest.mark.slow
def test_a_comparison_that_was_killed_goes_on_to_the_same_report(tmp_path, written):
    command = written(budget=60 * 8 * 40, evaluations=6, seeds=2)
    run(*command)
    whole = without_times(json.loads((tmp_path / "run/report.json").read_text()))
    (tmp_path / "run").rename(tmp_path / "whole")
    moments = random.Random(0)
    for _ in range(10):
        process = start(*command, env=os.environ)  # compiled as it is in this process
        time.sleep(moments.uniform(4, 16))
        process.kill()
        process.communicate()
    run(*command)
    after = without_times(json.loads((tmp_path / "run/report.json").read_text()))
    assert json.dumps(after) == json.dumps(whole)


def test_seeds_are_added_until_all_is_decided(monkeypatch, text_file, tmp_path):
    """Of three cells one is decided with three seeds, and the other with five."""
    config = build_comparison(comparison(text_file, seeds=3, max_seeds=8))
    trained = []

    def train_and_report(config, workdir, only, jobs, looks):
        trained.append((config.seeds, looks))
        verdicts = {"t5": "different", "gpt": "equivalent" if config.seeds >= 5 else "open"}
        cells = {
            name: {"scores": {"loss": {"difference": {"verdict": verdict}}}}
            for name, verdict in verdicts.items()
        }
        return {"rule": {"score": "loss"}, "cells": {"bert": {"scores": {"loss": {}}}, **cells}}

    monkeypatch.setattr(compare, "_train_and_report", train_and_report)
    compare.compare(config, tmp_path)
    assert trained == [(3, 6), (4, 6), (5, 6)]
    trained.clear()
    compare.compare(build_comparison(comparison(text_file, seeds=3)), tmp_path)
    assert trained == [(3, 1)]


def test_what_decides_is_checked_before_anything_is_trained(text_file, tmp_path):
    for decide_by, hint in (("los", "did you mean loss?"), ("which_module", "which_module: accu")):
        config = comparison(text_file, decide_by=decide_by, tasks=("which_module",))
        with pytest.raises(UserError, match=f"decide_by: got '{decide_by}'.*{hint}"):
            study_cells.plan_comparison(build_comparison(config), tmp_path)
    config = build_comparison(comparison(text_file, seeds=2, max_seeds=4))
    with pytest.raises(UserError, match="max_seeds=4: got --cells, but seeds are added by one"):
        compare.compare(config, tmp_path, only=("gpt",))
    results = {"rule": {"score": "loss"}, "cells": {"gpt": {"scores": {"loss": {}}}}}
    with pytest.raises(UserError, match=r"decide_by: no cell can be compared .* in loss"):
        compare.cells_to_decide(results)


def test_what_a_cell_cannot_start_from_is_refused_before_anything_is_trained(text_file, tmp_path):
    lengths = {"data": {"lengths": LENGTHS["gpt"]}}
    cells = {"a": lengths, "b": {**lengths, "adapt": "lora(rank=2)"}}
    config = build_comparison(comparison(text_file, cells=cells, blanks=(), spans=()))
    with pytest.raises(UserError, match="set init_from to the run directory of the model to adapt"):
        study_cells.plan_cells(config, tmp_path)
    cells["b"] = {**lengths, "init_from": str(tmp_path / "nothing")}
    config = build_comparison(comparison(text_file, cells=cells, blanks=(), spans=()))
    with pytest.raises(UserError, match="nothing"):
        study_cells.plan_cells(config, tmp_path)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"seeds": 5, "max_seeds": 4}, "max_seeds: got 4, expected at least seeds, 5"),
        ({"max_seeds": 4}, "seeds: got 1, but a verdict needs two at least"),
        ({"alpha": 0.0}, "alpha: got 0.0"),
        ({"effect": -1.0}, "effect: got -1.0"),
    ],
)
def test_rules_without_a_verdict_are_refused(text_file, more, expected):
    with pytest.raises(UserError, match=expected):
        build_comparison(comparison(text_file, **more))


def test_a_tokenizer_that_is_lossy_is_said_to_be(text_file):
    results = {"lossless": False, "spans": {"count": 0, "bytes": 0}, "failed": {}, "tasks": {}}
    counts = {"documents": 1, "tokens": 1, "bytes": 1}
    notes = report._reading_notes(results | {"corpus": {"validation": counts}})
    assert any("lossy" in str(note) for note in notes)


def test_a_mixture_is_asked_for_the_whole_text_in_each_way(tmp_path, text_file):
    """It has learned to go on with a text and to fill its masks: it has a figure for both."""
    base = settings(text_file, **{"training.steps": 4, "model.positions": "rotary"})
    mixture = "causal_lm + masked_diffusion"
    cells = {"causal": {}, "both": {"objective": mixture}}
    written = {"base": base, "cells": cells, "span_count": 0, "ngram": False}
    results = compare.compare(build_comparison(written), tmp_path / "run")
    causal, both = (results["cells"][name]["scores"] for name in ("causal", "both"))
    assert both["bits_per_byte_bound"]["mean"] <= both["bits_per_byte"]["mean"]
    assert causal["bits_per_byte_bound"]["mean"] == causal["bits_per_byte"]["mean"]
    assert both["bits_per_byte"]["difference"]
    # The table of other objectives has their members, not the mixture.
    assert set(results["other_objectives"]["both"]) == {"causal_lm", "masked_diffusion"}
    page = (tmp_path / "run/report.md").read_text()
    assert "| model | causal_lm | masked_diffusion |" in page

    # The same parameters in a run of one objective, which do not change there.
    cell = study_cells.plan_cells(build_comparison(written), tmp_path / "run")[1]
    for objective in ("causal_lm", "masked_diffusion"):
        more = {"init_from": str(tmp_path / "run/both"), "objective": objective}
        config = settings(
            text_file,
            **more,
            **{
                "training.steps": 1,
                "model.positions": "rotary",
                "optimizer.learning_rate": 0.0,
                "data.window": cell.data.plan.members[0].window,
            },
        )
        t5x_lite.train(config, tmp_path / objective)
        alone = t5x_lite.evaluate(tmp_path / objective)
        found = json.loads((tmp_path / "run/both/whole_text.json").read_text())["answer"]
        name = "bits_per_byte" if objective == "causal_lm" else "bits_per_byte_bound"
        assert found[name] == pytest.approx(alone[name], rel=1e-6)


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        ("causal_lm", []),
        ("causal_lm + 2 * causal_lm", ["causal_lm"]),
        ("masked_next_token", []),
        ("prefix_lm", []),
        ("causal_lm + masked_diffusion", ["causal_lm", "masked_diffusion(shifted=True)"]),
        ("meap", ["causal_lm"]),
        ("meap + masked_next_token + causal_lm", ["causal_lm"]),
        ("fill_in_the_middle(fim_rate=0.9)", ["causal_lm"]),
        ("fill_in_the_middle(fim_rate=1)", []),
    ],
)
def test_a_whole_text_is_asked_of_models_that_have_learned_to_predict_it(objective, expected):
    rows = plan_rows(objective, "decoder", Lengths(sequence_length=40))
    assert whole_text_objectives(rows) == expected
