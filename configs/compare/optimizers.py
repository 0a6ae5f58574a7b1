"""Which optimizer? A small version of GPT-2 with each optimizer at two learning rates, a factor of
three apart, on the built-in text or on your own. Muon represents Shampoo (Gupta et al., 2018): it
is Shampoo without accumulation (Bernstein and Newhouse, 2024), and optax has no other variant.

python -m t5x_lite compare --config=compare/optimizers --workdir=DIR
"""

import t5x_lite
from t5x_lite.config import CompareConfig, default

# Usual learning rates for models of this size. Muon's updates are scaled like AdamW's.
RATES = {
    "adamw": (1e-3, 3e-3),
    "adafactor": (3e-3, 1e-2),
    "lion": (3e-4, 1e-3),
    "muon": (5e-3, 1.5e-2),
}
WEIGHT_DECAY = {"adamw": 0.1, "adafactor": 0.0, "lion": 0.5, "muon": 0.1}


def get_config():
    config = default(CompareConfig)
    config.seeds = 3
    config.title = "Optimizers of a small decoder"
    config.papers = ("loshchilov2019", "shazeer2018", "gupta2018", "jordan2024")
    config.base = t5x_lite.get_config("gpt_tiny")
    config.cells = {
        f"{name}_{which}": {
            "optimizer": {
                "name": name,
                "learning_rate": rate,
                "weight_decay": WEIGHT_DECAY[name],
            }
        }
        for name, rates in RATES.items()
        for which, rate in zip(("low", "high"), rates, strict=True)
    }
    config.baseline = "adamw_high"
    config.match, config.budget = "raw_tokens", 512e3
    return config
