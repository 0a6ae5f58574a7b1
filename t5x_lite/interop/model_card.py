"""Model cards: README.md of an exported model, made from what its run has recorded."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5x_lite import manifest
from t5x_lite.config import RunConfig, to_dict
from t5x_lite.config.files import flatten
from t5x_lite.config.grammar import has_scheme, parse_sources
from t5x_lite.config.roles import LOCAL, PATH, SENDS, settings_with
from t5x_lite.config.schema import default
from t5x_lite.config.stages import in_words
from t5x_lite.data.tasks.task_data import TaskPlan
from t5x_lite.errors import read_json
from t5x_lite.model.transformer import count_parameters
from t5x_lite.training.log import read_metrics
from t5x_lite.training.run_directory import LoadedModel
from t5x_lite.training.whole_text import BOUND, EXACT, whole_text_bits

# What the end of a class's name says a model does, as the Hub calls it
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


def model_card(
    loaded: LoadedModel,
    workdir: Path,
    name: str,
    class_name: str,
    licence: str = "",
    adapter: bool = False,
) -> str:
    """Return the card of a model as Markdown, with the metadata that the Hugging Face Hub reads.

    Files are named without their directories, and a licence is given only if the user names one.

    Args:
        name: of the model, as its users load it.
        class_name: in `transformers`.
        licence: as the Hub writes it, such as "apache-2.0".
        adapter: True for LoRA's updates alone, which need the model that they were trained on.
    """
    return (
        "\n\n".join(
            [
                _metadata(loaded, class_name, licence, adapter),
                f"# {name}",
                _summary(loaded, workdir),
                _usage(name, class_name, adapter),
                *_section("Scores", _scores(loaded, workdir), "score", "value"),
                *_section("Text", _text(loaded, workdir), "", ""),
                *_section("Training", _training(loaded, workdir), "", ""),
                *_section("Settings", _settings(loaded.config), "setting", "value"),
            ]
        )
        + "\n"
    )


def _section(heading: str, rows: _Rows, *columns: str) -> Iterator[str]:
    """Yield a heading and a table; nothing if it has no rows."""
    if rows:
        lines = [f"| {' | '.join(columns)} |", "|---|---|"]
        lines += [f"| {_cell(key)} | {_cell(value)} |" for key, value in rows]
        yield f"## {heading}"
        yield "\n".join(lines)


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


def _metadata(loaded: LoadedModel, class_name: str, licence: str, adapter: bool) -> str:
    lines = ["---", f"library_name: {'peft' if adapter else 'transformers'}"]
    if licence:
        lines.append(f"license: {licence}")
    ends = [end for end in PIPELINES if class_name.endswith(end)]
    if ends:
        lines.append(f"pipeline_tag: {PIPELINES[ends[0]]}")
    lines += ["tags:", "- t5x_lite", f"- {loaded.model.architecture}", "---"]
    return "\n".join(lines)


def _summary(loaded: LoadedModel, workdir: Path) -> str:
    """Say in a sentence what the model is and what it has learned."""
    kind = loaded.model.architecture.replace("_", "-")
    article = "An" if kind.startswith("e") else "A"
    size = f"{count_parameters(loaded.model):,} parameters"
    if isinstance(loaded.rows, TaskPlan):
        learned = f"fine-tuned for {loaded.rows.task.name}"
    else:
        learned = f"trained with `{loaded.config.objective}`"
    read = _records(workdir, "train", loaded.step)[-1:]
    amount = f" on {read[0]['raw_tokens']:,} tokens of text" if _has(read, "raw_tokens") else ""
    return f"{article} {kind} with {size}, {learned} for {loaded.step:,} steps{amount}."


def _usage(name: str, class_name: str, adapter: bool) -> str:
    """Show how to load the model."""
    if adapter:
        lines = [
            "from peft import PeftModel",
            f"from transformers import {class_name}",
            "",
            f'base = {class_name}.from_pretrained("…")  # the model that was adapted',
            f'model = PeftModel.from_pretrained(base, "{name}")',
        ]
    else:
        lines = [
            f"from transformers import AutoTokenizer, {class_name}",
            "",
            f'tokenizer = AutoTokenizer.from_pretrained("{name}")',
            f'model = {class_name}.from_pretrained("{name}")',
        ]
    return "\n".join(["```python", *lines, "```"])


def _records(workdir: Path, split: str, step: int) -> list[dict[str, Any]]:
    """Return the records of a split up to a step."""
    records = read_metrics(workdir / "metrics.jsonl")
    return [one for one in records if one["split"] == split and one["step"] <= step]


def _has(records: Sequence[Mapping[str, Any]], key: str) -> bool:
    return bool(records) and key in records[-1]


# Scores.


def _scores(loaded: LoadedModel, workdir: Path) -> _Rows:
    """Return the model's own scores: of its validation text at this step, or of its task."""
    if isinstance(loaded.rows, TaskPlan):
        return _of_task(workdir)
    evaluated = _records(workdir, "validation", loaded.step)
    if not evaluated or evaluated[-1]["step"] != loaded.step:
        return []
    found = {key: evaluated[-1][key] for key in ("loss", "accuracy")}
    corpus = read_json(workdir / "corpus.json", "bring it back")
    found |= whole_text_bits(evaluated[-1], loaded.rows, corpus)
    rows = [(_HEADINGS[key], f"{value:.4f}") for key, value in found.items()]
    if not loaded.tokenizer.lossless and {EXACT, BOUND} & set(found):
        rows.append(("", "The tokenizer loses some of the text: bits per byte do not compare"))
    return rows


