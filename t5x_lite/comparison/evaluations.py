"""Extra evaluations of every run in a comparison, besides its own validation loss. The results are
kept in the run's directory, because computing them takes a while:

    span_bits.json                bits of each held-out span, see span_bits.py
    adapted.json                  whether the model was adapted in adapted/, see adaptation.py
    adapted_bits.json             bits of each span after adaptation
    whole_text.json               bits per byte of the whole text, under another objective
    other_objectives.json         validation loss under the objectives of the other cells
    tasks/NAME.json               score on a task, after fine-tuning in tasks/NAME
    tasks/NAME-from-scratch.json  score on a task, after training from fresh parameters
    written/STEP.json             what the model makes of a few texts, see writing.py
    score_curves/STEP.json        scores of an earlier checkpoint that was kept
"""

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any, NotRequired, TypedDict

import jax

from t5x_lite import storage
from t5x_lite.comparison.adaptation import ADAPTED_RUN, Adaptation, adapt, bits_of_adapted
from t5x_lite.comparison.scores import name_of_task_score, span_score
from t5x_lite.comparison.span_bits import (
    Span,
    SpanBits,
    num_bytes,
    scored_contexts,
    span_bits,
)
from t5x_lite.comparison.writing import SAMPLED, GivenTexts, Written, write_texts
from t5x_lite.config import RunConfig, Task, to_dict
from t5x_lite.config.files import build
from t5x_lite.data.objectives.mixture import members_of
from t5x_lite.data.rows.batches import TextData
from t5x_lite.data.rows.row_plan import RowPlan
from t5x_lite.data.store.corpus import Corpus
from t5x_lite.data.tasks.examples import load_split, with_labels_of
from t5x_lite.data.tasks.kinds.table import kind_of, metrics_of
from t5x_lite.data.tasks.load import load_task
from t5x_lite.data.tasks.metrics import unit_scores
from t5x_lite.data.tasks.task_data import TaskPlan
from t5x_lite.errors import BAD_CONFIG, IO_ERROR, STOPPED, UserError, read_json, user_errors
from t5x_lite.finetuning import run as finetuning
from t5x_lite.inference.zero_shot import Asking, ask
from t5x_lite.model.check import plan_checked
from t5x_lite.model.transformer import parameter_shapes
from t5x_lite.model_address import locate
from t5x_lite.progress import messages_to, say, silent
from t5x_lite.report import task_report
from t5x_lite.resolve import resolve
from t5x_lite.training import loaded_model, loop, run_directory
from t5x_lite.training.loaded_model import LoadedModel
from t5x_lite.training.log import read_metrics
from t5x_lite.training.whole_text import validation_text, whole_text_bits


@dataclass(frozen=True)
class Questions:
    """Extra evaluations of every run in a comparison.

    Attributes:
        spans: held-out spans that every model is scored on.
        adaptation: text that every model reads as a prefix language model before it is scored
            again; None: no adaptation.
        objectives: objectives whose validation loss is measured, if the architecture can learn
            them.
        tasks: tasks to evaluate on, written as for `finetune --task`.
        settings: settings for fine-tuning, such as "data.epochs=2".
        grid: settings with several values, from which fine-tuning chooses.
        from_scratch: True to also learn the tasks from fresh parameters.
        given: texts that every model fills in or continues.
        curves: True to ask earlier checkpoints, too.
        fingerprints: task → split → hash of its examples.
    """

    spans: Sequence[Span] = ()
    adaptation: Adaptation | None = None
    objectives: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    grid: tuple[str, ...] = ()
    from_scratch: bool = False
    given: GivenTexts = GivenTexts()
    curves: bool = False
    fingerprints: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


class TaskAnswer(TypedDict):
    """The first metric of a task, as stored in a run's directory.

    Attributes:
        metric: name of the metric.
        method: how the answers are found. Scores by different methods are not compared, such as a
            sentence's likelihood from left to right and its likelihood with masks.
        split: "test" or "validation".
        fingerprint: hash of the examples of that split.
        on: the examples that it is measured on, in words.
        examples: number of these examples.
        units: fields of data.tasks.metrics.UnitScores, whose mean is the metric.
        chosen: the fine-tuning settings that the run chose, if it had a choice.
        head: head of the fine-tuned model: "lm" if it answers in words.
    """

    metric: str
    method: str
    split: str
    fingerprint: str
    on: str
    examples: int
    units: dict[str, Any]
    chosen: NotRequired[dict[str, str]]
    head: NotRequired[str]


