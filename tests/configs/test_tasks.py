"""The tasks that ship, on rows written by hand as their sources have them: columns, types and
labels of the Hugging Face data sets. Prompts and answers are what the released code of T5 makes.
"""

import json
import math
from dataclasses import dataclass
from typing import Any

import pytest

from t5x_lite.config import Task
from t5x_lite.data.tasks.examples import Examples, load_split
from t5x_lite.data.tasks.kinds.kind import Example, words_of_labels
from t5x_lite.data.tasks.kinds.table import kind_of, metrics_of
from t5x_lite.data.tasks.load import load_task, shipped_tasks
from t5x_lite.data.tasks.metrics import METRICS, judge
from t5x_lite.data.tasks.preprocess import PREPARE
from t5x_lite.data.tasks.records import lookup, source_of_split


@dataclass(frozen=True)
class Read:
    """What is read of a row."""

    id: Any
    text: str
    label: Any  # None: withheld
    text_pair: str = ""
    choices: tuple[str, ...] = ()
    group: Any = None
    prompt: str = ""
    answer: str = ""


@dataclass(frozen=True)
class Case:
    """A task, its rows with what is read of them, and the scores of predictions for those that
    have a label, some of them wrong.
    """

    rows: list[tuple[dict[str, Any], Read]]
    predictions: list[Any]
    scores: dict[str, float]


def nli(name: str, first: str, second: str, labels: list[str]) -> Case:
    """A case of two sentences, with the last label of three withheld; the first of two predictions
    is right.
    """
    texts = [("A dog runs.", "An animal runs."), ("A dog runs.", "It sleeps."), ("Rain.", "Sun.")]
    words = [labels[0], labels[1], ""]
    rows = []
    for number, (text, text_pair) in enumerate(texts):
        label = number if number < 2 else -1
        row = {first: text, second: text_pair, "label": label, "idx": number}
        # T5 sorts the fields by their names.
        shown = [f"{field}: {row[field]}" for field in sorted([first, second])]
        prompt = " ".join([name, *shown])
        read = Read(
            id=number,
            text=text,
            text_pair=text_pair,
            label=label if label >= 0 else None,
            prompt=prompt,
            answer=words[number],
        )
        rows.append((row, read))
    return Case(rows, predictions=[0, 0], scores={"accuracy": 1 / 2})


GLUE = {
    "cola": Case(
        rows=[
            (
                {"sentence": "She left.", "label": 1, "idx": 0},
                Read(0, "She left.", 1, prompt="cola sentence: She left.", answer="acceptable"),
            ),
            (
                {"sentence": "He ran off.", "label": 1, "idx": 1},
                Read(1, "He ran off.", 1, prompt="cola sentence: He ran off.", answer="acceptable"),
            ),
            (
                {"sentence": "Left she.", "label": 0, "idx": 2},
                Read(2, "Left she.", 0, prompt="cola sentence: Left she.", answer="unacceptable"),
            ),
            (
                {"sentence": "Who ran?", "label": -1, "idx": 3},
                Read(3, "Who ran?", None, prompt="cola sentence: Who ran?"),
            ),
        ],
        # One true positive, one true negative, one false negative: 1 / sqrt(1 · 2 · 1 · 2).
        predictions=[1, 0, 0],
        scores={"matthews": 1 / 2},
    ),
    "sst2": Case(
        rows=[
            (
                {"sentence": "a dull film ", "label": 0, "idx": 0},
                Read(0, "a dull film ", 0, prompt="sst2 sentence: a dull film ", answer="negative"),
            ),
            (
                {"sentence": "a joy", "label": 1, "idx": 1},
                Read(1, "a joy", 1, prompt="sst2 sentence: a joy", answer="positive"),
            ),
            (
                {"sentence": "uneven", "label": -1, "idx": 2},
                Read(2, "uneven", None, prompt="sst2 sentence: uneven"),
            ),
        ],
        predictions=[0, 0],
        scores={"accuracy": 1 / 2},
    ),
    "mrpc": Case(
        rows=[
            (
                {"sentence1": "He won.", "sentence2": "He was the winner.", "label": 1, "idx": 7},
                Read(
                    id=7,
                    text="He won.",
                    text_pair="He was the winner.",
                    label=1,
                    prompt="mrpc sentence1: He won. sentence2: He was the winner.",
                    answer="equivalent",
                ),
            ),
            (
                {"sentence1": "He won.", "sentence2": "He lost.", "label": 0, "idx": 9},
                Read(
                    id=9,
                    text="He won.",
                    text_pair="He lost.",
                    label=0,
                    prompt="mrpc sentence1: He won. sentence2: He lost.",
                    answer="not_equivalent",
                ),
            ),
        ],
        # Precision 1/2, recall 1.
        predictions=[1, 1],
        scores={"f1": 2 / 3, "accuracy": 1 / 2},
    ),
    "qqp": Case(
        rows=[
            (
                {"question1": "Why sleep?", "question2": "Why do we sleep?", "label": 1, "idx": 0},
                Read(
                    id=0,
                    text="Why sleep?",
                    text_pair="Why do we sleep?",
                    label=1,
                    prompt="qqp question1: Why sleep? question2: Why do we sleep?",
                    answer="duplicate",
                ),
            ),
            (
                {"question1": "Why sleep?", "question2": "Why eat?", "label": 0, "idx": 1},
                Read(
                    id=1,
                    text="Why sleep?",
                    text_pair="Why eat?",
                    label=0,
                    prompt="qqp question1: Why sleep? question2: Why eat?",
                    answer="not_duplicate",
                ),
            ),
        ],
        # A text that is no label counts as the other class: no true positive.
        predictions=[None, 0],
        scores={"f1": 0.0, "accuracy": 1 / 2},
    ),
    "stsb": Case(
        rows=[
            (
                {"sentence1": "Big news.", "sentence2": "No idea.", "label": 1.0, "idx": 0},
                Read(
                    id=0,
                    text="Big news.",
                    text_pair="No idea.",
                    label=1.0,
                    prompt="stsb sentence1: Big news. sentence2: No idea.",
                    answer="1.0",
                ),
            ),
            (
                {"sentence1": "A plane.", "sentence2": "A jet.", "label": 3.0, "idx": 1},
                Read(
                    id=1,
                    text="A plane.",
                    text_pair="A jet.",
                    label=3.0,
                    prompt="stsb sentence1: A plane. sentence2: A jet.",
                    answer="3.0",
                ),
            ),
            (
                {"sentence1": "A cat.", "sentence2": "A cat.", "label": 5.0, "idx": 2},
                Read(
                    id=2,
                    text="A cat.",
                    text_pair="A cat.",
                    label=5.0,
                    prompt="stsb sentence1: A cat. sentence2: A cat.",
                    answer="5.0",
                ),
            ),
        ],
        # Deviations (−2, 0, 2) and (−2, 2, 0): 4 / 8, and the ranks likewise.
        predictions=[1.0, 5.0, 3.0],
        scores={"pearson": 1 / 2, "spearman": 1 / 2},
    ),
    "mnli": nli("mnli", "premise", "hypothesis", ["entailment", "neutral"]),
    "mnli_mismatched": nli("mnli", "premise", "hypothesis", ["entailment", "neutral"]),
    "qnli": nli("qnli", "question", "sentence", ["entailment", "not_entailment"]),
    "rte": nli("rte", "sentence1", "sentence2", ["entailment", "not_entailment"]),
    "wnli": nli("wnli", "sentence1", "sentence2", ["not_entailment", "entailment"]),
}