def _of_task(workdir: Path) -> _Rows:
    """Return the score of a fine-tuning, with its 95 % interval over the examples."""
    path = workdir / "report.json"
    if not path.is_file():
        return []
    results = read_json(path, "run finetune again")
    scored, metric = results["scored"], results["metric"].replace("_", " ")
    amounts, clusters = (np.array(scored["units"][key]) for key in ("amounts", "clusters"))
    # Examples of one cluster are more alike than others, so their errors are added up first.
    _, cluster = np.unique(clusters, return_inverse=True)
    errors = np.bincount(cluster, amounts - amounts.mean())
    half = 1.96 * math.sqrt(float(errors @ errors)) / len(amounts)
    value = f"{scored['mean']:.4f} ± {half:.4f}"
    on = f"{metric}, on {scored['on']} ({scored['examples']:,} examples)"
    return [(on, value)]


# What it was made from.


def _text(loaded: LoadedModel, workdir: Path) -> _Rows:
    """Return what is known of the text: its sources, its size and its hash."""
    path = workdir / "corpus.json"
    if isinstance(loaded.rows, TaskPlan) or not path.is_file():
        return []
    corpus = read_json(path, "bring it back")
    sources = parse_sources(loaded.config.data.source, "data.source")
    rows = [("sources", ", ".join(without_directory(name) for _, name in sources) or "unknown")]
    for split in ("train", "validation"):
        of_split = corpus.get(split, {})
        if "sha256" in of_split:
            counts = (f"{of_split[key]:,} {key}" for key in ("documents", "tokens", "bytes"))
            rows.append((split, f"{', '.join(counts)}; SHA-256 {of_split['sha256'][:16]}…"))
    vocabulary = loaded.tokenizer.vocabulary
    kind = "lossless" if loaded.tokenizer.lossless else "not lossless"
    rows.append(("tokenizer", f"{vocabulary.size:,} ids, {kind}"))
    return rows


def without_directory(name: str) -> str:
    """Return a source without the directories of the machine that it was read on.

    >>> without_directory("/home/me/books.txt"), without_directory("hf:wikitext?name=x")
    ('books.txt', 'hf:wikitext?name=x')
    >>> without_directory("gs://my-bucket/books/*.txt")
    '*.txt'
    """
    if has_scheme(name) and "://" not in name:
        return name
    return name.rstrip("/").rpartition("/")[2]


def _training(loaded: LoadedModel, workdir: Path) -> _Rows:
    """Return the stages of the run, the time it took, and the versions that it ran with."""
    rows = []
    if loaded.config.stages:
        rows.append(("stages", " → ".join(in_words(loaded.config))))
    if loaded.config.optimizer.average:
        rows.append(("parameters", f"average of the last ones: {loaded.config.optimizer.average}"))
    trained = _records(workdir, "train", loaded.step)
    seconds = sum(one.get("train_seconds", 0) for one in trained)
    if seconds:
        rows.append(("time", f"{seconds / 3600:.2f} hours, without compilation and evaluation"))
    for directory in ("best", "checkpoints"):
        where = workdir / directory / str(loaded.step)
        if manifest.is_in(where):
            facts = manifest.read(where)
            found = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
            rows += [("versions", found), ("run", f"{facts['run']}, step {loaded.step}")]
            break
    return rows


def _settings(config: RunConfig) -> _Rows:
    """Return the settings that decide what is learned, without those that are the defaults."""
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