# Scores of a run at several steps: score → pairs [step, value]
ScoreCurves = dict[str, list[list[float]]]


@dataclass(frozen=True)
class Answers:
    """Results of the extra evaluations of one run.

    Attributes:
        span_bits: context → fields of span_bits.SpanBits → bits of each span.
        adapted_bits: bits of each span after adaptation; empty if the model is not adapted.
        whole_text: score → bits per byte of the whole text, for a model that has learned to predict
            all of it but whose validation loss measures something else.
        losses: objective → validation loss in nats per scored token.
        tasks: task → its first metric, on examples that were not used for any choice.
        from_scratch: the same, for models trained from fresh parameters.
        curves: scores of the checkpoints that were kept during training.
        written: what the model makes of the given texts, in the order of steps.
    """

    span_bits: dict[str, dict[str, list[float]]]
    adapted_bits: list[float]
    whole_text: dict[str, float]
    losses: dict[str, float]
    tasks: dict[str, TaskAnswer]
    from_scratch: dict[str, TaskAnswer]
    curves: ScoreCurves
    written: list[Written]


def measure(workdir: Path, questions: Questions, stages: Sequence[Path] = ()) -> Answers:
    """Return the extra evaluations of a run, computing those that its directory lacks.

    Args:
        stages: directories of the stages before the last.
    """
    step = _asked_step(workdir)
    digest = _digest(questions.spans)
    resolved, _ = run_directory.read(workdir)
    own = members_of(resolved.config.objective)
    others = [objective for objective in questions.objectives if [objective] != own]
    members = whole_text_objectives(resolved.rows)
    tasks = [
        task
        for task in map(load_task, questions.tasks)
        if learns(resolved.config, task, questions.settings)
    ]

    # Evaluate on each task and, if requested, train on it from fresh parameters, too.
    reached: dict[bool, dict[str, TaskAnswer]] = {False: {}, True: {}}
    for task, from_scratch in itertools.product(tasks, reached):
        if from_scratch and not (questions.from_scratch and is_learned(task)):
            continue
        directory = workdir / "tasks" / f"{task.name}{'-from-scratch' * from_scratch}"
        reached[from_scratch][task.name] = kept_answer(
            directory.with_name(f"{directory.name}.json"),
            {
                "step": step,
                "task": dataclasses.asdict(task),
                "settings": [*questions.settings, *questions.grid],
                "examples": questions.fingerprints[task.name],
            },
            partial(_on_task, task, workdir, directory, questions, from_scratch),
        )
    adapted_bits = _adapted_bits(workdir, questions, {"step": step}, digest)

    # Ask the trained model. It is loaded at the first question whose answer is not in a file.
    load = cache(partial(_load_step, workdir, step))
    bits: dict[str, dict[str, list[float]]] = {}
    if questions.spans:
        bits = kept_answer(
            workdir / "span_bits.json",
            {"step": step, "spans": digest, "kinds": SpanBits._fields},
            lambda: _span_bits(load(), questions.spans),
        )
    whole_text: dict[str, float] = {}
    if members:
        whole_text = kept_answer(
            workdir / "whole_text.json",
            {"step": step, "objectives": members},
            lambda: _whole_text(workdir, members, load),
        )
    losses: dict[str, float] = {}
    if others:
        losses = kept_answer(
            workdir / "other_objectives.json",
            {"step": step, "objectives": others},
            lambda: _losses(workdir, others, load),
        )
    curves: ScoreCurves = {}
    if questions.curves:
        curves, written = _ask_kept_steps([*stages, workdir], questions)
    else:
        written = _written_at(workdir, step, load, questions.given)
    return Answers(
        bits, adapted_bits, whole_text, losses, reached[False], reached[True], curves, written
    )


def _asked_step(workdir: Path) -> int:
    """Return the step of the newest checkpoint; if all were removed, the last step of the run, for
    which answers may have been kept.
    """
    saved = run_directory.saved_steps(workdir / "checkpoints")
    if saved:
        return max(saved)
    records = read_metrics(workdir / "metrics.jsonl")
    return max((record["step"] for record in records), default=0)


