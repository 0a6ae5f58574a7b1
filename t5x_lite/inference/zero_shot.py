"""Tasks for models that were not trained on them: answers by likelihood or by generation, with or
without solved examples in the prompt (Brown et al., 2020, §2).

What the likelihood of a text is depends on what the model has learned:

decoder                 log P(text | prompt), by the chain rule
encoder                 the text in a blank, token after token; of a sentence alone its
                        pseudo-log-likelihood (Salazar et al., 2020)
span corruption         the text in the place of a sentinel, given all around it
prefix LM               log P(text | prompt), the prompt read both ways
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from t5x_lite.config import Task
from t5x_lite.config.grammar import AllowedCode
from t5x_lite.data.tasks.examples import Example, Examples, Label, load_split, with_labels_of
from t5x_lite.data.tasks.formats import answer_of, prompt_of
from t5x_lite.data.tasks.metrics import by_group, check_metrics, judge
from t5x_lite.data.tasks.records import has_splits, lookup
from t5x_lite.data.tasks.task_data import TaskPlan
from t5x_lite.errors import USAGE, UserError
from t5x_lite.inference.generate import continue_texts
from t5x_lite.inference.predict import likeliest
from t5x_lite.inference.score import (
    TokenScores,
    pseudo_log_likelihoods,
    score_at_sentinels,
    score_in_blanks,
    score_targets,
)
from t5x_lite.training.run_directory import LoadedModel

# What the log-probability of an answer is divided by: nothing, its bytes, or its tokens.
Normalisation = Literal["sum", "byte", "token"]
# Direct: P(answer | question). Channel: P(question | answer) (Min et al., 2022).
Direction = Literal["direct", "channel"]

_LONGEST_ANSWER = 64  # tokens that are generated at most
_SHORTEST_PROMPT = 8  # tokens of it that are always read


@dataclass(frozen=True)
class Asking:
    """How a model is asked.

    Attributes:
        shots: solved examples of the training split in the prompt, drawn by the seed.
        limit: the first so many examples alone; 0: all.
    """

    split: str = "validation"
    shots: int = 0
    seed: int = 0
    direction: Direction = "direct"
    limit: int = 0


@dataclass(frozen=True)
class Evaluated:
    """What a model makes of a task.

    Attributes:
        method: what its answers were judged by, in words.
        metrics: by name; of choices under each normalisation.
        groups: the first metric of each group of examples.
        predictions: one for each example; None where two answers tie.
    """

    method: str
    metrics: dict[str, float]
    groups: dict[str, float]
    examples: Examples
    predictions: list[Label]


def ask(
    loaded: LoadedModel, task: Task, asking: Asking = Asking(), allowed: AllowedCode = None
) -> Evaluated:
    """Ask a model for the answers to a task.

    Raises:
        UserError: for kinds of tasks that such a model cannot be asked.
    """
    loaded.check_predicts_tokens("evaluate")
    check_metrics(task)
    if not has_splits(task.source):  # one file: all of it is asked
        if asking.split != "validation":
            reason = f"{task.source} is one file, all of which is asked"
            raise UserError(USAGE, f"evaluate: --split={asking.split}: {reason}; leave --split out")
        task = replace(task, train="")
    task = with_labels_of(task, allowed)
    examples = load_split(task, asking.split, allowed, asking.limit)
    if not examples.has_labels:
        raise UserError(
            USAGE, f"evaluate: {task.name}'s {asking.split} split has no labels to judge by"
        )
    solved = _solved(task, asking, allowed)
    if task.kind == "prefer":
        return _prefer(loaded, examples)
    if task.kind == "complete":
        return _complete(loaded, examples)
    if task.kind in ("classify", "choose"):
        return _choose(loaded, examples, solved, asking.direction)
    if task.kind in ("generate", "extract"):
        return _generate(loaded, examples, solved)
    raise UserError(
        USAGE, f"evaluate: a model that was not trained on it cannot {task.kind}; use finetune"
    )


# Prompts.


def _solved(task: Task, asking: Asking, allowed: AllowedCode) -> str:
    """Solved examples, as they begin a prompt."""
    shots = asking.shots
    if not shots:
        return ""
    examples = load_split(task, "train", allowed).examples
    if shots > len(examples):
        raise UserError(USAGE, f"--shots={shots}: the task has {len(examples)} training examples")
    drawn = random.Random(asking.seed).sample(examples, shots)
    texts = []
    for one in drawn:
        question, answer = question_of(task, one), _right_answer(task, one)
        is_channel = asking.direction == "channel"
        texts.append(f"{answer.strip()}\n{question}" if is_channel else question + answer)
    return "".join(text + "\n\n" for text in texts)


def question_of(task: Task, example: Example) -> str:
    """What a language model is asked: task.question; else the text that is to be completed with an
    answer, or what text-to-text models read.
    """
    if task.question:
        return lookup(example.record, task.question, f"task {task.name}")
    if task.kind in ("choose", "complete"):
        return f"{example.text} {example.text_pair}".strip()
    return prompt_of(task, example)


def answers_of(task: Task, example: Example) -> list[str]:
    """The answers of an example, each with the blank before it."""
    if task.kind == "choose":
        words: Sequence[Any] = example.choices
    else:
        words = task.answer_words or task.label_words or task.labels
    return [word if str(word)[:1].isspace() else f" {word}" for word in map(str, words)]


def _right_answer(task: Task, example: Example) -> str:
    if isinstance(example.label, int) and task.kind in ("classify", "choose"):
        return answers_of(task, example)[example.label]
    text = answer_of(task, example.label)
    return text if text[:1].isspace() else f" {text}"


# Likelihood.


def method_of(loaded: LoadedModel) -> str:
    """What the likelihood of an answer is to this model."""
    if loaded.rows.masked:
        return "log-probability in a blank, token after token"
    if loaded.rows.uses_sentinels:
        return "log-probability of the span in the place of a sentinel"
    return "log-probability given the prompt"


def score_answers(
    loaded: LoadedModel, prompts: Sequence[str], answers: Sequence[str]
) -> list[TokenScores]:
    """How likely each answer is after its prompt."""
    encode = loaded.tokenizer.encode
    before, targets = [encode(prompt) for prompt in prompts], [encode(text) for text in answers]
    if isinstance(loaded.rows, TaskPlan) and loaded.rows.format.head == "lm":
        # It has learned to read and to write whole texts.
        eos = [loaded.tokenizer.vocabulary.eos]
        before, targets = ([np.append(ids, eos) for ids in texts] for texts in (before, targets))
    return score_after(loaded, before, targets)


def score_after(
    loaded: LoadedModel, before: Sequence[np.ndarray], targets: Sequence[np.ndarray]
) -> list[TokenScores]:
    """How likely each text of ids is after another. A text that alone fills the row loses its end;
    else what stands before it its beginning.
    """
    most = loaded.model.max_length - 2 - _SHORTEST_PROMPT
    targets = [target[:most] for target in targets]
    before = _shortened(loaded, before, targets)
    after = [np.zeros(0, np.int32)] * len(before)
    if loaded.rows.masked:
        return score_in_blanks(loaded, before, after, targets)
    if loaded.rows.uses_sentinels:
        return score_at_sentinels(loaded, before, after, targets)
    return score_targets(loaded, before, targets)


def _shortened(
    loaded: LoadedModel, inputs: Sequence[np.ndarray], targets: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Prompts without their beginning where rows have no room for it, and for two special ids of
    an encoder.
    """
    special = 0 if loaded.model.architecture in ("decoder", "prefix_decoder") else 2
    longest = loaded.model.max_length - special
    shortened = []
    for ids, target in zip(inputs, targets, strict=True):
        room = longest if loaded.model.is_encoder_decoder else longest - len(target)
        shortened.append(ids[max(len(ids) - room, 0) :])
    return shortened


