"""Model cards: the README.md of an exported model, made from what its run has recorded."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from t5x_lite import manifest
from t5x_lite.config import RunConfig, to_dict
from t5x_lite.config.files import flatten, load_run_config
from t5x_lite.config.grammar import has_scheme, parse_sources
from t5x_lite.config.roles import LOCAL, PATH, SENDS, settings_with
from t5x_lite.config.schema import default
from t5x_lite.data.tasks.task_data import TaskPlan
from t5x_lite.errors import read_json
from t5x_lite.model.transformer import count_parameters
from t5x_lite.training.loaded_model import LoadedModel
from t5x_lite.training.log import read_metrics
from t5x_lite.training.whole_text import BATCHES, BOUND, EXACT, whole_text_bits

# End of a class name → what the model does, as the Hub calls it
PIPELINES = {
    "LMHeadModel": "text-generation",
    "ForCausalLM": "text-generation",
    "ForMaskedLM": "fill-mask",
    "ForPreTraining": "fill-mask",
    "ForConditionalGeneration": "text2text-generation",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMultipleChoice": "multiple-choice",
    "Model": "feature-extraction",
}
_HEADINGS = {
    "loss": "validation loss, nats per predicted token",
    "accuracy": "predicted tokens that are right",
    EXACT: "bits per byte of the validation text",
    BOUND: "bits per byte of the validation text, at most",
}

_Rows = Sequence[tuple[str, str]]


class Naming(NamedTuple):
    """The name, licence and revision that a user gives to an export.

    Attributes:
        name: the name that the model is loaded by.
        license: as the Hub writes it, such as "apache-2.0"; empty: the card names none.
        revision: the branch of the repository; empty: the main branch.
    """

    name: str = ""
    license: str = ""
    revision: str = ""


def model_card(
    loaded: LoadedModel, workdir: Path, naming: Naming, adapter: bool, class_name: str
) -> str:
    """Return the card of a model as Markdown, with the metadata that the Hugging Face Hub reads.

    Files are named without their directories, and a licence is given only if the user names one.

    Args:
        adapter: True if only LoRA's updates are exported, which need the model that they adapt.
        class_name: name of the class in `transformers`.
    """
    stages = _stages(loaded, workdir)
    parts = [
        _metadata(loaded, class_name, naming.license, adapter),
        f"# {_cell(naming.name)}",
        _summary(loaded, workdir, stages),
        _usage(naming, class_name, adapter),
        *_section("Scores", _scores(loaded, workdir), "score", "value"),
        *_section("Text", _text(loaded, stages), "what", "how much"),
        *_section("Training", _training(loaded, workdir, stages), "what", "how"),
        *_section("Settings", _settings(loaded.config), "setting", "value"),
    ]
    return "\n\n".join(parts) + "\n"


class TrainedStage(NamedTuple):
    """One stage of a model's training, or all of it for a run without stages."""

    config: RunConfig
    directory: Path
    end: int  # the step where it ended


def _stages(loaded: LoadedModel, workdir: Path) -> list[TrainedStage]:
    """Return the stages of a run that are in its directory. The last one is the run itself."""
    stages = []
    for path in sorted((workdir / "stages").glob("*/config.json"), key=_number_of_stage):
        config = load_run_config(path)
        if config.training.steps <= loaded.config.start.step:
            stages.append(TrainedStage(config, path.parent, config.training.steps))
    return [*stages, TrainedStage(loaded.config, workdir, loaded.step)]


def _number_of_stage(path: Path) -> int:
    name = path.parent.name
    return int(name) if name.isdecimal() else 0


def _section(heading: str, rows: _Rows, *columns: str) -> Iterator[str]:
    """Yield a heading and a table, or nothing if the table has no rows."""
    if rows:
        lines = [f"| {' | '.join(columns)} |", "|---|---|"]
        lines += [f"| {_cell(key)} | {_cell(value)} |" for key, value in rows]
        yield f"## {heading}"
        yield "\n".join(lines)


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


def _metadata(loaded: LoadedModel, class_name: str, license_name: str, adapter: bool) -> str:
    lines = ["---", f"library_name: {'peft' if adapter else 'transformers'}"]
    if license_name:
        lines.append(f"license: {json.dumps(license_name)}")
    ends = [end for end in PIPELINES if class_name.endswith(end)]
    if ends:
        lines.append(f"pipeline_tag: {PIPELINES[ends[0]]}")
    lines += ["tags:", "- t5x_lite", f"- {loaded.model.architecture}", "---"]
    return "\n".join(lines)


