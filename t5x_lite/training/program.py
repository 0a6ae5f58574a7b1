"""The compiled steps of a run. They follow from its config and the sizes of its vocabulary and
rows, so they need neither text nor the devices: `train` runs them, and `plan` traces and compiles
them for devices of another machine.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import NamedSharding, PartitionSpec

from t5x_lite.data.rows.layouts import row_types
from t5x_lite.errors import BAD_CONFIG, UserError
from t5x_lite.model.check import check_model, has_experts, shares_rows, undivided
from t5x_lite.model.heads import Row
from t5x_lite.model.kernels import explain_choice
from t5x_lite.model.masks import find_rules
from t5x_lite.model.parts.positions import make_positions
from t5x_lite.model.parts.table import make_mixer
from t5x_lite.model.transformer import (
    parameter_axes,
    parameter_shapes,
    self_attention_mask,
)
from t5x_lite.parallel import exact
from t5x_lite.parallel.axes import BATCH
from t5x_lite.parallel.mesh import check_batch, line_of_devices, make_mesh, padded_for
from t5x_lite.parallel.presets import Workload, arrange
from t5x_lite.resolve import Resolved
from t5x_lite.training.adapt import Adaptation, parse_adaptation
from t5x_lite.training.averaging import check_average
from t5x_lite.training.computation import Computation, shared, shared_evaluation, shared_rate
from t5x_lite.training.loss import make_loss
from t5x_lite.training.optimizer import make_optimizer
from t5x_lite.training.step import (
    TrainState,
    parameter_shardings,
    state_shapes,
)


def check_head(resolved: Resolved) -> None:
    """Reject a model without a language model head for an objective that predicts tokens. It may be
    imported and asked for embeddings, but not trained or evaluated.
    """
    config = resolved.config
    needs_head = resolved.heads[0] in ("lm", "mlm") and resolved.rows.loss == "heads"
    if needs_head and not resolved.model.lm_head:
        reason = f"got False, but {config.objective} predicts tokens"
        fix = "set it to True, which draws a fresh head"
        raise UserError(BAD_CONFIG, f"model.lm_head: {reason}; {fix}")


class Program:
    """The mesh of a run, its loss, and the steps that are compiled.

    Attributes:
        resolved: the run, with its vocabulary padded for the mesh.
        arrangement: a sentence that says which mesh mesh.preset chose; empty without a preset.

    Args:
        raw_tokens: tokens that a batch reads, for schedules that count them.
        devices: the devices to use; None: all devices here. Devices of a hardware.Topology allow
            tracing, those of a compiler also lowering.

    Raises:
        UserError: if something does not divide over the mesh, or the model lacks a head.
    """

    def __init__(
        self, resolved: Resolved, raw_tokens: float = 0.0, devices: Sequence[Any] | None = None
    ):
        config = resolved.config
        check_head(resolved)
        check_average(config.optimizer, resolved.steps - config.start.step)
        self.resolved = resolved  # replaced below, once the mesh is known
        self._raw_tokens = raw_tokens
        devices = jax.devices() if devices is None else devices
        shape = resolved.rows.shape

        # Choose the mesh: the sizes of the config, or those that its preset finds for this model.
        lengths = [length for length in (shape.encoder, shape.decoder) if length]
        sizes, self.arrangement = config.mesh, ""
        if sizes.preset:
            # Microbatches are computed one after another, so only one has to divide and to fit.
            rows = config.data.batch_size // config.training.microbatches
            work = Workload(
                rows=rows,
                lengths=lengths,
                state_bytes=self._state_bytes(),
                undivided=partial(undivided, resolved.model),
                shares_rows=shares_rows(resolved.model),
            )
            sizes, self.arrangement = arrange(sizes, work, devices)
        self.mesh = make_mesh(sizes, devices)
        check_model(resolved.model, shape, replace(sizes, **self.mesh.shape), devices[0].platform)
        # Pad the vocabulary, so that its rows divide over the devices that share it.
        model = padded_for(self.mesh, resolved.model)
        self.resolved = replace(resolved, model=model)

        # Check that rows divide over the mesh, also in an exact sum over all of them.
        check_batch(config.data.batch_size, config.training.microbatches, self.mesh)
        if config.training.exact:
            exact.check(config.data.batch_size, dict(self.mesh.shape))
            if has_experts(model):
                reason = "experts are balanced over the rows of all devices at once"
                raise UserError(BAD_CONFIG, f"training.exact: {reason}; set it to False")

        # The computation: the loss, whose gradient all devices of the mesh compute, and the update.
        self.loss = make_loss(self.resolved, line_of_devices(self.mesh))
        computation = Computation(self.loss, config.optimizer, config.adapt, self.mesh)
        if config.optimizer.average:
            start = config.start
            computation = replace(
                computation,
                average_steps=resolved.steps - start.step,
                updates_before=start.step - start.optimizer_step,
            )
        self.computation = shared(computation)
        self.computation.adaptation.check(model)
        if config.training.exact:
            rule, state = self.computation.any_rule, self.shapes
            exact.check_rule(rule.update, state.params, state.opt_state, state.params)

    def _state_bytes(self) -> int:
        """Return the bytes of parameters, gradients and optimizer state."""
        model, config = self.resolved.model, self.resolved.config
        adaptation = parse_adaptation(config.adapt)
        axes = adaptation.trained_part(parameter_axes(model))
        # The learning rate does not change any shape, so any schedule will do.
        rule = make_optimizer(config.optimizer, lambda count: jnp.zeros(()), axes)
        state = state_shapes(model, rule, adaptation)
        _, untrained = adaptation.split_shapes(parameter_shapes(model))
        # Gradients have the shapes of the trained parameters.
        everything = (state.params, state, untrained)
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(everything))

    @contextmanager
    def within(self) -> Iterator[None]:
        """Use the mesh and the sharding rules under which everything is traced."""
        with self.computation.within():
            yield

    @property
    def adaptation(self) -> Adaptation:
        """The choice of trained parameters."""
        return self.computation.adaptation

    @property
    def shapes(self) -> TrainState:
        """The state as shapes, without allocating anything."""
        return self.computation.shapes

    @property
    def shardings(self) -> TrainState:
        """Sharding of each array of the state."""
        return self.computation.shardings

    @cached_property
    def eval_step(self) -> Any:
        """Compiled function: (parameters, batch) → sums of the loss."""
        return shared_evaluation(self.loss, self.mesh)

    @cached_property
    def rate(self) -> Any:
        """Compiled function: step → learning rate, on all devices. It is not a part of the train
        step, which depends neither on the schedule nor on the length of the run.
        """
        config = self.resolved.config
        end = config.start.schedule_end or self.resolved.steps
        begin = config.start.schedule_step
        return shared_rate(config.optimizer, end, self._raw_tokens, begin, self.mesh)

    @property
    def attention(self) -> str:
        """The kernel that computes self-attention in each stack, and why it is not a better one; ""
        for a mixer without attention.
        """
        model, shape = self.resolved.model, self.resolved.rows.shape
        if not getattr(make_mixer(model, parent=None), "takes_positions", False):
            return ""
        chosen = {
            stack: self._attention_of(stack)
            for stack in ("encoder", "decoder")
            if getattr(shape, stack)
        }
        if len(set(chosen.values())) == 1:
            return chosen.popitem()[1]
        return ", ".join(f"{stack} {kernel}" for stack, kernel in chosen.items())

    def _attention_of(self, stack: str) -> str:
        model, rows, explained = self.resolved.model, self.resolved.rows, ""

        def explain(row: Row) -> Row:
            nonlocal explained
            mask = self_attention_mask(model, row, stack, rows.packed)
            if model.layer_pattern:  # layers of both kinds take one kernel
                mask = mask.replace(rules=mask.rules + find_rules(model.local_rules))
            dropout, learned_prefix = model.attention_dropout > 0, model.prefix_length > 0
            kind = make_positions(model)
            explained = explain_choice(model, mask, kind, dropout, learned_prefix)
            return row

        # Traced alone: nothing is computed, or moves to a device.
        jax.eval_shape(explain, self._batch(1))
        return explained

    def _batch(self, rows: int, **more: Any) -> dict[str, jax.ShapeDtypeStruct]:
        """Return a batch of so many rows of text, as shapes."""
        plan = self.resolved.rows
        return {
            key: jax.ShapeDtypeStruct((rows, *shape), dtype, **more)
            for key, (shape, dtype) in row_types(plan.shape, plan.has_sentence_pairs).items()
        }

    def trace(self) -> jax.stages.Traced:
        """Trace the train step of a run on text, without allocating anything. The result has
        `jaxpr`, and `lower()` for the compiler of the devices.
        """
        # A batch as shapes, with its rows sharded over the devices that share the batch.
        by_rows = NamedSharding(self.mesh, PartitionSpec(BATCH))
        batch = self._batch(self.resolved.config.data.batch_size, sharding=by_rows)
        # The state is also given as shapes, each with its sharding.
        state = jax.tree.map(_placed, self.shapes, self.shardings)
        rate = jax.eval_shape(self.rate, np.int32(0))
        train_step: Any = self.computation.train_step
        with self.within():
            return train_step.trace(state, batch, np.uint32(0), rate, self.frozen)

    @property
    def frozen(self) -> Any:
        """The frozen parameters as shapes, with their shardings."""
        _, shapes = self.adaptation.split_shapes(parameter_shapes(self.resolved.model))
        untrained: Any = flatten_dict(shapes)
        where = self.parameters
        return unflatten_dict(
            {path: _placed(leaf, where[path].sharding) for path, leaf in untrained.items()}
        )

    @cached_property
    def parameters(self) -> dict[tuple[str, ...], jax.ShapeDtypeStruct]:
        """Shape, type and sharding of each parameter, by path."""
        model = self.resolved.model
        shapes = parameter_shapes(model)
        placed = jax.tree.map(_placed, shapes, parameter_shardings(model, self.mesh))
        return flatten_dict(placed)  # pyrefly: ignore[bad-return]


def _placed(leaf: Any, where: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)
