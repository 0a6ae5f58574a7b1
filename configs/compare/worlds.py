"""Small generated languages, each for one thing that an objective may or may not teach: see
t5x_lite/data/text/worlds.py.

facts       asked in the order in which they were told (the control), and in the reverse order
agreement   of a verb with its subject, across another noun
copying     of a list

Two architectures are crossed with two objectives, so that the report can separate their effects;
`worlds:facts,ten` has the ten cells of Raffel et al. (2020), table 2. All cells read the same text
in the same order, and each chooses its learning rate. Denoising hides half of the tokens, in spans
of 1.5 on average, because the paper's 15 % teach little in so few steps. Then each model is
fine-tuned on some questions and judged by others. docs/compared.md has the tables.

python -m t5x_lite compare --config=compare/worlds:facts --workdir=DIR --jobs=2
"""

import runpy
from typing import Any

import t5x_lite
from t5x_lite.config import CompareConfig, default, variant
from t5x_lite.config.files import find

# The tasks of each world
WORLDS = {
    "facts": ("which_town", "which_land"),
    "agreement": ("which_verb",),
    "copying": ("which_list",),
}
TEN = ",ten"  # after the name of a world: all ten cells
NAMES = (*WORLDS, *(world + TEN for world in WORLDS))
RATES = (5e-3, 1e-2, 2e-2)
DENOISING = "span_corruption(noise_density=0.5, mean_span_length=1.5)"


def cell(architecture: str, model: dict[str, Any], objective: str) -> dict[str, Any]:
    """Return the settings of a cell that reads 64 raw tokens in each row."""
    if objective == "denoising":
        name, inputs, targets = DENOISING, 54, 54
    else:
        # A decoder has no inputs, so it models the whole text.
        name = "causal_lm" if architecture == "decoder" else "prefix_lm"
        inputs = targets = 32
    if model["architecture"] == "encoder_decoder":
        lengths = {"inputs": inputs, "targets": targets}
        # Otherwise the decoder learns to attend to its inputs only after some thousand steps.
        model = {**model, "mimetic_init": not model.get("shared_stacks", False)}
    else:
        lengths = {"sequence_length": inputs + targets}
    return {"objective": name, "model": model, "data": {"lengths": lengths}}


def get_config(argument: str = "facts"):
    """Return the comparison in a world, as WORLD or WORLD,ten."""
    world = variant({name: name.removesuffix(TEN) for name in NAMES}, argument)
    architectures = runpy.run_path(str(find("compare/raffel_table2")))["architectures"](2)
    if not argument.endswith(TEN):
        architectures = {name: architectures[name] for name in ("encoder_decoder", "decoder")}

    config = default(CompareConfig)
    config.title = f"What objectives teach: {world}"
    config.papers = ("raffel2020", "berglund2023") if world == "facts" else ("raffel2020",)
    config.seeds = 5
    config.base = t5x_lite.get_config("t5_tiny")
    config.base.data.update(
        source=f"world:{world}", tokenizer="sentencepiece(vocab_size=1000)", batch_size=16
    )
    config.base.data.lengths.update(sequence_length=0, inputs=0, targets=0)
    config.base.model.update(d_model=64, d_ff=128, tie_embeddings=False, embedding_norm=True)
    config.base.optimizer.name = "muon"
    config.cells = {
        f"{architecture}-{objective}": cell(architecture, model, objective)
        for architecture, model in architectures.items()
        for objective in ("denoising", "lm")
    }
    config.tune = {"optimizer": {"learning_rate": RATES}}
    config.budget = 1000 * 16 * 64  # raw tokens: 1,000 steps of 16 rows
    config.update(evaluations=2, span_count=0, other_objectives=False, ngram=False)
    config.tasks = WORLDS[world]
    config.finetune = (
        "data.epochs=100",
        "training.steps=150",  # fewer than the epochs have, so the number is the same in each world
        "data.batch_size=16",
        "data.examples_per_row=1",
        "optimizer.learning_rate=2e-3",
        "training.eval_every=30",
        "task.in_words=True",
    )
    return config
