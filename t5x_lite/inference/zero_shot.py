"""Ask models to do tasks that they were not trained on: by likelihood or by generation, with or
without solved examples in the prompt (Brown et al., 2020, §2).

How the likelihood of a text is computed depends on what the model has learned:

decoder                 log P(text | prompt), by the chain rule
masked LM               the text fills a blank, token by token; a sentence without a prompt gets its
                        pseudo-log-likelihood (Salazar et al., 2020)
span corruption         the text in place of a sentinel, given everything around it
prefix LM               log P(text | prompt), with the prompt read bidirectionally
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import Literal

import numpy as np

from t5x_lite.config import Task
from t5x_lite.data.tasks.examples import Examples, as_text, load_split, with_labels_of
from t5x_lite.data.tasks.kinds.choose import likeliest
from t5x_lite.data.tasks.kinds.kind import Example, Label
from t5x_lite.data.tasks.kinds.table import kind_of
from t5x_lite.data.tasks.metrics import by_group, check_metrics, judge
from t5x_lite.data.tasks.records import has_splits, lookup
from t5x_lite.data.tasks.task_data import TaskPlan
from t5x_lite.errors import USAGE, UserError
from t5x_lite.inference.generate import continue_inputs, encode_prompts, with_room
from t5x_lite.inference.score import (
    TokenScores,
    pseudo_log_likelihoods,
    score_at_sentinels,
    score_in_blanks,
    score_targets,
)
from t5x_lite.training.loaded_model import LoadedModel

# The log-probability of an answer is divided by nothing, by its bytes, or by its tokens.
Normalisation = Literal["sum", "byte", "token"]
# Direct: P(answer | question). Channel: P(question | answer) (Min et al., 2022).
Direction = Literal["direct", "channel"]

_LONGEST_ANSWER = 64  # maximum number of tokens to generate
_PROMPTS_AT_ONCE = 8
_SHORTEST_PROMPT = 8  # tokens of the prompt that are always kept


@dataclass(frozen=True)
class Asking:
    """Options for asking a model to do a task.

    Attributes:
        split: the split whose examples are asked.
        shots: number of solved training examples in the prompt.
        seed: seed for drawing these examples.
        direction: score the answer given the question, or the question given the answer.
        limit: ask only the first `limit` examples; 0: all.
    """

    split: str = "validation"
    shots: int = 0
    seed: int = 0
    direction: Direction = "direct"
    limit: int = 0


@dataclass(frozen=True)
class Evaluated:
    """Result of evaluating a model on a task.

    Attributes:
        method: how the answers were obtained, in words.
        metrics: values by name; for choices, one for each normalisation.
        groups: value of the first metric for each group of examples.
        examples: the examples that were asked.
        predictions: one for each example; None if two answers tie or an answer is not a label.
        further: how additional metrics were obtained, if by another method.
    """

    method: str
    metrics: dict[str, float]
    groups: dict[str, float]
    examples: Examples
    predictions: list[Label]
    further: str = ""


def ask(loaded: LoadedModel, task: Task, asking: Asking = Asking()) -> Evaluated:
    """Ask a model for the answers to a task.

    Raises:
        UserError: if the model predicts no tokens, a split is missing or has no labels, or the kind
            of task cannot be asked without training.
    """
    loaded.check_predicts_tokens("evaluate")
    check_metrics(task)
    if not has_splits(task.source):  # one file without splits: ask all of it
        if asking.split != "validation":
            reason = f"{task.source} is one file without splits, and all of it is used"
            raise UserError(USAGE, f"evaluate: --split={asking.split}: {reason}; leave --split out")
        task = replace(task, train="")
    task = with_labels_of(task)
    examples = load_split(task, asking.split, asking.limit)
    if not examples.has_labels:
        raise UserError(
            USAGE, f"evaluate: {task.name}'s {asking.split} split has no labels to judge by"
        )
    asked_by = kind_of(task).asked_by
    if asking.shots and asked_by in ("sentences", "tokens"):
        reason = f"tasks of kind {task.kind} are asked without solved examples"
        raise UserError(USAGE, f"evaluate: --shots={asking.shots}: {reason}; leave --shots out")
    if asking.direction == "channel" and asked_by != "options":
        reason = f"tasks of kind {task.kind} have no options to condition on"
        raise UserError(USAGE, f"evaluate: --channel: {reason}; leave --channel out")
    solved = _solved(task, asking, examples)
    if asked_by == "sentences":
        return _prefer(loaded, examples)
    if asked_by == "tokens":
        return _complete(loaded, examples)
    if asked_by == "options":
        return _choose(loaded, examples, solved, asking.direction)
    if asked_by == "text":
        return _generate(loaded, examples, solved)
    raise UserError(
        USAGE, f"evaluate: a model that was not trained on it cannot {task.kind}; use finetune"
    )


# Prompts.


def _solved(task: Task, asking: Asking, asked: Examples) -> list[str]:
    """Return the solved examples that begin the prompt of each asked example; empty without shots.

    All prompts get the same training examples, but an example is never its own shot: a task without
    training examples takes its shots from the validation split.
    """
    shots = asking.shots
    if not shots:
        return [""] * len(asked)
    pool = load_split(task, "train" if task.train else "validation").examples
    order = random.Random(asking.seed).sample(pool, len(pool))
    prompts = []
    for example in asked.examples:
        itself = as_text(example.record)
        others = (one for one in order if as_text(one.record) != itself)
        drawn = list(islice(others, shots))
        if len(drawn) < shots:
            reason = f"the task has {len(pool)} examples to draw from, the asked one included"
            raise UserError(USAGE, f"--shots={shots}: {reason}; ask for fewer")
        prompts.append("".join(f"{_solved_text(task, asking, one)}\n\n" for one in drawn))
    return prompts


def _solved_text(task: Task, asking: Asking, example: Example) -> str:
    """Return an example with its answer."""
    question, answer = question_of(task, example), _right_answer(task, example)
    if asking.direction == "channel":
        return f"{answer.strip()}\n{question}"
    return question + answer


def question_of(task: Task, example: Example) -> str:
    """Return the question to ask a language model.

    This is task.question if set. Otherwise it is the text that an answer completes (choose,
    complete), or the prompt of text-to-text models.
    """
    if task.question:
        return lookup(example.record, task.question, f"task {task.name}")
    if kind_of(task).completes:
        return f"{example.text} {example.text_pair}".strip()
    return kind_of(task).prompt(task, example)


def answers_of(task: Task, example: Example) -> list[str]:
    """Return the possible answers to an example, each beginning with a space."""
    return [_spaced(str(option)) for option in kind_of(task).options(task, example)]


def _right_answer(task: Task, example: Example) -> str:
    """Return the right answer to an example, beginning with a space."""
    options = answers_of(task, example)
    if options and isinstance(example.label, int):
        return options[example.label]
    return _spaced(kind_of(task).answer(task, example))


def _spaced(text: str) -> str:
    return text if text[:1].isspace() else f" {text}"


# Likelihood.


def method_of(loaded: LoadedModel) -> str:
    """Describe in words how this model scores an answer."""
    if loaded.rows.masked:
        return "log-probability in a blank, token by token"
    if loaded.rows.uses_sentinels:
        return "log-probability of the span in place of a sentinel"
    return "log-probability given the prompt"


def score_answers(
    loaded: LoadedModel, prompts: Sequence[str], answers: Sequence[str]
) -> list[TokenScores]:
    """Score each answer after its prompt."""
    encode = loaded.tokenizer.encode
    before, targets = [encode(prompt) for prompt in prompts], [encode(text) for text in answers]
    if isinstance(loaded.rows, TaskPlan) and loaded.rows.format.head == "lm":
        # A model that learned a task in words ends its answers, and mostly its prompts, with EOS.
        eos = [loaded.tokenizer.vocabulary.eos]
        targets = [np.append(ids, eos) for ids in targets]
        if loaded.rows.format.ends_prompt:
            before = [np.append(ids, eos) for ids in before]
    return score_after(loaded, before, targets)


def score_after(
    loaded: LoadedModel, before: Sequence[np.ndarray], targets: Sequence[np.ndarray]
) -> list[TokenScores]:
    """Score each target after the ids before it.

    A target that is too long for a row is truncated on the right, so that a few ids still fit
    before it. The ids before a target are truncated on the left.
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
    """Truncate prompts on the left, so that each fits a row.

    An encoder needs room for two special ids. A model with sentinels reads one and EOS, and perhaps
    a mode token. In a single stack, the target needs room too, with the two sentinels around it.
    """
    is_decoder = loaded.model.architecture in ("decoder", "prefix_decoder")
    special = 0 if is_decoder else 2
    if loaded.rows.uses_sentinels:
        special = (4 if is_decoder else 2) + bool(loaded.rows.mode_of_sentinels)
    special += loaded.extra_start if is_decoder else 0
    longest = loaded.model.max_length - special
    shortened = []
    for ids, target in zip(inputs, targets, strict=True):
        room = longest if loaded.model.is_encoder_decoder else longest - len(target)
        shortened.append(ids[max(len(ids) - room, 0) :])
    return shortened


