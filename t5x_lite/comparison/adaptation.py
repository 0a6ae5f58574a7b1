"""Ask all text-to-text models one question: each reads some more text as a prefix language model,
and then needs so many bits for a held-out span, given the text before it.

    trained model ─► the same number of raw tokens under prefix_lm ─► bits of each span

A denoiser has never continued a text, so what it says of one tells how it was asked more than what
it knows. This is the LM adaptation of Lester et al. (2021, §3.1), who did it to T5. An encoder
writes nothing, and cannot be adapted.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from t5x_lite import storage
from t5x_lite.comparison.budget import with_budget
from t5x_lite.comparison.span_bits import Span, span_bits
from t5x_lite.config import RunConfig
from t5x_lite.data.rows.batches import TextData
from t5x_lite.data.rows.row_plan import RowPlan
from t5x_lite.data.tokenizers.vocabulary import Vocabulary
from t5x_lite.errors import BAD_CONFIG, UserError, foreseen_errors
from t5x_lite.model.transformer import parameter_shapes
from t5x_lite.progress import messages_to, say, silent
from t5x_lite.resolve import Resolved, resolve
from t5x_lite.training import run_directory
from t5x_lite.training.loop import train

OBJECTIVE = "prefix_lm"
ADAPTED_RUN = "adapted"  # name of its directory in that of a run


class Adaptation(NamedTuple):
    """What each model reads as a prefix language model.

    Attributes:
        tokens: raw tokens in all.
        window: raw tokens of a row, the same for all models.
    """

    tokens: int
    window: int


def plan_adaptation(tokens: int, cells: Iterable[RowPlan]) -> Adaptation | None:
    """Return the adaptation in windows as long as the shortest of all cells; None for 0 tokens.

    The window is even, since an encoder-decoder reads two halves of it in one row.
    """
    if not tokens:
        return None
    windows = [member.window for cell in cells for member in cell.members]
    return Adaptation(tokens, min(windows) // 2 * 2)


def adapted(
    config: RunConfig, adaptation: Adaptation, vocabulary: Vocabulary, init_from: str = ""
) -> Resolved:
    """Return a run with the adaptation of a model, with the optimizer that trained it.

    Args:
        init_from: the run directory of the model.

    Raises:
        UserError: if the model cannot be a prefix language model.
    """
    window, lengths = adaptation.window, config.data.lengths
    if lengths.inputs:
        half = window // 2
        lengths = dataclasses.replace(
            lengths, inputs=max(lengths.inputs, half), targets=max(lengths.targets, half)
        )
    data = dataclasses.replace(config.data, lengths=lengths, window=window)
    steps = round(adaptation.tokens / (data.batch_size * window))
    if steps < 1:
        reason = f"a step of {data.batch_size} rows reads {data.batch_size * window:,} raw tokens"
        raise UserError(BAD_CONFIG, f"adapt_tokens: got {adaptation.tokens:,}, but {reason}")
    changed = dataclasses.replace(config, objective=OBJECTIVE, data=data, init_from=init_from)
    resolved = resolve(with_budget(changed, steps, evaluations=1), vocabulary)
    if parameter_shapes(resolved.model) != parameter_shapes(resolve(config, vocabulary).model):
        reason = f"has other parameters with {OBJECTIVE} in windows of {window} tokens"
        raise UserError(BAD_CONFIG, f"adapt_tokens: the model {reason}; set it to 0")
    return resolved


def check_adaptation(
    adaptation: Adaptation | None, cells: Mapping[str, tuple[RunConfig, Vocabulary]]
) -> None:
    """Say which cells cannot be adapted.

    Raises:
        UserError: if none can.
    """
    if adaptation is None:
        return
    errors = {}
    for name, (config, vocabulary) in cells.items():
        try:
            adapted(config, adaptation, vocabulary)
        except UserError as error:
            errors[name] = error
    if len(errors) == len(cells):
        raise next(iter(errors.values()))
    for name, error in errors.items():
        say(f"{name} cannot be adapted, so it is left out there: {error}")


def adapted_bits(
    workdir: Path, adaptation: Adaptation, spans: Sequence[Span], directory: Path
) -> list[float]:
    """Adapt the model of a run, and return −log₂ p(span | the text before it) of each span.

    Args:
        workdir: directory of the run.
        directory: where to train.

    Returns:
        The bits of each span. Empty if the model cannot be a prefix language model.
    """
    before, tokenizer = run_directory.read(workdir)
    init_from = str(storage.durable_path(workdir.resolve()))
    try:
        resolved = adapted(before.config, adaptation, tokenizer.vocabulary, init_from)
    except UserError:
        return []
    say(f"{workdir.name}: adapting in {directory}")
    with messages_to(silent):
        data = run_directory.open_data(workdir, resolved, tokenizer)
    assert isinstance(data, TextData)
    with foreseen_errors():
        train(resolved, data, directory)
    return span_bits(run_directory.load(directory), spans, "left").given_length.round(6).tolist()
