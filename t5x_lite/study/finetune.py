"""Fine-tuning: a task, a model to begin with, a recipe that fits its family, and, where they are
asked for, several settings and seeds.

With a grid, each of its cells is trained with the first seed, the best is chosen by the task's
first metric on the validation examples, and the other seeds train the chosen cell alone.
"""

import dataclasses
import hashlib
import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import jax

from t5x_lite import storage
from t5x_lite.config import RunConfig, Task, to_dict
from t5x_lite.config_files import build, override, parse_grid, with_absolute_paths
from t5x_lite.data.tasks.examples import readable, with_labels_of
from t5x_lite.data.tasks.rows import TaskData, TaskPlan, TaskSplit
from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.errors import IO_ERROR, NO_FILE, USAGE, UserError, read_json, user_errors
from t5x_lite.inference.predict import as_records, judge_split, predict
from t5x_lite.interop import convert
from t5x_lite.model.transformer import count_parameters, parameter_shapes
from t5x_lite.resolve import plan, resolve
from t5x_lite.specs import AllowedCode
from t5x_lite.study import task_report
from t5x_lite.training import exact, loop, metrics, run_directory
from t5x_lite.training.adapt import parse_adaptation
from t5x_lite.training.best import PREFIX

Say = Callable[[str], None]

# The base models that the recipes below were published for have this width. Narrower ones are
# trained with a rate that is higher by as much (Yang et al., 2022).
_PUBLISHED_WIDTH = 768
_EXAMPLES_PER_BATCH = 32


def recipe(config: RunConfig) -> dict[str, Any]:
    """How models of a family are fine-tuned, unless the command says otherwise: settings by key.

    BERT: AdamW, 10 % warm-up, linear decay, 3 epochs (Devlin et al., 2019, §A.3). GPT: the same
    with 0.2 % (Radford et al., 2018, §4.1). T5 and prefix decoders: Adafactor at a constant 1e-3
    (Raffel et al., 2020, §3.1.2). Dropout 0.1 on embeddings and the output of each part.
    """
    shared = {
        "model.dropout": 0.1,
        "optimizer.schedule_unit": "steps",
        "optimizer.decay_steps": 0,
        "optimizer.final_lr_ratio": 0.0,
        "optimizer.initial_lr_ratio": 0.0,
        "optimizer.grad_clip_norm": 1.0,
        "optimizer.beta1": 0.9,
        "optimizer.beta2": 0.999,
        "training.microbatches": 1,
        "training.label_smoothing": 0.0,
        "training.keep_every": 0,
        "training.log_every": 20,
        "training.profile": (),
    }
    if config.model.architecture in ("encoder", "decoder"):
        is_encoder = config.model.architecture == "encoder"
        rate = 5e-5 if is_encoder else 6.25e-5
        return shared | {
            "data.epochs": 3,
            "optimizer.name": "adamw",
            "optimizer.learning_rate": rate * _PUBLISHED_WIDTH / config.model.d_model,
            "optimizer.schedule": "linear",
            "optimizer.weight_decay": 0.01,
            "optimizer.epsilon": 1e-6 if is_encoder else 1e-8,
        }
    return shared | {
        "data.epochs": 10,
        "optimizer.name": "adafactor",
        "optimizer.learning_rate": 1e-3,
        "optimizer.schedule": "constant",
        "optimizer.weight_decay": 0.0,
    }


_WARMUP = {"encoder": 0.1, "decoder": 0.002, "prefix_decoder": 0.0, "encoder_decoder": 0.0}


@dataclass(frozen=True)
class Cell:
    """One combination of settings, with what its seeds reached."""

    settings: dict[str, str]
    config: RunConfig
    reached: dict[int, dict[str, float]]  # by seed: the best evaluation

    @property
    def name(self) -> str:
        """As a directory is named; empty without a grid."""
        parts = [f"{key.rpartition('.')[2]}={value}" for key, value in self.settings.items()]
        return ",".join(parts)