RECORD = {
    "passage": "Ann met Tom\n@highlight\nThomas was late.\n@highlight\nBob left",
    "query": "@placeholder was not on time",
    "entities": ["Tom", "Bob", "Thomas", "Ann"],
    "entity_spans": {
        "text": ["Ann", "Tom", "Thomas", "Bob"],
        "start": [0, 8, 24, 53],
        "end": [3, 11, 30, 56],
    },
    "answers": ["Thomas", "Tom"],
    "idx": {"passage": 3, "query": 12},
}
RECORD_PASSAGE = "Ann met Tom. Thomas was late. Bob left"
RECORD_PROMPT = (
    "record query: @placeholder was not on time entities: Tom, Bob, Thomas, Ann "
    "passage: Ann met Tom. Thomas was late. Bob left"
)

SUPERGLUE = {
    "boolq": Case(
        rows=[
            (
                {
                    "question": "is ice cold",
                    "passage": "Ice -- Ice is frozen water.",
                    "idx": 0,
                    "label": 1,
                },
                Read(
                    id=0,
                    text="Ice -- Ice is frozen water.",
                    text_pair="is ice cold",
                    label=1,
                    prompt="boolq passage: Ice -- Ice is frozen water. question: is ice cold",
                    answer="True",
                ),
            ),
            (
                {"question": "is ice hot", "passage": "Ice is cold.", "idx": 1, "label": 0},
                Read(
                    id=1,
                    text="Ice is cold.",
                    text_pair="is ice hot",
                    label=0,
                    prompt="boolq passage: Ice is cold. question: is ice hot",
                    answer="False",
                ),
            ),
        ],
        predictions=[1, None],
        scores={"accuracy": 1 / 2},
    ),
    "cb": Case(
        rows=[
            (
                {"premise": "He knew it rained.", "hypothesis": "it rained", "idx": 0, "label": 0},
                Read(
                    id=0,
                    text="He knew it rained.",
                    text_pair="it rained",
                    label=0,
                    prompt="cb hypothesis: it rained premise: He knew it rained.",
                    answer="entailment",
                ),
            ),
            (
                {"premise": "It never rained.", "hypothesis": "it rained", "idx": 1, "label": 1},
                Read(
                    id=1,
                    text="It never rained.",
                    text_pair="it rained",
                    label=1,
                    prompt="cb hypothesis: it rained premise: It never rained.",
                    answer="contradiction",
                ),
            ),
            (
                {"premise": "Did it rain?", "hypothesis": "it rained", "idx": 2, "label": 2},
                Read(
                    id=2,
                    text="Did it rain?",
                    text_pair="it rained",
                    label=2,
                    prompt="cb hypothesis: it rained premise: Did it rain?",
                    answer="neutral",
                ),
            ),
        ],
        # F1 of the classes: 1, 2/3 (precision 1/2, recall 1) and 0.
        predictions=[0, 1, 1],
        scores={"accuracy": 2 / 3, "macro_f1": 5 / 9},
    ),
    "copa": Case(
        rows=[
            (
                {
                    "premise": "My body cast a shadow over the grass.",
                    "choice1": "The sun was rising.",
                    "choice2": "I mowed the grass.",
                    "question": "cause",
                    "idx": 0,
                    "label": 0,
                },
                Read(
                    id=0,
                    text="My body cast a shadow over the grass because",
                    label=0,
                    choices=("the sun was rising.", "I mowed the grass."),
                    prompt="copa choice1: The sun was rising. choice2: I mowed the grass. "
                    "premise: My body cast a shadow over the grass. question: cause",
                    answer="choice1",
                ),
            ),
            (
                {
                    "premise": "The cup fell.",
                    "choice1": "It sang.",
                    "choice2": "It broke.",
                    "question": "effect",
                    "idx": 1,
                    "label": 1,
                },
                Read(
                    id=1,
                    text="The cup fell so",
                    label=1,
                    choices=("it sang.", "it broke."),
                    prompt="copa choice1: It sang. choice2: It broke. "
                    "premise: The cup fell. question: effect",
                    answer="choice2",
                ),
            ),
            (
                {
                    "premise": "It rained.",
                    "choice1": "We left.",
                    "choice2": "We stayed.",
                    "question": "effect",
                    "idx": 2,
                    "label": -1,
                },
                Read(
                    id=2,
                    text="It rained so",
                    label=None,
                    choices=("we left.", "we stayed."),
                    prompt="copa choice1: We left. choice2: We stayed. "
                    "premise: It rained. question: effect",
                ),
            ),
        ],
        predictions=[0, 0],
        scores={"accuracy": 1 / 2},
    ),
    "multirc": Case(
        rows=[
            (
                {
                    "paragraph": "<b>Sent 1: </b>Joey ran.<br><b>Sent 2: </b>He fell.",
                    "question": "Who ran?",
                    "answer": "Joey",
                    "idx": {"paragraph": 5, "question": 1, "answer": 3},
                    "label": 1,
                },
                Read(
                    id="5/1/3",
                    text="Sent 1: Joey ran. Sent 2: He fell.",
                    text_pair="Who ran? Joey",
                    label=1,
                    group="5/1",
                    prompt="multirc question: Who ran? answer: Joey "
                    "paragraph: Sent 1: Joey ran. Sent 2: He fell.",
                    answer="True",
                ),
            ),
            (
                {
                    "paragraph": "<b>Sent 1: </b>Joey ran.",
                    "question": "Who ran?",
                    "answer": "Tom",
                    "idx": {"paragraph": 5, "question": 1, "answer": 4},
                    "label": 0,
                },
                Read(
                    id="5/1/4",
                    text="Sent 1: Joey ran.",
                    text_pair="Who ran? Tom",
                    label=0,
                    group="5/1",
                    prompt="multirc question: Who ran? answer: Tom paragraph: Sent 1: Joey ran.",
                    answer="False",
                ),
            ),
            (
                {
                    "paragraph": "<b>Sent 1: </b>Joey ran.",
                    "question": "What did he do?",
                    "answer": "Run",
                    "idx": {"paragraph": 5, "question": 2, "answer": 5},
                    "label": 1,
                },
                Read(
                    id="5/2/5",
                    text="Sent 1: Joey ran.",
                    text_pair="What did he do? Run",
                    label=1,
                    group="5/2",
                    prompt="multirc question: What did he do? answer: Run "
                    "paragraph: Sent 1: Joey ran.",
                    answer="True",
                ),
            ),
        ],
        # Precision 2/3, recall 1; one question of two has every answer right.
        predictions=[1, 1, 1],
        scores={"f1": 4 / 5, "grouped_exact_match": 1 / 2},
    ),
    "record": Case(
        rows=[
            (
                RECORD,
                Read(
                    id="3/12",
                    text="@placeholder was not on time",
                    text_pair=RECORD_PASSAGE,
                    label=("Thomas", "Tom"),
                    prompt=RECORD_PROMPT,
                    answer="Thomas",
                ),
            ),
            (
                RECORD | {"answers": ["Ann"], "idx": {"passage": 3, "query": 13}},
                Read(
                    id="3/13",
                    text="@placeholder was not on time",
                    text_pair=RECORD_PASSAGE,
                    label=("Ann",),
                    prompt=RECORD_PROMPT,
                    answer="Ann",
                ),
            ),
            (
                RECORD | {"answers": [], "idx": {"passage": 3, "query": 14}},
                Read(
                    id="3/14",
                    text="@placeholder was not on time",
                    text_pair=RECORD_PASSAGE,
                    label=None,
                    prompt=RECORD_PROMPT,
                ),
            ),
        ],
        # The second right entity counts; of two words one is right: precision 1/2, recall 1.
        predictions=[("Tom",), ("Ann met",)],
        scores={"token_f1": (1 + 2 / 3) / 2, "exact_match": 1 / 2},
    ),
    "record_cloze": Case(
        rows=[
            (
                RECORD,
                Read(
                    id="3/12",
                    text=RECORD_PASSAGE,
                    label=1,
                    choices=(
                        "Bob was not on time",
                        "Thomas was not on time",
                        "Ann was not on time",
                    ),
                    prompt="record_cloze choice1: Bob was not on time "
                    "choice2: Thomas was not on time choice3: Ann was not on time "
                    f"passage: {RECORD_PASSAGE}",
                    answer="choice2",
                ),
            ),
        ],
        predictions=[0],
        scores={"accuracy": 0.0},
    ),
    "superglue_rte": nli("rte", "premise", "hypothesis", ["entailment", "not_entailment"]),
    "wic": Case(
        rows=[
            (
                {
                    "word": "place",
                    "sentence1": "Do you want to come over to my place?",
                    "sentence2": "A political system with no place for him.",
                    "start1": 31,
                    "start2": 29,
                    "end1": 36,
                    "end2": 34,
                    "idx": 0,
                    "label": 0,
                },
                Read(
                    id=0,
                    text="place: Do you want to come over to my place?",
                    text_pair="A political system with no place for him.",
                    label=0,
                    prompt="wic sentence1: Do you want to come over to my place? "
                    "sentence2: A political system with no place for him. word: place",
                    answer="False",
                ),
            ),
            (
                {
                    "word": "hold",
                    "sentence1": "Hold a pen.",
                    "sentence2": "Hold my hand.",
                    "start1": 0,
                    "start2": 0,
                    "end1": 4,
                    "end2": 4,
                    "idx": 1,
                    "label": 1,
                },
                Read(
                    id=1,
                    text="hold: Hold a pen.",
                    text_pair="Hold my hand.",
                    label=1,
                    prompt="wic sentence1: Hold a pen. sentence2: Hold my hand. word: hold",
                    answer="True",
                ),
            ),
        ],
        predictions=[1, 1],
        scores={"accuracy": 1 / 2},
    ),
    "wsc": Case(
        rows=[
            (
                {
                    "text": "Mark told Pete many lies. He should have been more truthful.",
                    "span1_index": 0,
                    "span2_index": 5,
                    "span1_text": "Mark",
                    "span2_text": "He",
                    "idx": 0,
                    "label": 1,
                },
                Read(
                    id=0,
                    text="* Mark * told Pete many lies. # He # should have been more truthful.",
                    label=1,
                    prompt="wsc text: * Mark * told Pete many lies. "
                    "# He # should have been more truthful.",
                    answer="True",
                ),
            ),
            (
                {
                    "text": "Since it was raining, the old umbrella broke.",
                    "span1_index": 4,
                    "span2_index": 1,
                    "span1_text": "the old umbrella",
                    "span2_text": "it",
                    "idx": 1,
                    "label": 0,
                },
                Read(
                    id=1,
                    text="Since # it # was raining, * the old umbrella * broke.",
                    label=0,
                    prompt="wsc text: Since # it # was raining, * the old umbrella * broke.",
                    answer="False",
                ),
            ),
        ],
        predictions=[0, 0],
        scores={"accuracy": 1 / 2},
    ),
}

