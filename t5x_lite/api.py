"""The Python API: each command as a function, as `import t5x_lite` offers it.

config = t5x_lite.get_config("gpt_tiny", **{"training.steps": 100})
print(t5x_lite.inspect(config))
model = t5x_lite.train(config, "runs/mine")
model.generate("Return a new")
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import jax
import numpy as np

from t5x_lite import storage
from t5x_lite.comparison.budget import matmul_rate
from t5x_lite.config import CompareConfig, Mesh, ModelDimensions, RunConfig, Task
from t5x_lite.config.files import (
    build,
    build_comparison,
    check_is_run,
    get_config,
    load,
    load_comparison,
    names_run,
    with_absolute_paths,
)
from t5x_lite.config.permission import allow, guarded, permission, with_permission
from t5x_lite.config.provenance import settings_written_here, written_here
from t5x_lite.config.stages import each_stage
from t5x_lite.data import inspection
from t5x_lite.data.rows.batches import TextData, ledger
from t5x_lite.data.rows.row_plan import RowPlan
from t5x_lite.data.store.corpus import Corpus
from t5x_lite.data.store.prepare import prepare as prepare_text
from t5x_lite.data.tasks.examples import with_labels_of
from t5x_lite.data.tasks.kinds.chat import read_turns, render
from t5x_lite.data.tasks.kinds.table import kind_of
from t5x_lite.data.tasks.load import load_own_task, load_own_tasks, load_task
from t5x_lite.data.tasks.task_data import TaskData, TaskPlan
from t5x_lite.data.tokenizers import tokenizer as tokenizers
from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.errors import USAGE, UserError, read_json
from t5x_lite.finetuning import run as tuning
from t5x_lite.inference.embed import Pooling, embed
from t5x_lite.inference.evaluate import evaluate_task
from t5x_lite.inference.fill import fill
from t5x_lite.inference.generate import Written, continue_texts, stream_texts, stream_written
from t5x_lite.inference.predict import judge_split
from t5x_lite.inference.score import Score, score
from t5x_lite.inference.token_predictions import TokenPrediction, predict_ids, predict_tokens
from t5x_lite.inference.zero_shot import Asking, Direction
from t5x_lite.interop import convert
from t5x_lite.model import transformer
from t5x_lite.model.check import plan_checked, plan_objective_checked
from t5x_lite.model.heads import HEADS, Params, Row, head_params, logits
from t5x_lite.model.transformer import count_active_parameters, count_parameters
from t5x_lite.model_address import locate
from t5x_lite.progress import columns, messages_to, to_stderr
from t5x_lite.report import task_report
from t5x_lite.report.page import short
from t5x_lite.training import loaded_model, loop, run_directory
from t5x_lite.training.check import check_training
from t5x_lite.training.loaded_model import LoadedModel
from t5x_lite.training.log import perplexity
from t5x_lite.training.loss import step_flops
from t5x_lite.training.stages import Stage, directories_of, plan_stages, train_config
from t5x_lite.training.whole_text import whole_text_bits

__all__ = [
    "LanguageModel",
    "allow",
    "compare",
    "evaluate",
    "finetune",
    "get_config",
    "inspect",
    "load_model",
    "messages_to",
    "prepare",
    "train",
]

ConfigLike = Any  # a RunConfig, a ConfigDict or dict of settings, or the name of a config


@contextmanager
def _gate() -> Iterator[bool]:
    """Inside the block, let settings open only what is permitted.

    Yields:
        True if Python code called the function, which must then permit what its arguments name. A
        command has already permitted what the user wrote.
    """
    by_caller = not permission().is_guarded
    with guarded():
        yield by_caller


@contextmanager
def _opened(config: ConfigLike) -> Iterator[RunConfig]:
    """Check a config and yield it. Inside the block, settings open only what is permitted."""
    with _gate() as by_caller:
        yield _run_config(config, by_caller)


def _run_config(config: ConfigLike, by_caller: bool) -> RunConfig:
    """Check a config, and permit what it names if the caller wrote it. A caller who gives only the
    name of a run did not write its config: config.json is data.
    """
    if isinstance(config, str):
        return load(config)
    if not isinstance(config, RunConfig):
        config = build(RunConfig, config.to_dict() if hasattr(config, "to_dict") else config)
    run = with_absolute_paths(config)
    if by_caller:
        written_here(run)
    return run


def prepare(config: ConfigLike, beam_options: Sequence[str] | None = None) -> Corpus:
    """Make the tokenizer and the token store before training, or open them if they exist.

    Args:
        beam_options: options of Apache Beam, such as ["--runner=DataflowRunner", …], to read and
            encode the text on its workers; None: on this machine.
    """
    with _opened(config) as run:
        plan_objective_checked(run)  # reject wrong settings before hours of tokenizing
        return prepare_text(run.data, beam_options)


def train(
    config: ConfigLike, workdir: str | Path, on_log: Callable[[dict], None] | None = None
) -> "LanguageModel":
    """Pretrain a model in `workdir`; the same call continues a run that was stopped.

    Args:
        config: a RunConfig, a ConfigDict or dict of settings, or the name of a config. It may use
            objectives and sources from any module of yours, unless it is the name of a run
            directory.
        on_log: called with each record of metrics.jsonl: its step, split, loss and other metrics.

    Returns:
        the trained model.
    """
    with _opened(config) as run:
        workdir = storage.local_path(workdir)
        if run.task.name:
            raise UserError(
                USAGE, f"train: learns an objective, not the task {run.task.name}; finetune does"
            )
        plans = each_stage(run, plan_objective_checked)
        each_stage(run, check_training)
        train_config(run, workdir, plans, on_log)
        return LanguageModel(loaded_model.load(workdir))


def evaluate(workdir: str | Path, mesh: Mesh | None = None) -> dict[str, Any]:
    """Evaluate a trained model on its whole validation split.

    Args:
        mesh: the mesh of devices to use; None: one device.

    Returns:
        the step, the split and the metrics, such as loss in nats, accuracy and, for text,
        perplexity. A run on a task also has the task's metrics.
    """
    with _gate():
        return _evaluate(workdir, mesh)


def _evaluate(workdir: str | Path, mesh: Mesh | None) -> dict[str, Any]:
    directory = locate(workdir).directory
    resolved, _ = run_directory.read(directory)
    loop.setup_jax(resolved.model.dtype)
    loaded = loaded_model.load(workdir, mesh)
    data = run_directory.open_data(directory, resolved, loaded.tokenizer)
    training = dataclasses.replace(resolved.config.training, exact=False)  # only for gradients
    config = dataclasses.replace(resolved.config, mesh=mesh or Mesh(), training=training)
    here = dataclasses.replace(resolved, config=config, model=loaded.model)
    evaluator = loop.Evaluator(here, data, None if mesh else jax.local_devices()[:1])
    with evaluator.within():
        results = evaluator.evaluate(loaded.params)
    if isinstance(data, TextData):
        results["perplexity"] = perplexity(results["loss"])
        results |= whole_text_bits(results, resolved.rows, data.corpus.manifest)
    elif isinstance(data, TaskData):
        results |= judge_split(loaded, data.validation)
    return {"step": loaded.step, "split": "validation", **results}


def finetune(
    init: str | Path,
    task: str | Task,
    workdir: str | Path,
    seeds: int = 1,
    grid: Mapping[str, Sequence[Any]] | None = None,
    from_scratch: bool = False,
    adapt: str = "full",
    on_log: Callable[[dict], None] | None = None,
    **overrides: Any,
) -> dict[str, Any]:
    """Train a model on a task in `workdir`; the same call continues a run that was stopped.

    finetune("runs/bert", "which_module", "runs/modules")["reached"]

    Args:
        init: the directory of a run, or of Hugging Face files, to start from.
        task: the task to learn, or a value of --task: the name of a task that ships with t5x_lite,
            `my_tasks.py:mine`, or 'classify(file.tsv, text=sentence)'.
        seeds: number of seeds to train.
        grid: settings with several values each; the best combination is chosen.
        from_scratch: start from random parameters; use only the shape and tokenizer of `init`.
        adapt: which parameters are trained: full, lora(8), prefix(20), prompt(20), adapter(64),
            bitfit, probe or last(2).
        overrides: settings by their keys, such as {"optimizer.learning_rate": 1e-4}.

    Returns:
        the results, as in report.json. They hold the mean and standard deviation of each metric,
        the settings chosen, and all cells.
    """
    axes = [f"{key}={','.join(map(str, values))}" for key, values in (grid or {}).items()]
    settings = [f"{key}={value}" for key, value in overrides.items()]
    workdir = Path(workdir)
    with _gate() as by_caller:
        learned = _task(task, by_caller)
        if by_caller:
            settings_written_here([*settings, *axes])
        results = tuning.finetune(
            convert.as_run(locate(init), workdir / "imported"),
            learned,
            workdir,
            settings,
            seeds,
            axes,
            from_scratch,
            adapt,
            on_log,
            Path(init).resolve().name,
        )
    task_report.write(results, workdir)
    return results


def _task(task: str | Task, by_caller: bool) -> Task:
    """Load a task, and permit what it names if the caller wrote it."""
    if isinstance(task, str):
        return load_own_task(task) if by_caller else load_task(task)
    if by_caller:
        written_here(task)
    return task


def compare(config: ConfigLike, workdir: str | Path) -> dict[str, Any]:
    """Train the cells of a comparison on the same text under one budget, and write report.html.

    Returns:
        the results that the report shows.
    """
    from t5x_lite.comparison import run  # its statistics take half a second to import

    with _gate() as by_caller:
        is_run = isinstance(config, str) and names_run(config)
        if isinstance(config, str):
            config = load_comparison(config)
        elif not isinstance(config, CompareConfig):
            settings = config.to_dict() if hasattr(config, "to_dict") else config
            config = with_absolute_paths(build_comparison(settings))
        if by_caller and not is_run:
            written_here(config)
            load_own_tasks(config.tasks)
        return run.compare(config, Path(workdir))


@dataclasses.dataclass(frozen=True)
class Inspection:
    """A preview of a run: example rows, tokens and FLOPs, parameters, memory and time."""

    rows: str
    ledger: str
    parameters: int
    active_parameters: int  # used for one token; fewer than all in a mixture of experts
    state_bytes: int  # parameters and optimizer state, before sharding
    gradient_bytes: int  # before sharding
    flops: float  # of the whole run
    # FLOP/s of matrix products on the devices here, measured by a short test
    matmul_rate: float = dataclasses.field(compare=False)

    def __str__(self) -> str:
        lines = [("parameters", f"{self.parameters:,}", "")]
        if self.active_parameters < self.parameters:
            lines.append(("for a token", f"{self.active_parameters:,}", "of its own experts"))
        memory = f"{(self.state_bytes + self.gradient_bytes) / 1e6:,.0f} MB"
        what = "parameters, optimizer and gradients; activations come on top"
        lines.append(("memory", memory, what))
        minutes = f"{self.flops / self.matmul_rate / 60:,.1f} min"
        rate = f"at the {self.matmul_rate / 1e9:,.0f} GFLOP/s of matrix products here"
        lines.append(("time, at least", minutes, rate))
        return "\n".join([self.rows, "", self.ledger, "", columns(lines, "<><")])


def inspect(config: ConfigLike, examples: int = 3) -> Inspection:
    """Preview a run without training: its first rows as text, its ledger of tokens and FLOPs, and
    what it will cost. A run with stages has rows for each stage, the FLOPs of all stages together,
    and the sizes of the last model.
    """
    with _opened(config) as run:
        plans = each_stage(run, plan_objective_checked)
        stages = plan_stages(run, directories_of(Path("run"), len(plans)), plans)
        loop.setup_jax(stages[-1].resolved.model.dtype)
        inspected = [_inspect_stage(stage, examples) for stage in stages]
        last = inspected[-1]
        if len(stages) == 1:
            return last
        # Show the stages one after the other. Leave out the ledger of the last one: it follows the
        # rows, as in a run without stages.
        shown = []
        for number, (stage, one) in enumerate(zip(stages, inspected, strict=True), 1):
            objective = stage.resolved.config.objective
            shown.append(f"━━ stage {number} of {len(stages)}: {objective} ━━")
            shown.append(f"{one.rows}\n")
            if one is not last:
                shown.append(f"{one.ledger}\n")
        flops = sum(one.flops for one in inspected)
        return dataclasses.replace(last, rows="\n".join(shown).rstrip(), flops=flops)


def _inspect_stage(stage: Stage, examples: int) -> Inspection:
    resolved, data = stage.resolved, stage.data
    config, batches = resolved.config, data.batches("train")
    row = ledger(batches)
    steps = batches.num_steps(stage.steps, config.data.epochs)
    flops = step_flops(resolved, batches.shape, row.scored)
    state_bytes, gradient_bytes = loop.state_sizes(resolved)
    return Inspection(
        rows=inspection.show_rows(batches, data.tokenizer, examples),
        ledger=inspection.show_ledger(batches, row, steps, flops),
        parameters=count_parameters(resolved.model),
        active_parameters=count_active_parameters(resolved.model),
        state_bytes=state_bytes,
        gradient_bytes=gradient_bytes,
        flops=flops * steps * config.data.batch_size,
        matmul_rate=matmul_rate(resolved.model.dtype),
    )


def inspect_task(
    config: ConfigLike, task: str | Task, split: str = "train", examples: int = 3
) -> str:
    """Return the first examples of a task as text, the way the model of a config reads them."""
    with _gate() as by_caller:
        run, task = _run_config(config, by_caller), _task(task, by_caller)
        run = dataclasses.replace(run, task=with_labels_of(task))
        rows = plan_checked(run)
        assert isinstance(rows, TaskPlan)
        if run.data.source:
            tokenizer = prepare_text(run.data).tokenizer
        else:  # an imported model has no text, only a tokenizer
            tokenizer = tokenizers.make(run.data.tokenizer, (), run.data.add_specials)
        data = TaskData(rows, tokenizer, run.data.batch_size, run.seed)
        return inspection.show_task(data.split(split), tokenizer, examples)


class LanguageModel:
    """A model with its parameters and tokenizer."""

    def __init__(self, loaded: LoadedModel):
        self._loaded = loaded

    def __repr__(self) -> str:
        return f"LanguageModel({self.summary})"

    @property
    def summary(self) -> str:
        """Architecture, size and training in a few words."""
        loaded = self._loaded
        with loaded.within():
            size = short(count_parameters(loaded.model))
        learned = loaded.config.task.name or loaded.config.objective
        return f"{loaded.model.architecture}, {size} parameters, {learned}, step {loaded.step}"

    @property
    def config(self) -> RunConfig:
        """The config of the run that trained the model."""
        return self._loaded.config

    @property
    def dimensions(self) -> ModelDimensions:
        """Sizes of the model, with defaults filled in."""
        return self._loaded.model

    @property
    def rows(self) -> RowPlan | TaskPlan:
        """The rows that the model was trained on."""
        return self._loaded.rows

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model."""
        return self._loaded.tokenizer

    @property
    def params(self) -> Params:
        """The parameters of the model."""
        return self._loaded.params

    @overload
    def generate(self, prompts: str, **options: Any) -> str: ...
    @overload
    def generate(self, prompts: Sequence[str], **options: Any) -> list[str]: ...
    def generate(self, prompts, **options):
        """Return the text that the model writes after a prompt, or after each of several.

        Args:
            options: fields of inference.generate.Options, such as max_new_tokens, temperature,
                top_k, top_p, num_beams and stop.
        """
        if isinstance(prompts, str):
            return continue_texts(self._loaded, [prompts], **options)[0]
        return continue_texts(self._loaded, prompts, **options)

    def reply(self, turns: Sequence[Mapping[str, str]], **options: Any) -> str:
        """Return the reply of a model that was tuned on conversations. A conversation that leaves
        no room for the reply in a row loses its beginning, as in training.

        Args:
            turns: {"role": "user", "content": …} and so on; the last is not the assistant's.
            options: see generate; stop and num_beams are rejected.

        Raises:
            UserError: if the model was tuned on something else.
        """
        *_, last = stream_written(self._loaded, self.render(turns), cut=True, **options)
        return last.text

    def stream_tokens(
        self, prompt: str, top: int = 5, cut: bool = False, **options: Any
    ) -> Iterator[str | list[TokenPrediction]]:
        """Yield the text that the model writes after a prompt, piece by piece. Finally yield the
        list of its tokens, each with its probability and the `top` likeliest tokens in its place.

        Args:
            cut: cut off the beginning of a prompt that leaves no room for the text in a row.
            options: see generate; stop and num_beams are rejected.
        """
        last = Written(np.zeros(0, np.int32), np.zeros(0, np.int32), "")
        for written in stream_written(self._loaded, prompt, cut=cut, **options):
            yield written.text[len(last.text) :]
            last = written
        yield predict_ids(self._loaded, last.ids, last.prompt, top)

    def render(self, turns: Sequence[Mapping[str, str]]) -> str:
        """Return turns as the text that the model continues with its reply: see reply."""
        task = self.config.task
        if not kind_of(task).replies:
            trained = task.name or self.config.objective
            raise UserError(USAGE, f"reply: this model was trained on {trained}; use generate")
        return render(task, read_turns(turns, "reply"))

    def stream(self, prompt: str, **options: Any) -> Iterator[str]:
        """Yield the text that the model writes after one prompt, piece by piece."""
        before = ""
        for (text,) in stream_texts(self._loaded, [prompt], **options):
            yield text[len(before) :]
            before = text

    def fill(self, text: str, top: int = 5) -> list:
        """Fill each blank (___) of a text.

        Returns:
            for each blank, what a model trained with sentinels (T5) writes there, or the `top`
            likeliest tokens of a masked language model with their probabilities.
        """
        return fill(self._loaded, text, top)

    @overload
    def score(self, texts: str, context: str = "") -> Score: ...
    @overload
    def score(self, texts: Sequence[str], context: str = "") -> list[Score]: ...
    def score(self, texts, context=""):
        """Score how likely a text is, or each of several, given the context.

        See inference.score.score.
        """
        if isinstance(texts, str):
            return score(self._loaded, [texts], context)[0]
        return score(self._loaded, list(texts), context)

    def predict_tokens(self, text: str, context: str = "", top: int = 5) -> list[TokenPrediction]:
        """Return the probability of each token of a text, and the `top` likeliest in its place.

        See inference.token_predictions.predict_tokens.
        """
        return predict_tokens(self._loaded, text, context, top)

    def evaluate_task(
        self,
        task: str | Task,
        split: str = "validation",
        shots: int = 0,
        seed: int = 0,
        direction: Direction = "direct",
        limit: int = 0,
    ) -> dict[str, Any]:
        """Evaluate the model on a task.

        If the model was trained on the task, it answers as in training, unless shots are asked for.
        Any other task is answered by likelihood or by generation; see inference.zero_shot.

        Args:
            task: the task to evaluate, or a value of --task.
            split: the split to evaluate.
            shots: number of solved training examples in the prompt.
            seed: draws those examples.
            direction: "direct" scores the answer given the question, "channel" the question given
                the answer.
            limit: number of examples to evaluate, from the first; 0: all.

        Returns:
            a dict with task, split, method, examples (their number), metrics, groups and
            predictions (one record per example).
        """
        asking = Asking(split, shots, seed, direction, limit)
        by_caller = not permission().is_guarded
        with with_permission(self._loaded.permitted), guarded():
            asked = _task(task, by_caller)
            loaded = dataclasses.replace(self._loaded, permitted=permission())
            return evaluate_task(loaded, asked, asking)

    @overload
    def embed(self, texts: str, pooling: Pooling = "mean") -> np.ndarray: ...
    @overload
    def embed(self, texts: Sequence[str], pooling: Pooling = "mean") -> list[np.ndarray]: ...
    def embed(self, texts, pooling: Pooling = "mean"):
        """Embed a text, or each of several, as a vector [d_model].

        With pooling "none", return its hidden states [positions, d_model]. See
        inference.embed.embed.
        """
        if isinstance(texts, str):
            return embed(self._loaded, [texts], pooling)[0]
        return embed(self._loaded, list(texts), pooling)

    @cached_property
    def apply(self) -> Callable[[Params, Row], jax.Array]:
        """The compiled function (params, row) → logits over the padded vocabulary.

        It gives logits at all positions of a decoder [B, D, V], or at the scored positions of an
        encoder [B, K, V]. See data/rows/layouts.py for the rows.
        """
        self._loaded.check_predicts_tokens("apply")
        model = self._loaded.model

        def apply(params: Params, row: Row) -> jax.Array:
            output = transformer.apply(model, params, row)
            head = HEADS["mlm" if "encoder_scored" in row else "lm"]
            return logits(model, head_params(params), head.read(output, row))

        compiled = jax.jit(apply)

        def apply_on_mesh(params: Params, row: Row) -> jax.Array:
            with self._loaded.within():
                return compiled(params, row)

        return apply_on_mesh


def load_model(path: str | Path, mesh: Mesh | None = None) -> LanguageModel:
    """Load the model in a run directory, or in a directory of Hugging Face files.

    A run that uses code of yours, such as an objective or a part of the model, needs your
    permission to import it:

    with t5x_lite.allow(code=["my_objectives"]):
        model = t5x_lite.load("runs/mine")

    Args:
        mesh: the mesh to shard the parameters over; None: one device. Hugging Face files must be
            imported before they can be sharded.
    """
    with _gate():
        return LanguageModel(_load(path, mesh))


def _load(path: str | Path, mesh: Mesh | None) -> LoadedModel:
    directory = locate(path).directory
    check_is_run(directory)
    if "model_type" in read_json(
        directory / "config.json", "expected the directory of a run, or of a model"
    ):
        if mesh is not None:
            raise UserError(USAGE, f"{path}: a model that is to be sharded is imported first")
        with messages_to(to_stderr):
            loaded = convert.read(directory)
        return dataclasses.replace(loaded, params=jax.device_put(loaded.params))
    return loaded_model.load(path, mesh)
