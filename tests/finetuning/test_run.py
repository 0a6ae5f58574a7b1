"""Fine-tuning from a run, whole: what is learned, kept, written, continued and refused."""

import json
import math
import random
import shutil

import numpy as np
import pytest
from conftest import ROOT, run
from flax.traverse_util import flatten_dict
from interop_cases import make_dimensions, make_params

from t5x_lite import api
from t5x_lite.data.tasks.load import load_task
from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.errors import UserError
from t5x_lite.finetuning.results import show
from t5x_lite.interop import huggingface
from t5x_lite.interop.convert import as_run
from t5x_lite.model_address import ModelAddress
from t5x_lite.progress import messages_to
from t5x_lite.training.adapt import parse_adaptation
from t5x_lite.training.log import read_metrics

OBJECTIVES = {
    "encoder": "masked_lm",
    "decoder": "causal_lm",
    "prefix_decoder": "prefix_lm",
    "encoder_decoder": "span_corruption",
}


@pytest.fixture(scope="module")
def bases(make, tmp_path_factory):
    """A function that makes a run of each architecture to begin with, barely trained."""
    made = {}

    def base(architecture):
        if architecture not in made:
            workdir = tmp_path_factory.mktemp("base") / architecture
            resolved, _ = make(
                OBJECTIVES[architecture], architecture, **{"training.steps": 2, "model.d_model": 32}
            )
            api.train(resolved.config, workdir)
            made[architecture] = workdir
        return made[architecture]

    return base


