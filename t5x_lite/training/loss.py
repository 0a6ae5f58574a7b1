"""The loss of a run: a function (models, rows, keys) → sums that its objective names, and its
gradient over the mesh.

A loss of your own is a class with two methods, `LossFunction`, which an objective names in its
traits: Traits(loss="my_module.MyLoss(weight=2)").
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict
from jaxtyping import Array, Int

from t5x_lite.config import ModelDimensions, Training
from t5x_lite.config.named import find_named
from t5x_lite.data.rows.layouts import RowShape
from t5x_lite.errors import BAD_CONFIG, UserError
from t5x_lite.model import transformer
from t5x_lite.model.dropout import Noise
from t5x_lite.model.flops import forward_flops
from t5x_lite.model.heads import (
    HeadInput,
    ModelOutput,
    Params,
    Row,
    find_head,
    head_params,
    logits,
    scored_positions,
)
from t5x_lite.model.losses import LossSettings, Sums, Vocabulary
from t5x_lite.model.parts.contract import Measured
from t5x_lite.model.transformer import STACKS, companion_params, split_axes
from t5x_lite.parallel.collectives import (
    max_over_vocabulary,
    own_dimensions,
    own_positions,
    part_number,
    parts,
    row_numbers,
    sum_over_sequence,
    sum_over_vocabulary,
    whole_row,
)
from t5x_lite.parallel.exact import sum_of_parts
from t5x_lite.parallel.gradient import Parallelism
from t5x_lite.resolve import Resolved
from t5x_lite.training.adapt import FULL

AllSums = dict[str, Sums]  # by head, and by auxiliary loss, such as decoder_balance

# What the key of a step's dropout is folded with, for that of its heads, for what is sampled, and,
# plus its number, for a companion.
_HEADS, _SAMPLES, _COMPANIONS = 1, 2, 3


def make_parallelism(
    model: ModelDimensions, reduce_dtype: str = "float32", line: int = 0, exact: bool = False
) -> Parallelism:
    """Say how all devices of the mesh in use compute a model's gradient."""
    names: Any = flatten_dict(split_axes(model))
    return Parallelism(names, model.num_kv_heads, model.dtype, reduce_dtype, line, exact)


@runtime_checkable
class LossFunction(Protocol):
    """What a run minimises, as far as it is not the same for all objectives."""

    def __call__(self, models: "Models", rows: Row, keys: Array) -> AllSums:
        """Return the sums by the names of the run's heads, and of auxiliary losses.

        Args:
            rows: those of one device, whose sums are added up.
            keys: [B], a key for each row, for what is sampled: the same on any mesh.
        """
        ...

    def flops(self, model: ModelDimensions, shape: RowShape, scored: float) -> float:
        """Return the FLOPs of the forward passes on one row: see model.flops.forward_flops."""
        ...


class OfHeads:
    """The losses of all heads of one Transformer that reads the rows as they are, and what its
    blocks ask for.
    """

    def __call__(self, models: "Models", rows: Row, keys: Array) -> AllSums:
        """See LossFunction."""
        output = models.output(rows)
        sums = {name: models.head_sums(name, output, rows) for name in models.heads}
        return sums | models.auxiliary_sums(output, rows)

    def flops(self, model: ModelDimensions, shape: RowShape, scored: float) -> float:
        """See LossFunction."""
        return forward_flops(model, shape, scored)


LOSSES = {"heads": OfHeads}


def find_loss(text: str) -> LossFunction:
    """Find the loss that an objective names.

    Raises:
        UserError: for one that does not exist, or does not say what it costs.
    """
    found = find_named(text, LOSSES, "loss", "loss")()
    for method in ("__call__", "flops"):
        if not hasattr(found, method):
            fix = "see LossFunction in training/loss.py"
            raise UserError(BAD_CONFIG, f"loss={text}: has no method {method}; {fix}")
    return found


def step_flops(resolved: Resolved, shape: RowShape, scored: float) -> float:
    """Return the FLOPs of forward and backward for one row.

    Args:
        scored: positions at which the output layer is computed, a mean over rows.
    """
    return 3 * forward_flops_of(resolved, shape, scored)


def forward_flops_of(resolved: Resolved, shape: RowShape, scored: float) -> float:
    """Return the FLOPs of what a run's loss computes forward for one row."""
    return find_loss(resolved.rows.loss).flops(resolved.model, shape, scored)


