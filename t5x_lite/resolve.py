"""Everything that follows from a config and a tokenizer, derived once: the plan of the rows, the
sizes of the model, and the heads. Lower layers are handed only the part that they need.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

from t5x_lite.config import Model, ModelDimensions, RunConfig, to_dict
from t5x_lite.data.objectives.mixture import check_vocabulary
from t5x_lite.data.rows.batches import Batches, TextData
from t5x_lite.data.rows.row_plan import RowPlan, plan_rows
from t5x_lite.data.store.corpus import Corpus
from t5x_lite.data.tasks.kinds.table import kind_of
from t5x_lite.data.tasks.task_data import TaskPlan, plan_task
from t5x_lite.data.tokenizers.tokenizer import planned_size
from t5x_lite.data.tokenizers.vocabulary import Vocabulary
from t5x_lite.errors import BAD_CONFIG, UserError, user_errors


@dataclass(frozen=True)
class Resolved:
    """A run with everything derived. The loop and the commands pass its parts on."""

    config: RunConfig  # as written, and as config.json records it
    rows: RowPlan | TaskPlan  # objectives, their windows and the row shape, or the plan of a task
    model: ModelDimensions  # with every size filled in
    heads: tuple[str, ...]  # heads whose losses are minimised: names in model.heads.HEADS
    steps: int  # training.steps, or fewer if data.epochs end the run earlier

    @property
    def written_out(self) -> dict[str, Any]:
        """The config as data with all sizes of the model filled in, for comparing two runs. What
        follows from the objective, such as companions, is left out.
        """
        written = to_dict(self.config)
        sizes = to_dict(self.model)
        return written | {"model": {name: sizes[name] for name in written["model"]}}


def plan(config: RunConfig) -> RowPlan | TaskPlan:
    """Plan the rows of a config, before its text is known. Rows that cannot be laid out are
    rejected at once.
    """
    if config.task.name:
        return plan_task(
            config.task,
            config.model.architecture,
            config.data.lengths,
            config.data.examples_per_row,
            config.model.prompt_length,
        )
    return plan_objective(config)


def plan_objective(config: RunConfig) -> RowPlan:
    """Plan the rows of a config's objective, even if the config has a task."""
    rows = plan_rows(
        config.objective,
        config.model.architecture,
        config.data.lengths,
        config.data.split_documents,
        config.data.window,
    )
    if config.model.backward_decoder and not rows.scores_whole_text:
        reason = f"predicts a text backward, but {config.objective} is no text as it stands"
        raise UserError(BAD_CONFIG, f"model.backward_decoder: {reason}; use causal_lm")
    if rows.has_sentence_pairs:
        of_pairs = f"(objective {config.objective})"
        if config.model.token_types == 1:
            raise UserError(
                BAD_CONFIG,
                "model.token_types: got 1, a sentence pair has two types; set 2, or 0 for none "
                f"{of_pairs}",
            )
        if config.model.num_classes == 1:
            raise UserError(
                BAD_CONFIG,
                f"model.num_classes: got 1, a sentence pair has two labels; set 2 {of_pairs}",
            )
    return rows


def resolve(
    config: RunConfig,
    vocabulary: Vocabulary,
    rows: RowPlan | TaskPlan | None = None,
) -> Resolved:
    """Derive everything that follows from a config and the ids of its tokenizer.

    Args:
        rows: what `plan` returned for the same config, if it was already called.

    Raises:
        UserError: if the tokenizer lacks ids that an objective needs, or settings contradict it.
    """
    if rows is None:
        rows = plan(config)
    if isinstance(rows, TaskPlan):
        return _resolve_task(config, vocabulary, rows)
    if config.model.lm_head:  # without it no objective is learned
        for member in rows.members:
            check_vocabulary(member.objective, member.window, vocabulary)
    return _resolve_objective(config, vocabulary.size, rows)


def resolve_without_text(config: RunConfig) -> Resolved:
    """Resolve a config that learns an objective before its text exists, for planning and
    compilation. A tokenizer that is yet to be trained is assumed to get all the ids it may have.
    """
    vocab_size = config.model.vocab_size or planned_size(
        config.data.tokenizer, config.data.add_specials
    )
    return _resolve_objective(config, vocab_size, plan_objective(config))