IN_WORDS = {
    "squad": Case(
        rows=[
            (
                {
                    "id": "56be4db0acb8001400a502ed",
                    "title": "Super_Bowl_50",
                    "context": "The Denver Broncos won Super Bowl 50.",
                    "question": "Who won Super Bowl 50?",
                    "answers": {
                        "text": ["Denver Broncos", "The Denver Broncos", "Broncos"],
                        "answer_start": [4, 0, 11],
                    },
                },
                # T5 has blanks around the punctuation too.
                Read(
                    id="56be4db0acb8001400a502ed",
                    text="Who won Super Bowl 50?",
                    text_pair="The Denver Broncos won Super Bowl 50.",
                    label=("Denver Broncos", "The Denver Broncos", "Broncos"),
                    prompt="question: Who won Super Bowl 50? "
                    "context: The Denver Broncos won Super Bowl 50.",
                    answer="Denver Broncos",
                ),
            ),
            (
                {
                    "id": "56be4db0acb8001400a502ee",
                    "title": "Super_Bowl_50",
                    "context": "It was played in Santa Clara.",
                    "question": "Where was it?",
                    "answers": {"text": ["Santa Clara"], "answer_start": [17]},
                },
                Read(
                    id="56be4db0acb8001400a502ee",
                    text="Where was it?",
                    text_pair="It was played in Santa Clara.",
                    label=("Santa Clara",),
                    prompt="question: Where was it? context: It was played in Santa Clara.",
                    answer="Santa Clara",
                ),
            ),
        ],
        # Case, articles and punctuation do not count. Precision 1, recall 1/2.
        predictions=[("the broncos!",), ("Santa",)],
        scores={"exact_match": 1 / 2, "token_f1": (1 + 2 / 3) / 2},
    ),
    "squad_v2": Case(
        rows=[
            (
                {
                    "id": "56ddde6b9a695914005b9628",
                    "context": "The Normans settled in France.",
                    "question": "Where did they settle?",
                    "answers": {"text": ["France", "in France"], "answer_start": [23, 20]},
                },
                Read(
                    id="56ddde6b9a695914005b9628",
                    text="Where did they settle?",
                    text_pair="The Normans settled in France.",
                    label=("France", "in France"),
                    prompt="question: Where did they settle? "
                    "context: The Normans settled in France.",
                    answer="France",
                ),
            ),
            (
                {
                    "id": "5ad39d53604f3c001a3fe8d1",
                    "context": "The Normans settled in France.",
                    "question": "Who gave it up?",
                    "answers": {"text": [], "answer_start": []},
                },
                Read(
                    id="5ad39d53604f3c001a3fe8d1",
                    text="Who gave it up?",
                    text_pair="The Normans settled in France.",
                    label=("",),
                    prompt="question: Who gave it up? context: The Normans settled in France.",
                    answer="",
                ),
            ),
        ],
        predictions=[("in France.",), ("The Normans",)],
        scores={
            "exact_match": 1 / 2,
            "token_f1": 1 / 2,
            "has_answer_exact_match": 1.0,
            "has_answer_token_f1": 1.0,
            "no_answer_accuracy": 0.0,
        },
    ),
    "cnn_dailymail": Case(
        rows=[
            (
                {
                    "article": "LONDON, England (Reuters) -- A cat sat on a mat.",
                    "highlights": "The cat sat on the mat .\nIt slept .",
                    "id": "42c027e4ff9730fbb3de84c1af0d2c506e41c3e4",
                },
                Read(
                    id="42c027e4ff9730fbb3de84c1af0d2c506e41c3e4",
                    text="LONDON, England (Reuters) -- A cat sat on a mat.",
                    label=("The cat sat on the mat .\nIt slept .",),
                    prompt="summarize: LONDON, England (Reuters) -- A cat sat on a mat.",
                    answer="The cat sat on the mat .\nIt slept .",
                ),
            ),
        ],
        # 5 of 5 words in 8, 3 of 4 pairs of words in 7 (not "sat it"). Sentence by sentence, "The
        # cat sat" and "It slept" are found whole.
        predictions=[("The cat sat . It slept .",)],
        scores={"rouge1": 10 / 13, "rouge2": 6 / 11, "rougeLsum": 10 / 13},
    ),
    "xsum": Case(
        rows=[
            (
                {
                    "document": "The clean-up is continuing.\nMany homes were damaged.",
                    "summary": "Clean-up operations are continuing after floods.",
                    "id": "35232142",
                },
                Read(
                    id="35232142",
                    text="The clean-up is continuing.\nMany homes were damaged.",
                    label=("Clean-up operations are continuing after floods.",),
                    prompt="summarize: The clean-up is continuing.\nMany homes were damaged.",
                    answer="Clean-up operations are continuing after floods.",
                ),
            ),
        ],
        # All 4 words of 7, 1 of 3 pairs of 6 ("after floods"), and 2 words in order.
        predictions=[("After floods clean operations",)],
        scores={"rouge1": 8 / 11, "rouge2": 2 / 9, "rougeL": 4 / 11},
    ),
    "wmt_en_de": Case(
        rows=[
            (
                {"translation": {"de": "Das Haus ist sehr klein", "en": "The house is very small"}},
                Read(
                    id=0,
                    text="The house is very small",
                    label=("Das Haus ist sehr klein",),
                    prompt="translate English to German: The house is very small",
                    answer="Das Haus ist sehr klein",
                ),
            ),
            (
                {
                    "translation": {
                        "de": "Der Hund ist alt und müde",
                        "en": "The dog is old and tired",
                    }
                },
                Read(
                    id=1,
                    text="The dog is old and tired",
                    label=("Der Hund ist alt und müde",),
                    prompt="translate English to German: The dog is old and tired",
                    answer="Der Hund ist alt und müde",
                ),
            ),
        ],
        # All that is written is right, but it is 9 words where 11 are expected.
        predictions=[("Das Haus ist sehr klein",), ("Der Hund ist alt",)],
        scores={"bleu": 100 * math.exp(1 - 11 / 9)},
    ),
    "natural_questions": Case(
        rows=[
            (
                {"question": "who sang lemon tree", "answer": ["Fool's Garden", "Fools Garden"]},
                Read(
                    id=0,
                    text="who sang lemon tree",
                    label=("Fool's Garden", "Fools Garden"),
                    prompt="nq question: who sang lemon tree",
                    answer="Fool's Garden",
                ),
            ),
            (
                {"question": "when was the moon landing", "answer": ["1969"]},
                Read(
                    id=1,
                    text="when was the moon landing",
                    label=("1969",),
                    prompt="nq question: when was the moon landing",
                    answer="1969",
                ),
            ),
        ],
        predictions=[("fools garden.",), ("1968",)],
        scores={"exact_match": 1 / 2},
    ),
    "trivia_qa": Case(
        rows=[
            (
                {
                    "question": "Which is the red planet?",
                    "question_id": "tc_33",
                    "question_source": "http://www.triviacountry.com/",
                    "entity_pages": {
                        "doc_source": [],
                        "filename": [],
                        "title": [],
                        "wiki_context": [],
                    },
                    "search_results": {
                        "description": [],
                        "filename": [],
                        "rank": [],
                        "title": [],
                        "url": [],
                        "search_context": [],
                    },
                    "answer": {
                        "aliases": ["Planet Mars", "Mars"],
                        "normalized_aliases": ["planet mars", "mars"],
                        "matched_wiki_entity_name": "",
                        "normalized_matched_wiki_entity_name": "",
                        "normalized_value": "mars",
                        "type": "WikipediaEntity",
                        "value": "Mars",
                    },
                },
                # T5 learns the value, and counts every alias.
                Read(
                    id="tc_33",
                    text="Which is the red planet?",
                    label=("Mars", "Planet Mars"),
                    prompt="trivia_qa question: Which is the red planet?",
                    answer="Mars",
                ),
            ),
        ],
        predictions=[("Venus",)],
        scores={"exact_match": 0.0},
    ),
    "web_questions": Case(
        rows=[
            (
                {
                    "url": "http://www.freebase.com/view/en/jamaica",
                    "question": "what do jamaican people speak?",
                    "answers": ["Jamaican English", "Jamaican Creole English Language"],
                },
                Read(
                    id=0,
                    text="what do jamaican people speak?",
                    label=("Jamaican English", "Jamaican Creole English Language"),
                    prompt="wq question: what do jamaican people speak?",
                    answer="Jamaican English",
                ),
            ),
        ],
        predictions=[("English",)],
        scores={"exact_match": 0.0},
    ),
}