def _summary(loaded: LoadedModel, workdir: Path, stages: Sequence[TrainedStage]) -> str:
    """Say in one sentence what the model is and what it has learned."""
    kind = loaded.model.architecture.replace("_", "-")
    article = "An" if kind.startswith("e") else "A"
    model = f"{article} {kind} with {count_parameters(loaded.model):,} parameters"
    if not loaded.step:
        return f"{model}. It was imported, and not trained here."
    if isinstance(loaded.rows, TaskPlan):
        return f"{model}, fine-tuned for {loaded.rows.task.name}, {_steps(loaded.step)}."
    learned = [f"with `{stage.config.objective}` to step {stage.end:,}" for stage in stages]
    if len(stages) == 1:
        learned = [f"with `{loaded.config.objective}` for {_steps(loaded.step)}"]
    read = _facts(workdir, loaded.step).get("raw_tokens")
    amount = f", on {read:,} tokens of text" if read else ""
    return f"{model}, trained {', then '.join(learned)}{amount}."


def _steps(count: int) -> str:
    return f"{count:,} step{'s' if count > 1 else ''}"


def _facts(workdir: Path, step: int) -> dict[str, Any]:
    """Return what the manifest of a checkpoint records; empty if there is none."""
    for directory in ("checkpoints", "best"):
        where = workdir / directory / str(step)
        if manifest.is_in(where):
            return manifest.read(where)
    return {}


def _usage(naming: Naming, class_name: str, adapter: bool) -> str:
    """Show how to load the model."""
    of_model = json.dumps(naming.name)
    if naming.revision:
        of_model += f", revision={json.dumps(naming.revision)}"
    if adapter:
        lines = [
            "from peft import PeftModel",
            f"from transformers import {class_name}",
            "",
            f'base = {class_name}.from_pretrained("…")  # the model that was adapted',
            f"model = PeftModel.from_pretrained(base, {of_model})",
        ]
    else:
        lines = [
            f"from transformers import AutoTokenizer, {class_name}",
            "",
            f"tokenizer = AutoTokenizer.from_pretrained({of_model})",
            f"model = {class_name}.from_pretrained({of_model})",
        ]
    return "\n".join(["```python", *lines, "```"])


def _records(workdir: Path, split: str, step: int) -> list[dict[str, Any]]:
    """Return the records of a split up to a step."""
    records = read_metrics(workdir / "metrics.jsonl")
    return [one for one in records if one["split"] == split and one["step"] <= step]


# Scores.


def _scores(loaded: LoadedModel, workdir: Path) -> _Rows:
    """Return the model's own scores: on its validation text at this step, or on its task."""
    if isinstance(loaded.rows, TaskPlan):
        return _of_task(loaded, workdir)
    records = read_metrics(workdir / "metrics.jsonl")
    here = loaded.step, "validation"
    evaluated = [r for r in records if (r["step"], r["split"]) == here and BATCHES not in r]
    if not evaluated:
        return []
    found = {key: evaluated[-1][key] for key in ("loss", "accuracy")}
    corpus = read_json(workdir / "corpus.json", "bring it back")
    found |= whole_text_bits(evaluated[-1], loaded.rows, corpus)
    rows = [(_HEADINGS[key], f"{value:.4f}") for key, value in found.items()]
    if not loaded.tokenizer.lossless and {EXACT, BOUND} & set(found):
        rows.append(("note", "the tokenizer loses some of the text: bits per byte do not compare"))
    return rows


def _of_task(loaded: LoadedModel, workdir: Path) -> _Rows:
    """Return the score of a fine-tuned model, with its 95 % interval over the examples. Return
    nothing if it was not this checkpoint that was scored.
    """
    path = workdir / "report.json"
    if not path.is_file():
        return []
    results = read_json(path, "run finetune again")
    of_seeds = [seed for cell in results["cells"] for seed in cell["seeds"].values()]
    if loaded.step not in {seed["step"] for seed in of_seeds}:
        return []
    scored, metric = results["scored"], results["metric"].replace("_", " ")
    amounts, clusters = (np.array(scored["units"][key]) for key in ("amounts", "clusters"))
    # Examples of one cluster are correlated, so their errors are added up before they are squared.
    _, cluster = np.unique(clusters, return_inverse=True)
    errors = np.bincount(cluster, amounts - amounts.mean())
    half = 1.96 * math.sqrt(float(errors @ errors)) / len(amounts)
    value = f"{scored['mean']:.4f} ± {half:.4f}"
    on = f"{metric}, on {scored['on']} ({scored['examples']:,} examples)"
    return [(on, value)]


