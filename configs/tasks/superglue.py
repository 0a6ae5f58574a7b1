"""SuperGLUE (Wang et al., 2019): eight tasks of English understanding.

The source is aps/super_glue on Hugging Face. Classes and prompts are as in Google's t5 (see
glue.py). The test splits have no labels.

The metrics are SuperGLUE's: accuracy; for CB also the mean F1 of the classes; for MultiRC the F1
over all answers, and the share of questions with every answer right; for ReCoRD the F1 of words and
exact match, with the best score over all correct entities.

There are two versions of ReCoRD. In "record", T5's version, the model writes the entity or finds it
in the passage. "record_cloze" is for models that score sentences, as GPT-3 did: the query with the
right entity competes with queries that have wrong ones.

In WSC the noun and the pronoun are marked (preprocessors.wsc of t5). T5 was trained on another
version, in which the model writes the noun.
"""

_NO_YES = (" no", " yes")

TASKS = {
    "boolq": {
        "source": "hf:aps/super_glue?name=boolq",
        "test": "test",
        "id": "idx",
        "text": "passage",
        "text_pair": "question",
        "labels": ("False", "True"),
        "question": "{passage}\n\nQuestion: {question}?\nAnswer:",
        "answer_words": _NO_YES,
    },
    "cb": {
        "source": "hf:aps/super_glue?name=cb",
        "test": "test",
        "id": "idx",
        "text": "premise",
        "text_pair": "hypothesis",
        "labels": ("entailment", "contradiction", "neutral"),
        "prompt": "cb hypothesis: {hypothesis} premise: {premise}",
        "question": "{premise}\n\nQuestion: {hypothesis}. True, false or neither?\nAnswer:",
        "answer_words": (" true", " false", " neither"),
        "metrics": ("accuracy", "macro_f1"),
    },
    "copa": {
        "kind": "choose",
        "source": "hf:aps/super_glue?name=copa",
        "test": "test",
        "prepare": "copa",
        "id": "idx",
        "text": "stem",
        "choices": ("continuations",),
        "prompt": (
            "copa choice1: {choice1} choice2: {choice2} premise: {premise} question: {question}"
        ),
        "question": "{stem}",
    },
    "multirc": {
        "source": "hf:aps/super_glue?name=multirc",
        "test": "test",
        "prepare": "multirc",
        "id": "answer_id",
        "group": "question_id",
        "text": "paragraph",
        "text_pair": "{question} {answer}",
        "labels": ("False", "True"),
        "prompt": "multirc question: {question} answer: {answer} paragraph: {paragraph}",
        "question": "{paragraph}\n\nQuestion: {question}\nAnswer: {answer}\nIs this answer right?",
        "answer_words": _NO_YES,
        "metrics": ("f1", "grouped_exact_match"),
    },
    "record": {
        "kind": "extract",
        "source": "hf:aps/super_glue?name=record",
        "test": "test",
        "prepare": "record",
        "id": "query_id",
        "text": "query",
        "text_pair": "passage",
        "label": "answers",
        "prompt": "record query: {query} entities: {listed} passage: {passage}",
        "question": "{passage}\n\n{query}\n\nQuestion: Who or what is @placeholder?\nAnswer:",
        "metrics": ("token_f1", "exact_match"),
    },
    "record_cloze": {
        "kind": "choose",
        "source": "hf:aps/super_glue?name=record",
        "test": "test",
        "prepare": "record",
        "id": "query_id",
        "text": "passage",
        "label": "answer",
        "choices": ("filled",),
        "question": "{passage}",
    },
    "superglue_rte": {
        "source": "hf:aps/super_glue?name=rte",
        "test": "test",
        "id": "idx",
        "text": "premise",
        "text_pair": "hypothesis",
        "labels": ("entailment", "not_entailment"),
        "prompt": "rte hypothesis: {hypothesis} premise: {premise}",
        "question": "{premise}\n\nQuestion: {hypothesis} True or false?\nAnswer:",
        "answer_words": (" true", " false"),
    },
    "wic": {
        "source": "hf:aps/super_glue?name=wic",
        "test": "test",
        "id": "idx",
        "text": "{word}: {sentence1}",
        "text_pair": "sentence2",
        "labels": ("False", "True"),
        "prompt": "wic sentence1: {sentence1} sentence2: {sentence2} word: {word}",
        "question": (
            "{sentence1}\n{sentence2}\n\n"
            'Question: Does "{word}" mean the same in both sentences?\nAnswer:'
        ),
        "answer_words": _NO_YES,
    },
    "wsc": {
        # The fixed release: some spans of the first one do not match the text.
        "source": "hf:aps/super_glue?name=wsc.fixed",
        "test": "test",
        "prepare": "wsc",
        "id": "idx",
        "text": "text",
        "labels": ("False", "True"),
        "question": (
            '{unmarked}\n\nQuestion: Does "{span2_text}" here stand for "{span1_text}"?\nAnswer:'
        ),
        "answer_words": _NO_YES,
    },
}
