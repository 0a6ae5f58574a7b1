"""Settings: the schema of a run and of a comparison, and the files, names and texts that settings
come from.

A config file needs `default`; also CompareConfig for a comparison, and `variant` if it takes an
argument:

    from t5x_lite.config import CompareConfig, default, variant
"""

from t5x_lite.config.schema import (
    Architecture,
    Checked,
    Companion,
    CompareConfig,
    Data,
    DeviceDimensions,
    Lengths,
    Mesh,
    Model,
    ModelDimensions,
    Optimizer,
    RunConfig,
    Seed,
    Start,
    Task,
    TextCleaning,
    Training,
    default,
    to_dict,
    type_hints,
    variant,
)

__all__ = [
    "Architecture",
    "Checked",
    "Companion",
    "CompareConfig",
    "Data",
    "DeviceDimensions",
    "Lengths",
    "Mesh",
    "Model",
    "ModelDimensions",
    "Optimizer",
    "RunConfig",
    "Seed",
    "Start",
    "Task",
    "TextCleaning",
    "Training",
    "default",
    "to_dict",
    "type_hints",
    "variant",
]
