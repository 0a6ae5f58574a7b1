"""GLUE (Wang et al., 2019): nine tasks on English sentences and sentence pairs.

The source is nyu-mll/glue on Hugging Face. Classes have their names from TensorFlow Datasets, which
are the words that T5 writes. Prompts are as in preprocessors.glue and stsb of Google's t5, which
sorts the fields by name.

The metrics are GLUE's: Matthews correlation for CoLA, F1 and accuracy for MRPC and QQP, both
correlations for STS-B, and accuracy for the others. Labels of the test splits are withheld, except
for MRPC.

The files that GLUE itself distributes have other columns and call the validation split dev:
    --task='sst2(SST-2/{split}.tsv, validation=dev, id=)'
"""

_NO_YES = (" no", " yes")

_MNLI = {
    "source": "hf:nyu-mll/glue?name=mnli",
    "id": "idx",
    "text": "premise",
    "text_pair": "hypothesis",
    "labels": ("entailment", "neutral", "contradiction"),
    "prompt": "mnli hypothesis: {hypothesis} premise: {premise}",
    "question": "{premise}\n\nQuestion: {hypothesis} True, false or neither?\nAnswer:",
    "answer_words": (" true", " neither", " false"),
    "submission_names": True,
}

TASKS = {
    "cola": {
        "source": "hf:nyu-mll/glue?name=cola",
        "test": "test",
        "id": "idx",
        "text": "sentence",
        "labels": ("unacceptable", "acceptable"),
        "question": "{sentence}\n\nQuestion: Is this sentence correct English?\nAnswer:",
        "answer_words": _NO_YES,
        "metrics": ("matthews",),
        "submission": "CoLA.tsv",
    },
    "sst2": {
        "source": "hf:nyu-mll/glue?name=sst2",
        "test": "test",
        "id": "idx",
        "text": "sentence",
        "labels": ("negative", "positive"),
        "question": "Review: {sentence}\nSentiment:",
        "answer_words": (" negative", " positive"),
        "submission": "SST-2.tsv",
    },
    "mrpc": {
        "source": "hf:nyu-mll/glue?name=mrpc",
        "test": "test",
        "id": "idx",
        "text": "sentence1",
        "text_pair": "sentence2",
        "labels": ("not_equivalent", "equivalent"),
        "question": "{sentence1}\n{sentence2}\n\nQuestion: Do both say the same?\nAnswer:",
        "answer_words": _NO_YES,
        "metrics": ("f1", "accuracy"),
        "submission": "MRPC.tsv",
    },
    "qqp": {
        "source": "hf:nyu-mll/glue?name=qqp",
        "test": "test",
        "id": "idx",
        "text": "question1",
        "text_pair": "question2",
        "labels": ("not_duplicate", "duplicate"),
        "question": "{question1}\n{question2}\n\nQuestion: Do both ask the same?\nAnswer:",
        "answer_words": _NO_YES,
        "metrics": ("f1", "accuracy"),
        "submission": "QQP.tsv",
    },
    "stsb": {
        "kind": "regress",
        "source": "hf:nyu-mll/glue?name=stsb",
        "test": "test",
        "id": "idx",
        "text": "sentence1",
        "text_pair": "sentence2",
        "metrics": ("pearson", "spearman"),
        "submission": "STS-B.tsv",
    },
    "mnli": _MNLI
    | {
        "validation": "validation_matched",
        "test": "test_matched",
        "submission": "MNLI-m.tsv",
    },
    "mnli_mismatched": _MNLI
    | {
        "validation": "validation_mismatched",
        "test": "test_mismatched",
        "submission": "MNLI-mm.tsv",
    },
    "qnli": {
        "source": "hf:nyu-mll/glue?name=qnli",
        "test": "test",
        "id": "idx",
        "text": "question",
        "text_pair": "sentence",
        "labels": ("entailment", "not_entailment"),
        "question": '{sentence}\n\nQuestion: Does this answer "{question}"?\nAnswer:',
        "answer_words": (" yes", " no"),
        "submission": "QNLI.tsv",
        "submission_names": True,
    },
    "rte": {
        "source": "hf:nyu-mll/glue?name=rte",
        "test": "test",
        "id": "idx",
        "text": "sentence1",
        "text_pair": "sentence2",
        "labels": ("entailment", "not_entailment"),
        "question": "{sentence1}\n\nQuestion: {sentence2} True or false?\nAnswer:",
        "answer_words": (" true", " false"),
        "submission": "RTE.tsv",
        "submission_names": True,
    },
    "wnli": {
        "source": "hf:nyu-mll/glue?name=wnli",
        "test": "test",
        "id": "idx",
        "text": "sentence1",
        "text_pair": "sentence2",
        "labels": ("not_entailment", "entailment"),
        "question": "{sentence1}\n\nQuestion: {sentence2} True or false?\nAnswer:",
        "answer_words": (" false", " true"),
        "submission": "WNLI.tsv",
    },
}