# Kinds of tasks.


def _choose(
    loaded: LoadedModel, examples: Examples, solved: Sequence[str], direction: Direction
) -> Evaluated:
    """Choose the likeliest answer to each question; a tie counts as wrong.

    The metrics cover every normalisation; the predictions use none.
    """
    task = examples.task
    # Make a prompt and a text to score for each answer to each question.
    prompts, scored, counts = [], [], []
    for example, shots in zip(examples.examples, solved, strict=True):
        question, of_example = question_of(task, example), answers_of(task, example)
        counts.append(len(of_example))
        for answer in of_example:
            if direction == "channel":
                prompts.append(f"{shots}{answer.strip()}\n")
                scored.append(question)
            else:
                prompts.append(shots + question)
                scored.append(answer)
    scores = score_answers(loaded, prompts, scored)

    # Choose by the scores under each normalisation.
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
    """Test whether the better of two sentences is likelier; a tie counts as wrong."""
    sentences = [text for example in examples.examples for text in example.choices]
    encode = loaded.tokenizer.encode
    if loaded.rows.masked:
        method = "pseudo-log-likelihood of the sentence"
        sums = [score.nats for score in pseudo_log_likelihoods(loaded, sentences)]
    elif loaded.model.architecture == "decoder" and loaded.rows.continues_text:
        method = "log-probability of the sentence"
        ids = [encode(sentence) for sentence in sentences]
        nothing = [np.zeros(0, np.int32)] * len(ids)
        sums = [one.nats.sum() for one in score_targets(loaded, nothing, ids)]
    else:
        method = "log-probability of the part in which they differ, given the rest"
        before, spans, after = [], [], []
        for example in examples.examples:
            for parts in differing_spans([encode(text) for text in example.choices]):
                before.append(parts[0])
                spans.append(parts[1])
                after.append(parts[2])
        if loaded.rows.uses_sentinels:
            scores = score_at_sentinels(loaded, before, after, spans)
        else:
            method = "log-probability from the first difference on"
            rest = [np.concatenate(pair) for pair in zip(spans, after, strict=True)]
            scores = score_targets(loaded, before, rest)
        sums = [one.nats.sum() for one in scores]
    predictions = _likelier(sums)
    metrics = judge(examples.task, examples.examples, predictions)
    # A decoder that also learned masked_next_token can score a sentence with masks, too.
    if loaded.rows.shape.looks_ahead and not loaded.rows.masked:
        sums = [score.nats for score in pseudo_log_likelihoods(loaded, sentences)]
        masked = judge(examples.task, examples.examples, _likelier(sums))
        metrics |= {f"{name}_masked": value for name, value in masked.items()}
        further = "masked: its pseudo-log-likelihood"
        return replace(_evaluated(method, metrics, examples, predictions), further=further)
    return _evaluated(method, metrics, examples, predictions)


