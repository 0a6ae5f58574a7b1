"""What of BERT's recipe matters? Next sentence (Devlin et al., 2019), none (RoBERTa: Liu et al.,
2019), whole words (BERT's later release), spans (SpanBERT: Joshi et al., 2020), sentence order
(ALBERT: Lan et al., 2020), and masks that never change; the rest is bert_tiny.

Not trained to its end here. On the built-in text:

python -m t5x_lite compare --config=compare/bert_recipes --workdir=DIR --seeds=3
"""

import t5x_lite
from t5x_lite.config import CompareConfig, default

PAIRS = {"token_types": 2}


def get_config():
    config = default(CompareConfig)
    config.title = "Recipes of BERT"
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
