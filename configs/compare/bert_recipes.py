"""Which parts of BERT's recipe matter? Next-sentence prediction (Devlin et al., 2019), no sentence
task (RoBERTa: Liu et al., 2019), whole-word masks (BERT's later release), span masks (SpanBERT:
Joshi et al., 2020), sentence order (ALBERT: Lan et al., 2020), and static masks; all other settings
are from bert_tiny, with Muon.

Not trained to the end here. On the built-in text:

python -m t5x_lite compare --config=compare/bert_recipes --workdir=DIR
"""

import t5x_lite
from t5x_lite.config import CompareConfig, default

PAIRS = {"token_types": 2}


def get_config():
    config = default(CompareConfig)
    config.seeds = 3
    config.title = "Recipes of BERT"
    config.papers = ("devlin2019", "liu2019", "joshi2020", "lan2020")
    config.base = t5x_lite.get_config("bert_tiny")
    config.base.optimizer.update(name="muon", learning_rate=1e-2)
    config.cells = {
        "roberta": {},
        "static": {"objective": "masked_lm(static=True)"},
        "next_sentence": {"objective": "masked_lm(second='next')", "model": PAIRS},
        "sentence_order": {"objective": "masked_lm(second='order')", "model": PAIRS},
        "whole_word": {"objective": "masked_lm(choice='word')"},
        "spanbert": {"objective": "masked_lm(choice='span')"},
    }
    config.baseline = "roberta"
    return config