# What it was made from.


def _text(loaded: LoadedModel, stages: Sequence[TrainedStage]) -> _Rows:
    """Return what is known about the text of each stage: its sources, its size and its hash."""
    rows: list[tuple[str, str]] = []
    if isinstance(loaded.rows, TaskPlan):
        return rows
    for stage in stages:
        path = stage.directory / "corpus.json"
        if not path.is_file():
            continue
        corpus = read_json(path, "bring it back")
        sources = parse_sources(stage.config.data.source, "data.source")
        named = ", ".join(without_directory(name) for _, name in sources)
        of_stage = [("sources", named or "unknown")]
        for split in ("train", "validation"):
            counts = corpus.get(split, {})
            if "sha256" in counts:
                of_stage.append((split, _size(counts, stage.config, split)))
        rows += [row for row in of_stage if row not in rows]  # stages may share a text
    vocabulary = loaded.tokenizer.vocabulary
    kind = "lossless" if loaded.tokenizer.lossless else "not lossless"
    return [*rows, ("tokenizer", f"{vocabulary.size:,} ids, {kind}")]


def _size(counts: Mapping[str, Any], config: RunConfig, split: str) -> str:
    """Describe the size of a split, and its hash, in words."""
    if split == "train" and config.data.unique_tokens:
        return f"the first {counts['tokens']:,} tokens (data.unique_tokens)"
    shown = ", ".join(f"{counts[key]:,} {key}" for key in ("documents", "tokens", "bytes"))
    return f"{shown}; SHA-256 of the tokens {counts['sha256'][:16]}…"


def without_directory(name: str) -> str:
    """Return a source without the directories of the machine that it was read on, and without
    anything after a question mark, which may hold a password.

    >>> without_directory("/home/me/books.txt"), without_directory("hf:wikitext?token=x")
    ('books.txt', 'hf:wikitext')
    >>> without_directory("gs://my-bucket/books/*.txt"), without_directory("hf:/home/me/books")
    ('*.txt', 'hf:books')
    """
    name = re.split(r"[?#]", name)[0].rstrip("/")
    scheme, colon, rest = name.partition(":")
    if has_scheme(name) and "://" not in name:
        is_path = rest.startswith(("/", ".", "~")) or "\\" in rest
        return f"{scheme}{colon}{rest.rpartition('/')[2] if is_path else rest}"
    return re.split(r"[/\\]", name)[-1]


def _training(loaded: LoadedModel, workdir: Path, stages: Sequence[TrainedStage]) -> _Rows:
    """Return what training started from, the time it took, and the versions it ran with."""
    config, rows = loaded.config, []
    if config.init_from:
        base = without_directory(config.init_from)
        if config.start.step and len(stages) == 1:
            rows.append(("begins", f"with {base}, after its step {config.start.step:,}"))
        elif not config.start.step:
            rows.append(("begins", f"with the parameters of {base}"))
    if config.optimizer.average:
        rows.append(("parameters", f"an average over the steps: {config.optimizer.average}"))
    records = [one for stage in stages for one in _records(stage.directory, "train", stage.end)]
    seconds = sum(one.get("train_seconds", 0) for one in records)
    if seconds:
        time = f"{seconds / 3600:.1f} hours" if seconds > 3600 else f"{seconds:.0f} seconds"
        rows.append(("time", f"{time}, without compilation and evaluation"))
    facts = _facts(workdir, loaded.step)
    if facts:
        versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
        rows += [("versions", versions), ("run", f"{facts['run']}, step {loaded.step}")]
    return rows


def _settings(config: RunConfig) -> _Rows:
    """Return the settings that affect what is learned and differ from the defaults."""
    left_out = settings_with(RunConfig, LOCAL, PATH, SENDS)
    usual = flatten(json.loads(json.dumps(default().to_dict())))
    rows = []
    for key, value in flatten(to_dict(config)).items():
        section = key.partition(".")[0]
        if key in left_out or section in ("init_from", "stages", "start", "mesh", "task"):
            continue
        if value != usual.get(key):
            rows.append((f"`{key}`", f"`{value}`"))
    return rows