def _likelier(scores: Sequence[float]) -> list[Label]:
    """Return the index of the higher score in each pair, 0 or 1; None for a tie."""
    pairs = zip(scores[::2], scores[1::2], strict=True)
    return [likeliest([float(first), float(second)]) for first, second in pairs]


def differing_spans(
    texts: Sequence[np.ndarray],
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Split each of two texts into their common beginning, their difference and their common end.

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
    """Test whether each token of the right continuation is the likeliest, given those before."""
    task = examples.task
    prompts = [question_of(task, example) for example in examples.examples]
    answers = [_right_answer(task, example) for example in examples.examples]
    scores = score_answers(loaded, prompts, answers)
    if loaded.rows.uses_sentinels:  # the id that ends the span is not part of the word
        scores = [TokenScores(one.nats[:-1], one.is_likeliest[:-1]) for one in scores]
    predictions: list[Label] = [
        example.label if one.is_likeliest.all() else None
        for example, one in zip(examples.examples, scores, strict=True)
    ]
    metrics = judge(task, examples.examples, predictions)
    metrics["nats_per_answer"] = -float(np.mean([one.nats.sum() for one in scores]))
    method = f"right if each token is the likeliest; {method_of(loaded)}"
    return _evaluated(method, metrics, examples, predictions)


def _generate(loaded: LoadedModel, examples: Examples, solved: Sequence[str]) -> Evaluated:
    """Answer each question with the first line that the model generates."""
    task = examples.task
    questions = [question_of(task, example) for example in examples.examples]
    prompts = [shots + question for shots, question in zip(solved, questions, strict=True)]
    whole = encode_prompts(loaded, prompts)
    inputs = [with_room(loaded, ids, _LONGEST_ANSWER) for ids in whole]
    cut = sum(len(a) < len(b) for a, b in zip(inputs, whole, strict=True))
    texts: list[str] = []
    for start in range(0, len(inputs), _PROMPTS_AT_ONCE):
        batch = inputs[start : start + _PROMPTS_AT_ONCE]
        texts += continue_inputs(loaded, batch, max_new_tokens=_LONGEST_ANSWER, stop=("\n",))
    kind, as_written = kind_of(task), cache(loaded.tokenizer.as_written)
    predictions = [
        kind.label_of(task, text.strip(), example, as_written)
        for text, example in zip(texts, examples.examples, strict=True)
    ]
    metrics = judge(task, examples.examples, predictions)
    method = "the first line that is generated"
    if cut:
        method = f"{method}; {cut} of {len(inputs)} questions lost their beginning, being too long"
    return _evaluated(method, metrics, examples, predictions)


def _evaluated(
    method: str, metrics: dict[str, float], examples: Examples, predictions: list[Label]
) -> Evaluated:
    """Put the results together, with the first metric of each group."""
    groups = by_group(examples.task, examples.examples, predictions)
    return Evaluated(method, metrics, groups, examples, predictions)
