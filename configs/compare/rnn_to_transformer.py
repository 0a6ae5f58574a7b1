"""From counting words to attention, all for the same FLOPs: an LSTM language model, two of them
that read against each other (ELMo: Peters et al., 2018), GPT's decoder, and, where both sides of a
word are read at once, an LSTM and a Transformer that learn BERT's masks. The report's unigram and
Kneser-Ney trigram models, counted from the same tokens, are where it began.

docs/compared.md has its table. On the built-in text:

python -m t5x_lite compare --config=compare/rnn_to_transformer --workdir=DIR --seeds=3
"""

from t5x_lite.config import CompareConfig, default
from t5x_lite.config.files import changes_of, merge

# As many parameters in a block as attention and the feed-forward part of the tiny models have,
# 12 × 128²: 9 × 128 × 170 of the gates' two matrices and the projection. Two ways: half each.
LSTM = {"mixer": "lstm(cells=170)", "positions": "none", "feed_forward": "none"}
CELLS = {
    "lstm": ("gpt_tiny", LSTM),
    "elmo": ("gpt_tiny", {**LSTM, "backward_decoder": True}),
    "gpt": ("gpt_tiny", {}),
    "masked_lstm": ("bert_tiny", {**LSTM, "mixer": "lstm(cells=85)"}),
    "bert": ("bert_tiny", {}),
}


def get_config():
    config = default(CompareConfig)
    config.title = "From counting to attention"
    config.base.optimizer.name = "muon"
    config.cells = {
        name: merge(changes_of(recipe), {"model": model, "optimizer": {"learning_rate": 1e-2}})
        for name, (recipe, model) in CELLS.items()
    }
    config.baseline = "lstm"
    config.match = "flops"
    return config