PAIR = {
    "field": "syntax",
    "linguistics_term": "island_effects",
    "simple_LM_method": True,
    "one_prefix_method": False,
    "two_prefix_method": False,
    "lexically_identical": True,
}

LANGUAGE = {
    "lambada": Case(
        rows=[
            (
                {"text": 'He looked up.\n\n"I saw the signs," he said, pointing at the signs'},
                Read(
                    id=0,
                    text='He looked up.\n\n"I saw the signs," he said, pointing at the',
                    label=(" signs",),
                    answer=" signs",
                ),
            ),
            (
                {"text": "She poured tea into the cup and drank the tea"},
                Read(
                    id=1,
                    text="She poured tea into the cup and drank the",
                    label=(" tea",),
                    answer=" tea",
                ),
            ),
        ],
        predictions=[(" signs",), (" cup",)],
        scores={"accuracy": 1 / 2},
    ),
    "blimp": Case(
        rows=[
            (
                PAIR
                | {
                    "sentence_good": "Who left?",
                    "sentence_bad": "Left who?",
                    "UID": "adjunct_island",
                    "pair_id": 0,
                },
                Read(0, "", 0, choices=("Who left?", "Left who?"), group="adjunct_island"),
            ),
            (
                PAIR
                | {
                    "sentence_good": "Who ran?",
                    "sentence_bad": "Ran who?",
                    "UID": "adjunct_island",
                    "pair_id": 1,
                },
                Read(1, "", 0, choices=("Who ran?", "Ran who?"), group="adjunct_island"),
            ),
            (
                PAIR
                | {
                    "sentence_good": "Ann ate.",
                    "sentence_bad": "Ann ated.",
                    "UID": "drop_argument",
                    "pair_id": 0,
                },
                Read(2, "", 0, choices=("Ann ate.", "Ann ated."), group="drop_argument"),
            ),
        ],
        # 1/2 of the first paradigm, all of the second.
        predictions=[0, 1, 0],
        scores={"grouped_accuracy": 3 / 4, "accuracy": 2 / 3},
    ),
}

