"""How each family reads the examples of a task: one function each, which returns pairs of ids.

BERT  [CLS] text [SEP] text_pair [SEP], a head on the first position (Devlin et al., 2019, §4)
GPT   <s> text [SEP] text_pair [CLS], a head on the last position (Radford et al., 2018, §3.3)
T5    prompt </s> → answer </s>; a prefix decoder has both on one stack (Raffel et al., 2020, §2.4)

Texts that are too long lose their end. Of two texts, the longer one is cut, until both fit (BERT's
released code).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from t5x_lite.config import Task
from t5x_lite.data.objectives.pairs import Pairs, SegmentLabels
from t5x_lite.data.ragged import Ragged
from t5x_lite.data.rows.layouts import RowShape
from t5x_lite.data.tasks.examples import Example, Label
from t5x_lite.data.tasks.records import lookup
from t5x_lite.data.tasks.words import Words, split_words
from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.errors import BAD_CONFIG, UserError

# Tokens that separate and end texts for GPT. They are new to the model, as in the paper, unless it
# was trained on them.
DELIMITER, EXTRACT = "[SEP]", "[CLS]"


class Formatted(NamedTuple):
    """Examples of a split as pairs."""

    pairs: Pairs
    example_of_pair: np.ndarray  # index of the example that each pair belongs to
    words_of_pair: tuple[Words, ...]  # extract: the words of each pair and their positions
    truncated: int  # number of examples that were cut
    # Most tokens of an answer in words, EOS included; 0 if answers are not words
    answer_room: int = 0


class Format(NamedTuple):
    """How an architecture reads a kind of task."""

    function: Callable[[Task, Sequence[Example], Tokenizer, RowShape], Formatted]
    head: str  # head that predicts: a name in model.heads.HEADS


def truncate(texts: Sequence[np.ndarray], room: int) -> list[np.ndarray]:
    """Cut one or two texts to `room` tokens in total. The longer text loses its end. Of two equally
    long texts the second is cut first, as in BERT's _truncate_seq_pair.

    >>> truncate([np.arange(5), np.arange(2)], room=5)
    [array([0, 1, 2]), array([0, 1])]
    """
    lengths = [len(text) for text in texts]
    if sum(lengths) > room and len(texts) == 1:
        lengths = [room]
    elif sum(lengths) > room:
        first, second = lengths
        if second <= room // 2:
            first = room - second
        elif first <= room // 2:
            second = room - first
        else:
            first, second = (room + 1) // 2, room // 2
        lengths = [first, second]
    return [text[:length] for text, length in zip(texts, lengths, strict=True)]


# BERT.


def bert(task: Task, examples: Sequence[Example], tokenizer: Tokenizer, shape: RowShape):
    """Format examples as `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`, with type 0 up to the first
    [SEP] and type 1 after it. Multiple choice: one pair per answer.
    """
    vocabulary = tokenizer.vocabulary
    cls, sep = vocabulary["[CLS]"], vocabulary["[SEP]"]
    rows = _Rows()
    for number, example in enumerate(examples):
        readings = _readings(task, example)
        room = shape.encoder // len(readings)  # all answers to a question share a row
        for text, text_pair, value in readings:
            texts = [tokenizer.encode(part) for part in (text, text_pair) if part]
            shortened = truncate(texts, max(room - 1 - max(len(texts), 1), 0))
            ids, types = [[cls]], [[0]]
            for kind, part in enumerate(shortened):
                ids += [part, [sep]]
                types += [np.full(len(part) + 1, kind)]
            rows.add(number, ids, types, value, _cut(texts, shortened))
    return rows.formatted(position_of=lambda length: 0)


def gpt(task: Task, examples: Sequence[Example], tokenizer: Tokenizer, shape: RowShape):
    """Format examples as `<s> A extract` or `<s> A delimiter B extract`; the head reads the last
    position. All tokens up to the extract token are also predicted: the auxiliary language model.
    """
    vocabulary = tokenizer.vocabulary
    delimiter, extract = vocabulary[DELIMITER], vocabulary[EXTRACT]
    rows = _Rows()
    for number, example in enumerate(examples):
        readings = _readings(task, example)
        room = shape.decoder // len(readings)
        for text, text_pair, value in readings:
            texts = [tokenizer.encode(part) for part in (text, text_pair) if part]
            # One position for each delimiter and the extract token, and one for the EOS after it.
            shortened = truncate(texts, max(room - 1 - max(len(texts), 1), 0))
            ids: list[Any] = []
            for part in shortened:
                ids += [part, [delimiter]]
            ids[-1:] = [[extract], [vocabulary.eos]]  # in place of the last delimiter
            rows.add(number, ids, [], value, _cut(texts, shortened))
    return rows.formatted(position_of=lambda length: length - 1, on_targets=True)


def _readings(task: Task, example: Example) -> list[tuple[str, str, Any]]:
    """Return (text, text_pair, label) for each reading of an example. Multiple choice: one reading
    per answer, labelled 1 for the right one.
    """
    if task.kind != "choose":
        value = 0 if example.label is None else example.label
        return [(example.text, example.text_pair, value)]
    context = f"{example.text} {example.text_pair}".strip()
    return [
        (context, choice, float(number == example.label))
        for number, choice in enumerate(example.choices)
    ]


def _cut(texts: Sequence[np.ndarray], shortened: Sequence[np.ndarray]) -> bool:
    """Return True if any token was cut off."""
    return sum(map(len, shortened)) < sum(map(len, texts))


class _Rows:
    """Collects pairs one by one."""

    def __init__(self) -> None:
        self.ids: list[np.ndarray] = []
        self.types: list[np.ndarray] = []
        self.values: list[Any] = []
        self.examples: list[int] = []
        self.words: list[Words] = []
        self.truncated: set[int] = set()

    def add(self, example: int, ids: list, types: list, value: Any, truncated: bool) -> None:
        """Add one pair, given in parts."""
        self.ids.append(np.concatenate(ids).astype(np.int32))
        if types:
            self.types.append(np.concatenate(types).astype(np.int32))
        self.values.append(np.atleast_1d(value))
        self.examples.append(example)
        if truncated:
            self.truncated.add(example)

    def formatted(self, position_of: Callable[[int], int], on_targets: bool = False) -> Formatted:
        """Return all pairs. The head reads position_of(length of the pair). The ids are inputs, or
        with on_targets targets.
        """
        read, nothing = Ragged.from_rows(self.ids), Ragged.empty(len(self.ids))
        example_of_pair = np.array(self.examples)
        labels = SegmentLabels(
            values=np.stack(self.values),
            positions=np.array([position_of(length) for length in read.lengths]),
            weights=np.ones(len(self.ids)),
            groups=example_of_pair,
        )
        if on_targets:
            weights = np.ones(len(read.values), np.float32)
            weights[read.ends - 1] = 0  # EOS after the extract token
            pairs = Pairs(
                nothing, read, weights=Ragged(weights, read.lengths), segment_labels=labels
            )
        else:
            types = Ragged.from_rows(self.types)
            pairs = Pairs(read, nothing, types=types, segment_labels=labels)
        return Formatted(pairs, example_of_pair, tuple(self.words), len(self.truncated))


# BERT: a span of the text.


def bert_span(task: Task, examples: Sequence[Example], tokenizer: Tokenizer, shape: RowShape):
    """Format examples as `[CLS] question [SEP] text [SEP]`, with the first and last position of the
    answer (Devlin et al., 2019, §4.2).

    A text that is too long is read in windows that overlap by half. If a window does not contain
    the answer, both positions are the position of [CLS]. The question gets at most half of the row.
    """
    vocabulary = tokenizer.vocabulary
    cls, sep = vocabulary["[CLS]"], vocabulary["[SEP]"]
    rows = _Rows()
    for number, example in enumerate(examples):
        question = tokenizer.encode(example.text)
        question_room = shape.encoder // 2 - 2
        cut_question = question[:question_room]
        words = split_words(example.text_pair, tokenizer)
        first_word, last_word = _answer_words(task, example, words)
        room = shape.encoder - 3 - len(cut_question)
        offset = len(cut_question) + 2  # [CLS] question [SEP]

        # Make a pair of each window of the text.
        start = 0
        while True:
            window = words.window(start, room)
            first, last = window.positions_of(first_word, last_word)
            is_inside = first >= 0 and last >= 0
            span = (offset + first, offset + last) if is_inside else (0, 0)
            ids = [[cls], cut_question, [sep], window.ids, [sep]]
            types = [np.zeros(offset), np.ones(len(window.ids) + 1)]
            rows.add(number, ids, types, np.array(span), len(cut_question) < len(question))
            rows.words.append(window.behind(offset))
            if start + room >= len(words.ids):
                break
            start += max(room // 2, 1)
    return rows.formatted(position_of=lambda length: 0)


def _answer_words(task: Task, example: Example, words: Words) -> tuple[int, int]:
    """Return the first and last word of the first right answer; −1, −1 if there is none."""
    if example.label is None:
        return -1, -1
    assert isinstance(example.label, tuple)
    answer = example.label[0]
    start = example.text_pair.find(answer)
    if task.answer_start:
        starts = lookup(example.record, task.answer_start, f"task {task.name}")
        start = int(np.atleast_1d(starts)[0])
    if not answer or start < 0:
        return -1, -1
    return words.at(start), words.at(start + len(answer) - 1)


def with_prompt(formatted: Formatted, length: int) -> Formatted:
    """Insert a soft prompt of `length` embeddings before each text, after [CLS] if there is one, as
    ids −1, −2, … (Lester et al., 2021).
    """
    pairs, labels = formatted.pairs, formatted.pairs.segment_labels
    prompt = -1 - np.arange(length)

    def insert(column: Ragged, values: np.ndarray, place: int) -> Ragged:
        rows = [np.insert(row, place, values) for row in column.arrays()]
        return Ragged.from_rows(rows, column.values.dtype)

    if not len(pairs.inputs.values):  # GPT: all ids are targets; the prompt is not scored
        if labels is not None:
            labels = labels._replace(positions=labels.positions + length)
        pairs = replace(
            pairs,
            targets=insert(pairs.targets, prompt, 0),
            weights=insert(pairs.weights, np.zeros(length), 0),
            segment_labels=labels,
        )
        return formatted._replace(pairs=pairs)

    has_cls = pairs.types is not None
    types = None if pairs.types is None else insert(pairs.types, np.zeros(length), 1)
    if labels is not None and formatted.words_of_pair:  # spans, where (0, 0) is [CLS]
        values = np.where(labels.values > 0, labels.values + length, 0)
        labels = labels._replace(values=values)
    words = tuple(words.behind(length) for words in formatted.words_of_pair)
    inputs = insert(pairs.inputs, prompt, int(has_cls))
    pairs = replace(pairs, inputs=inputs, types=types, segment_labels=labels)
    return formatted._replace(pairs=pairs, words_of_pair=words)


# T5.


def text_to_text(task: Task, examples: Sequence[Example], tokenizer: Tokenizer, shape: RowShape):
    """Format examples as `prompt </s>` → `answer </s>`. A prompt or answer that is too long loses
    its end.
    """
    eos = tokenizer.vocabulary.eos
    room = answer_room(task, tokenizer, shape)
    input_room = (shape.encoder or shape.decoder - room) - 1
    inputs, targets, truncated = [], [], 0
    for example in examples:
        prompt = tokenizer.encode(prompt_of(task, example))
        answer = tokenizer.encode(answer_of(task, example.label))
        if len(prompt) > input_room or len(answer) >= room:
            truncated += 1
        inputs.append([*prompt[:input_room], eos])
        targets.append([*answer[: room - 1], eos])
    pairs = Pairs(Ragged.from_rows(inputs), Ragged.from_rows(targets))
    return Formatted(pairs, np.arange(len(examples)), (), truncated, room)


def answer_room(task: Task, tokenizer: Tokenizer, shape: RowShape) -> int:
    """Return the most tokens of an answer, EOS included: the length of the longest label; for a
    free text all decoder positions, or half of them if there is no encoder. It is the same for all
    splits.
    """
    most = shape.decoder if shape.encoder else shape.decoder // 2
    if task.kind == "classify":
        words = words_of_labels(task)
    elif task.kind == "regress":
        words = ("-9999.9999",)
    elif task.kind == "choose":
        words = ("choice99",)
    else:
        return most
    return min(max(len(tokenizer.encode(word)) for word in words) + 1, most)


def prompt_of(task: Task, example: Example) -> str:
    """Return what a text-to-text model reads: task.prompt, or as in T5 the name of the task, and
    each field after its name.

    >>> task = Task(name="rte", source="rte.csv", text="sentence1", text_pair="sentence2")
    >>> prompt_of(task, Example(0, "A", "B", 0, (), None, {"sentence1": "A", "sentence2": "B"}))
    'rte sentence1: A sentence2: B'
    """
    if task.prompt:
        return lookup(example.record, task.prompt, f"task {task.name}")
    parts = [task.name]
    for number, choice in enumerate(example.choices, 1):
        parts.append(f"choice{number}: {choice}")
    for field, text in ((task.text, example.text), (task.text_pair, example.text_pair)):
        if text:
            name = "text" if "{" in field else field.rpartition(".")[2]
            parts.append(f"{name}: {text}")
    return " ".join(parts)


def answer_of(task: Task, label: Label) -> str:
    """Return what a text-to-text model writes; if several texts are right, the first one.

    >>> task = Task(name="stsb", kind="regress", source="stsb.tsv")
    >>> answer_of(task, 3.75)
    '3.8'
    """
    if label is None:
        return ""
    if isinstance(label, tuple):
        return label[0]
    if isinstance(label, float):
        # Round to the nearest step (a fifth in T5), so that there are few different texts to learn.
        # Use float32 as T5 does: that decides numbers halfway between two steps.
        steps = np.round(np.float32(label) * np.float32(round(1 / task.number_step, 9)))
        return f"{float(steps) * task.number_step:.{_decimals(task)}f}"
    if task.kind == "choose":
        return f"choice{int(label) + 1}"
    return words_of_labels(task)[int(label)]


def words_of_labels(task: Task) -> tuple[str, ...]:
    """Return the text that is written for each label."""
    return tuple(map(str, task.label_words or task.labels))


def label_of(task: Task, text: str, example: Example) -> Label:
    """Return the label that a text stands for; None if there is no such label."""
    text = text.strip()
    if task.kind == "regress":
        try:
            number = float(text)
        except ValueError:
            return None
        return number if np.isfinite(number) else None
    if task.kind == "choose":
        names = [f"choice{number}" for number in range(1, len(example.choices) + 1)]
        return names.index(text) if text in names else None
    if task.kind == "classify":
        words = words_of_labels(task)
        return words.index(text) if text in words else None
    return (text,)


def _decimals(task: Task) -> int:
    """Return the number of decimal places that task.number_step needs."""
    shown = f"{task.number_step:.6f}".rstrip("0")
    return len(shown.partition(".")[2])


FORMATS: dict[str, dict[str, Format]] = {
    "encoder": {
        "classify": Format(bert, "class"),
        "regress": Format(bert, "number"),
        "choose": Format(bert, "choice"),
        "extract": Format(bert_span, "span"),
    },
    "decoder": {
        "classify": Format(gpt, "class"),
        "regress": Format(gpt, "number"),
        "choose": Format(gpt, "choice"),
        "generate": Format(text_to_text, "lm"),
    },
}
for _architecture in ("prefix_decoder", "encoder_decoder"):
    FORMATS[_architecture] = {
        kind: Format(text_to_text, "lm")
        for kind in ("classify", "regress", "choose", "generate", "extract")
    }


def find_format(task: Task, architecture: str) -> Format:
    """Return how the architecture reads the task.

    Raises:
        UserError: if it cannot; the error names the kinds that it can read.
    """
    known = FORMATS[architecture]
    if task.kind not in known:
        reason = f"an {architecture}" if architecture[0] == "e" else f"a {architecture}"
        kinds = ", ".join(known)
        raise UserError(
            BAD_CONFIG,
            f"task {task.name}: {reason} cannot learn to {task.kind}; it can {kinds}",
        )
    return known[task.kind]
