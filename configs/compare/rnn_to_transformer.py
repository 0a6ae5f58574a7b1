"""From counting words to attention, all for the same FLOPs: an LSTM language model, two of them
that read in opposite directions (ELMo: Peters et al., 2018), GPT's decoder, and an LSTM and a
Transformer that learn BERT's masked language modelling, for which they read both sides of a word at
once. The report also has the starting point: unigram and Kneser-Ney trigram models of the same
tokens.

docs/compared.md has its table. On the built-in text:

python -m t5x_lite compare --config=compare/rnn_to_transformer --workdir=DIR
"""

from t5x_lite.config import CompareConfig, default
from t5x_lite.config.files import changes_of, merge

# An LSTM block has as many parameters as attention and the feed-forward layer in the tiny models,
# 12 × 128²: the two matrices of the gates and the projection have 9 × 128 × 170. A bidirectional
# LSTM has half the cells in each direction.
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
    config.seeds = 3
    config.title = "From counting to attention"
    config.papers = ("hochreiter1997", "peters2018", "vaswani2017", "devlin2019")
    config.base.optimizer.name = "muon"
    config.cells = {
        name: merge(changes_of(recipe), {"model": model, "optimizer": {"learning_rate": 1e-2}})
        for name, (recipe, model) in CELLS.items()
    }
    config.baseline = "lstm"
    config.match = "flops"
    return config