ARC = Case(
    rows=[
        (
            {
                "id": "Mercury_7220990",
                "question": "Which is a gas?",
                "choices": {
                    "text": ["iron", "oxygen", "salt", "sand"],
                    "label": ["A", "B", "C", "D"],
                },
                "answerKey": "B",
            },
            Read(
                id="Mercury_7220990",
                text="Which is a gas?",
                label=1,
                choices=("iron", "oxygen", "salt", "sand"),
                answer="choice2",
            ),
        ),
        # Keys from 1 to 4, and answers that look like them.
        (
            {
                "id": "MCAS_2000_4_6",
                "question": "How many legs has a cat?",
                "choices": {"text": ["2", "6", "4", "3"], "label": ["1", "2", "3", "4"]},
                "answerKey": "3",
            },
            Read(
                id="MCAS_2000_4_6",
                text="How many legs has a cat?",
                label=2,
                choices=("2", "6", "4", "3"),
                answer="choice3",
            ),
        ),
    ],
    predictions=[1, 3],
    scores={"accuracy": 1 / 2},
)

CHOICE = {
    "hellaswag": Case(
        rows=[
            (
                {
                    "ind": 4,
                    "activity_label": "Removing ice from car",
                    "ctx_a": "A man writes over the snow.",
                    "ctx_b": "then",
                    "ctx": "A man writes over the snow. then",
                    "endings": [", he adds wax.", ", he stops.", ", it melts.", ", he sings."],
                    "source_id": "activitynet~v_-1IBHYS3L-Y",
                    "split": "train",
                    "split_type": "indomain",
                    "label": "3",
                },
                Read(
                    id=4,
                    text="A man writes over the snow. Then",
                    label=3,
                    choices=(", he adds wax.", ", he stops.", ", it melts.", ", he sings."),
                    answer="choice4",
                ),
            ),
            (
                {
                    "ind": 24,
                    "activity_label": "Baking bread",
                    "ctx_a": "[header] How to bake [title] Heat the oven. [step] Use it.",
                    "ctx_b": "",
                    "ctx": "[header] How to bake [title] Heat the oven. [step] Use it.",
                    "endings": ["Wait [substeps] an hour.", "Stop.", "Sing.", "Sleep."],
                    "source_id": "wikihow~1",
                    "split": "test",
                    "split_type": "zeroshot",
                    "label": "",
                },
                Read(
                    id=24,
                    text="How to bake. Heat the oven. Use it.",
                    label=None,
                    choices=("Wait an hour.", "Stop.", "Sing.", "Sleep."),
                ),
            ),
        ],
        predictions=[0],
        scores={"accuracy": 0.0},
    ),
    "piqa": Case(
        rows=[
            (
                {"goal": "Open a jar.", "sol1": "Turn the lid.", "sol2": "Eat it.", "label": 0},
                Read(
                    id=0,
                    text="Open a jar.",
                    label=0,
                    choices=("Turn the lid.", "Eat it."),
                    answer="choice1",
                ),
            ),
            (
                {"goal": "Dry hands.", "sol1": "Wet them.", "sol2": "Use a towel.", "label": 1},
                Read(
                    id=1,
                    text="Dry hands.",
                    label=1,
                    choices=("Wet them.", "Use a towel."),
                    answer="choice2",
                ),
            ),
            (
                {"goal": "Boil water.", "sol1": "Heat it.", "sol2": "Cool it.", "label": -1},
                Read(id=2, text="Boil water.", label=None, choices=("Heat it.", "Cool it.")),
            ),
        ],
        predictions=[0, 0],
        scores={"accuracy": 1 / 2},
    ),
    "arc_easy": ARC,
    "arc_challenge": ARC,
}

