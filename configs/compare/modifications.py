"""Do Transformer modifications transfer? Table 1 of Narang et al. (2021) as one comparison: the
rows of --config=modifications, each with as many steps and as much text as the vanilla Transformer.
Their FLOPs differ, as in the paper, and the report says by how much.

`modifications` has the paper's size, T5 1.0 base. `:tiny` is for a laptop: it divides every size by
six, including the number of layers, and has the recipe of t5_tiny with Muon. It leaves out the rows
whose layers or heads are not divisible by six, and mixtures of experts, which are in every fourth
layer. Its 28 cells take about a minute each. Neither was trained here.

python -m t5x_lite compare --config=compare/modifications:tiny --workdir=DIR --jobs=2
"""

import runpy

import t5x_lite
from t5x_lite.config import CompareConfig, default, variant
from t5x_lite.config.files import find

RECIPES = {"base": "modifications:vanilla", "tiny": "t5_tiny"}
MODIFICATIONS = runpy.run_path(str(find("modifications")))["MODIFICATIONS"]
SHRUNK = ("num_layers", "d_model", "num_heads", "d_ff", "embedding_size")
WHOLE = ("num_layers", "num_heads")  # settings that must be divisible by six


def sixth(model: dict) -> dict:
    """Return the settings of a model with its sizes divided by six."""
    return {name: value // 6 if name in SHRUNK else value for name, value in model.items()}


def get_config(size: str = "base"):
    """Return the comparison at the paper's size ("base") or at a sixth of it ("tiny")."""
    config = default(CompareConfig)
    config.base = t5x_lite.get_config(variant(RECIPES, size))
    config.seeds = 3
    config.title = f"Narang et al. (2021), table 1, {size}"
    config.papers = ("narang2021",)
    changes = {name: settings for name, (settings, _) in MODIFICATIONS.items()}
    if size == "tiny":
        vanilla = t5x_lite.get_config(RECIPES["base"])
        config.base.model.update(sixth(vanilla.model.to_dict()))
        config.base.model.update(dtype="float32", vocab_size=0, scan=False, remat=False)
        config.base.model.update(dropout=0.0, attention_dropout=0.0, ff_dropout=0.0)
        config.base.optimizer.update(name="muon", learning_rate=5e-3)
        changes = {
            name: sixth(settings)
            for name, settings in changes.items()
            if not any(settings.get(key, 0) % 6 for key in WHOLE)
            and "every" not in settings.get("feed_forward", "")
        }
    config.cells = {name: {"model": settings} for name, settings in changes.items()}
    config.baseline = "vanilla"
    return config