def _resolve_objective(config: RunConfig, vocab_size: int, rows: RowPlan) -> Resolved:
    model = resolve_model(
        config.model,
        vocab_size=vocab_size,
        max_length=rows.shape.longest,
        num_classes=2 if rows.has_sentence_pairs else 0,
    )
    # An objective may change the model. In a mixture, all members must do so in the same way.
    with user_errors(BAD_CONFIG, f"objective={config.objective}: the model of its traits failed"):
        models = {member.objective.traits.model(model) for member in rows.members}
    if len(models) > 1:
        reason = "each changes the model in a way of its own; train them in separate runs"
        raise UserError(BAD_CONFIG, f"objective={config.objective}: {reason}")
    (model,) = models
    if not isinstance(model, ModelDimensions):
        reason = f"the model of its traits is {model!r}, expected ModelDimensions"
        raise UserError(BAD_CONFIG, f"objective={config.objective}: {reason}")
    heads = ("mlm",) if rows.aligned else ("lm",)
    heads += model.heads
    if model.backward_decoder:
        heads += ("backward_lm",)
    if rows.has_sentence_pairs:
        heads += ("sequence_label",)
    return Resolved(config, rows, model, heads, config.training.steps)


def _resolve_task(config: RunConfig, vocabulary: Vocabulary, rows: TaskPlan) -> Resolved:
    """Resolve a run that learns a task: its head, and the number of classes."""
    task, head = rows.task, rows.format.head
    of_head: dict[str, Any] = {"num_classes": 0, "token_classes": 0}
    if head != "lm":
        of_head |= kind_of(task).model_settings(task)
    written = replace(config.model, **of_head)
    model = resolve_model(written, vocabulary.size, rows.shape.longest_segment)
    heads = (head,)
    # GPT also predicts the texts of the task, if the model still has a language model head.
    if model.architecture == "decoder" and head != "lm" and model.lm_head:
        heads += ("auxiliary_lm",)
    if head != "lm" and config.training.label_smoothing:
        got = f"training.label_smoothing: got {config.training.label_smoothing}"
        raise UserError(BAD_CONFIG, f"{got}, but heads of tasks learn without; set it to 0")
    if head == "lm" and not model.lm_head:
        reason = f"got False, but task {task.name} is answered in words"
        raise UserError(BAD_CONFIG, f"model.lm_head: {reason}; set it to True")
    return Resolved(config, rows, model, heads, config.training.steps)


def text_data(resolved: Resolved, corpus: Corpus) -> TextData:
    """Return the data of a run that learns an objective."""
    assert isinstance(resolved.rows, RowPlan), "a run on a task reads its examples"
    config = resolved.config
    start, steps = config.start, config.training.steps - config.start.step
    return TextData(resolved.rows, config.data, config.seed, corpus, start.skip_tokens, steps)


def last_step(config: RunConfig, batches: Batches) -> int:
    """Return the last step of a run: training.steps, or an earlier one if data.epochs ends it."""
    before = config.start.step
    return before + batches.num_steps(config.training.steps - before, config.data.epochs)


def resolve_model(
    model: Model, vocab_size: int, max_length: int, num_classes: int = 0
) -> ModelDimensions:
    """Return a model with every size filled in.

    Args:
        vocab_size: number of ids of the tokenizer; the model may have more, but never fewer.
        max_length: number of positions in the longest stack of a row.
        num_classes: number of classes of the sequence label head that the rows need; 0: none.

    >>> resolve_model(Model(d_model=8, num_heads=2), vocab_size=10, max_length=4).head_dim
    4
    """
    if 0 < model.vocab_size < vocab_size:
        reason = f"got {model.vocab_size}, but the tokenizer has {vocab_size} ids; set it to 0"
        raise UserError(BAD_CONFIG, f"model.vocab_size: {reason}")
    if model.architecture == "encoder":
        decoder_layers = 0
    else:
        decoder_layers = model.num_decoder_layers or model.num_layers
    follows = "all" if model.bias else "none"
    written: dict[str, Any] = {
        "attention_bias": model.attention_bias or follows,
        "num_decoder_layers": decoder_layers,
        "head_dim": model.head_dim or model.d_model // model.num_heads,
        "num_kv_heads": model.num_kv_heads or model.num_heads,
        "d_ff": model.d_ff or 4 * model.d_model,
        "embedding_size": model.embedding_size or model.d_model,
        "query_width": model.query_width or model.head_dim or model.d_model // model.num_heads,
        "vocab_size": model.vocab_size or vocab_size,
        "max_length": model.max_length or max_length,
        "num_classes": model.num_classes or num_classes,
    }
    return ModelDimensions(**(asdict(model) | written))