CASES = GLUE | SUPERGLUE | IN_WORDS | LANGUAGE | CHOICE
TASKS = shipped_tasks()
# T5 was trained on no such task, and has no prompt for it.
WITHOUT_PROMPT = ("lambada", "blimp", "hellaswag", "piqa", "arc_easy", "arc_challenge")


def load_rows(name: str, directory, rows: list[dict]) -> Examples:
    """The rows, read as the validation split of a task, or as the test split where a share of the
    training examples serves for validation.
    """
    task = load_task(f"{name}({directory}/{{split}}.jsonl)")
    split = "validation" if task.validation else "test"
    file = directory / f"{getattr(task, split)}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_split(task, split)


def load_case(name: str, directory) -> tuple[Examples, list[Read]]:
    """The examples of a case, and what each is expected to be."""
    rows, expected = zip(*CASES[name].rows, strict=True)
    return load_rows(name, directory, list(rows)), list(expected)


def test_every_task_has_rows():
    made_here = ("offline:", "world:")
    of_hand = {name for name, task in TASKS.items() if not task["source"].startswith(made_here)}
    assert of_hand == set(CASES)


@pytest.mark.parametrize("name", TASKS)
def test_settings(name):
    task = load_task(name)
    assert isinstance(task, Task)
    assert task.name == name
    assert set(metrics_of(task)) <= {*METRICS, *kind_of(task).own_metrics}
    assert task.prepare in ("", *PREPARE)
    assert task.answer_words == () or len(task.answer_words) == len(task.labels)
    assert len(words_of_labels(task)) == len(task.labels)
    assert all(word.startswith(" ") and word == f" {word.strip()}" for word in task.answer_words)
    assert not task.question.endswith(" ")  # the blank is that of the answer


