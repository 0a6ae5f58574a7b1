"""How each model family reads the examples of a task: one function per family, which returns pairs
of ids.

BERT  [CLS] text [SEP] text_pair [SEP], a head on the first position (Devlin et al., 2019, §4)
GPT   <s> text [SEP] text_pair [CLS], a head on the last position (Radford et al., 2018, §3.3)
T5    prompt </s> → answer </s>; a prefix decoder has both on one stack (Raffel et al., 2020, §2.4)

A text that is too long loses its end. Of two texts, the longer one is cut until both fit (BERT's
released code).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from t5x_lite.config import Task
from t5x_lite.data.objectives.pairs import Pairs, SegmentLabels
from t5x_lite.data.ragged import Ragged
from t5x_lite.data.rows.layouts import RowShape
from t5x_lite.data.tasks.kinds.kind import Example, Format, Formatted, Kind
from t5x_lite.data.tasks.words import Words
from t5x_lite.data.tokenizers.tokenizer import Tokenizer

# Tokens that separate and end texts for GPT. They are new to the model, as in the paper, unless it
# was trained on them.
DELIMITER, EXTRACT = "[SEP]", "[CLS]"


def truncate(texts: Sequence[np.ndarray], room: int) -> list[np.ndarray]:
    """Cut one or two texts to `room` tokens in total. The longer text loses its end. If both are
    equally long, the second is cut first, as in BERT's _truncate_seq_pair.

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


def bert(
    kind: Kind, task: Task, examples: Sequence[Example], tokenizer: Tokenizer, shape: RowShape
) -> Formatted:
    """Format examples as `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`, with type 0 up to the first
    [SEP] and type 1 after it. Multiple choice: one pair per answer.
    """
    vocabulary = tokenizer.vocabulary
    cls, sep = vocabulary["[CLS]"], vocabulary["[SEP]"]
    rows = PairsOfTask()
    for number, example in enumerate(examples):
        readings = kind.readings(task, example)
        room = _room(shape, shape.encoder, len(readings))
        for text, text_pair, value in readings:
            texts = [tokenizer.encode(part) for part in (text, text_pair) if part]
            shortened = truncate(texts, max(room - 1 - max(len(texts), 1), 0))
            ids, types = [[cls]], [[0]]
            for type_of_text, part in enumerate(shortened):
                ids += [part, [sep]]
                types += [np.full(len(part) + 1, type_of_text)]
            rows.add(number, ids, types, value, _cut(texts, shortened))
    return rows.formatted(position_of=lambda length: 0)


def gpt(
    kind: Kind, task: Task, examples: Sequence[Example], tokenizer: Tokenizer, shape: RowShape
) -> Formatted:
    """Format examples as `<s> A extract` or `<s> A delimiter B extract`; the head reads the last
    position. All tokens up to the extract token are also predicted: the auxiliary language model.
    """
    vocabulary = tokenizer.vocabulary
    delimiter, extract = vocabulary[DELIMITER], vocabulary[EXTRACT]
    rows = PairsOfTask()
    for number, example in enumerate(examples):
        readings = kind.readings(task, example)
        room = _room(shape, shape.decoder, len(readings))
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


def _room(shape: RowShape, length: int, readings: int) -> int:
    """Return how many positions each reading of an example gets. The readings share a row of this
    length; each gets the model's full length if all of them fit. A soft prompt takes its positions
    from every reading.
    """
    share = (length + shape.prompt) // readings - shape.prompt
    return max(min(share, shape.longest_segment), 0)


def _cut(texts: Sequence[np.ndarray], shortened: Sequence[np.ndarray]) -> bool:
    """Return True if any token was cut off."""
    return sum(map(len, shortened)) < sum(map(len, texts))


