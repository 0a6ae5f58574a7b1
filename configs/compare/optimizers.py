"""Which optimizer? GPT-2's shape in small, each optimizer at two rates a factor of three apart, on
the built-in text or on yours. Muon stands for Shampoo (Gupta et al., 2018), of which it is what is
left where nothing is accumulated (Bernstein and Newhouse, 2024); optax has no other.

python -m t5x_lite compare --config=compare/optimizers --workdir=DIR --seeds=3
"""

import t5x_lite
from t5x_lite.config import CompareConfig, default

# Rates that are usual for models of this size; Muon's is of an update scaled like AdamW's.
RATES = {
    "adamw": (1e-3, 3e-3),
    "adafactor": (3e-3, 1e-2),
    "lion": (3e-4, 1e-3),
    "muon": (5e-3, 1.5e-2),
}
WEIGHT_DECAY = {"adamw": 0.1, "adafactor": 0.0, "lion": 0.5, "muon": 0.1}


def get_config():
    config = default(CompareConfig)
    config.title = "Optimizers of a small decoder"
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