class Models:
    """The Transformer of a run and its companions, with their parameters on this device: what a
    loss function computes with.

    Attributes:
        heads: the names of the run's heads.
    """

    def __init__(self, loss: "Loss", params: Params, key: Array | None):
        self.heads = tuple(loss.heads)
        self._loss = loss
        self._params = params
        self._key = key

    def model(self, of: str = "") -> ModelDimensions:
        """Return the sizes of a companion, or of the run's own model, as this device has them."""
        return own_dimensions(self._whole_model(of))

    def params(self, of: str = "") -> Params:
        """Return the parameters of a companion, or of the run's own model."""
        companion = self._loss.model.companion(of)
        return self._params if companion is None else companion_params(companion, self._params)

    def output(self, rows: Row, of: str = "") -> ModelOutput:
        """Apply a companion, or the run's own model, to rows."""
        parallel = self._loss.parallel_of(of)
        return transformer.apply(
            self._whole_model(of),
            self.params(of),
            rows,
            self._loss.packed,
            self._key_of(of),
            parallel.of_layer,
        )

    def head_sums(self, name: str, output: ModelOutput, rows: Row, of: str = "") -> Sums:
        """Return the sums of one head of a model: what is predicted from the hidden states that it
        reads.
        """
        head = self._loss.heads[name]
        head_output, head_rows = (_shared_rows if head.splits_rows else _whole_rows)(output, rows)
        key = self._key_of(of)
        sums = head.sums(
            HeadInput(
                self.model(of),
                self.params(of),
                head.read(head_output, head_rows),
                head_rows,
                self._loss.settings,
                _own_vocabulary(self._whole_model(of)),
                Noise(row_numbers(_count_rows(rows)), part_number("tensor"), key is not None),
                None if key is None else jax.random.fold_in(key, _HEADS),
            )
        )
        return sum_over_sequence(sums) if head.splits_rows else sums

    def sample(
        self, output: ModelOutput, rows: Row, keys: Array, of: str = ""
    ) -> Int[Array, "B K"]:
        """Draw a token at each scored position of an encoder from what a model predicts there, the
        same on any mesh: the largest logit after Gumbel noise is added to each.
        """
        vocabulary = _own_vocabulary(self._whole_model(of))
        states = scored_positions(_whole_rows(output, rows)[0], rows)
        found = logits(self.model(of), head_params(self.params(of)), states, vocabulary.ids)
        columns = self._whole_model(of).embedding_rows

        def noise(key: Array) -> Array:
            return jax.random.gumbel(key, (states.shape[1], columns))[:, vocabulary.ids]

        noisy = jax.lax.stop_gradient(found + jax.vmap(noise)(keys))
        is_largest = noisy >= vocabulary.max(noisy.max(-1))[..., None]
        ids = vocabulary.sum(jnp.where(is_largest, vocabulary.ids, 0).sum(-1))
        return ids.astype(rows["encoder_tokens"].dtype)

    def auxiliary_sums(self, output: ModelOutput, rows: Row) -> AllSums:
        """Return what the blocks themselves ask for, such as the balance of a mixture of experts,
        and what they have measured.
        """
        sums: AllSums = {}
        for stack, found in output.auxiliary.items():
            for name, total in found.items():
                figure = f"{stack}_{name}"
                if isinstance(total, Measured):
                    sums[figure] = {"measured": total.total, "weight": total.weight}
                else:
                    sums[figure] = {"total_loss": total, "weight": real_positions(rows, stack)}
        return sums

    def _whole_model(self, of: str) -> ModelDimensions:
        companion = self._loss.model.companion(of)
        return self._loss.model if companion is None else companion.model

    def _key_of(self, of: str) -> Array | None:
        """The key of a model's dropout."""
        if self._key is None or not of:
            return self._key
        names = [companion.name for companion in self._loss.model.companions]
        return jax.random.fold_in(self._key, _COMPANIONS + names.index(of))


