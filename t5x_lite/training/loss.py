"""The loss of a run: a function (models, rows, keys) → sums that its objective names, and its
gradient over the mesh.

A loss of your own is a class with two methods, `LossFunction`, which an objective names in its
traits: Traits(loss="my_module.MyLoss(weight=2)").
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict
from jaxtyping import Array, Int

from t5x_lite.config import ModelDimensions
from t5x_lite.config.named import find_named
from t5x_lite.data.rows.layouts import RowShape
from t5x_lite.errors import BAD_CONFIG, UserError
from t5x_lite.model import transformer
from t5x_lite.model.dropout import Noise
from t5x_lite.model.flops import forward_flops
from t5x_lite.model.heads import (
    Head,
    HeadInput,
    ModelOutput,
    Params,
    Row,
    find_head,
    head_params,
    logits,
    scored_positions,
)
from t5x_lite.model.losses import LossSettings, Sums, VocabularyShard
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

# Numbers folded into the key of a step, for the dropout of heads, for sampling, and (plus the index
# of the companion) for the dropout of companions.
_HEADS, _SAMPLES, _COMPANIONS = 1, 2, 3


@runtime_checkable
class LossFunction(Protocol):
    """The part of a run's loss that an objective may choose."""

    def __call__(self, models: "Models", rows: Row, keys: Array) -> AllSums:
        """Return the sums of each head and each auxiliary loss, by name.

        Args:
            rows: the rows of one device. The sums of all devices are added up.
            keys: [B] a key for each row, for sampling; the same on any mesh, in any number of
                microbatches.
        """
        ...

    def flops(self, model: ModelDimensions, shape: RowShape, scored: float) -> float:
        """Return the FLOPs of all forward passes on one row: see model.flops.forward_flops."""
        ...


class OfHeads:
    """The losses of all heads of one Transformer, which reads the rows unchanged, and the auxiliary
    losses of its blocks.
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
        UserError: if it does not exist, or lacks a method of LossFunction.
    """
    found = find_named(text, LOSSES, "loss", "loss")()
    for method in ("__call__", "flops"):
        if not hasattr(found, method):
            fix = "see LossFunction in training/loss.py"
            raise UserError(BAD_CONFIG, f"loss={text}: has no method {method}; {fix}")
    return found


def step_flops(resolved: Resolved, shape: RowShape, scored: float) -> float:
    """Return the FLOPs of forward and backward pass for one row.

    Args:
        scored: mean number of positions per row at which the output layer is computed.
    """
    # The backward pass takes two matrix products for each one of the forward pass.
    return 3 * forward_flops_of(resolved, shape, scored)


def forward_flops_of(resolved: Resolved, shape: RowShape, scored: float) -> float:
    """Return the FLOPs of the forward passes of a run's loss for one row."""
    return find_loss(resolved.rows.loss).flops(resolved.model, shape, scored)


