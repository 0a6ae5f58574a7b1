"""Metrics of a task's predictions, computed with the libraries that the benchmarks use."""

import math
import re
from collections.abc import Sequence
from itertools import groupby, zip_longest
from typing import Any, NamedTuple

import numpy as np

from t5x_lite.config import Task
from t5x_lite.config.named import Named, find_named
from t5x_lite.data.tasks.answers import exact_match, text_of, token_f1
from t5x_lite.data.tasks.kinds.kind import Example, Judgement, Label
from t5x_lite.data.tasks.kinds.table import kind_of, metrics_of
from t5x_lite.errors import BAD_CONFIG, BAD_DATA, UserError, nearest, optional_import, user_errors


class Metric(NamedTuple):
    """One way to judge predictions."""

    score: Judgement
    judges: tuple[str, ...] = ()  # predictions that it judges: see Kind.predicts; empty: any
    library: str = ""  # library that it needs, from the extra [tasks]
    # True if it is the mean of its values for single examples
    is_mean: bool = False
    bounds: tuple[float, float] | None = (0.0, 1.0)  # None: it may be any number


def judge(
    task: Task, examples: Sequence[Example], predictions: Sequence[Label]
) -> dict[str, float]:
    """Return the metrics of a task by name, without those that apply to none of the examples.

    Raises:
        UserError: if the first metric, by which checkpoints are chosen, applies to none of them.
    """
    scores = {}
    for name in metrics_of(task):
        score = find_metric(task, name).score(task, examples, predictions)
        if score is not None:
            scores[name] = score
    first = metrics_of(task)[0]
    if first not in scores:
        reason = f"{first} concerns none of these {len(examples)} examples"
        raise UserError(BAD_DATA, f"task.metrics: {reason}; name another metric first")
    return scores


def find_metric(task: Task, name: str) -> Metric:
    """Return the metric with this name: a metric of the kind of task, one of METRICS, or a user's
    function, `my_module.my_metric`.

    Raises:
        UserError: if there is none.
    """
    own = {of_kind: Metric(score) for of_kind, score in kind_of(task).own_metrics.items()}
    known = METRICS | own
    if name in known:
        return known[name]
    if "." not in name:
        raise UserError(BAD_CONFIG, f"task.metrics: got {name!r}; {nearest(name, known)}")
    return Metric(_Own(find_named(name, {}, "task.metrics", "metric")), bounds=None)


class _Own:
    """A user's metric: checks that it returns a finite number or None."""

    def __init__(self, score: Named):
        self._score = score

    def __call__(
        self, task: Task, examples: Sequence[Example], predictions: Sequence[Label]
    ) -> float | None:
        what = f"task.metrics: {self._score.name}"
        with user_errors(BAD_CONFIG, f"{what} failed"):
            value = self._score(task, examples, predictions)
            is_number = value is None or math.isfinite(float(value))
        if not is_number:
            reason = f"returned {str(value)[:100]}, expected a finite number or None"
            raise UserError(BAD_CONFIG, f"{what}: {reason}")
        return None if value is None else float(value)


def check_metrics(task: Task) -> None:
    """Reject metrics that do not exist, that judge another kind of task, or whose library is not
    installed. This is called before any training.
    """
    own, predicts = kind_of(task).own_metrics, kind_of(task).predicts
    for name in metrics_of(task):
        metric = find_metric(task, name)
        if metric.judges and predicts not in metric.judges:
            known = [known for known in METRICS if predicts in METRICS[known].judges]
            expected = ", ".join([*own, *known])
            reason = f"{name} does not judge tasks of kind {task.kind}; expected {expected}"
            raise UserError(BAD_CONFIG, f"task.metrics: {reason}")
        if name == "f1" and len(task.labels) > 2:
            reason = f"f1 needs two labels, the task has {len(task.labels)}; use macro_f1"
            raise UserError(BAD_CONFIG, f"task.metrics: {reason}")
        if metric.library:
            optional_import(metric.library, "tasks", f"task.metrics={name}")


# A metric as a mean over examples, from which its uncertainty follows.

_GROUPS = 50  # number of groups of examples; each group is left out in turn


class UnitScores(NamedTuple):
    """The first metric of a task as the mean of amounts.

    Attributes:
        amounts: the metric's value for each example. If the metric is not a mean over examples, the
            jackknife's pseudo-value for each group of examples (Efron and Tibshirani, 1993, §11.5):
            what the metric would be if all examples were like this group.
        clusters: number of each amount's cluster. Examples of one cluster are more alike than
            others: see `clusters_of`.
        bounds: least and greatest value of the metric; None: it may be any number.
        count: number of clusters of examples; there may be fewer groups.
    """

    amounts: list[float]
    clusters: list[int]
    bounds: tuple[float, float] | None
    count: int


