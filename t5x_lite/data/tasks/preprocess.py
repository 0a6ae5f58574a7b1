"""Functions for task.prepare: changes that the records of some data sets need before the task can
name their fields. Each function turns one record into one or more records.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

Record = dict[str, Any]


def wsc(record: Record) -> Iterable[Record]:
    """Prepare WSC: mark the noun with * and the pronoun with #, as preprocessors.wsc of t5 does.
    The text without marks is kept as "unmarked".

    >>> record = {"text": "This is a test sentence .", "span1_text": "test", "span1_index": 3,
    ...           "span2_text": "This", "span2_index": 0}
    >>> [changed["text"] for changed in wsc(record)]
    ['# This # is a * test * sentence .']
    """
    text = _mark(record["text"], record["span1_text"], record["span1_index"], "*")
    # The two marks of the first span count as words.
    shift = 2 if record["span1_index"] < record["span2_index"] else 0
    text = _mark(text, record["span2_text"], record["span2_index"] + shift, "#")
    return [record | {"unmarked": record["text"], "text": text}]


def _mark(text: str, span: str, index: int, mark: str) -> str:
    """Put a mark before and after the span that begins at word `index`."""
    pattern = rf"^((?:\S+\s){{{index}}})({re.escape(span)})"
    return re.sub(pattern, lambda found: f"{found[1]}{mark} {found[2]} {mark}", text)


def record(record: Record) -> Iterable[Record]:
    """Prepare ReCoRD: turn the highlights of the passage into sentences, as in t5, and put each
    entity into the query. If several entities are right, only the first of them is used.

    >>> [changed] = record({"passage": "A cat.\\n@highlight\\nIt sat", "query": "@placeholder sat",
    ...     "entities": ["Tom", "Ann", "Thomas"], "answers": ["Tom", "Thomas"],
    ...     "idx": {"passage": 3, "query": 7}})
    >>> changed["passage"], changed["listed"], changed["query_id"]
    ('A cat. It sat', 'Tom, Ann, Thomas', '3/7')
    >>> changed["filled"], changed["answer"]
    (['Tom sat', 'Ann sat'], 'Tom sat')
    """
    passage = re.sub(r"([.?!\"'])\n@highlight\n", r"\1 ", record["passage"])
    passage = passage.replace("\n@highlight\n", ". ")
    entities, answers = list(record["entities"]), list(record["answers"])

    def fill(entity: str) -> str:
        return record["query"].replace("@placeholder", entity)

    candidates = [entity for entity in dict.fromkeys(entities) if entity not in answers[1:]]
    return [
        record
        | {
            "query_id": f"{record['idx']['passage']}/{record['idx']['query']}",
            "passage": passage,
            "listed": ", ".join(entities),
            "filled": [fill(entity) for entity in candidates],
            "answer": fill(answers[0]) if answers else None,
        }
    ]


def multirc(record: Record) -> Iterable[Record]:
    """Prepare MultiRC: remove the mark-up of the texts, as in t5, and make ids of questions and
    answers from their numbers.

    >>> [changed] = multirc({"paragraph": "<b>Sent 1: </b>Joey ran.<br>", "question": "Who ran?",
    ...     "answer": "Joey", "idx": {"paragraph": 5, "question": 1, "answer": 3}})
    >>> changed["paragraph"], changed["question_id"], changed["answer_id"]
    ('Sent 1: Joey ran. ', '5/1', '5/1/3')
    """
    texts = {
        name: re.sub(r"</?b>", "", record[name].replace("<br>", " "))
        for name in ("paragraph", "question", "answer")
    }
    index = record["idx"]
    question_id = f"{index['paragraph']}/{index['question']}"
    answer_id = f"{question_id}/{index['answer']}"
    return [record | texts | {"question_id": question_id, "answer_id": answer_id}]


def last_word(record: Record) -> Iterable[Record]:
    """Prepare LAMBADA: split a passage into its context and its last word with the space before it.

    >>> [(r["context"], r["word"]) for r in last_word({"text": "and then he left"})]
    [('and then he', ' left')]
    """
    context, blank, word = record["text"].rstrip().rpartition(" ")
    return [record | {"context": context, "word": blank + word}]


def sentences(record: Record) -> Iterable[Record]:
    """Prepare BLiMP: make a list of the two sentences, the acceptable one first."""
    return [record | {"pair": [record["sentence_good"], record["sentence_bad"]]}]


def hellaswag(record: Record) -> Iterable[Record]:
    """Prepare HellaSwag: remove WikiHow's mark-up, such as "[step]", from the context and its
    endings. The new field "question" is the context with its topic before it.

    >>> [changed] = hellaswag({"activity_label": "Tea", "ctx_a": "How to brew [title] Boil water.",
    ...     "ctx_b": "then", "endings": ["[step] Pour it.", "Sing."]})
    >>> changed["question"], changed["endings"]
    ('Tea: How to brew. Boil water. Then', ['Pour it.', 'Sing.'])
    """

    def clean(text: str) -> str:
        text = text.replace(" [title]", ". ")
        text = re.sub(r"\[.*?\]", "", text)
        return text.replace("  ", " ").strip()

    context = clean(f"{record['ctx_a']} {record['ctx_b'].capitalize()}")
    question = clean(f"{record['activity_label']}: {context}")
    endings = [clean(ending) for ending in record["endings"]]
    return [record | {"context": context, "question": question, "endings": endings}]


def copa(record: Record) -> Iterable[Record]:
    """Prepare COPA: append to the premise the word that asks for its cause or effect, and list the
    two ways to continue the sentence.

    >>> [changed] = copa({"premise": "I fell.", "question": "cause", "choice1": "I slipped.",
    ...     "choice2": "The sun rose."})
    >>> changed["stem"], changed["continuations"]
    ('I fell because', ['I slipped.', 'the sun rose.'])
    """
    connective = {"cause": "because", "effect": "so"}[record["question"]]
    stem = f"{record['premise'].strip().rstrip('.')} {connective}"
    continuations = []
    for choice in (record["choice1"], record["choice2"]):
        is_i = re.match(r"I\b", choice)
        continuations.append(choice if is_i else choice[:1].lower() + choice[1:])
    return [record | {"stem": stem, "continuations": continuations}]


def arc(record: Record) -> Iterable[Record]:
    """Prepare ARC: find the index of the right answer, whose key is a letter or a number.

    >>> [changed] = arc({"choices": {"text": ["2", "1"], "label": ["1", "2"]}, "answerKey": "2"})
    >>> changed["answer"]
    1
    """
    choices, key = record["choices"], record.get("answerKey")
    answer = list(choices["label"]).index(key) if key else None
    return [record | {"answer": answer}]


def trivia_qa(record: Record) -> Iterable[Record]:
    """Prepare TriviaQA: list all answers that count as right, the answer itself first.

    >>> [changed] = trivia_qa({"answer": {"value": "Mars", "aliases": ["The red planet", "Mars"]}})
    >>> changed["answers"]
    ['Mars', 'The red planet']
    """
    value, aliases = record["answer"]["value"], list(record["answer"]["aliases"])
    # In the test split the aliases are withheld, and the value is "<unk>".
    return [record | {"answers": list(dict.fromkeys([value, *aliases])) if aliases else []}]


PREPARE: dict[str, Callable[[Record], Iterable[Record]]] = {
    function.__name__: function
    for function in (
        wsc,
        record,
        multirc,
        last_word,
        sentences,
        hellaswag,
        copa,
        arc,
        trivia_qa,
    )
}