class Models:
    """The Transformer of a run and its companions, with their parameters on this device. A loss
    function is called with them.

    Attributes:
        heads: names of the run's heads.
    """

    def __init__(self, loss: "Loss", params: Params, key: Array | None):
        self.heads = tuple(loss.heads)
        self._loss = loss
        self._params = params
        self._key = key

    def model(self, of: str = "") -> ModelDimensions:
        """Return the dimensions of this device's part of a companion, or of the run's own model."""
        return own_dimensions(self._whole_model(of))

    def params(self, of: str = "") -> Params:
        """Return the parameters of a companion, or of the run's own model."""
        companion = self._loss.model.companion(of)
        return self._params if companion is None else companion_params(companion, self._params)

    def output(self, rows: Row, of: str = "") -> ModelOutput:
        """Apply a companion, or the run's own model, to rows."""
        # Parameters of a layer are gathered just before that layer, by `of_layer`.
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
        """Return the sums of one head, which predicts from a model's hidden states."""
        head = self._loss.heads[name]
        # Under sequence parallelism, a head reads this device's positions or the gathered rows.
        head_output, head_rows = (_shared_rows if head.splits_rows else _whole_rows)(output, rows)
        key = self._key_of(of)
        # Without a key there is no dropout; heads have a key of their own, apart from the body's.
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
        """Sample a token at each scored position of an encoder from a model's predictions, the same
        on any mesh: the token with the largest sum of logit and Gumbel noise.
        """
        vocabulary = _own_vocabulary(self._whole_model(of))
        states = scored_positions(_whole_rows(output, rows)[0], rows)
        found = logits(self.model(of), head_params(self.params(of)), states, vocabulary.ids)
        columns = self._whole_model(of).embedding_rows

        # Draw the noise of the whole vocabulary and keep this device's columns of it.
        def noise(key: Array) -> Array:
            return jax.random.gumbel(key, (states.shape[1], columns))[:, vocabulary.ids]

        # The device that has the largest logit knows its id; the others add 0.
        noisy = jax.lax.stop_gradient(found + jax.vmap(noise)(keys))
        is_largest = noisy >= vocabulary.max(noisy.max(-1))[..., None]
        ids = vocabulary.sum(jnp.where(is_largest, vocabulary.ids, 0).sum(-1))
        return ids.astype(rows["encoder_tokens"].dtype)

    def auxiliary_sums(self, output: ModelOutput, rows: Row) -> AllSums:
        """Return the auxiliary losses of the blocks, such as the balance of a mixture of experts,
        and the values they have measured.
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
        """Return the key for the dropout of a companion, or of the run's own model."""
        if self._key is None or not of:
            return self._key
        names = [companion.name for companion in self._loss.model.companions]
        return jax.random.fold_in(self._key, _COMPANIONS + names.index(of))


