"""Which objective should an encoder-decoder learn? The objectives of Raffel et al. (2020, tables 4
to 7): prefix language modelling, BERT's and MASS's masks, replaced spans and dropped tokens,
deshuffling, and noise on single tokens (i.i.d.) or on spans. All other settings are from t5_tiny,
with Muon. The lengths depend on the objective, so that a row reads about 128 tokens; raw tokens are
matched.

Not trained to the end here. On the built-in text:

python -m t5x_lite compare --config=compare/objectives --workdir=DIR
"""

import t5x_lite
from t5x_lite.config import CompareConfig, default

# Objectives whose targets are the whole text need inputs and targets of the same length.
WHOLE_TEXT = {"data": {"lengths": {"inputs": 128, "targets": 128}}}
OBJECTIVES = {
    "span_corruption": {"objective": "span_corruption"},
    "iid_denoising": {
        "objective": "iid_denoising",
        "data": {"lengths": {"inputs": 128, "targets": 40}},
    },
    "drop_tokens": {"objective": "drop_tokens"},
    "prefix_lm": {"objective": "prefix_lm", "data": {"lengths": {"inputs": 64, "targets": 64}}},
    "bert_style": {"objective": "bert_style", **WHOLE_TEXT},
    "mass_style": {"objective": "mass_style", **WHOLE_TEXT},
    "deshuffling": {"objective": "deshuffling", **WHOLE_TEXT},
}


def get_config():
    config = default(CompareConfig)
    config.seeds = 3
    config.title = "Objectives of an encoder-decoder"
    config.papers = ("raffel2020",)
    config.base = t5x_lite.get_config("t5_tiny")
    config.base.optimizer.update(name="muon", learning_rate=5e-3)
    config.cells = OBJECTIVES
    config.baseline = "span_corruption"
    # Once adapted, the models that rewrite their whole text are also scored on spans.
    config.adapt_tokens = 100 * 8 * 128
    return config
