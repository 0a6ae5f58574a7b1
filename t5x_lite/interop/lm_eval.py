"""A model for EleutherAI's lm-evaluation-harness: lm_eval.simple_evaluate(HarnessModel(DIRECTORY)).

A decoder scores and continues texts as the harness's own models do. For other models,
inference.zero_shot defines the likelihood.
"""

import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from t5x_lite.errors import USAGE, UserError, optional_import
from t5x_lite.inference.generate import continue_inputs, encode_prompts, with_room
from t5x_lite.inference.score import pseudo_log_likelihoods, score_targets, way_to_score
from t5x_lite.inference.zero_shot import score_answers
from t5x_lite.training import loaded_model
from t5x_lite.training.loaded_model import LoadedModel

_LM: Any = optional_import("lm_eval.api.model", "lm-eval", "t5x_lite.interop.lm_eval").LM
_utils: Any = optional_import("lm_eval.utils", "lm-eval", "t5x_lite.interop.lm_eval")

_MAX_NEW_TOKENS = 256  # if the task sets no limit, as in the harness's own models


class HarnessModel(_LM):
    """A trained model with the methods that the harness calls.

    Args:
        model: a run directory, or a model that is already loaded.
        batch_size: number of prompts to continue together.

    Raises:
        UserError: if the model does not predict tokens.
    """

    def __init__(
        self,
        model: str | Path | LoadedModel,
        batch_size: int = 8,
    ):
        super().__init__()
        if not isinstance(model, LoadedModel):
            model = loaded_model.load(model)
        model.check_predicts_tokens("lm_eval")
        self._model = model
        self._batch_size = batch_size

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Score each (context, continuation).

        Returns:
            log P(continuation | context) in nats, and True if every token of the continuation is
            the likeliest.
        """
        pairs = [request.args for request in requests]
        if self._model.model.architecture == "decoder" and self._model.rows.continues_text:
            encoded = [self._encode_pair(*pair) for pair in pairs]
            before, targets = [pair[0] for pair in encoded], [pair[1] for pair in encoded]
            scores = score_targets(self._model, before, targets)
        else:
            contexts, continuations = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
            scores = score_answers(self._model, contexts, continuations)
        return [(float(score.nats.sum()), bool(score.is_likeliest.all())) for score in scores]

    def _encode_pair(self, context: str, continuation: str) -> tuple[np.ndarray, np.ndarray]:
        """Encode both as one text. Spaces between them go to the continuation, as in the harness.

        A context that is too long is truncated on the left.
        """
        encode, longest = self._model.tokenizer.encode, self._model.model.max_length
        before = encode(context.rstrip())
        target = encode(context + continuation)[len(before) :]
        room = longest - len(target)
        if room < 0:
            reason = f"a continuation has {len(target)} tokens, the model's rows {longest}"
            raise UserError(USAGE, f"lm_eval: {reason}; leave such tasks out")
        return before[max(len(before) - room, 0) :], target

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Return the log-probability of each text in nats.

        For a model with masks or sentinels this is the pseudo-log-likelihood. Other texts longer
        than a row are read in windows that share one token.
        """
        texts = [request.args[0] for request in requests]
        architecture = self._model.model.architecture
        if way_to_score(self._model, "") != "left_to_right":
            return [score.nats for score in pseudo_log_likelihoods(self._model, texts)]
        if architecture != "decoder":
            reason = f"a model with {architecture} scores a text given another"
            raise UserError(USAGE, f"lm_eval: {reason}; choose tasks without perplexities")
        longest = self._model.model.max_length
        before, targets, counts = [], [], []
        for text in texts:
            ids = self._model.tokenizer.encode(text).tolist()
            # The context of the first window is the start token, which every row begins with.
            windows = list(_utils.get_rolling_token_windows(ids, -1, longest - 1, 1))
            for number, window in enumerate(windows):
                context, target = _utils.make_disjoint_window(window)
                before.append(np.array(context if number else [], np.int32))
                targets.append(np.array(target, np.int32))
            counts.append(len(windows))
        sums = [float(score.nats.sum()) for score in score_targets(self._model, before, targets)]
        firsts = np.cumsum([0, *counts]).tolist()
        return [
            sum(sums[first : first + count])
            for first, count in zip(firsts[:-1], counts, strict=True)
        ]

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Continue each context up to one of the strings in its setting "until"."""
        contexts = [request.args[0] for request in requests]
        settings = [json.dumps(request.args[1], sort_keys=True) for request in requests]
        texts = [""] * len(contexts)
        # Requests with the same settings are continued together, in batches.
        alike = sorted(range(len(contexts)), key=settings.__getitem__)
        for setting, group in groupby(alike, key=settings.__getitem__):
            numbers, options = list(group), _options(json.loads(setting))
            for start in range(0, len(numbers), self._batch_size):
                batch = numbers[start : start + self._batch_size]
                prompts = encode_prompts(self._model, [contexts[i] for i in batch])
                room = options["max_new_tokens"]
                inputs = [with_room(self._model, ids, room) for ids in prompts]
                written = continue_inputs(self._model, inputs, **options)
                for number, text in zip(batch, written, strict=True):
                    texts[number] = text
        return texts


def _options(settings: dict[str, Any]) -> dict[str, Any]:
    """Translate the generation settings of a task into fields of inference.generate.Options."""
    stop = settings.get("until") or ()
    temperature = float(settings.get("temperature", 1.0 if settings.get("do_sample") else 0.0))
    samples = settings.get("do_sample", True) and temperature > 0
    options = {
        "max_new_tokens": settings.get("max_gen_toks", _MAX_NEW_TOKENS),
        "temperature": temperature if samples else 0.0,
        "stop": (stop,) if isinstance(stop, str) else tuple(stop),
    }
    if samples:
        options |= {name: settings[name] for name in ("top_k", "top_p") if name in settings}
    return options