def _ask_kept_steps(
    directories: Sequence[Path], questions: Questions
) -> tuple[ScoreCurves, list[Written]]:
    """Return the scores of a run's kept checkpoints on spans and on tasks without fine-tuning, and
    what they write.

    Args:
        directories: directories of the run's stages.
    """
    unlearned = [task for task in map(load_task, questions.tasks) if not is_learned(task)]
    key = {
        "spans": _digest(questions.spans),
        "tasks": [dataclasses.asdict(task) for task in unlearned],
        "examples": [questions.fingerprints[task.name] for task in unlearned],
    }
    texts = [
        validation_text(read_json(workdir / "corpus.json", "bring it back"))
        for workdir in directories
    ]
    curves: ScoreCurves = {}
    written: list[Written] = []
    for workdir, text in zip(directories, texts, strict=True):
        resolved, _ = run_directory.read(workdir)
        every = resolved.config.training.keep_every
        saved = sorted(run_directory.saved_steps(workdir / "checkpoints"))
        kept = [step for step in saved if not every or step % every == 0 or step == resolved.steps]
        evaluated = (resolved.steps - resolved.config.start.step) // every if every else 0
        if not every or len(kept) < evaluated:
            shown = ", ".join(map(str, kept))
            say(f"{workdir}: was trained without score_curves, and has only kept step {shown}")
        for step in kept:
            load = cache(partial(_load_step, workdir, step))
            asks_text = text == texts[-1]
            scores = kept_answer(
                workdir / "score_curves" / f"{step}.json",
                key,
                partial(_scores_at, workdir, load, questions.spans, unlearned, asks_text),
            )
            for name, value in scores.items():
                curves.setdefault(name, []).append([step, value])
            written += _written_at(workdir, step, load, questions.given)
    return curves, written


# Loads a model when it is first called
LoadModel = Callable[[], LoadedModel]


def _load_step(workdir: Path, step: int) -> LoadedModel:
    """Load one checkpoint of a run."""
    address = f"{workdir}@{step}"
    say(f"{address}: asking for scores and texts")
    return loaded_model.load(address)


def _scores_at(
    workdir: Path,
    load: LoadModel,
    spans: Sequence[Span],
    tasks: Sequence[Task],
    asks_text: bool,
) -> dict[str, float]:
    """Return the scores of one checkpoint: score → its mean.

    Args:
        workdir: directory of its run.
        load: loads the checkpoint.
        asks_text: True to score it also on the whole validation text, under the objectives of
            whole_text_objectives.
    """
    loaded = load()
    objectives = whole_text_objectives(loaded.rows) if asks_text else []
    scores = _whole_text(workdir, objectives, load)
    for context in scored_contexts(loaded) if spans else ():
        with _left_out_if_unable(loaded, "spans"):
            bits = span_bits(loaded, spans, context).without_end.sum()
            scores[span_score(context)] = float(bits / num_bytes(spans).sum())
    for task in tasks:
        with _left_out_if_unable(loaded, task.name):
            answer = _asked(loaded, task)
            name = name_of_task_score(task.name, answer["metric"])
            scores[name] = fmean(answer["units"]["amounts"])
    return scores


@contextmanager
def _left_out_if_unable(loaded: LoadedModel, question: str) -> Iterator[None]:
    """Say that a question is left out if a checkpoint cannot answer it: an earlier stage may have
    trained another kind of model, or one with shorter rows.
    """
    try:
        yield
    except UserError as error:
        if error.code in STOPPED:
            raise
        say(f"step {loaded.step} is left out of {question}: {error}")


def _written_at(workdir: Path, step: int, load: LoadModel, given: GivenTexts) -> list[Written]:
    """Return what one checkpoint of a run makes of the texts."""
    if not any(given):
        return []

    def write() -> list[Written]:
        loaded, written = load(), []
        with _left_out_if_unable(loaded, "the example texts"):
            written = write_texts(loaded, given)
        return written

    return kept_answer(workdir / "written" / f"{step}.json", {"given": given, **SAMPLED}, write)


def _digest(spans: Sequence[Span]) -> str:
    return hashlib.sha256(json.dumps(spans).encode()).hexdigest()[:16]