# Kinds of tasks.


def _choose(
    loaded: LoadedModel, examples: Examples, solved: str, direction: Direction
) -> Evaluated:
    """The answer with the highest likelihood; a tie is wrong."""
    task = examples.task
    prompts, scored, counts = [], [], []
    for example in examples.examples:
        question, of_example = question_of(task, example), answers_of(task, example)
        counts.append(len(of_example))
        for answer in of_example:
            if direction == "channel":
                prompts.append(f"{solved}{answer.strip()}\n")
                scored.append(question)
            else:
                prompts.append(solved + question)
                scored.append(answer)
    scores = score_answers(loaded, prompts, scored)

    sums = np.array([one.nats.sum() for one in scores])
    divisors: dict[Normalisation, np.ndarray] = {
        "sum": np.ones(len(sums)),
        "byte": np.array([len(text.encode()) for text in scored]),
        "token": np.array([max(len(one.nats), 1) for one in scores]),
    }
    metrics: dict[str, float] = {}
    chosen: dict[str, list[Label]] = {}
    for name, divisor in divisors.items():
        normalised = np.split(sums / divisor, np.cumsum(counts)[:-1])
        chosen[name] = [likeliest(of_example.tolist()) for of_example in normalised]
        suffix = "" if name == "sum" else f"_per_{name}"
        for metric, value in judge(task, examples.examples, chosen[name]).items():
            metrics[metric + suffix] = value
    method = method_of(loaded)
    if direction == "channel":
        method = f"{method}, of the question given the answer"
    return _evaluated(method, metrics, examples, chosen["sum"])


