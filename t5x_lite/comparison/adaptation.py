"""Ask all text-to-text models the same question. Each model reads some of the training text again,
as a prefix language model, and is then scored on held-out spans, given the text before them.

    trained model ─► the same rows of text under prefix_lm ─► bits of each span

Without this step, a denoiser would have to continue a text, which it was never trained to do.
Lester et al. (2021, §2.2) adapted T5 in this way. An encoder writes no text and is left out.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from t5x_lite.comparison.budget import with_budget
from t5x_lite.comparison.side_runs import train_side_run
from t5x_lite.comparison.span_bits import Span, span_bits
from t5x_lite.config import RunConfig, Start
from t5x_lite.config.permission import grant
from t5x_lite.data.rows.batches import TextData
from t5x_lite.data.rows.row_plan import RowPlan
from t5x_lite.data.tokenizers.vocabulary import Vocabulary
from t5x_lite.errors import BAD_CONFIG, UserError
from t5x_lite.model.transformer import parameter_shapes
from t5x_lite.progress import messages_to, say, silent
from t5x_lite.resolve import Resolved, resolve, resolve_without_text
from t5x_lite.training import loaded_model, run_directory
from t5x_lite.training.stages import Stage, address_of

# All architectures split the same windows at the same random points. By default, an encoder-decoder
# would read two halves of a window, with half of the context.
OBJECTIVE = "prefix_lm(mirrored=False)"
ADAPTED_RUN = "adapted"  # name of the adapted run's directory, inside the run's own
_OTHER_ORDER = 2**30  # added to a run's seed, so that it does not begin with the same rows again
_ROUNDING = 0.01  # largest share by which whole steps may miss the number of tokens


class Adaptation(NamedTuple):
    """The text that every model reads as a prefix language model.

    Attributes:
        tokens: total number of raw tokens.
        window: raw tokens per row, the same for all models.
    """

    tokens: int
    window: int


def plan_adaptation(tokens: int, cells: Iterable[RowPlan]) -> Adaptation | None:
    """Plan the adaptation with the shortest window of all cells; return None for 0 tokens."""
    if not tokens:
        return None
    return Adaptation(tokens, min(member.window for cell in cells for member in cell.members))


def steps_of(adaptation: Adaptation, batch_size: int) -> int:
    """Return the number of steps that adapt a model with this batch size.

    Raises:
        UserError: if whole steps cannot read the planned number of tokens.
    """
    of_step = batch_size * adaptation.window
    steps = round(adaptation.tokens / of_step)
    if abs(steps * of_step - adaptation.tokens) > _ROUNDING * adaptation.tokens:
        reason = f"a step of {batch_size} rows reads {of_step:,} raw tokens"
        fix = "give a multiple of that for every cell"
        raise UserError(BAD_CONFIG, f"adapt_tokens: got {adaptation.tokens:,}, but {reason}; {fix}")
    return steps


def adapted_config(config: RunConfig, adaptation: Adaptation, init_from: str = "") -> RunConfig:
    """Return the config of the run that adapts a model, with the optimizer that trained it.

    Args:
        init_from: the run directory of the model.
    """
    window, lengths = adaptation.window, config.data.lengths
    if lengths.inputs:
        lengths = dataclasses.replace(
            lengths, inputs=max(lengths.inputs, window), targets=max(lengths.targets, window)
        )
    changed = dataclasses.replace(
        config,
        objective=OBJECTIVE,
        data=dataclasses.replace(config.data, lengths=lengths, window=window),
        seed=(config.seed + _OTHER_ORDER) % 2**31,
        init_from=init_from,
        start=Start(),
    )
    steps = steps_of(adaptation, config.data.batch_size)
    return with_budget(changed, steps, evaluations=1)


def plan_adapted_run(
    config: RunConfig, adaptation: Adaptation, vocabulary: Vocabulary | None, init_from: str = ""
) -> Resolved:
    """Plan the run that adapts a model. For the other arguments see adapted_config.

    Args:
        vocabulary: that of the run; None if there is no tokenizer yet.

    Raises:
        UserError: if the model cannot be a prefix language model.
    """
    window = adaptation.window
    changed = adapted_config(config, adaptation, init_from)
    if vocabulary is None:
        before, resolved = resolve_without_text(config), resolve_without_text(changed)
    else:
        before, resolved = resolve(config, vocabulary), resolve(changed, vocabulary)
    if parameter_shapes(resolved.model) != parameter_shapes(before.model):
        reason = f"has other parameters with prefix_lm in windows of {window} tokens"
        raise UserError(BAD_CONFIG, f"adapt_tokens: the model {reason}")
    return resolved


def check_adaptation(
    adaptation: Adaptation | None, cells: Mapping[str, tuple[RunConfig, Vocabulary | None]]
) -> list[str]:
    """Return the names of the cells that can be adapted, and print which cannot.

    Args:
        cells: name → config of its last stage, and its vocabulary, as in plan_adapted_run.

    Raises:
        UserError: if no cell can be adapted, or if cells would read different amounts.
    """
    if adaptation is None:
        return []
    errors = {}
    for name, (config, vocabulary) in cells.items():
        if config.model.architecture != "encoder":
            steps_of(adaptation, config.data.batch_size)
        try:
            plan_adapted_run(config, adaptation, vocabulary)
        except UserError as error:
            errors[name] = error
    if len(errors) == len(cells):
        reason = "no cell can be a prefix language model"
        first = next(iter(errors.values()))
        raise UserError(BAD_CONFIG, f"adapt_tokens: {reason} ({first}); set it to 0")
    for name, error in errors.items():
        say(f"{name} cannot be adapted, so it is left out there: {error}")
    return [name for name in cells if name not in errors]


def adapt(workdir: Path, adaptation: Adaptation, directory: Path) -> bool:
    """Adapt the model of a run, in `directory`. An adaptation that was stopped continues.

    Returns:
        False if the model cannot be a prefix language model, or if it diverges.
    """
    before, tokenizer = run_directory.read(workdir)
    init_from = address_of(workdir)
    grant(places=[init_from])  # permitted, because it is an argument and not data
    try:
        resolved = plan_adapted_run(before.config, adaptation, tokenizer.vocabulary, init_from)
    except UserError:
        return False
    with messages_to(silent):
        data = run_directory.open_data(workdir, resolved, tokenizer)
    assert isinstance(data, TextData)
    return train_side_run(f"{workdir.name}, adapted", [Stage(resolved, data, directory)])


def bits_of_adapted(directory: Path, spans: Sequence[Span]) -> list[float]:
    """Return −log₂ p(span | the text before it) of each span, for an adapted model."""
    return span_bits(loaded_model.load(directory), spans, "left").without_end.round(6).tolist()
