"""Pretrain BERT, T5 and GPT in JAX from one codebase, and compare what they learn.

    config = t5x_lite.get_config("gpt_tiny")
    model = t5x_lite.train(config, "runs/gpt")
    model.generate("Return a new")

See api.py. `import t5x_lite` itself imports neither jax nor numpy.
"""

from typing import TYPE_CHECKING, Any

from t5x_lite.machine import give_threads_to_simulated_devices
from t5x_lite.version import VERSION

give_threads_to_simulated_devices()
__version__ = VERSION

if TYPE_CHECKING:
    from t5x_lite.api import (
        LanguageModel,
        allow,
        compare,
        evaluate,
        finetune,
        get_config,
        inspect,
        messages_to,
        prepare,
        train,
    )
    from t5x_lite.api import load_model as load

__all__ = [
    "LanguageModel",
    "allow",
    "compare",
    "evaluate",
    "finetune",
    "get_config",
    "inspect",
    "load",
    "messages_to",
    "prepare",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module t5x_lite has no attribute {name}")
    if name == "get_config":  # does not need jax
        from t5x_lite.config.files import get_config

        return get_config
    from t5x_lite import api

    return getattr(api, "load_model" if name == "load" else name)
