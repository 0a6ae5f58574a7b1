"""Label: which label does each word have? Used for named entities and parts of speech.

The text is a list of words, or a string in which spaces separate the words. The labels have the
same form. An encoder labels the first piece of each word (Devlin et al., 2019, §5.3); a
text-to-text model writes the labels in order.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from t5x_lite.config import Task
from t5x_lite.data.objectives.pairs import Pairs
from t5x_lite.data.ragged import Ragged
from t5x_lite.data.rows.layouts import RowShape
from t5x_lite.data.tasks.formats import IN_WORDS
from t5x_lite.data.tasks.kinds.kind import (
    AsWritten,
    Example,
    Format,
    Formatted,
    Kind,
    Label,
    count_labels,
    is_missing,
    number_of_class,
    words_of_labels,
)
from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.errors import BAD_DATA, UserError

Entity = tuple[str, int, int]  # its type, its first word, and the word after its last


def bert_words(
    kind: Kind, task: Task, examples: Sequence[Example], tokenizer: Tokenizer, shape: RowShape
) -> Formatted:
    """Format examples as aligned pairs `[CLS] words [SEP]`, scored at the first piece of each word.

    A text that is too long becomes several pairs. Only a word that is longer than a row is cut.
    """
    vocabulary = tokenizer.vocabulary
    cls, sep = vocabulary["[CLS]"], vocabulary["[SEP]"]
    room = shape.encoder - 2
    inputs, targets, weights, scored, example_of_pair = [], [], [], [], []
    truncated = 0
    for number, example in enumerate(examples):
        words = example.text.split(" ")
        pieces = [tokenizer.encode(words[0]), *(tokenizer.encode(f" {word}") for word in words[1:])]
        truncated += any(len(of_word) > room for of_word in pieces)
        # A word without tokens gets a [SEP], so that its label has a position.
        pieces = [of_word[:room] if len(of_word) else np.array([sep]) for of_word in pieces]
        labels = example.label if isinstance(example.label, tuple) else (0,) * len(words)
        for first, end in _windows([len(of_word) for of_word in pieces], room):
            lengths = [len(of_word) for of_word in pieces[first:end]]
            inputs.append(np.concatenate([[cls], *pieces[first:end], [sep]]))
            scored.append(1 + np.cumsum([0, *lengths[:-1]]))
            targets.append(np.array(labels[first:end], np.int32))
            weights.append(np.full(end - first, example.label is not None, np.float32))
            example_of_pair.append(number)
    pairs = Pairs(
        Ragged.from_rows(inputs),
        Ragged.from_rows(targets),
        weights=Ragged.from_rows(weights, np.float32),
        scored=Ragged.from_rows(scored),
        types=Ragged.from_rows([np.zeros(len(ids), np.int32) for ids in inputs]),
    )
    return Formatted(pairs, np.array(example_of_pair), (), truncated)


def _windows(lengths: Sequence[int], room: int) -> Iterator[tuple[int, int]]:
    """Yield (first word, word after the last) of consecutive windows with as many words as fit.

    >>> list(_windows([2, 3, 1, 4], room=5))
    [(0, 2), (2, 4)]
    """
    first, used = 0, 0
    for word, length in enumerate(lengths):
        if used + length > room:
            yield first, word
            first, used = word, 0
        used += length
    yield first, len(lengths)


# Metrics.


def _tags(
    task: Task, examples: Sequence[Example], predictions: Sequence[Label]
) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the right and the predicted labels of each example. A missing prediction becomes O."""
    for example, predicted in zip(examples, predictions, strict=True):
        assert isinstance(example.label, tuple)
        right = [str(task.labels[int(number)]) for number in example.label]
        given = predicted if isinstance(predicted, tuple) else ()
        found = [str(task.labels[int(number)]) for number in given]
        yield right, found + ["O"] * (len(right) - len(found))


def entities(tags: Sequence[str]) -> set[Entity]:
    """Return the entities in labels such as B-PER I-PER O, as CoNLL's conlleval reads them: I- may
    also begin an entity. A label without a prefix is an entity of one word.

    >>> sorted(entities(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"]))
    [('LOC', 3, 4), ('LOC', 4, 5), ('PER', 0, 2)]
    """
    found = set()
    kind, start = "", 0
    for place, tag in enumerate([*tags, "O"]):
        prefix, dash, rest = tag.partition("-")
        if prefix not in ("B", "I") or not dash:
            prefix, rest = ("O", "") if tag == "O" else ("B", tag)
        # An entity ends before a word that is not I- of its type.
        if kind and (prefix != "I" or rest != kind):
            found.add((kind, start, place))
            kind = ""
        if rest and not kind:
            kind, start = rest, place
    return found


def entity_f1(task: Task, examples: Sequence[Example], predictions: Sequence[Label]) -> float:
    """Return the F1 over all entities (CoNLL-2003). An entity is right if its type and both its
    ends are right.
    """
    right = predicted = common = 0
    for labels, found in _tags(task, examples, predictions):
        these, those = entities(labels), entities(found)
        right += len(these)
        predicted += len(those)
        common += len(these & those)
    return 2 * common / max(right + predicted, 1)


