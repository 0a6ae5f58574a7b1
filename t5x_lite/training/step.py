"""The train step and the evaluation step: pure functions of a state and a batch."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import struct
from flax.traverse_util import flatten_dict
from jaxtyping import Array

from t5x_lite.config import ModelDimensions, Training
from t5x_lite.model import transformer
from t5x_lite.model.dropout import Noise
from t5x_lite.model.heads import HEADS, HeadInput, ModelOutput, Params, Row
from t5x_lite.model.losses import LossSettings, Sums, Vocabulary
from t5x_lite.model.parts.contract import Measured
from t5x_lite.model.transformer import STACKS, initialise, parameter_shapes, split_axes
from t5x_lite.parallel import placement
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
from t5x_lite.parallel.mesh import DeviceMesh
from t5x_lite.training.adapt import FULL, Adaptation
from t5x_lite.training.optimizer import UpdateRule, names_of_state
from t5x_lite.training.schedules import Schedule

AllSums = dict[str, Sums]  # by head, and by auxiliary loss, such as decoder_balance
_HEADS = 1  # what the key of a step's dropout is folded with, for that of its heads


class TrainState(struct.PyTreeNode):
    """Data only: how many steps are done, the parameters, and the optimizer's state."""

    step: Any
    params: Any
    opt_state: Any


def fresh_parameters(model: ModelDimensions, seed: int) -> Params:
    """Draw all parameters: a function of the seed only."""
    return nn.meta.unbox(initialise(model, jax.random.key(seed)))


def first_state(trained: Params, optimizer: UpdateRule) -> TrainState:
    """The state before the first step."""
    return TrainState(jnp.zeros((), jnp.int32), trained, optimizer.init(trained))


def fresh_state(model: ModelDimensions, seed: int, optimizer: UpdateRule) -> TrainState:
    """Return the state before the first step, with fresh parameters."""
    return first_state(fresh_parameters(model, seed), optimizer)


def create_state(
    model: ModelDimensions,
    seed: int,
    optimizer: UpdateRule,
    shardings: TrainState,
) -> TrainState:
    """A fresh state, every array made where it is to lie."""
    make = jax.jit(lambda: fresh_state(model, seed, optimizer), out_shardings=shardings)
    return make()


def state_shapes(
    model: ModelDimensions,
    optimizer: UpdateRule,
    adaptation: Adaptation = FULL,
) -> TrainState:
    """The state as shapes; nothing is allocated."""
    trained, _ = adaptation.split_shapes(parameter_shapes(model))
    return jax.eval_shape(partial(first_state, optimizer=optimizer), trained)


def state_shardings(
    model: ModelDimensions,
    optimizer: UpdateRule,
    mesh: DeviceMesh,
    adaptation: Adaptation = FULL,
) -> tuple[TrainState, TrainState]:
    """The state's shapes, and where each of its arrays lies; nothing is allocated."""
    shapes = state_shapes(model, optimizer, adaptation)
    params = adaptation.trained_part(parameter_shardings(model, mesh))
    axes = adaptation.trained_part(split_axes(model))
    names_of = names_of_state(optimizer, shapes.params, axes)
    opt_state = placement.optimizer_shardings(shapes.opt_state, names_of, model.num_kv_heads, mesh)
    return shapes, TrainState(placement.replicated(mesh), params, opt_state)


def parameter_shardings(model: ModelDimensions, mesh: DeviceMesh) -> Any:
    """Return where each parameter of a model lies."""
    return placement.parameter_shardings(split_axes(model), model.num_kv_heads, mesh)


def make_parallelism(
    model: ModelDimensions, reduce_dtype: str = "float32", line: int = 0, exact: bool = False
) -> Parallelism:
    """Say how all devices of the mesh in use compute a model's gradient."""
    names: Any = flatten_dict(split_axes(model))
    return Parallelism(names, model.num_kv_heads, model.dtype, reduce_dtype, line, exact)


class Loss:
    """The loss of a model: the sums of its heads and of its auxiliary losses.

    Args:
        packed: whether a row may hold several segments.
        heads: names in HEADS.
        parallel: how several devices share the work; None: by what the mesh in use says.
    """

    def __init__(
        self,
        model: ModelDimensions,
        packed: bool,
        heads: tuple[str, ...],
        training: Training,
        parallel: Parallelism | None = None,
    ):
        self.model = model
        self._parallel = parallel or make_parallelism(model)
        self.heads = {name: HEADS[name] for name in heads}
        self.microbatches = training.microbatches
        self._exact = training.exact
        self._packed = packed
        self._settings = LossSettings(
            training.z_loss,
            training.label_smoothing,
            training.loss_chunk,
            training.auxiliary_lm,
        )

    def sums(self, params: Params, rows: Row, key: Array | None = None) -> AllSums:
        """The sums over these rows; key: for dropout, None: none."""
        params = self._parallel.outside_of_layers(params)
        output = transformer.apply(
            self.model, params, rows, self._packed, key, self._parallel.of_layer
        )
        # What is predicted, each head from the hidden states that it reads.
        sums = {}
        for name, head in self.heads.items():
            of_head = _shared_rows if head.splits_rows else _whole_rows
            head_output, head_rows = of_head(output, rows)
            head_sums = head.sums(
                HeadInput(
                    own_dimensions(self.model),
                    params,
                    head.read(head_output, head_rows),
                    head_rows,
                    self._settings,
                    _own_vocabulary(self.model),
                    Noise(row_numbers(_count_rows(rows)), part_number("tensor"), key is not None),
                    None if key is None else jax.random.fold_in(key, _HEADS),
                )
            )
            sums[name] = sum_over_sequence(head_sums) if head.splits_rows else head_sums
        # What the blocks themselves ask for, such as the balance of a mixture of experts, and what
        # they have measured.
        for stack, found in output.auxiliary.items():
            for name, total in found.items():
                figure = f"{stack}_{name}"
                if isinstance(total, Measured):
                    sums[figure] = {"measured": total.total, "weight": total.weight}
                else:
                    sums[figure] = {"total_loss": total, "weight": real_positions(rows, stack)}
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


def make_train_step(
    loss: Loss,
    seed: int,
    optimizer: UpdateRule,
    schedule: Schedule,
    adaptation: Adaptation = FULL,
) -> Callable[..., tuple[TrainState, dict]]:
    """(state, batch, frozen) → (state, metrics): the sums of the loss, the learning rate, and the
    norms of gradient and parameters. `frozen` are the parameters that are not trained.
    """

    def train_step(
        state: TrainState, batch: Row, frozen: Params | None = None
    ) -> tuple[TrainState, dict]:
        # All that is drawn is a function of (seed, step): a run that continues draws the same.
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        grads, sums = loss.gradient(state.params, batch, key, frozen, adaptation.merge)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        step_metrics = {
            "sums": sums,
            "gradient_norm": optax.tree.norm(grads),
            "parameter_norm": optax.tree.norm(params),
            "learning_rate": jnp.asarray(schedule(state.step)),
        }
        return TrainState(state.step + 1, params, opt_state), step_metrics

    return train_step
