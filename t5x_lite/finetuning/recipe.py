"""Fine-tuning recipes: how models of each family are trained on a task."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax

from t5x_lite.config import RunConfig, Task, to_dict
from t5x_lite.config.files import build, override, with_absolute_paths
from t5x_lite.data.tasks.task_data import TaskData
from t5x_lite.parallel import exact
from t5x_lite.training.adapt import parse_adaptation

# AdamW's learning rates below were published for base models of this width. For other widths they
# scale with 1 / width (Yang et al., 2022).
_PUBLISHED_WIDTH = 768
_EXAMPLES_PER_BATCH = 32


def recipe(config: RunConfig) -> dict[str, Any]:
    """Return the default fine-tuning settings of a model's family, by key.

    BERT: AdamW, 10 % warm-up, linear decay, 3 epochs (Devlin et al., 2019, §A.3). GPT: the same
    with 0.2 % warm-up (Radford et al., 2018, §4.1). T5 and prefix decoders: Adafactor at a constant
    1e-3 (Raffel et al., 2020, §3.1.2), 10 epochs. All families: dropout 0.1 on embeddings and the
    output of each part. Warm-up steps depend on the number of examples: see with_schedule.
    """
    shared = {
        "model.dropout": 0.1,
        "optimizer.schedule_unit": "steps",
        "optimizer.decay_steps": 0,
        "optimizer.final_lr_ratio": 0.0,
        "optimizer.initial_lr_ratio": 0.0,
        "optimizer.grad_clip_norm": 1.0,
        "optimizer.beta1": 0.9,
        "optimizer.beta2": 0.999,
        "optimizer.average": "",
        "training.microbatches": 1,
        "training.label_smoothing": 0.0,
        "training.keep_every": 0,
        "training.keep_at": (),
        "training.log_every": 20,
        "training.profile": (),
        "training.callbacks": (),
    }
    if config.model.architecture in ("encoder", "decoder"):
        is_encoder = config.model.architecture == "encoder"
        rate = 5e-5 if is_encoder else 6.25e-5
        return shared | {
            "data.epochs": 3,
            "optimizer.name": "adamw",
            "optimizer.learning_rate": rate * _PUBLISHED_WIDTH / config.model.d_model,
            "optimizer.schedule": "linear",
            "optimizer.weight_decay": 0.01,
            "optimizer.epsilon": 1e-6 if is_encoder else 1e-8,
        }
    return shared | {
        "data.epochs": 10,
        "optimizer.name": "adafactor",
        "optimizer.learning_rate": 1e-3,
        "optimizer.schedule": "constant",
        "optimizer.weight_decay": 0.0,
    }


# Share of the steps during which the learning rate warms up.
_WARMUP = {"encoder": 0.1, "decoder": 0.002, "prefix_decoder": 0.0, "encoder_decoder": 0.0}


def config_of(
    base: RunConfig,
    task: Task,
    overrides: Sequence[str] = (),
    adapt: str = "full",
    init_from: str = "",
) -> RunConfig:
    """Build the config of one fine-tuning run from the config of the pretrained model.

    Args:
        base: the config of the pretrained model.
        overrides: settings such as "data.epochs=2", which override the recipe.
        adapt: which parameters are trained; see training.adapt.
        init_from: the run directory to start from; empty: random parameters.
    """
    # Start from the settings of the base model, and apply the recipe of its family.
    settings = to_dict(base)
    written = recipe(base)
    if base.model.architecture == "encoder":
        written["model.lm_head"] = False
    for key, value in written.items():
        section, _, name = key.rpartition(".")
        settings[section][name] = value
    adaptation = parse_adaptation(adapt)
    settings["adapt"] = adapt
    settings["model"] |= adaptation.settings
    settings["task"] = to_dict(task)
    settings["init_from"] = init_from
    settings["start"] = {}
    settings["mesh"] = {}
    settings["training"]["steps"] = 2**31 - 1  # limited only by the epochs
    override(settings, overrides)
    return with_absolute_paths(build(RunConfig, settings))


def with_schedule(config: RunConfig, data: TaskData, is_set: set[str]) -> RunConfig:
    """Fill in the settings that depend on the number of examples.

    These are the batch size, the number of steps, the warm-up, and the steps between evaluations
    (one per epoch). A checkpoint is saved at each evaluation.

    Args:
        is_set: keys that the user has set, whose values are kept. The steps never exceed the
            epochs.
    """
    stream = data.train.rows
    rows = stream.rows(1)
    batch_size = config.data.batch_size
    if "data.batch_size" not in is_set:
        # A row may hold several examples.
        examples_per_row = len(data.train.examples) / rows
        batch_size = max(1, min(rows, round(_EXAMPLES_PER_BATCH / examples_per_row)))
        # Round up, so that every device gets whole rows in every microbatch.
        sharing_rows = config.mesh.sequence * config.mesh.tensor
        multiple = config.training.microbatches * max(jax.device_count() // sharing_rows, 1)
        if config.training.exact:
            multiple = math.lcm(multiple, exact.PARTS)
        batch_size = -(-batch_size // multiple) * multiple
    epochs = max(config.data.epochs, 1)
    steps = min(config.training.steps, max(stream.rows(epochs) // batch_size, 1))
    training: dict[str, Any] = {"steps": steps}
    every = config.training.eval_every
    if "training.eval_every" not in is_set:
        every = training["eval_every"] = max(math.ceil(steps / epochs), 1)
    if "training.checkpoint_every" not in is_set:
        training["checkpoint_every"] = every
    optimizer: dict[str, Any] = {}
    if "optimizer.warmup_steps" not in is_set:
        share = _WARMUP[config.model.architecture]
        optimizer["warmup_steps"] = round(share * steps)
    return dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, batch_size=batch_size),
        training=dataclasses.replace(config.training, **training),
        optimizer=dataclasses.replace(config.optimizer, **optimizer),
    )