def kept_answer(path: Path, key: dict[str, Any], compute: Callable[[], Any]) -> Any:
    """Return the result that the file holds for this key, or compute it and write it there.

    Args:
        key: everything that the result depends on. "config" and "task" hold all settings of a
            RunConfig and of a Task. A setting that is newer than the file counts as its default.
    """
    key = json.loads(json.dumps(key))
    if path.is_file():
        written = read_json(path, "remove it")
        if _with_new_settings(written.get("of")) == key:
            return written["answer"]
        # Remove models fine-tuned under another key: from older parameters or with other settings.
        storage.remove_tree(path.with_suffix(""))
    answer = compute()
    with user_errors(IO_ERROR, f"{path}: cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        storage.write_durably(path, json.dumps({"of": key, "answer": answer}))
    return answer


def _with_new_settings(key: Any) -> Any:
    """Return the key of a file with defaults for settings that it lacks; None if it is outdated."""
    if not isinstance(key, dict):
        return key
    filled = dict(key)
    for name, schema in (("config", RunConfig), ("task", Task)):
        if name in key:
            try:
                filled[name] = to_dict(build(schema, key[name]))
            except UserError:  # a setting no longer exists, or has another meaning now
                return None
    return filled


def _span_bits(loaded: LoadedModel, spans: Sequence[Span]) -> dict[str, dict[str, list[float]]]:
    """Return −log₂ p of each span, for each context that the model can read."""
    return {
        context: {
            kind: bits.round(6).tolist()
            for kind, bits in span_bits(loaded, spans, context)._asdict().items()
            if bits is not None
        }
        for context in scored_contexts(loaded)
    }


def _adapted_bits(
    workdir: Path, questions: Questions, of_model: dict[str, Any], spans: str
) -> list[float]:
    """Return −log₂ p of each span, given the text before it, after adapting the model.

    Args:
        of_model: what distinguishes the model from the same run's earlier ones.
        spans: hash of the spans.
    """
    adaptation = questions.adaptation
    if adaptation is None:
        return []
    directory = workdir / ADAPTED_RUN
    key = of_model | {"adaptation": adaptation}
    is_adapted = kept_answer(
        workdir / f"{ADAPTED_RUN}.json", key, partial(adapt, workdir, adaptation, directory)
    )
    if not is_adapted:
        return []
    return kept_answer(
        workdir / "adapted_bits.json",
        key | {"spans": spans},
        partial(bits_of_adapted, directory, questions.spans),
    )


def _whole_text(workdir: Path, objectives: Sequence[str], load: LoadModel) -> dict[str, float]:
    """Return the bits per byte of the whole validation text: score → bits per byte.

    Args:
        objectives: objectives that predict all of the text.
        load: loads a model of the run.
    """
    found: dict[str, float] = {}
    for _, rows, corpus, metrics in _under(workdir, objectives, load):
        found |= whole_text_bits(metrics, rows, corpus.manifest)
    return found


def _losses(workdir: Path, objectives: Sequence[str], load: LoadModel) -> dict[str, float]:
    """Return the validation loss under each of the other objectives that the model can express."""
    evaluated = _under(workdir, objectives, load)
    return {objective: metrics["loss"] for objective, _, _, metrics in evaluated}


def whole_text_objectives(rows: RowPlan | TaskPlan) -> list[str]:
    """Return the objectives under which a model can be scored on the whole text.

    Empty if its own validation loss is already a score of the whole text. Otherwise they are the
    members of a mixture that predict the whole text, and causal_lm for objectives that teach a
    decoder to continue a text but change what it reads.
    """
    if not isinstance(rows, RowPlan) or rows.scores_whole_text or rows.bounds_whole_text:
        return []
    objectives = []
    for objective in (member.objective for member in rows.members):
        traits = objective.traits
        if traits.scores_whole_text or traits.bounds_whole_text:
            objectives.append(str(objective))
        elif traits.continues_text and not traits.has_inputs:
            objectives.append("causal_lm")
    return list(dict.fromkeys(objectives))


def _under(
    workdir: Path, objectives: Sequence[str], load: LoadModel
) -> Iterator[tuple[str, RowPlan, Corpus, dict[str, float]]]:
    """Yield each objective that the model can express, with its rows, the text, and the validation
    metrics.

    The architecture must be able to learn the objective, with the parameters that the model has and
    in rows as long as its own.
    """
    if not objectives:
        return
    resolved, tokenizer = run_directory.read(workdir)
    with messages_to(silent):
        data = run_directory.open_data(workdir, resolved, tokenizer)
    assert isinstance(data, TextData)
    loaded = load()
    for objective in objectives:
        config = dataclasses.replace(resolved.config, objective=objective)
        try:
            other = resolve(config, tokenizer.vocabulary)
        except UserError:
            continue
        if parameter_shapes(other.model) != parameter_shapes(resolved.model):
            continue
        assert isinstance(other.rows, RowPlan)  # the config names no task
        of_other = dataclasses.replace(data, plan=other.rows)
        evaluator = loop.Evaluator(other, of_other, jax.local_devices()[:1])
        with evaluator.within():
            yield objective, other.rows, data.corpus, evaluator.evaluate(loaded.params)


# Tasks.


def check_tasks(questions: Questions, cells: dict[str, RunConfig]) -> None:
    """Reject tasks that cannot be read or that no cell can learn, before hours of training.

    Also report which cells cannot learn which tasks.
    """
    names = [load_task(spec).name for spec in questions.tasks]
    for name in names:
        if names.count(name) > 1:
            fix = "give one of them another name="
            raise UserError(BAD_CONFIG, f"tasks: two tasks are called {name}; {fix}")
    for spec in questions.tasks:
        task = with_labels_of(load_task(spec))
        for split in ("train", "validation"):
            if split == "validation" or is_learned(task):
                load_split(task, split)
        errors = {}
        combinations = finetuning.combinations_of(
            questions.grid, questions.settings, "tune_finetune"
        )
        for name, config in cells.items():
            try:
                for values in combinations:
                    of_values = (f"{key}={value}" for key, value in values.items())
                    _plan(config, task, [*questions.settings, *of_values])
            except UserError as error:
                errors[name] = error
        if len(errors) == len(cells):
            raise next(iter(errors.values()))
        for name, error in errors.items():
            say(f"{name} cannot learn {task.name}, so it is left out there: {error}")


def fingerprints(task: Task) -> dict[str, str]:
    """Return the hash of the examples of each split that models are judged on: "validation" and
    "test". The hash of a missing split is empty.
    """
    found = {}
    labelled = with_labels_of(task)
    for split in ("validation", "test"):
        try:
            found[split] = load_split(labelled, split).fingerprint
        except UserError:
            if split == "validation" and is_learned(task):
                raise
            found[split] = ""
    return found


def is_learned(task: Task) -> bool:
    """Return True if models are fine-tuned for the task, False if they are only evaluated on it."""
    return kind_of(task).is_learned


def learns(config: RunConfig, task: Task, settings: Sequence[str]) -> bool:
    """Return True if a model with this config can be evaluated on the task."""
    try:
        _plan(config, task, settings)
    except UserError:
        return False
    return True


def _plan(config: RunConfig, task: Task, settings: Sequence[str]) -> None:
    """Raise a UserError if a model with this config cannot be fine-tuned on the task."""
    if is_learned(task):
        plan_checked(finetuning.config_of(config, task, settings))


def _on_task(
    task: Task,
    workdir: Path,
    directory: Path,
    questions: Questions,
    from_scratch: bool,
) -> TaskAnswer:
    """Return a run's answer to a task, fine-tuning in `directory` if the task has to be learned."""
    if not is_learned(task):
        return _asked(loaded_model.load(workdir), task)
    say(f"{workdir.name}: {directory.name}")
    results = finetuning.finetune(
        locate(workdir),
        task,
        directory,
        questions.settings,
        grid=questions.grid,
        from_scratch=from_scratch,
    )
    task_report.write(results, directory)
    scored = results["scored"]
    return TaskAnswer(
        metric=metrics_of(task)[0],
        method="fine-tuned",
        split=scored["split"],
        fingerprint=scored["fingerprint"],
        on=scored["on"],
        examples=scored["examples"],
        units=scored["units"],
        chosen=results["chosen"],
        head=results["head"],
    )


def _asked(loaded: loaded_model.LoadedModel, task: Task) -> TaskAnswer:
    """Return a model's answer to a task without fine-tuning."""
    asked = ask(loaded, task, Asking())
    examples = asked.examples
    units = unit_scores(examples.task, examples.examples, asked.predictions)
    return TaskAnswer(
        metric=metrics_of(task)[0],
        method=asked.method,
        split="validation",
        fingerprint=examples.fingerprint,
        on=examples.split,
        examples=len(examples),
        units=units._asdict(),
    )