@pytest.fixture(scope="module")
def animals(tmp_path_factory):
    """A task that is learned in seconds: does the sentence begin with a cat, or a dog?"""
    directory = tmp_path_factory.mktemp("animals")
    pick = random.Random(0).choice
    for split, count in (("train", 192), ("dev", 40), ("test", 10)):
        lines = ["text\tlabel"]
        for _ in range(count):
            animal = pick(("cat", "dog"))
            label = {"cat": "c", "dog": "d"}[animal] if split != "test" else "-1"
            lines.append(f"{animal} {pick(('sees', 'hears'))} it\t{label}")
        (directory / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    options = "validation=dev, test=test, labels=c|d, prompt={text}, submission=animals.tsv"
    return f"classify({directory}, {options})"


SETTINGS = {
    "data.epochs": 6,
    "data.batch_size": 8,
    "optimizer.learning_rate": 3e-3,
    "optimizer.name": "adamw",
    "optimizer.schedule": "constant",
    "model.dropout": 0.0,
    "training.log_every": 5,
}


def finetune(bases, task, workdir, architecture="encoder", **more):
    return api.finetune(bases(architecture), task, workdir, **{**SETTINGS, **more})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "in_words"),
    [*((architecture, False) for architecture in OBJECTIVES), ("decoder", True)],
)
def test_every_family_learns(bases, animals, tmp_path, architecture, in_words):
    more = {"data.epochs": 8, "task.in_words": in_words}
    results = finetune(bases, animals, tmp_path / "run", architecture, **more)
    assert results["reached"]["accuracy"]["mean"] >= 0.9

    # What was written: a prediction for each example, in order, and what the benchmark wants.
    lines = (tmp_path / "run/predictions/validation.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["id"] for record in records] == list(range(40))
    right = [record["prediction"] == record["label"] for record in records]
    assert sum(right) / 40 == pytest.approx(results["reached"]["accuracy"]["mean"])
    submitted = (tmp_path / "run/predictions/animals.tsv").read_text().splitlines()
    assert submitted[0] == "index\tprediction"
    assert {line.split("\t")[1] for line in submitted[1:]} <= {"0", "1"}
    assert len(submitted) == 11

    # The report: its table, what is taken for what, what is wrong.
    taken = [
        [sum(r["label"] == x and r["prediction"] == y for r in records) for y in "cd"] for x in "cd"
    ]
    assert [of[:2] for of in results["confusion"]["of_label"].values()] == taken
    for heading, shown in results["shown"].items():
        for record in shown:
            assert (record["label"] == record["prediction"]) == ("right" in heading)
    assert (
        f"| defaults | 0 | {results['reached']['accuracy']['mean']:.4f} |"
        in (tmp_path / "run/report.md").read_text()
    )
    page = (tmp_path / "run/report.html").read_text()
    assert page.count('class="spec"') == 2
    (tmp_path / "run/report.html").unlink()
    run("report", f"--workdir={tmp_path / 'run'}")
    assert (tmp_path / "run/report.html").read_text() == page

    # The model as it is read back is the one that was judged.
    model = api.load_model(tmp_path / "run")
    evaluated = model.evaluate_task(animals)
    assert evaluated["metrics"]["accuracy"] == results["reached"]["accuracy"]["mean"]
    with pytest.raises(UserError, match="exact_match does not judge tasks of kind classify"):
        model.evaluate_task(animals[:-1] + ", metrics=exact_match)")
    again = api.evaluate(tmp_path / "run")
    assert again["accuracy"] == pytest.approx(results["reached"]["accuracy"]["mean"])


def records_of(workdir):
    """metrics.jsonl, without what depends on the machine."""
    timed = ("seconds", "tokens_per_second", "train_seconds", "step_seconds")
    return [
        {key: value for key, value in record.items() if key not in timed}
        for record in read_metrics(workdir / "metrics.jsonl")
    ]


class Stop(Exception):
    pass


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_to_the_same_result(bases, animals, tmp_path):
    more = {"training.checkpoint_every": 7, "model.dropout": 0.1}
    whole = finetune(bases, animals, tmp_path / "whole", **more)

    def stop_at(step):
        def on_log(record):
            if record["step"] >= step and record["split"] == "train":
                raise Stop

        return on_log

    for step in (10, 20):
        with pytest.raises(Stop):
            finetune(bases, animals, tmp_path / "run", on_log=stop_at(step), **more)
    assert finetune(bases, animals, tmp_path / "run", **more) == whole
    assert records_of(tmp_path / "run") == records_of(tmp_path / "whole")
    for name in ("validation.jsonl", "test.jsonl"):
        one, other = (tmp_path / run / "predictions" / name for run in ("run", "whole"))
        assert one.read_text() == other.read_text()


def test_the_best_evaluation_is_kept_and_a_run_without_a_better_one_ends(bases, animals, tmp_path):
    more = {"training.eval_every": 4, "training.patience": 2, "data.epochs": 30}
    results = finetune(bases, animals, tmp_path / "run", **more)
    evaluated = [r for r in records_of(tmp_path / "run") if r["split"] == "validation"]
    values = [record["task_accuracy"] for record in evaluated]
    best = values.index(max(values))
    assert len(values) - 1 - best == 2  # it ended early, after two that were not better
    assert results["cells"][0]["seeds"]["0"]["step"] == evaluated[best]["step"]
    assert api.load_model(tmp_path / "run")._loaded.step == evaluated[best]["step"]
    # The same command finds it finished.
    assert finetune(bases, animals, tmp_path / "run", **more) == results


@pytest.mark.slow
def test_a_grid_and_seeds(bases, animals, tmp_path):
    more = {"data.epochs": 1}
    del (settings := dict(SETTINGS))["optimizer.learning_rate"]
    grid = {"optimizer.learning_rate": [1e-9, 1e-2]}
    results = api.finetune(
        bases("encoder"),
        animals,
        tmp_path / "runs",
        seeds=2,
        grid=grid,
        **{**settings, **more},
    )
    assert results["chosen"] == {"optimizer.learning_rate": "0.01"}
    # The first seed chose; the others trained the chosen cell alone.
    assert [list(cell["seeds"]) for cell in results["cells"]] == [["0"], ["0", "1"]]
    values = [reached["accuracy"] for reached in results["cells"][1]["seeds"].values()]
    reached = results["reached"]["accuracy"]
    assert reached["mean"] == pytest.approx(sum(values) / 2)
    assert reached["standard_deviation"] is not None
    assert (tmp_path / "runs/learning_rate=0.01/seed_1/metrics.jsonl").exists()
    shown = show(results)
    assert "chosen" in shown
    assert "standard deviation of 2 seeds" in shown


@pytest.mark.slow
def test_from_scratch_has_the_same_shape_and_other_parameters(bases, animals, tmp_path, capsys):
    more = {"data.epochs": 1, "training.steps": 1}
    finetune(bases, animals, tmp_path / "loaded", **more)
    assert "arrays loaded from" in capsys.readouterr().out
    finetune(bases, animals, tmp_path / "drawn", from_scratch=True, **more)
    assert "arrays loaded from" not in capsys.readouterr().out


def test_commands(bases, animals, tmp_path):
    init = bases("encoder")
    settings = SETTINGS | {"data.epochs": 1}
    overrides = [f"--config.{key}={value}" for key, value in settings.items()]
    command = ["finetune", f"--init={init}", f"--task={animals}", f"--workdir={tmp_path / 'run'}"]
    out, _ = run(*command, *overrides)
    assert "accuracy" in out
    _, err = run("finetune", f"--init={init}", "--workdir=x", code=2)
    assert "--task=NAME is missing" in err
    _, err = run(*command, "--config.data.lerning_rate=3", code=78)
    assert "data.lerning_rate: no such setting" in err
    _, err = run(*command, "--grid=optimizer.learning_rate", code=2)
    assert "expected KEY=VALUE,VALUE" in err
    _, err = run(*command, "--config.seed=4", code=78)
    assert "seed: the run in" in err
    _, err = run("train", f"--config={tmp_path / 'run'}", f"--workdir={tmp_path / 'x'}", code=2)
    assert "this run learned a task" in err
    _, err = run("fill", f"--workdir={tmp_path / 'run'}", "the ___", code=2)
    assert "has no head that predicts tokens" in err
    _, err = run(
        "finetune",
        f"--init={init}",
        "--task=squad(nowhere)",
        f"--workdir={tmp_path / 's'}",
        code=66,
    )
    assert "no such examples" in err
    out, _ = run("evaluate", f"--workdir={tmp_path / 'run'}", f"--task={animals}", "--json")
    assert set(json.loads(out)["metrics"]) == {"accuracy"}


@pytest.mark.slow
def test_tasks_that_ship_make_their_rows(bases, tmp_path):
    task = load_task("which_module")
    assert len(task.labels) == len(task.answer_words) == 8
    results = api.finetune(
        bases("encoder"),
        task,
        tmp_path / "run",
        **{"training.steps": 2, "training.eval_every": 2},
    )
    assert 0 <= results["reached"]["accuracy"]["mean"] <= 1


def test_what_cannot_be_learned(bases, animals, tmp_path):
    with pytest.raises(UserError, match="seeds=0: expected at least 1"):
        finetune(bases, animals, tmp_path / "run", seeds=0)
    wrong = [
        (f"generate({ROOT / 'README.md'})", "an encoder cannot learn to generate"),
        (animals[:-1] + ", metrics=acuracy)", "got 'acuracy'; did you mean accuracy"),
        (animals[:-1] + ", metrics=pearson)", "pearson does not judge tasks of kind classify"),
    ]
    for task, words in wrong:
        with pytest.raises(UserError, match=words):
            finetune(bases, task, tmp_path / "run")
    with pytest.raises(UserError, match=r"label_smoothing: got 0\.1, but heads of tasks learn"):
        finetune(bases, animals, tmp_path / "smooth", **{"training.label_smoothing": 0.1})
    with pytest.raises(UserError, match="a value is given twice"):
        finetune(bases, animals, tmp_path / "run", grid={"training.patience": [1, 1]})
    for key in ("seed", "task.name"):
        with pytest.raises(UserError, match=f"{key} cannot be an axis"):
            finetune(bases, animals, tmp_path / "run", grid={key: [1, 2]})
    del (settings := dict(SETTINGS))["optimizer.learning_rate"]
    with pytest.raises(UserError, match="learning_rate: got '1e-x', expected a number"):
        api.finetune(
            bases("encoder"),
            animals,
            tmp_path / "run",
            grid={"optimizer.learning_rate": ["1e-3", "1e-x"]},
            **settings,
        )
    with pytest.raises(UserError, match="adapt=lora: this model has no such parameters"):
        finetune(
            bases,
            animals,
            tmp_path / "run",
            adapt="lora(2)",
            **{"model.lora_targets": ("nothing",)},
        )
    assert not (tmp_path / "run").exists()


def test_a_model_of_hugging_face_is_imported_once_and_whole(tmp_path):
    pytest.importorskip("safetensors")
    for name in ("bert", "bert with two heads"):
        model = make_dimensions(name)
        huggingface.write(tmp_path / name, model, make_params(model), Tokenizer())
    said = []

    def base_of(name):
        with messages_to(said.append):
            return as_run(ModelAddress(tmp_path / name), tmp_path / "run/imported")

    base = base_of("bert")
    imports = len(said)
    assert base_of("bert") == base
    assert len(said) == imports  # not again
    assert base_of("bert with two heads") != base
    # Killed before its config had its name: once more.
    config = base.directory / "config.json"
    config.rename(f"{config}.unfinished")
    assert base_of("bert") == base
    assert (base.directory / "config.json").is_file()


def test_a_test_split_that_is_not_there_is_said(bases, animals, tmp_path):
    said = []
    task = animals.replace("test=test", "test=nowhere")
    more = {"training.steps": 1, **{key: SETTINGS[key] for key in ("data.batch_size",)}}
    with messages_to(said.append):
        api.finetune(bases("encoder"), task, tmp_path / "run", **more)
    assert any(line.startswith("no predictions for a test split: ") for line in said)
    assert not (tmp_path / "run/predictions/test.jsonl").exists()


ADAPTATIONS = ["lora(4)", "prefix(4)", "prompt(4)", "adapter(8)", "bitfit", "probe", "last(1)"]
# The others are slow tests; what they add to a model is in tests/training/test_adapt.py.
QUICK = {("encoder", "lora(4)")}
CASES = [
    pytest.param(way, name, marks=() if (name, way) in QUICK else pytest.mark.slow)
    for way in ADAPTATIONS
    for name in ("encoder", "decoder", "encoder_decoder")
]


def leaves_of(tree):
    return {path: np.asarray(leaf) for path, leaf in flatten_dict(tree, sep="/").items()}


@pytest.mark.parametrize(("adapt", "architecture"), CASES)
def test_what_is_adapted_is_trained_and_saved_alone(bases, animals, tmp_path, adapt, architecture):
    if adapt == "probe" and architecture == "encoder_decoder":
        with pytest.raises(UserError, match="answers in words has no task head to train"):
            finetune(bases, animals, tmp_path / "run", architecture, adapt=adapt)
        return
    more = {"training.steps": 3, "training.eval_every": 3, "training.log_every": 1}
    results = finetune(bases, animals, tmp_path / "run", architecture, adapt=adapt, **more)
    model = api.load_model(tmp_path / "run")
    base = leaves_of(api.load_model(bases(architecture)).params)
    adapted = leaves_of(model.params)
    adaptation = parse_adaptation(adapt)

    # What is frozen is the base's, bit by bit; what is trained has changed.
    saved = saved_parameters(tmp_path / "run/checkpoints/3")
    assert results["trained_parameters"] == sum(saved.values())
    for path, leaf in adapted.items():
        is_trained = adaptation.is_trained(tuple(path.split("/")))
        assert (path in saved) == is_trained
        if not is_trained:
            np.testing.assert_array_equal(leaf, base[path])
    changed = [
        path
        for path, leaf in adapted.items()
        if path in saved and (path not in base or np.abs(leaf - base[path]).max() > 0)
    ]
    assert len(changed) == len(saved)
    if adapt == "last(1)":
        stacked = next(path for path in adapted if "layers/feed_forward" in path)
        np.testing.assert_array_equal(adapted[stacked][:-1], base[stacked][:-1])
    # As it was judged, so it is read back.
    reached = results["reached"]["accuracy"]["mean"]
    assert model.evaluate_task(animals)["metrics"]["accuracy"] == reached


def saved_parameters(step):
    """The names of the parameters in a checkpoint, and how many numbers each has."""
    record = json.loads((step / "_METADATA").read_text())
    saved = {}
    for entry in record["tree_metadata"].values():
        first, *name = (part["key"] for part in entry["key_metadata"])
        if first == "params":
            saved["/".join(name)] = math.prod(entry["value_metadata"]["write_shape"])
    return saved


@pytest.mark.slow
def test_an_adapted_run_goes_on_and_its_base_must_be_the_same(bases, animals, tmp_path):
    base = tmp_path / "base"
    shutil.copytree(bases("encoder"), base)
    arguments = {"adapt": "lora(4)", **SETTINGS, "training.checkpoint_every": 5}

    def stop(record):
        if record["step"] >= 8 and record["split"] == "train":
            raise Stop

    whole = api.finetune(base, animals, tmp_path / "whole", **arguments)
    with pytest.raises(Stop):
        api.finetune(base, animals, tmp_path / "run", on_log=stop, **arguments)
    assert api.finetune(base, animals, tmp_path / "run", **arguments) == whole
    assert records_of(tmp_path / "run") == records_of(tmp_path / "whole")

    # Another model in its place.
    shutil.rmtree(base)
    shutil.copytree(tmp_path / "whole", base)
    with pytest.raises(UserError, match="no longer holds the parameters that it was adapted from"):
        api.load_model(tmp_path / "run")
    shutil.rmtree(base)
    with pytest.raises(UserError, match=r"its parameters are those of .*, which is not there"):
        api.load_model(tmp_path / "run")


@pytest.mark.parametrize("kind", ["extract", "choose"])
def test_examples_longer_than_a_row_are_learned_and_judged(bases, tmp_path, kind):
    """Passages of several windows, and answers that fill a row each."""
    pick = random.Random(1).choice
    for split, count in (("train", 24), ("dev", 8)):
        records = []
        for _ in range(count):
            names = [pick(("Anna", "Bob", "Zoe")) for _ in range(4)]
            record = {"question": "who left?", "text": "it rained. " * 9 + f"{names[0]} left."}
            choices = [f"{name} left it" for name in names]
            records.append(record | {"answers": names[:1], "choices": choices, "right": 0})
        lines = map(json.dumps, records)
        (tmp_path / f"{split}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    options = {
        "extract": "text=question, text_pair=text, label=answers, no_answer=True",
        "choose": "text=question, choices=choices, label=right",
    }
    task = f"{kind}({tmp_path}/{{split}}.jsonl, validation=dev, {options[kind]})"
    results = finetune(bases, task, tmp_path / "run", **{"data.epochs": 1})
    (metric,) = {"extract": ["exact_match"], "choose": ["accuracy"]}[kind]
    assert 0 <= results["reached"][metric]["mean"] <= 1
    lines = (tmp_path / "run/predictions/validation.jsonl").read_text().splitlines()
    assert len(lines) == 8
    corpus = json.loads((tmp_path / "run/corpus.json").read_text())
    assert corpus["train"]["truncated"] == 0