def unit_scores(
    task: Task, examples: Sequence[Example], predictions: Sequence[Label]
) -> UnitScores:
    """Return the first metric of a task as the mean of amounts.

    The units depend only on the examples, not on the predictions, so that two models can be
    compared unit by unit.
    """
    metric = find_metric(task, metrics_of(task)[0])
    clusters = clusters_of(examples)
    if metric.is_mean:
        amounts = [
            metric.score(task, [example], [predicted]) or 0.0
            for example, predicted in zip(examples, predictions, strict=True)
        ]
        return UnitScores(amounts, clusters, metric.bounds, len(set(clusters)))

    # Leave out one group of clusters at a time.
    count = min(_GROUPS, len(set(clusters)))
    whole = metric.score(task, examples, predictions) or 0.0
    if count < 2:
        return UnitScores([whole], [0], metric.bounds, count)
    amounts = []
    for group in range(count):
        kept = [number for number, cluster in enumerate(clusters) if cluster % count != group]
        of_kept = metric.score(
            task, [examples[number] for number in kept], [predictions[number] for number in kept]
        )
        without = whole if of_kept is None else of_kept
        amounts.append(count * whole - (count - 1) * without)
    # Move the mean of the pseudo-values to the metric itself. Their variance is the jackknife's.
    shift = whole - sum(amounts) / count
    shifted = [amount + shift for amount in amounts]
    return UnitScores(shifted, list(range(count)), metric.bounds, len(set(clusters)))