def finetune(
    init: Path,
    task: Task,
    workdir: Path,
    overrides: Sequence[str] = (),
    seeds: int = 1,
    grid: Sequence[str] = (),
    from_scratch: bool = False,
    adapt: str = "full",
    say: Say = print,
    allowed: AllowedCode = None,
    on_log: Callable[[dict], None] | None = None,
) -> dict[str, Any]:
    """Train a model on a task; the same call continues where it was stopped.

    Args:
        init: the directory of the run that it begins with, or of Hugging Face's files.
        overrides: settings, as "optimizer.learning_rate=1e-4".
        seeds: how many, from the config's on.
        grid: settings with several values each, as "optimizer.learning_rate=1e-4,3e-4".
        from_scratch: with the shape and the tokenizer of `init`, and parameters drawn at random.
        adapt: which parameters are trained: see training.adapt.

    Returns:
        what was reached: report.json.
    """
    if from_scratch and adapt != "full":
        raise UserError(USAGE, f"finetune: --adapt={adapt} needs a model; leave out --from-scratch")
    if seeds < 1:
        raise UserError(USAGE, f"finetune: --seeds={seeds}: expected at least 1")
    combinations = _combinations(grid, overrides)
    base = _base(init, workdir, say, allowed)
    task = with_labels_of(task, allowed)
    cells, init_from = [], "" if from_scratch else str(storage.durable_path(base.directory))
    for settings in combinations:
        values = [*overrides, *(f"{key}={value}" for key, value in settings.items())]
        config = config_of(base.config, task, values, adapt, init_from)
        cells.append(Cell(settings, config, {}))
    # A setting that is wrong is refused before any cell is trained.
    for cell in cells:
        plan(cell.config)
    first_seed, task = cells[0].config.seed, cells[0].config.task
    is_single = len(cells) == 1 and seeds == 1

    def directory_of(cell: Cell, seed: int) -> Path:
        return workdir if is_single else workdir / cell.name / f"seed_{seed}"

    def train(cell: Cell, seed: int) -> None:
        directory = directory_of(cell, seed)
        if not is_single:
            say(f"training in {directory}")
        config = dataclasses.replace(cell.config, seed=seed)
        is_set = {text.partition("=")[0] for text in overrides} | set(cell.settings)
        cell.reached[seed] = _train(config, base, directory, is_set, say, allowed, on_log)

    for cell in cells:
        train(cell, first_seed)
    metric = str(task.metrics[0])
    chosen = max(cells, key=lambda cell: cell.reached[first_seed][metric])
    for seed in range(first_seed + 1, first_seed + seeds):
        train(chosen, seed)

    results = _results(base, task, cells, chosen)
    results["curves"] = {
        f"{cell.name} seed {seed}".strip(): task_report.curves_of(directory_of(cell, seed), metric)
        for cell in cells
        for seed in cell.reached
    }
    results |= task_report.answers_of(directory_of(chosen, first_seed), task)
    task_report.write(results, workdir)
    return results


def _combinations(grid: Sequence[str], overrides: Sequence[str]) -> list[dict[str, str]]:
    """All combinations of the values of a grid."""
    axes = parse_grid(grid)
    given = {text.partition("=")[0] for text in overrides}
    for key in axes:
        if key in ("seed", "adapt", "init_from") or key.startswith("task."):
            reason = "is no axis; --seeds, or a run of its own for each, is meant"
            raise UserError(USAGE, f"--grid={key}=…: {key} {reason}")
        if key in given:
            raise UserError(USAGE, f"--grid={key}=…: {key} is given twice; give it once")
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


@dataclass(frozen=True)
class _Base:
    """What the fine-tuned model begins with."""

    name: str  # as the user has it
    directory: Path
    config: RunConfig
    tokenizer: Tokenizer


def _base(init: Path, workdir: Path, say: Say, allowed: AllowedCode) -> _Base:
    """The run in a directory; a model of Hugging Face is imported first."""
    name = init.resolve().name
    if "model_type" in read_json(init / "config.json", "expected the directory of a model"):
        imported = workdir / "imported" / _digest(init)
        if not (imported / "config.json").is_file():
            storage.remove_tree(imported)  # what a killed import has left
            convert.import_model(init, imported, "", say)
        init = imported
    resolved, tokenizer = run_directory.read(init, allowed)
    return _Base(name, init.resolve(), resolved.config, tokenizer)


