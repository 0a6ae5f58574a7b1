"""SQuAD 1.1 and 2.0 (Rajpurkar et al., 2016 and 2018): find the span of a paragraph that answers a
question. In 2.0 the paragraph may not answer it: nothing is then the right answer, and the metrics
are also taken over the questions that have an answer and over those that have none.

The sources are rajpurkar/squad and squad_v2 on Hugging Face; their test splits are not public. The
metrics are SQuAD's: the share of answers that match one of the correct ones, and the F1 of their
words, both ignoring case, punctuation and articles.

The prompt is as in preprocessors.squad of Google's t5, except that t5 puts blanks around
punctuation, also in the answer.
"""

_SQUAD = {
    "kind": "extract",
    "source": "hf:rajpurkar/squad",
    "id": "id",
    "text": "question",
    "text_pair": "context",
    "label": "answers.text",
    "answer_start": "answers.answer_start",
    "prompt": "question: {question} context: {context}",
    "question": "{context}\n\nQ: {question}\nA:",
    "metrics": ("exact_match", "token_f1"),
}
_BY_ANSWER = ("has_answer_exact_match", "has_answer_token_f1", "no_answer_accuracy")

TASKS = {
    "squad": _SQUAD,
    "squad_v2": {
        **_SQUAD,
        "source": "hf:rajpurkar/squad_v2",
        "no_answer": True,
        "metrics": (*_SQUAD["metrics"], *_BY_ANSWER),
    },
}
