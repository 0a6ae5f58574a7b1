"""Closed-book questions, answered from what the parameters store (Roberts et al., 2020): Natural
Questions (Kwiatkowski et al., 2019; the open form of Lee et al., 2019), TriviaQA (Joshi et al.,
2017) and WebQuestions (Berant et al., 2013).

The sources are google-research-datasets/nq_open, mandarjoshi/trivia_qa and
stanfordnlp/web_questions on Hugging Face. As in the paper, a tenth of the training examples is held
out for validation, and the split with public labels is the test split: for the first two it is
called validation.

The metric is the share of answers that match one of the correct ones, ignoring case, punctuation
and articles. The prompts and the answer to learn follow the paper's released code
(t5_closed_book_qa); the question is GPT-3's (Brown et al., 2020, appendix G).
"""

TASKS = {
    "natural_questions": {
        "kind": "generate",
        "source": "hf:google-research-datasets/nq_open",
        "validation": "",
        "test": "validation",
        "text": "question",
        "label": "answer",
        "prompt": "nq question: {question}",
        "question": "Q: {question}?\nA:",
        "metrics": ("exact_match",),
    },
    "trivia_qa": {
        "kind": "generate",
        "source": "hf:mandarjoshi/trivia_qa?name=unfiltered.nocontext",
        "validation": "",
        "test": "validation",
        "prepare": "trivia_qa",
        "id": "question_id",
        "text": "question",
        "label": "answers",
        "prompt": "trivia_qa question: {question}",
        "question": "Q: {question}\nA:",
        "metrics": ("exact_match",),
    },
    "web_questions": {
        "kind": "generate",
        "source": "hf:stanfordnlp/web_questions",
        "validation": "",
        "test": "test",
        "text": "question",
        "label": "answers",
        "prompt": "wq question: {question}",
        "question": "Q: {question}\nA:",
        "metrics": ("exact_match",),
    },
}