def clusters_of(examples: Sequence[Example]) -> list[int]:
    """Return the number of each example's cluster: its group or, without groups, its text. Examples
    of one cluster are more alike than others, such as the questions about one passage.

    If the examples have two texts, the text that is longer on average decides: the passage and not
    the question.
    """
    keys: list[Any] = [example.group for example in examples]
    if None in keys:
        fields = [
            [getattr(example, name) for example in examples] for name in ("text", "text_pair")
        ]
        longer = max(fields, key=lambda texts: sum(map(len, texts)))
        # An example is a cluster of its own if it has no text, or if all examples have the same.
        is_shared = len(set(longer)) == 1
        keys = [(number,) if is_shared or not text else text for number, text in enumerate(longer)]
    numbers: dict[Any, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


# Metrics of classes.


def accuracy(task: Task, examples: Sequence[Example], predictions: Sequence[Label]) -> float:
    """Return the fraction of predictions that equal the label. A prediction that is not a label is
    wrong.
    """
    right = [
        predicted == example.label for example, predicted in zip(examples, predictions, strict=True)
    ]
    return float(np.mean(right))


def _classes(
    task: Task, examples: Sequence[Example], predictions: Sequence[Label]
) -> tuple[list, list]:
    """Return labels and predictions as numbers. A prediction that is not a label becomes a wrong
    label (as in t5's f1_score_with_invalid).
    """
    labels, predicted = [], []
    for example, prediction in zip(examples, predictions, strict=True):
        label: Any = example.label
        labels.append(int(label))
        if prediction is None:
            prediction = int(label) - 1 if int(label) else 1
        predicted.append(int(prediction))  # type: ignore[arg-type]
    return labels, predicted


def f1(task: Task, examples: Sequence[Example], predictions: Sequence[Label]) -> float:
    """Return F1 of class 1 (MRPC, QQP; MultiRC's F1a)."""
    metrics = optional_import("sklearn.metrics", "tasks", "task.metrics=f1")
    labels, predicted = _classes(task, examples, predictions)
    return float(metrics.f1_score(labels, predicted, zero_division=0))


def macro_f1(task: Task, examples: Sequence[Example], predictions: Sequence[Label]) -> float:
    """Return the mean F1 over all classes (CB)."""
    metrics = optional_import("sklearn.metrics", "tasks", "task.metrics=macro_f1")
    labels, predicted = _classes(task, examples, predictions)
    numbers = list(range(len(task.labels)))
    return float(
        metrics.f1_score(labels, predicted, labels=numbers, average="macro", zero_division=0)
    )


def matthews(task: Task, examples: Sequence[Example], predictions: Sequence[Label]) -> float:
    """Return Matthews correlation (CoLA): 0 for chance, 1 at best."""
    metrics = optional_import("sklearn.metrics", "tasks", "task.metrics=matthews")
    return float(metrics.matthews_corrcoef(*_classes(task, examples, predictions)))


def grouped_exact_match(
    task: Task, examples: Sequence[Example], predictions: Sequence[Label]
) -> float:
    """Return the fraction of groups in which every prediction is right (MultiRC: questions)."""
    right: dict[Any, bool] = {}
    for example, predicted in zip(examples, predictions, strict=True):
        right[example.group] = right.get(example.group, True) and predicted == example.label
    return float(np.mean(list(right.values())))


def grouped_accuracy(
    task: Task, examples: Sequence[Example], predictions: Sequence[Label]
) -> float:
    """Return the mean accuracy over groups (BLiMP: 67 paradigms)."""
    of_group: dict[Any, list[bool]] = {}
    for example, predicted in zip(examples, predictions, strict=True):
        of_group.setdefault(example.group, []).append(predicted == example.label)
    return float(np.mean([np.mean(right) for right in of_group.values()]))


# Metrics of numbers.


def _numbers(
    examples: Sequence[Example], predictions: Sequence[Label]
) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and predictions as arrays. A prediction that is not a number counts as −1, as
    in t5.
    """
    labels = np.array([example.label for example in examples], float)
    return labels, np.array([-1.0 if value is None else value for value in predictions], float)


def pearson(task: Task, examples: Sequence[Example], predictions: Sequence[Label]) -> float:
    """Return Pearson's correlation (STS-B); 0 if all predictions or all labels are equal."""
    return _correlation("pearsonr", examples, predictions)


def spearman(task: Task, examples: Sequence[Example], predictions: Sequence[Label]) -> float:
    """Return Spearman's rank correlation (STS-B); 0 if all predictions or all labels are equal."""
    return _correlation("spearmanr", examples, predictions)


def _correlation(name: str, examples: Sequence[Example], predictions: Sequence[Label]) -> float:
    stats = optional_import("scipy.stats", "tasks", f"task.metrics={name[:-1]}")
    labels, predicted = _numbers(examples, predictions)
    if np.ptp(predicted) == 0 or np.ptp(labels) == 0:
        return 0.0
    return float(getattr(stats, name)(labels, predicted)[0])


# Metrics of texts.


def _rouge(kind: str) -> Judgement:
    """Return the ROUGE metric of this kind."""

    def metric(task: Task, examples: Sequence[Example], predictions: Sequence[Label]) -> float:
        module = optional_import("rouge_score.rouge_scorer", "tasks", f"task.metrics={kind}")
        scorer = module.RougeScorer([kind], use_stemmer=True)
        scores = []
        for example, predicted in zip(examples, predictions, strict=True):
            references, text = _answers(example), text_of(predicted)
            if kind == "rougeLsum":  # which expects one sentence per line
                references, text = map(_sentence_lines, references), _sentence_lines(text)
            scores.append(scorer.score_multi(list(references), text)[kind].fmeasure)
        return float(np.mean(scores))

    metric.__doc__ = (
        f"{kind}, F1, with stemming, against the best reference; the mean: rouge-score."
    )
    return metric


def _sentence_lines(text: str) -> str:
    """Put each sentence on a line of its own."""
    return re.sub(r"(?<=[.?!])\s+", "\n", text.strip())


def _answers(example: Example) -> tuple[str, ...]:
    assert isinstance(example.label, tuple)
    return tuple(map(str, example.label))


def bleu(task: Task, examples: Sequence[Example], predictions: Sequence[Label]) -> float:
    """Return corpus BLEU from 0 to 100 against all references, by sacrebleu with its default
    tokenisation (WMT).
    """
    sacrebleu = optional_import("sacrebleu", "tasks", "task.metrics=bleu")
    # The first references of all examples, then the second ones, …; None where there are fewer.
    references = list(zip_longest(*map(_answers, examples)))
    return float(sacrebleu.corpus_bleu([text_of(p) for p in predictions], references).score)


_CLASSES, _NUMBERS, _TEXTS = ("class", "choice"), ("number",), ("text",)
_SKLEARN, _SCIPY, _ROUGE = "sklearn.metrics", "scipy.stats", "rouge_score.rouge_scorer"
METRICS: dict[str, Metric] = {
    "accuracy": Metric(accuracy, _CLASSES, is_mean=True),
    "f1": Metric(f1, ("class",), _SKLEARN),
    "macro_f1": Metric(macro_f1, ("class",), _SKLEARN),
    "matthews": Metric(matthews, ("class",), _SKLEARN, bounds=(-1.0, 1.0)),
    "grouped_exact_match": Metric(grouped_exact_match, _CLASSES),
    "grouped_accuracy": Metric(grouped_accuracy, _CLASSES),
    "pearson": Metric(pearson, _NUMBERS, _SCIPY, bounds=(-1.0, 1.0)),
    "spearman": Metric(spearman, _NUMBERS, _SCIPY, bounds=(-1.0, 1.0)),
    "exact_match": Metric(exact_match, _TEXTS, is_mean=True),
    "token_f1": Metric(token_f1, _TEXTS, is_mean=True),
    "rouge1": Metric(_rouge("rouge1"), _TEXTS, _ROUGE, is_mean=True),
    "rouge2": Metric(_rouge("rouge2"), _TEXTS, _ROUGE, is_mean=True),
    "rougeL": Metric(_rouge("rougeL"), _TEXTS, _ROUGE, is_mean=True),
    "rougeLsum": Metric(_rouge("rougeLsum"), _TEXTS, _ROUGE, is_mean=True),
    "bleu": Metric(bleu, _TEXTS, "sacrebleu", bounds=(0.0, 100.0)),
}


def by_group(
    task: Task, examples: Sequence[Example], predictions: Sequence[Label]
) -> dict[str, float]:
    """Return the first metric for each group of examples, by group; empty without groups."""
    if not task.group:
        return {}
    numbered = sorted(range(len(examples)), key=lambda number: str(examples[number].group))
    metric = find_metric(task, metrics_of(task)[0])
    scores = {}
    for group, numbers in groupby(numbered, key=lambda number: str(examples[number].group)):
        chosen = list(numbers)
        of_group = [examples[number] for number in chosen]
        predicted = [predictions[number] for number in chosen]
        score = metric.score(task, of_group, predicted)
        if score is not None:
            scores[group] = score
    return scores