def _prefer(loaded: LoadedModel, examples: Examples) -> Evaluated:
    """Whether the better of two sentences is likelier; a tie is wrong."""
    sentences = [text for example in examples.examples for text in example.choices]
    encode = loaded.tokenizer.encode
    if loaded.rows.masked:
        method = "pseudo-log-likelihood of the sentence"
        sums = [score.nats for score in pseudo_log_likelihoods(loaded, sentences)]
    elif loaded.model.architecture == "decoder":
        method = "log-probability of the sentence"
        ids = [encode(sentence) for sentence in sentences]
        nothing = [np.zeros(0, np.int32)] * len(ids)
        sums = [one.nats.sum() for one in score_targets(loaded, nothing, ids)]
    else:
        method = "log-probability of where they differ, given the rest"
        before, spans, after = [], [], []
        for example in examples.examples:
            for parts in differing_spans([encode(text) for text in example.choices]):
                before.append(parts[0])
                spans.append(parts[1])
                after.append(parts[2])
        if loaded.rows.uses_sentinels:
            scores = score_at_sentinels(loaded, before, after, spans)
        else:
            method = "log-probability from where they differ on"
            rest = [np.concatenate(pair) for pair in zip(spans, after, strict=True)]
            scores = score_targets(loaded, before, rest)
        sums = [one.nats.sum() for one in scores]
    predictions = _likelier(sums)
    metrics = judge(examples.task, examples.examples, predictions)
    if loaded.rows.shape.looks_ahead and not loaded.rows.masked:  # it has learned both
        sums = [score.nats for score in pseudo_log_likelihoods(loaded, sentences)]
        masked = judge(examples.task, examples.examples, _likelier(sums))
        metrics |= {f"{name}_masked": value for name, value in masked.items()}
        method = f"{method}; masked: its pseudo-log-likelihood"
    return _evaluated(method, metrics, examples, predictions)


def _likelier(scores: Sequence[float]) -> list[Label]:
    """Which of each two scores is the higher, 0 or 1; None of a tie."""
    pairs = zip(scores[::2], scores[1::2], strict=True)
    return [likeliest([float(first), float(second)]) for first, second in pairs]


def differing_spans(
    texts: Sequence[np.ndarray],
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Of two texts: what both begin with, where they differ, what both end with.

    >>> [[part.tolist() for part in text] for text in
    ...     differing_spans([np.array([1, 2, 3, 9]), np.array([1, 4, 9])])]
    [[[1], [2, 3], [9]], [[1], [4], [9]]]
    """
    first, second = texts
    shorter = min(len(first), len(second))
    start = 0
    while start < shorter and first[start] == second[start]:
        start += 1
    end = 0
    while end < shorter - start and first[-1 - end] == second[-1 - end]:
        end += 1
    parts = []
    for ids in (first, second):
        stop = len(ids) - end
        parts.append((ids[:start], ids[start:stop], ids[stop:]))
    return parts


def _complete(loaded: LoadedModel, examples: Examples) -> Evaluated:
    """Whether each token of what follows is the likeliest, given those before it."""
    task = examples.task
    prompts = [question_of(task, example) for example in examples.examples]
    answers = [_right_answer(task, example) for example in examples.examples]
    scores = score_answers(loaded, prompts, answers)
    if loaded.rows.uses_sentinels:  # what ends the span is not part of the word
        scores = [TokenScores(one.nats[:-1], one.is_likeliest[:-1]) for one in scores]
    predictions: list[Label] = [
        example.label if one.is_likeliest.all() else None
        for example, one in zip(examples.examples, scores, strict=True)
    ]
    metrics = judge(task, examples.examples, predictions)
    metrics["nats_per_answer"] = -float(np.mean([one.nats.sum() for one in scores]))
    method = f"each token the likeliest; {method_of(loaded)}"
    return _evaluated(method, metrics, examples, predictions)


def _generate(loaded: LoadedModel, examples: Examples, solved: str) -> Evaluated:
    """The first line that the model writes."""
    task = examples.task
    prompts = [solved + question_of(task, example) for example in examples.examples]
    texts: list[str] = []
    for start in range(0, len(prompts), 8):
        texts += continue_texts(
            loaded, prompts[start : start + 8], max_new_tokens=_LONGEST_ANSWER, stop=("\n",)
        )
    predictions: list[Label] = [(text.strip(),) for text in texts]
    metrics = judge(task, examples.examples, predictions)
    return _evaluated("the first line that is generated", metrics, examples, predictions)


def _evaluated(
    method: str, metrics: dict[str, float], examples: Examples, predictions: list[Label]
) -> Evaluated:
    groups = by_group(examples.task, examples.examples, predictions)
    return Evaluated(method, metrics, groups, examples, predictions)
