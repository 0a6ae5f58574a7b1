"""SQuAD 1.1 (Rajpurkar et al., 2016): find the span of a paragraph that answers a question.

The source is rajpurkar/squad on Hugging Face; its test split is not public. The metrics are
SQuAD's: the share of answers that match one of the correct ones, and the F1 of their words, both
ignoring case, punctuation and articles.

The prompt is as in preprocessors.squad of Google's t5, except that t5 puts blanks around
punctuation, in the answer, too.
"""

TASKS = {
    "squad": {
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
    },
}