@pytest.mark.parametrize("name", CASES)
def test_language_models_are_asked(name, tmp_path):
    examples, _ = load_case(name, tmp_path)
    task = examples.task
    assert bool(task.question) == (task.kind not in ("regress", "prefer"))
    assert bool(task.answer_words) == (task.kind == "classify")
    for example in examples.examples:
        question = lookup(example.record, task.question, name) if task.question else ""
        assert "{" not in question
        assert "[" not in question  # no list, as Python shows it


@pytest.mark.parametrize("name", CASES)
def test_rows(name, tmp_path):
    examples, expected = load_case(name, tmp_path)
    for example, read in zip(examples.examples, expected, strict=True):
        assert example.id == read.id
        assert example.text == read.text
        assert example.text_pair == read.text_pair
        assert example.label == read.label
        assert example.choices == read.choices
        assert example.group == read.group


@pytest.mark.parametrize("name", [name for name in CASES if name not in WITHOUT_PROMPT])
def test_prompts(name, tmp_path):
    examples, expected = load_case(name, tmp_path)
    kind = kind_of(examples.task)
    prompts = [kind.prompt(examples.task, example) for example in examples.examples]
    assert prompts == [read.prompt for read in expected]


@pytest.mark.parametrize("name", [name for name in CASES if name != "blimp"])
def test_answers(name, tmp_path):
    examples, expected = load_case(name, tmp_path)
    task = examples.task
    for example, read in zip(examples.examples, expected, strict=True):
        answer = kind_of(task).answer(task, example)
        assert answer == read.answer
        if isinstance(example.label, tuple):  # the first of those that are right
            (text,) = kind_of(task).label_of(task, answer.strip(), example, str.strip)
            assert text.strip() == example.label[0].strip()
        elif example.label is not None:
            assert kind_of(task).label_of(task, answer, example, str) == example.label
    if task.kind in ("classify", "choose", "regress"):
        assert kind_of(task).label_of(task, "no such answer", examples.examples[0], str) is None


