"""Models in Python, as the commands have them: `model = t5x_lite.load(path)`, then generate, fill and score."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

import jax

from t5x_lite.errors import read_json
from t5x_lite.inference import fill, generate, score
from t5x_lite.interop import exchange
from t5x_lite.model.heads import head_weights, logits
from t5x_lite.model.transformer import Transformer
from t5x_lite.training import rundir


class LanguageModel:
    """A model with its parameters and tokenizer. `trained`: what rundir.load returns."""

    def __init__(self, trained: rundir.Trained):
        self._trained = trained

    config = property(lambda self: self._trained.config)
    tokenizer = property(lambda self: self._trained.tokenizer)
    params = property(lambda self: self._trained.params)

    def generate(self, prompts: list[str], **options) -> list[str]:
        """What the model writes after each prompt. options: those of inference.generate.Options."""
        return generate.continue_texts(self._trained, prompts, **options)

    def stream(self, prompt: str, **options) -> Iterator[str]:
        """What it writes after one prompt, piece by piece."""
        before = ""
        for (text,) in generate.stream(self._trained, [prompt], **options):
            yield text[len(before) :]
            before = text

    def fill(self, text: str, top: int = 5) -> list:
        """For each blank (___) of a text the likeliest words with their probabilities, or what T5 writes there."""
        return fill.fill(self._trained, text, top)

    def score(self, texts: list[str], context: str = "") -> list[score.Score]:
        """How likely each text is, behind the context; see inference.score.score."""
        return score.score(self._trained, texts, context)

    @cached_property
    def apply(self):
        """The bare function (params, row) → logits [B, scored positions, V]; rows as data/layouts.py makes them."""
        model = self.config.model

        def apply(params, row):
            return logits(model, head_weights(params), Transformer(model).apply({"params": params}, row))

        return jax.jit(apply)


def trained(path: str | Path) -> rundir.Trained:
    """What a run directory, or the directory of a model of Hugging Face, holds."""
    path = Path(path)
    if "model_type" in read_json(path / "config.json", "expected the directory of a run, or of a model"):
        found = exchange.read(path, say=partial(print, file=sys.stderr))
        return replace(found, params=jax.device_put(found.params))
    return rundir.load(path)


def load(path: str | Path) -> LanguageModel:
    """The model in a run directory, or in a directory of Hugging Face's files."""
    return LanguageModel(trained(path))