def _digest(init: Path) -> str:
    """What tells the models of Hugging Face apart that a run may begin with."""
    weights = sorted(init.glob("*.safetensors"))
    content = [path.name + str(path.stat().st_size) for path in weights]
    digest = hashlib.sha256((init / "config.json").read_bytes() + "".join(content).encode())
    return digest.hexdigest()[:8]


def config_of(
    base: RunConfig,
    task: Task,
    overrides: Sequence[str] = (),
    adapt: str = "full",
    init_from: str = "",
) -> RunConfig:
    """The config of one run: the model of the base, the recipe of its family, and what the command
    sets.
    """
    settings = to_dict(base)
    written = recipe(base)
    if base.model.architecture == "encoder":
        written["model.lm_head"] = False
    for key, value in written.items():
        section, _, name = key.rpartition(".")
        settings[section][name] = value
    adaptation = parse_adaptation(adapt)
    settings["adapt"] = adapt
    settings["model"] |= adaptation.settings
    settings["task"] = to_dict(task)
    settings["init_from"] = init_from
    settings["mesh"] = {}
    settings["training"]["steps"] = 2**31 - 1  # as many as the epochs have
    override(settings, overrides)
    return with_absolute_paths(build(RunConfig, settings))


def _with_schedule(config: RunConfig, data: TaskData, is_set: set[str]) -> RunConfig:
    """The config with what follows from the number of examples: rows of a batch, steps, warm-up,
    and when it is evaluated.
    """
    stream = data.train.rows
    rows = stream.rows(1)
    batch_size = config.data.batch_size
    if "data.batch_size" not in is_set:
        examples_per_row = len(data.train.examples) / rows
        batch_size = max(1, min(rows, round(_EXAMPLES_PER_BATCH / examples_per_row)))
        # Whole rows for each device and microbatch.
        sharing_rows = config.mesh.sequence * config.mesh.tensor
        multiple = config.training.microbatches * max(jax.device_count() // sharing_rows, 1)
        if config.training.exact:
            multiple = math.lcm(multiple, exact.PARTS)
        batch_size = -(-batch_size // multiple) * multiple
    epochs = max(config.data.epochs, 1)
    steps = min(config.training.steps, max(stream.rows(epochs) // batch_size, 1))
    every = max(math.ceil(steps / epochs), 1)
    training: dict[str, Any] = {"steps": steps}
    if "training.eval_every" not in is_set:
        training["eval_every"] = every
    if "training.checkpoint_every" not in is_set:
        training["checkpoint_every"] = every
    optimizer: dict[str, Any] = {}
    if "optimizer.warmup_steps" not in is_set:
        share = _WARMUP[config.model.architecture]
        optimizer["warmup_steps"] = round(share * steps)
    return dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, batch_size=batch_size),
        training=dataclasses.replace(config.training, **training),
        optimizer=dataclasses.replace(config.optimizer, **optimizer),
    )


def _train(
    config: RunConfig,
    base: _Base,
    workdir: Path,
    is_set: set[str],
    say: Say,
    allowed: AllowedCode,
    on_log: Callable[[dict], None] | None,
) -> dict[str, float]:
    """One run, and what its best evaluation reached."""
    rows = plan(config)
    assert isinstance(rows, TaskPlan)
    if config.adapt == "probe" and rows.format.head == "lm":
        reason = "a model that answers in words has no head to train"
        raise UserError(USAGE, f"finetune: --adapt=probe: {reason}; use lora, or last(1)")
    data = TaskData(rows, base.tokenizer, config.data.batch_size, config.seed, allowed)
    config = _with_schedule(config, data, is_set)
    data = dataclasses.replace(data, batch_size=config.data.batch_size)
    say(f"train {data.train}; validation {data.validation}")
    test = _test_split(data, say)
    resolved = resolve(config, base.tokenizer.vocabulary, rows)
    loop.train(
        resolved, data, workdir, on_log, judge=lambda loaded: judge_split(loaded, data.validation)
    )
    write_predictions(workdir, data, test, say)
    return best_evaluation(workdir, config.task)


def _test_split(data: TaskData, say: Say) -> TaskSplit | None:
    """The test split, opened before anything is trained; None, and a line, where there is none."""
    task = data.plan.task
    if not task.test:
        return None
    try:
        return data.split("test")
    except UserError as error:
        if error.code != NO_FILE:
            raise
        say(f"no predictions of a test split: {error}")
        return None


def best_evaluation(workdir: Path, task: Task) -> dict[str, float]:
    """The metrics of a run's best evaluation, by the first of them, and its step."""
    evaluated = [
        record
        for record in metrics.read(workdir / "metrics.jsonl")
        if record["split"] == "validation"
    ]
    best = max(evaluated, key=lambda record: record[f"{PREFIX}{task.metrics[0]}"])
    return {"step": best["step"]} | {str(name): best[f"{PREFIX}{name}"] for name in task.metrics}


def write_predictions(workdir: Path, data: TaskData, test: TaskSplit | None, say: Say) -> None:
    """What the best parameters predict of the validation and the test split: JSON lines, and for
    the test split of a benchmark the file that it wants.
    """
    loaded = run_directory.load(workdir, allowed=data.plan.modules)
    task = data.plan.task
    splits = {"validation": data.validation}
    if test is not None:
        splits["test"] = test
    directory = workdir / "predictions"
    with user_errors(IO_ERROR, f"{directory}: cannot be written"):
        directory.mkdir(exist_ok=True)
        for name, split in splits.items():
            predictions = predict(loaded, split)
            lines = [json.dumps(record) for record in as_records(split.examples, predictions)]
            (directory / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
            if name == "test" and task.submission:
                rows = ["index\tprediction"]
                for example, prediction in zip(split.examples.examples, predictions, strict=True):
                    rows.append(f"{example.id}\t{_submitted(task, prediction, example)}")
                (directory / task.submission).write_text("\n".join(rows) + "\n")
    say(f"written: {directory}")


def _submitted(task: Task, prediction: Any, example: Any) -> Any:
    """A prediction as the benchmark wants it: names of labels, or their numbers."""
    if prediction is None:
        prediction = 0
    if task.kind == "classify" and not task.submission_names:
        return int(prediction) + task.first_label
    return readable(task, prediction, example)


def _results(base: _Base, task: Task, cells: list[Cell], chosen: Cell) -> dict[str, Any]:
    model = resolve(chosen.config, base.tokenizer.vocabulary).model
    adaptation = parse_adaptation(chosen.config.adapt)
    parameters = trained = count_parameters(model)
    if not adaptation.is_full:
        shapes, _ = adaptation.split_shapes(parameter_shapes(model))
        trained = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    begins = f"from {base.name}" if chosen.config.init_from else "from scratch"
    summary = {}
    for name in map(str, task.metrics):
        values = [reached[name] for reached in chosen.reached.values()]
        spread = stdev(values) if len(values) > 1 else None
        summary[name] = {"mean": mean(values), "standard_deviation": spread}
    return {
        "title": f"{task.name}, {begins}: {chosen.config.adapt}",
        "task": task.name,
        "metric": task.metrics[0],
        "parameters": parameters,
        "trained_parameters": trained,
        "chosen": chosen.settings,
        "seeds": list(chosen.reached),
        "reached": summary,
        "cells": [
            {"settings": cell.settings, "seeds": {str(s): r for s, r in cell.reached.items()}}
            for cell in cells
        ],
    }


def show(results: dict[str, Any]) -> str:
    """Results in words: one line for each cell of a grid, and what was reached."""
    metric, lines = results["metric"], []
    if len(results["cells"]) > 1:
        for cell in results["cells"]:
            settings = ", ".join(f"{key}={value}" for key, value in cell["settings"].items())
            first = next(iter(cell["seeds"].values()))
            mark = "  chosen" if cell["settings"] == results["chosen"] else ""
            lines.append(f"{settings:<40} {metric} {first[metric]:.4f}{mark}")
    seeds = len(results["seeds"])
    for name, value in results["reached"].items():
        spread = value["standard_deviation"]
        shown = f"{value['mean']:.4f}"
        if spread is not None:
            shown += f" ± {spread:.4f} (standard deviation of {seeds} seeds)"
        lines.append(f"{results['task']}: {name.replace('_', ' ')} {shown}")
    return "\n".join(lines)