@dataclass(frozen=True)
class Loss:
    """The loss of a run, its gradient and its evaluation. Two that are equal compute the same.

    Attributes:
        packed: True if a row may hold several segments.
        head_names: names in HEADS, or names of heads of your own.
        function: the loss that the objective names: see Traits.loss.
        microbatches, exact, reduce_dtype: settings of `training` and `mesh`.
        line: see mesh.line_of_devices.
    """

    model: ModelDimensions
    packed: bool
    head_names: tuple[str, ...]
    settings: LossSettings = LossSettings()
    function: str = "heads"
    microbatches: int = 1
    exact: bool = False
    reduce_dtype: str = "float32"
    line: int = 0

    @cached_property
    def heads(self) -> dict[str, Head]:
        """The heads by name."""
        return {name: find_head(name) for name in self.head_names}

    @cached_property
    def _function(self) -> LossFunction:
        return find_loss(self.function)

    @cached_property
    def _parallel(self) -> Parallelism:
        """How the devices of the mesh in use compute the gradient together."""
        names: Any = flatten_dict(split_axes(self.model))
        kv_heads, dtype = self.model.num_kv_heads, self.model.dtype
        return Parallelism(names, kv_heads, dtype, self.reduce_dtype, self.line, self.exact)

    def parallel_of(self, name: str) -> Parallelism:
        """Return how devices share a companion, or the run's own model."""
        companion = self.model.companion(name)
        return self._parallel if companion is None else self._parallel.part(name)

    def sums(
        self, params: Params, rows: Row, key: Array | None = None, samples: Array | None = None
    ) -> AllSums:
        """Compute the sums over these rows.

        Args:
            key: of dropout; None: no dropout.
            samples: [B], a key for what is sampled in each row; None: those of a batch of these.
        """
        # Gather the parameters outside of layers, such as embeddings, once for the whole model.
        params = self._parallel.outside_of_layers(params)
        samples = _keys_of_samples(rows, key) if samples is None else samples
        # The loss that the objective names may be the user's own, so its result is checked.
        sums = self._function(Models(self, params, key), rows, samples)
        self._check(sums, rows)
        # The weight that is reported is the one that the loss is divided by.
        weights = {
            name: {"weight": head.weight(rows).astype(sums[name]["nll"].dtype)}
            for name, head in self.heads.items()
            if name in sums
        }
        return sums | {name: sums[name] | weight for name, weight in weights.items()}

    def _check(self, sums: AllSums, rows: Row) -> None:
        """Refuse what a loss function returns if it is no sums of heads or of stacks."""
        if not isinstance(sums, dict) or not sums:
            raise UserError(BAD_CONFIG, f"loss: got {sums!r}, expected a dict of sums by head")
        stacks = tuple(f"{name}_" for name in STACKS if _segments_key(name) in rows)
        for name, term in sums.items():
            needed = {"weight"}
            if name in self.heads:
                needed = {"total_loss", "nll", "correct"}
            elif not name.startswith(stacks):
                reason = f"got sums of {name!r}, expected those of heads: {', '.join(self.heads)}"
                raise UserError(BAD_CONFIG, f"loss: {reason}")
            shapes = {key: jnp.shape(value) for key, value in dict(term).items()}
            if not needed <= set(shapes) or any(shapes.values()):
                expected = f"expected the sums {', '.join(sorted(needed))}, each one number"
                raise UserError(BAD_CONFIG, f"loss: got {shapes} of {name}; {expected}")

    def _check_rows(self, rows: Row) -> None:
        for name, head in self.heads.items():
            missing = [key for key in head.row_keys if key not in rows]
            if missing:
                has = f"these rows have {', '.join(sorted(rows))}"
                raise UserError(BAD_CONFIG, f"model.heads={name}: reads {missing[0]}; {has}")

    def divisors(self, batch: Row) -> dict[str, Array]:
        """Return the divisor of each loss: the weight of a head, or the number of positions of a
        stack that are not padding, for its auxiliary losses.
        """
        self._check_rows(batch)
        # At least 1, since a batch may have nothing to score.
        weights = {name: head.weight(batch) for name, head in self.heads.items()}
        for stack in STACKS:
            if _segments_key(stack) in batch:
                weights[stack] = real_positions(batch, stack)
        return jax.tree.map(lambda weight: jnp.maximum(weight, 1), weights)

    def mean(self, sums: AllSums, divisors: dict[str, Array]) -> Array:
        """Return the scalar to minimise: total_loss by its divisor, summed over heads (as in BERT:
        Devlin et al., 2019, §A.2) and auxiliary losses.

        `sums` may be of only some rows, but the divisors are of the whole batch. So the losses of
        devices and microbatches add up to the loss of the batch, even with unequal numbers of
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
        """Return the gradient of the mean over the batch, and the sums.

        Args:
            merge: merges trained and frozen parameters.
        """

        def of_rows(
            trained: Params,
            frozen: Params,
            rows: Row,
            key: Array | None,
            divisors: dict[str, Array],
        ) -> tuple[Params, AllSums]:
            def minimised(
                trained: Params, sampled: tuple[Row, Array], key: Array | None
            ) -> tuple[Array, AllSums]:
                rows, samples = sampled
                sums = self.sums(merge(trained, frozen), rows, key, samples)
                # Devices that share rows compute the same loss, so each counts for a part of it.
                sharing = parts("sequence") * parts("tensor")
                return self.mean(sums, divisors) / sharing, sums

            # Each device computes the gradient of its own rows; Parallelism adds them up.
            gradient = partial(jax.grad(minimised, has_aux=True), trained)
            sampled = rows, _keys_of_samples(rows, key)
            # Exact: rows are summed in a fixed tree, whatever the mesh and the microbatches.
            if self.exact:
                return sum_of_parts(gradient, sampled, key)
            return _over_microbatches(gradient, sampled, key, self.microbatches)

        return self._parallel(of_rows, trained, frozen or {}, batch, key, self.divisors(batch))

    def evaluate(self, params: Params, batch: Row) -> AllSums:
        """Compute the sums over the batch, in microbatches as in training, so that evaluation needs
        no more memory than training.
        """

        # `nothing` takes the place of the trained parameters: no gradient is computed.
        def of_rows(nothing: Params, params: Params, rows: Row) -> tuple[Params, AllSums]:
            def sums(sampled: tuple[Row, Array], key: None) -> AllSums:
                return self.sums(params, sampled[0], key, sampled[1])

            sampled = rows, _keys_of_samples(rows, None)
            return nothing, _over_microbatches(sums, sampled, None, self.microbatches)

        return self._parallel(of_rows, {}, params, batch)[1]


def make_loss(resolved: Resolved, line: int = 0) -> Loss:
    """Make the loss of a run.

    Args:
        line: see mesh.line_of_devices.

    Raises:
        UserError: for a head or a loss that does not exist.
    """
    training = resolved.config.training
    loss = Loss(
        resolved.model,
        resolved.rows.packed,
        resolved.heads,
        LossSettings(
            training.z_loss,
            training.label_smoothing,
            training.loss_chunk,
            training.auxiliary_lm,
        ),
        resolved.rows.loss,
        training.microbatches,
        training.exact,
        resolved.config.mesh.reduce_dtype,
        line,
    )
    # Find them now, so that a wrong name ends the run before anything is compiled.
    _ = loss.heads, loss._function
    return loss


def _keys_of_samples(rows: Row, key: Array | None) -> Array:
    """Return a key for what is sampled in each row: of its number in the batch, so that samples
    depend neither on the mesh nor on microbatches. Without a key, all batches have the same.
    """
    of_samples = jax.random.fold_in(jax.random.key(0) if key is None else key, _SAMPLES)
    return jax.vmap(jax.random.fold_in, (None, 0))(of_samples, row_numbers(_count_rows(rows)))


def _count_rows(rows: Row) -> int:
    return len(next(iter(rows.values())))


def _whole_rows(output: ModelOutput, rows: Row) -> tuple[ModelOutput, Row]:
    """Return output and rows for a head that needs whole rows, gathered if devices share them."""
    return output._replace(hidden_states=whole_row(output.hidden_states)), rows


def _shared_rows(output: ModelOutput, rows: Row) -> tuple[ModelOutput, Row]:
    """Return this device's part of output and rows, for a head that treats each position of a
    decoder separately.
    """
    own = {
        name: own_positions(value) if name.startswith("decoder_") else value
        for name, value in rows.items()
    }
    return output, own


def _own_vocabulary(model: ModelDimensions) -> VocabularyShard:
    """Return the part of the vocabulary for which this device has logits."""
    rows = own_dimensions(model).embedding_rows
    ids = jnp.arange(rows) + part_number("tensor") * rows
    return VocabularyShard(model.vocab_size, ids, sum_over_vocabulary, max_over_vocabulary)


def real_positions(rows: Row, stack: str) -> Array:
    """Count the positions of a stack that are not padding."""
    return (rows[_segments_key(stack)] > 0).sum()


def _segments_key(stack: str) -> str:
    """Return the key of a stack's segments. A backward decoder reads the rows of a decoder."""
    return f"{stack.removeprefix('backward_')}_segments"


def _stack_of(name: str) -> str:
    """Return the stack that an auxiliary loss is of.

    >>> _stack_of("decoder_balance"), _stack_of("backward_decoder_balance")
    ('decoder', 'backward_decoder')
    """
    return next(stack for stack in STACKS if name.startswith(f"{stack}_"))


def _over_microbatches(compute: Callable, batch: Any, key: Array | None, parts: int) -> Any:
    """Sum compute(rows, key) over microbatches of a tree of rows, one after another."""
    if parts == 1:
        return compute(batch, key)

    # Row r goes to microbatch r mod parts. Each device splits its own rows, so no row moves.
    def split(x: Array) -> Array:
        return x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1)

    microbatches = jax.tree.map(split, batch)
    keys = None if key is None else jax.random.split(key, parts)
    # The sum starts from zeros of the shapes that compute returns.
    first = jax.tree.map(lambda x: x[0], (microbatches, keys))
    shapes = jax.eval_shape(compute, *first)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    def add(total: Any, microbatch: tuple[Any, Array | None]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, compute(*microbatch)), None

    return jax.lax.scan(add, zeros, (microbatches, keys))[0]
