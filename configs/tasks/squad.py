"""SQuAD 1.1 (Rajpurkar et al., 2016): the span of a paragraph that answers a question.

The source is rajpurkar/squad of Hugging Face; its test split is not public. Metrics are SQuAD's:
the share of answers that are one of the right ones, and the F1 of their words, both without case,
punctuation and articles.

The prompt is that of preprocessors.squad in Google's t5, but for the blanks that t5 puts around
punctuation, in the answer too.
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