def token_accuracy(task: Task, examples: Sequence[Example], predictions: Sequence[Label]) -> float:
    """Return the fraction of words whose label is right (parts of speech)."""
    right = total = 0
    for labels, found in _tags(task, examples, predictions):
        total += len(labels)
        right += sum(one == other for one, other in zip(labels, found, strict=False))
    return right / max(total, 1)


# The kind.


class LabelWords(Kind):
    """The label is a tuple: for each word, the index of its label."""

    meaning = "which label of each word"
    predicts = "labels"
    metrics = ("entity_f1", "token_accuracy")
    names_labels = True
    own_metrics = {"entity_f1": entity_f1, "token_accuracy": token_accuracy}
    formats = {
        "encoder": Format(bert_words, "token_class"),
        **IN_WORDS,
    }

    def check(self, task: Task) -> Iterator[str]:
        """Yield a message for each label that contains whitespace, which separates labels."""
        yield from super().check(task)
        for word in (*task.labels, *task.label_words):
            if str(word).split() != [str(word)]:
                yield f"task.labels: {word!r} has blanks, which separate labels; leave them out"

    def read_text(self, value: Any) -> str:
        """Join the words with single spaces. Whitespace inside a word becomes a no-break space."""
        words = value if isinstance(value, list) else str(value or "").split()
        return " ".join("\N{NO-BREAK SPACE}".join(str(word).split()) for word in words)

    def parse_label(self, task: Task, value: Any, choices: Sequence[str], where: str) -> Label:
        """Return the index of the label of each word."""
        names = self.label_names(value)
        if not names:
            return None
        numbers: list[int] = []
        for name in names:
            number = number_of_class(task, name, where)
            if number is None:
                return None
            numbers.append(number)
        return tuple(numbers)

    def check_example(self, example: Example, where: str) -> None:
        """Reject an example that does not have one label per word."""
        if example.label is None:
            return
        words, labels = len(example.text.split(" ")), len(example.label)  # type: ignore[arg-type]
        if not example.text or words != labels:
            words = words if example.text else 0
            raise UserError(
                BAD_DATA, f"{where}: has {words} words and {labels} labels; give one label per word"
            )

    def label_names(self, value: Any) -> Sequence[str]:
        """Return the names of the labels, one per word."""
        if is_missing(value):
            return ()
        return [str(name) for name in value] if isinstance(value, list) else str(value).split()

    def readable(self, task: Task, label: Label, example: Example) -> Any:
        """Return the names of the labels, separated by spaces."""
        if not isinstance(label, tuple):
            return None
        return " ".join(str(task.labels[int(number)]) for number in label)

    def submitted(self, task: Task, label: Label, example: Example) -> Any:
        """Return the names of the labels, separated by spaces."""
        return self.readable(task, label, example) or ""

    def slots(self, length: int) -> dict[str, Any]:
        """Reserve a slot for each word that a row may hold."""
        return {"scored": max(length - 2, 1)}

    def model_settings(self, task: Task) -> dict[str, int]:
        """Ask for one output per label at each position."""
        return {"token_classes": count_labels(task)}

    def predict(
        self,
        task: Task,
        examples: Sequence[Example],
        formatted: Formatted,
        outputs: Sequence[np.ndarray],
    ) -> list[Label]:
        """Return the likeliest label of each word, joining the windows of each example."""
        numbers: list[list[int]] = [[] for _ in examples]
        for number, logits in zip(formatted.example_of_pair.tolist(), outputs, strict=True):
            numbers[number] += logits.argmax(-1).tolist()
        return [tuple(of_example) for of_example in numbers]

    def answer(self, task: Task, example: Example) -> str:
        """Return the words of the labels, separated by spaces."""
        words = words_of_labels(task)
        if not isinstance(example.label, tuple):
            return ""
        return " ".join(words[int(number)] for number in example.label)

    def closed_answers(self, task: Task) -> Sequence[str]:
        """Return the words of the labels."""
        return words_of_labels(task)

    def label_of(self, task: Task, text: str, example: Example, as_written: AsWritten) -> Label:
        """Return the indices of the labels that a text names, one per word. A vocabulary may put
        spaces into a label: "b - per".
        """
        words = [as_written(word) for word in words_of_labels(task)]
        # If one label is the beginning of another, try the longer one first.
        longest_first = sorted(words, key=len, reverse=True)
        label = re.compile(f"({'|'.join(map(re.escape, longest_first))})(?:\\s+|$)")
        numbers: list[int] = []
        start = 0
        while start < len(text):
            found = label.match(text, start)
            if not found:
                return None
            numbers.append(words.index(found[1]))
            start = found.end()
        return tuple(numbers) if len(numbers) == len(example.text.split(" ")) else None