class Loss:
    """The loss of a run, its gradient and its evaluation.

    Args:
        packed: whether a row may hold several segments.
        heads: names in HEADS, or of heads of your own.
        parallel: how several devices share the work; None: by what the mesh in use says.
        function: of the objective, see Traits.loss.
    """

    def __init__(
        self,
        model: ModelDimensions,
        packed: bool,
        heads: tuple[str, ...],
        training: Training,
        parallel: Parallelism | None = None,
        function: str = "heads",
    ):
        self.model = model
        self.packed = packed
        self.heads = {name: find_head(name) for name in heads}
        self.microbatches = training.microbatches
        self.settings = LossSettings(
            training.z_loss,
            training.label_smoothing,
            training.loss_chunk,
            training.auxiliary_lm,
        )
        self._parallel = parallel or make_parallelism(model)
        self._exact = training.exact
        self._function = find_loss(function)

    def parallel_of(self, name: str) -> Parallelism:
        """How devices share a companion, or the run's own model."""
        companion = self.model.companion(name)
        return self._parallel if companion is None else self._parallel.part(name)

    def sums(self, params: Params, rows: Row, key: Array | None = None) -> AllSums:
        """The sums over these rows.

        Args:
            key: for dropout, and for what is sampled; None: no dropout, and samples that are always
                the same.
        """
        params = self._parallel.outside_of_layers(params)
        of_samples = jax.random.fold_in(jax.random.key(0) if key is None else key, _SAMPLES)
        fold_in = jax.vmap(jax.random.fold_in, (None, 0))
        keys = fold_in(of_samples, row_numbers(_count_rows(rows)))
        sums = self._function(Models(self, params, key), rows, keys)
        for name in sums:
            if name not in self.heads and not name.startswith(STACKS):
                reason = f"got sums of {name!r}, expected those of heads: {', '.join(self.heads)}"
                raise UserError(BAD_CONFIG, f"loss: {reason}")
        return sums

    def divisors(self, batch: Row) -> dict[str, Array]:
        """Return the divisor of each loss: a head's weight; for auxiliary losses of a stack, the
        number of its positions that are no padding.
        """
        weights = {name: head.weight(batch) for name, head in self.heads.items()}
        for stack in STACKS:
            if _segments_key(stack) in batch:
                weights[stack] = real_positions(batch, stack)
        return jax.tree.map(lambda weight: jnp.maximum(weight, 1), weights)

    def mean(self, sums: AllSums, divisors: dict[str, Array]) -> Array:
        """The scalar to minimise: the sum over heads (BERT: Devlin et al., 2019, §A.2) and
        auxiliary losses of total_loss by its divisor.

        `sums` may be those of some rows. The divisors are those of the whole batch, so the losses
        of devices and of microbatches add up to that of the batch, however unequal their numbers of
        targets.
        """
        terms = [
            term["total_loss"] / divisors[name if name in self.heads else _stack_of(name)]
            for name, term in sums.items()
            if "total_loss" in term
        ]
        return sum(terms[1:], terms[0])

    def gradient(
        self,
        trained: Params,
        batch: Row,
        key: Array | None,
        frozen: Params | None = None,
        merge: Callable[[Params, Params], Params] = FULL.merge,
    ) -> tuple[Params, AllSums]:
        """The gradient of the mean over the batch, and the sums.

        Args:
            merge: from the parameters that are trained, and those that are not, to all.
        """

        def of_rows(trained, frozen, rows, key, divisors):
            def minimised(trained, rows, key):
                sums = self.sums(merge(trained, frozen), rows, key)
                # Devices that share rows find the same loss: each counts for a part.
                sharing = parts("sequence") * parts("tensor")
                return self.mean(sums, divisors) / sharing, sums

            gradient = partial(jax.grad(minimised, has_aux=True), trained)
            if self._exact:
                return sum_of_parts(gradient, rows, key)
            return _over_microbatches(gradient, rows, key, self.microbatches)

        return self._parallel(of_rows, trained, frozen or {}, batch, key, self.divisors(batch))

    def evaluate(self, params: Params, batch: Row) -> AllSums:
        """The sums over the batch, in microbatches as in training, so that evaluation needs no more
        memory.
        """

        def of_rows(nothing, params, rows):
            sums = partial(self.sums, params)
            return nothing, _over_microbatches(sums, rows, None, self.microbatches)

        return self._parallel(of_rows, {}, params, batch)[1]


def _count_rows(rows: Row) -> int:
    return len(next(iter(rows.values())))


def _whole_rows(output: ModelOutput, rows: Row) -> tuple[ModelOutput, Row]:
    """Output and rows for a head that needs whole rows, however many devices share them."""
    return output._replace(hidden_states=whole_row(output.hidden_states)), rows


def _shared_rows(output: ModelOutput, rows: Row) -> tuple[ModelOutput, Row]:
    """Output and rows for a head that treats each position of a decoder alone."""
    own = {
        name: own_positions(value) if name.startswith("decoder_") else value
        for name, value in rows.items()
    }
    return output, own


def _own_vocabulary(model: ModelDimensions) -> Vocabulary:
    """The part of the vocabulary that this device has the logits of."""
    rows = own_dimensions(model).embedding_rows
    ids = jnp.arange(rows) + part_number("tensor") * rows
    return Vocabulary(model.vocab_size, ids, sum_over_vocabulary, max_over_vocabulary)


def real_positions(rows: Row, stack: str) -> Array:
    """Positions of a stack that are no padding."""
    return (rows[_segments_key(stack)] > 0).sum()


def _segments_key(stack: str) -> str:
    """A backward decoder reads the rows of a decoder."""
    return f"{stack.removeprefix('backward_')}_segments"


def _stack_of(name: str) -> str:
    """The stack of an auxiliary loss.

    >>> _stack_of("decoder_balance"), _stack_of("backward_decoder_balance")
    ('decoder', 'backward_decoder')
    """
    return next(stack for stack in STACKS if name.startswith(f"{stack}_"))


def _over_microbatches(compute: Callable, batch: Row, key: Array | None, parts: int) -> Any:
    """compute(rows, key), summed over microbatches one after the other."""
    if parts == 1:
        return compute(batch, key)

    # Row r goes to microbatch r mod parts: each device splits its own rows, nothing moves.
    def split(x):
        return x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1)

    microbatches = jax.tree.map(split, batch)
    keys = None if key is None else jax.random.split(key, parts)
    first = jax.tree.map(lambda x: x[0], (microbatches, keys))
    shapes = jax.eval_shape(compute, *first)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    def add(total, microbatch):
        return jax.tree.map(jnp.add, total, compute(*microbatch)), None

    return jax.lax.scan(add, zeros, (microbatches, keys))[0]