class PairsOfTask:
    """Collects pairs one by one."""

    def __init__(self) -> None:
        self.ids: list[np.ndarray] = []
        self.types: list[np.ndarray] = []
        self.values: list[Any] = []
        self.examples: list[int] = []
        self.words: list[Words] = []
        self.truncated: set[int] = set()

    def add(self, example: int, ids: list, types: list, value: Any, truncated: bool) -> None:
        """Add one pair. `ids` and `types` are lists of arrays that are joined."""
        self.ids.append(np.concatenate(ids).astype(np.int32))
        if types:
            self.types.append(np.concatenate(types).astype(np.int32))
        self.values.append(np.atleast_1d(value))
        self.examples.append(example)
        if truncated:
            self.truncated.add(example)

    def formatted(
        self,
        position_of: Callable[[int], int],
        on_targets: bool = False,
        share_a_row: bool = True,
    ) -> Formatted:
        """Return the pairs that were added, with their labels.

        Args:
            position_of: length of a pair → the position that the head reads.
            on_targets: the ids are targets; otherwise they are inputs.
            share_a_row: the pairs of an example stay in one row, like the answers to a question;
                otherwise each is learned by itself, like the windows of a text.
        """
        read, nothing = Ragged.from_rows(self.ids), Ragged.empty(len(self.ids))
        example_of_pair = np.array(self.examples)
        groups = example_of_pair if share_a_row else np.arange(len(example_of_pair))
        labels = SegmentLabels(
            values=np.stack(self.values),
            positions=np.array([position_of(length) for length in read.lengths]),
            weights=np.ones(len(self.ids)),
            groups=groups,
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
    scored = pairs.scored
    if scored is not None:  # all of them come after [CLS]
        scored = Ragged(scored.values + length, scored.lengths)
    pairs = replace(pairs, inputs=inputs, types=types, segment_labels=labels, scored=scored)
    return formatted._replace(pairs=pairs, words_of_pair=words)


# T5.


def text_to_text(
    kind: Kind, task: Task, examples: Sequence[Example], tokenizer: Tokenizer, shape: RowShape
) -> Formatted:
    """Format examples as `prompt </s>` → `answer </s>`. A prompt or answer that is too long loses
    its end.
    """
    return _in_words(kind, task, examples, tokenizer, shape, [tokenizer.vocabulary.eos])


def conversation(
    kind: Kind, task: Task, examples: Sequence[Example], tokenizer: Tokenizer, shape: RowShape
) -> Formatted:
    """Format replies as `turns` → `reply </s>`. Without an encoder, both are one text; an encoder
    reads `</s>` after the turns. Turns that are too long lose their beginning, and a reply that is
    too long loses its end.
    """
    after = [tokenizer.vocabulary.eos] if shape.encoder else []
    return _in_words(kind, task, examples, tokenizer, shape, after, keeps_end=True)


def _in_words(
    kind: Kind,
    task: Task,
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    shape: RowShape,
    after_prompt: list[int],
    keeps_end: bool = False,
) -> Formatted:
    """Format examples as a prompt and an answer.

    Args:
        after_prompt: ids that follow the prompt.
        keeps_end: a prompt that is too long loses its beginning instead of its end.
    """
    eos = tokenizer.vocabulary.eos
    room = answer_room(kind, task, tokenizer, shape)
    input_room = (shape.encoder or shape.decoder - room) - len(after_prompt)
    inputs, targets, truncated = [], [], 0
    for example in examples:
        prompt = tokenizer.encode(kind.prompt(task, example))
        answer = tokenizer.encode(kind.answer(task, example))
        if len(prompt) > input_room or len(answer) >= room:
            truncated += 1
        first = max(len(prompt) - input_room, 0) if keeps_end else 0
        inputs.append([*prompt[first : first + input_room], *after_prompt])
        targets.append([*answer[: room - 1], eos])
    pairs = Pairs(Ragged.from_rows(inputs), Ragged.from_rows(targets))
    return Formatted(pairs, np.arange(len(examples)), (), truncated, room)


# Formats of the architectures that read a prompt and write an answer, the same for most kinds.
IN_WORDS = {
    architecture: Format(text_to_text, "lm")
    for architecture in ("prefix_decoder", "encoder_decoder")
}


def answer_room(kind: Kind, task: Task, tokenizer: Tokenizer, shape: RowShape) -> int:
    """Return the largest number of tokens in an answer, including EOS: the length of the longest
    label or, for free text, all decoder positions (half of them without an encoder). It is the same
    for all splits.
    """
    most = shape.decoder if shape.encoder else shape.decoder // 2
    answers = kind.longest_answers(task)
    if not answers:
        return most
    return min(max(len(tokenizer.encode(answer)) for answer in answers) + 1, most)