@pytest.mark.parametrize("name", CASES)
def test_metrics(name, tmp_path):
    for module in ("sklearn", "scipy", "sacrebleu", "rouge_score"):
        pytest.importorskip(module)
    examples, _ = load_case(name, tmp_path)
    task = examples.task
    labelled = [example for example in examples.examples if example.label is not None]

    labels = [example.label for example in labelled]
    best = {metric: 100.0 if metric == "bleu" else 1.0 for metric in metrics_of(task)}
    assert judge(task, labelled, labels) == pytest.approx(best)

    case = CASES[name]
    assert judge(task, labelled, case.predictions) == pytest.approx(case.scores)


# What single tasks have that others have not.


def test_sources_of_splits():
    mnli, other = load_task("mnli"), load_task("mnli_mismatched")
    assert mnli.train == other.train == "train"
    assert source_of_split(other.source, other.validation) == (
        "hf:nyu-mll/glue?name=mnli&split=validation_mismatched"
    )
    assert source_of_split(load_task("squad").source, "validation") == (
        "hf:rajpurkar/squad?split=validation"
    )


@pytest.mark.parametrize(
    ("label", "answer"), [(3.75, "3.8"), (2.5, "2.4"), (0.0, "0.0"), (4.8, "4.8")]
)
def test_numbers_are_written_to_the_nearest_fifth(label, answer):
    task = load_task("stsb")
    example = Example(0, "", "", label, (), None, {})
    assert kind_of(task).answer(task, example) == answer


@pytest.mark.parametrize("name", ["natural_questions", "trivia_qa", "web_questions"])
def test_questions_are_held_out_of_training(name, tmp_path):
    row, _ = CASES[name].rows[0]
    rows = [row | {"question": f"question {number}"} for number in range(50)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = load_task(f"{name}({tmp_path}/{{split}}.jsonl)")
    train = {example.text for example in load_split(task, "train").examples}
    validation = {example.text for example in load_split(task, "validation").examples}
    assert len(train) > len(validation) > 0
    assert not train & validation
    assert len(train | validation) == 50


@pytest.mark.parametrize("name", GLUE)
def test_glue_wants_a_file_of_each_task(name):
    """Names of labels for MNLI, QNLI and RTE, numbers for the others."""
    task = load_task(name)
    assert task.submission.endswith(".tsv")
    assert task.submission_names == (name in ("mnli", "mnli_mismatched", "qnli", "rte"))


def test_blimp_of_the_authors(tmp_path):
    """A file for each paradigm, and no name of a split in it."""
    for paradigm in ("adjunct_island", "drop_argument"):
        row = {
            "sentence_good": f"good {paradigm}",
            "sentence_bad": f"bad {paradigm}",
            "UID": paradigm,
            "pairID": "0",
        }
        (tmp_path / f"{paradigm}.jsonl").write_text(json.dumps(PAIR | row) + "\n")
    examples = load_split(load_task(f"blimp({tmp_path}/*.jsonl)"), "validation")
    assert [example.group for example in examples.examples] == ["adjunct_island", "drop_argument"]
    assert examples.examples[0].choices == ("good adjunct_island", "bad adjunct_island")


def test_glue_of_the_authors(tmp_path):
    """A table with other columns, as the docstring of glue.py has it."""
    (tmp_path / "dev.tsv").write_text('sentence\tlabel\nit \'s "fun"\t1\n')
    task = load_task(f"sst2({tmp_path}/{{split}}.tsv, validation=dev, id=)")
    [example] = load_split(task, "validation").examples
    assert (example.id, example.text, example.label) == (0, 'it \'s "fun"', 1)


@pytest.mark.parametrize("name", ["boolq", "cb", "mnli", "rte", "wic"])
def test_names_of_labels_serve_too(name, tmp_path):
    """As in the files of SuperGLUE, and in some of GLUE."""
    row, read = CASES[name].rows[0]
    task = load_task(name)
    named = row | {"label": task.labels[read.label]}
    [example] = load_rows(name, tmp_path, [named]).examples
    assert example.label == read.label
