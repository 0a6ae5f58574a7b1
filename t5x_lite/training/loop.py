"""The training loop.

batches → mesh → state (fresh or restored) → steps → metrics, evaluation, checkpoints
"""

import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t5x_lite import storage
from t5x_lite.cache import cache_directory
from t5x_lite.config import RunConfig
from t5x_lite.config.amounts import Amount, Unit, parse_amount
from t5x_lite.data.rows.batches import Batches, RunData, ledger
from t5x_lite.data.rows.streams import VERSION as STREAM_VERSION
from t5x_lite.data.tasks.kinds.table import metrics_of
from t5x_lite.data.tasks.task_data import TaskPlan
from t5x_lite.errors import BAD_CONFIG, BAD_DATA, UserError
from t5x_lite.model.flops import peak_flops
from t5x_lite.model.heads import Row
from t5x_lite.model.parts.table import unsplit_parts
from t5x_lite.model.threefry import compile_unrolled
from t5x_lite.model.transformer import initialise, parameter_axes
from t5x_lite.parallel.placement import place_batch, replicated
from t5x_lite.progress import say
from t5x_lite.resolve import Resolved, last_step
from t5x_lite.training import loaded_model, run_directory, run_history, starting, text_conventions
from t5x_lite.training.averaging import average_or_newest, restarted
from t5x_lite.training.best import PREFIX, BestCheckpoint
from t5x_lite.training.checkpoint import Checkpoints
from t5x_lite.training.health import MOST_SKIPPED, Health
from t5x_lite.training.loaded_model import LoadedModel
from t5x_lite.training.log import Log, first_not_finite, mean_metrics
from t5x_lite.training.loss import step_flops
from t5x_lite.training.optimizer import make_optimizer
from t5x_lite.training.processes import Heartbeat, check_same
from t5x_lite.training.program import Program
from t5x_lite.training.rollback import Diverged, go_back
from t5x_lite.training.step import TrainState, parameter_shardings, state_shapes
from t5x_lite.training.stopping import StopSignal
from t5x_lite.training.whole_text import BATCHES


def setup_jax(dtype: str = "float32") -> None:
    """Enable 64 bits only for float64, compile random numbers for CPUs the fast way, and keep
    compiled programs in the private cache, so that a second start need not compile.
    """
    compile_unrolled()
    jax.config.update("jax_enable_x64", dtype == "float64")
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update("jax_compilation_cache_dir", str(cache_directory() / "xla"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


class Evaluator:
    """The parts of a run that evaluation needs: its validation split, and its program, compiled for
    the given devices or else for all.
    """

    def __init__(
        self,
        resolved: Resolved,
        data: RunData,
        devices: Sequence[Any] | None = None,
        raw_tokens: float = 0.0,
    ):
        self.tokenizer = data.tokenizer
        self.validation = data.batches("validation")
        self.program = Program(resolved, raw_tokens, devices)
        self.resolved = self.program.resolved

    def within(self) -> AbstractContextManager[None]:
        """Use the mesh and the sharding rules under which everything is traced."""
        return self.program.within()

    def batch(self, batches: Batches, step: int) -> dict[str, jax.Array]:
        """Return batch number `step` (from 0), sharded over the mesh."""
        # Each process makes only the rows that its own devices hold.
        rows_at = partial(batches.batch_at, step)
        return place_batch(rows_at, batches.batch_size, self.program.mesh)

    def evaluate(
        self, params: Any, most: int = 0, on_batch: Callable[[int], None] = lambda number: None
    ) -> dict[str, float]:
        """Compute the metrics over all rows of the validation split.

        Args:
            most: number of batches to read, from the first; 0: all.
            on_batch: called after each batch with its number, from 1, and with 0 at the end.
        """
        # Add up sums and weights over all batches, and divide once at the end.
        total: dict = {}
        batches = self.validation.validation_batches
        for step in range(min(batches, most or batches)):
            sums = jax.device_get(self.program.eval_step(params, self.batch(self.validation, step)))
            sums = jax.tree.map(float, sums)
            total = jax.tree.map(lambda a, b: a + b, total, sums) if total else sums
            on_batch(step + 1)
        on_batch(0)
        return mean_metrics(total)


class Run(Evaluator):
    """The parts of a run that do not change: those that evaluation needs, its training batches, and
    the parameters that are not trained.
    """

    def __init__(self, resolved: Resolved, data: RunData, devices: Sequence[Any] | None = None):
        config = resolved.config
        self.batches = data.batches("train")
        # Read a few rows before anything is compiled: they must contain something to learn.
        self.ledger = ledger(self.batches)
        if not self.ledger.loss_tokens:
            reason = f"objective={config.objective}: scores nothing in the first rows"
            raise UserError(BAD_DATA, f"{reason}; use inspect to see them")
        resolved = replace(resolved, steps=last_step(resolved.config, self.batches))
        super().__init__(resolved, data, devices, self.batches.raw_tokens)
        self.kept = _steps_to_keep(self.resolved.config, self.batches, self.resolved.steps)
        self.adaptation = self.program.adaptation
        self.frozen: Any = {}  # parameters that are not trained

    def train_step(
        self, state: TrainState, batch: Row, limits: tuple[float, float] | None = None
    ) -> tuple[TrainState, dict]:
        """Do one step: (state, batch) → (state, metrics). The first call compiles. The memory of
        `state` is reused, so it must not be read again.

        Args:
            limits: see make_train_step.
        """
        arguments = state, batch, self._seed, self.program.rate(state.step), self.frozen
        if limits is None:
            return self.program.computation.train_step(*arguments)
        on_host = tuple(np.float32(limit) for limit in limits)  # the same in all processes
        return self.program.computation.train_step(*arguments, on_host)

    @cached_property
    def _seed(self) -> jax.Array:
        """The seed, on all devices."""
        return jax.device_put(np.uint32(self.resolved.config.seed), replicated(self.program.mesh))

    def training_batch(self, events: Sequence[dict[str, Any]], step: int) -> Row:
        """Return the batch of a step (from 1), given the history of the run."""
        number = run_history.batch_number(events, step)
        return self.batch(self.batches, number - self.resolved.config.start.step)

    def text_read(self, step: int) -> dict[str, int]:
        """Return the raw tokens and the words that have been read after a step."""
        start, batches = self.resolved.config.start, self.batches
        steps = step - start.step
        words_before = start.raw_tokens * batches.words / batches.raw_tokens
        return {
            "raw_tokens": start.raw_tokens + round(steps * batches.raw_tokens),
            "words": round(words_before + steps * batches.words),
        }

    def fresh_state(self) -> TrainState:
        """Return the state before the first step."""
        return self._first_state(self._draw(self.program.shardings.params))

    def _counting_on(self, state: TrainState) -> TrainState:
        """Let a stage count on from the steps before it."""
        return state.replace(step=self._first_step())

    def _first_step(self) -> jax.Array:
        """Return the number of steps before the first one, on all devices."""
        before = np.int32(self.resolved.config.start.step)
        return jax.device_put(before, replicated(self.program.mesh))

    def start(self, checkpoints: Checkpoints) -> TrainState:
        """Return the newest saved state or, if there is none, a fresh state, with the parameters of
        init_from if that is set.
        """
        step = checkpoints.newest
        # Frozen parameters are not in the checkpoints, so load them from init_from in any case.
        if not self.adaptation.is_full:
            state = self._adapted()
            if step is None:
                return state
        if step is not None:
            axes = parameter_axes(self.resolved.model)
            return checkpoints.restore(step, self.program.shapes, self.program.shardings, axes)
        state = self.fresh_state()
        if not self.resolved.config.init_from:
            return state
        mesh, program = self.program.mesh, self.program
        if self.resolved.config.start.takes_optimizer:
            state = starting.restore_state(self.resolved, program.shapes, program.shardings)
            return self._counting_on(state)
        # Take the parameters of init_from, but not its optimizer state.
        params, report = starting.merge_parameters(self.resolved, state.params, mesh)
        say(report)
        return state.replace(params=params, opt_state=restarted(params, state.opt_state))

    def _adapted(self) -> TrainState:
        """Load the parameters of init_from, keep those that are frozen, and return a fresh state of
        those that are trained.
        """
        model, program = self.resolved.model, self.program
        everything = parameter_shardings(model, program.mesh)
        fresh = self._draw(everything)
        params, report = starting.merge_parameters(self.resolved, fresh, program.mesh)
        say(report)
        trained, self.frozen = self.adaptation.split(params)
        return self._first_state(trained)

    def _draw(self, shardings: Any) -> Any:
        """Draw fresh parameters. Each array is made on the devices that hold it."""
        return initialise(self.resolved.model, self.resolved.config.seed, shardings)

    def _first_state(self, trained: Any) -> TrainState:
        """Return the state before the first step, which reuses the memory of the parameters."""
        rate = self.program.rate(self._first_step())  # the learning rate of the first step
        return self._counting_on(self.program.computation.first_state(trained, rate))

    def whole(self, state: TrainState) -> Any:
        """Return the parameters that are evaluated, trained and frozen ones together."""
        trained = average_or_newest(state.params, state.opt_state)
        return self.adaptation.merge(trained, self.frozen)

    def loaded(self, params: Any, step: int) -> LoadedModel:
        """Return the model as inference uses it."""
        resolved = self.resolved
        model = loaded_model.model_here(resolved.model)
        mesh = self.program.mesh
        return LoadedModel(
            resolved.config, resolved.rows, model, self.tokenizer, params, step, mesh
        )

    @cached_property
    def _row_flops(self) -> float:
        """FLOPs per row that the mathematics needs, without recomputation: MFU counts these."""
        return step_flops(self.resolved, self.batches.shape, self.ledger.scored)

    def rates(self, seconds: float, steps: int) -> dict[str, Any]:
        """Return the speed of training: tokens per second (encoder and decoder, without padding),
        seconds per step and MFU. `device_memory` is the peak of the first device in bytes, or None
        if the device does not report it.
        """
        model = self.resolved.model
        rows_per_second = self.batches.batch_size * steps / max(seconds, 1e-9)
        flops = rows_per_second * self._row_flops
        peak = peak_flops(jax.devices()[0].device_kind, model.dtype)
        stats = jax.local_devices()[0].memory_stats() or {}
        return {
            "tokens_per_second": rows_per_second * self.ledger.model_tokens,
            "step_seconds": seconds / max(steps, 1),
            "device_memory": stats.get("peak_bytes_in_use"),
            "mfu": flops / (peak * self.program.mesh.size) if peak else None,
            "train_seconds": seconds,
        }


@dataclass(frozen=True)
class KeptSteps:
    """The steps whose checkpoints are kept: multiples of `every`, if that is not 0, and some more.

    >>> 6 in KeptSteps(3, frozenset({4})), 5 in KeptSteps(3, frozenset({4}))
    (True, False)
    """

    every: int
    more: frozenset[int]

    def __contains__(self, step: object) -> bool:
        return step in self.more or (isinstance(step, int) and is_due(step, self.every))


def _steps_to_keep(config: RunConfig, batches: Batches, steps: int) -> KeptSteps:
    """Return the steps that training.keep_every and training.keep_at name.

    Args:
        steps: the last step of the run.

    Raises:
        UserError: if these are words, and the words of the text were not counted.
    """
    in_a_step: dict[Unit, float] = {
        "steps": 1.0,
        "tokens": batches.raw_tokens,
        "words": batches.words,
    }
    more = set()
    for text in config.training.keep_at:
        amount = parse_amount(text)
        assert amount is not None  # the config has been checked
        if not in_a_step[amount.unit]:
            reason = f"got {text}, but the words of this text were not counted"
            has_store = config.data.source and not config.task.source
            fix = "count tokens, or make its store anew" if has_store else "count tokens"
            raise UserError(BAD_CONFIG, f"training.keep_at: {reason}; {fix}")
        if amount.unit == "steps":
            step = int(amount.number)
        else:
            # What stages before have read counts, too; an amount of theirs is not kept here.
            before = config.start.raw_tokens * in_a_step[amount.unit] / batches.raw_tokens
            if amount.number <= before:
                continue
            rest = Amount(amount.number - before, amount.unit)
            step = config.start.step + rest.to_steps(in_a_step)
        # Epochs end with their last whole batch, at most one step before this amount of text.
        if amount.unit != "steps" and step == steps + 1 and steps < config.training.steps:
            step = steps
        if step > steps:
            after = f"{text} would be step {step:,}, after the last, {steps:,}"
            say(f"training.keep_at: {after}")
        more.add(step)
    return KeptSteps(config.training.keep_every, frozenset(more))


def state_sizes(resolved: Resolved) -> tuple[int, int]:
    """Return the bytes of parameters and optimizer state together, and the bytes of the gradients,
    without allocating anything.
    """
    # The learning rate does not change any shape, so any schedule will do.
    optimizer = make_optimizer(
        resolved.config.optimizer, lambda step: jnp.zeros(()), parameter_axes(resolved.model)
    )
    state = state_shapes(resolved.model, optimizer)

    def size(tree: Any) -> int:
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))

    return size(state), size(state.params)


# Returns the metrics of a task, computed from a model's predictions.
Judge = Callable[[LoadedModel], dict[str, float]]


def train(
    resolved: Resolved,
    data: RunData,
    workdir: Path,
    on_log: Callable[[dict], None] | None = None,
    judge: Judge | None = None,
    take_over: bool = False,
    change: bool = False,
) -> None:
    """Train in `workdir`, starting from its newest checkpoint if there is one.

    Args:
        take_over: take the directory over from an earlier process, if it is unclear whether that
            has ended.
        change: let the settings of the optimizer differ from those that the run began with.
        on_log: called with each record of metrics.jsonl.
        judge: computes the metrics of a task at each evaluation; only for runs on a task.

    Raises:
        UserError: exit code 129, 130 or 143 after a signal, with everything saved; 76 if a
            metric is not finite, with nothing of that step saved; 74 if a checkpoint could not be
            written.
    """
    setup_jax(resolved.model.dtype)
    run = Run(resolved, data)  # rejects a run that cannot work before anything is written
    config = run.resolved.config
    # Processes that differ in their settings or text would hang or learn different things.
    if jax.process_count() > 1:
        history = json.dumps(run_history.events(workdir))
        check_same(run_directory.facts(config, workdir, data) | {"the run's history": history})
    has_begun = storage.durable_path(workdir / "checkpoints").is_dir()
    if not (has_begun and config.init_from):
        starting.check_init_from(run.resolved, data.tokenizer)
    with run_directory.owned(workdir, config, run.batches, data, take_over, change):
        if config.init_from:
            text_conventions.keep_ends(workdir, run_directory.base_of(config).directory)
        if not run.adaptation.is_full or config.start.step:
            base = run_directory.base_of(config)
            # A stage that has begun needs the one before no more, but must not follow another.
            if not (has_begun and run.adaptation.is_full) or base.is_run:
                loaded_model.record_base(workdir, base)
        # A checkpoint is only restored with the settings and the row order it was made with.
        settings = run_directory.fixed_settings(run.resolved.written_out)
        settings["version of the stream"] = STREAM_VERSION
        origin = settings, run_history.identity(workdir), run_directory.text_hashes(data)
        checkpoints = Checkpoints(workdir / "checkpoints", *origin, kept=run.kept)
        events = run_history.events(workdir)
        stop = StopSignal()
        try:
            with run.within(), stop.listening():
                while True:
                    best = _best_checkpoint(run, checkpoints, workdir, origin) if judge else None
                    try:
                        _train_steps(run, checkpoints, workdir, events, stop, on_log, judge, best)
                        break
                    except Diverged as diverged:
                        events.append(
                            go_back(config, run.batches, checkpoints, workdir, events, diverged)
                        )
                    finally:
                        if best:
                            best.close()
        finally:
            checkpoints.close()


def _best_checkpoint(
    run: Run, checkpoints: Checkpoints, workdir: Path, origin: tuple
) -> BestCheckpoint | None:
    """Return what keeps the best parameters of a run on a task, and may stop it early."""
    rows, patience = run.resolved.rows, run.resolved.config.training.patience
    if not isinstance(rows, TaskPlan):
        return None
    metric = f"{PREFIX}{metrics_of(rows.task)[0]}"
    return BestCheckpoint(workdir, origin, metric, checkpoints.newest or 0, patience)


def _train_steps(
    run: Run,
    checkpoints: Checkpoints,
    workdir: Path,
    events: list[dict[str, Any]],
    stop: StopSignal,
    on_log: Callable | None,
    judge: Judge | None,
    best: BestCheckpoint | None,
) -> None:
    config = run.resolved.config
    exit_code = 0
    first, last = checkpoints.newest or config.start.step, run.resolved.steps
    # A run that has already stopped early does no further step.
    if best and best.is_over:
        last = first
    health = _saved_health(checkpoints, workdir)
    log = Log(workdir, config, first, last, active=jax.process_index() == 0, on_log=on_log)
    profile = Profile(config.training.profile, workdir)
    stacks = workdir / f"stacks-{jax.process_index()}.txt"
    heartbeat = Heartbeat(stacks, lambda: log.watch.now, config.training.stuck_after)
    with log, profile, heartbeat:
        say(_setting_of(run, first, last))
        with log.watch("compile"):
            if first < last:
                log.status("compiling the train step")
            state = run.start(checkpoints)
        batch_of = partial(run.training_batch, events)
        batches = prefetch(batch_of, first + 1, last + 1, config.data.workers)
        pending = None  # the last step and its metrics, not read yet
        for step in range(first + 1, last + 1):
            # The wait counts as data only where the device is idle, not while it computes a step.
            with log.watch("data", counts=partial(_is_done, pending)):
                batch = next(batches)
            # The first call compiles; every call returns before the step is computed.
            with log.watch("compile" if step == first + 1 else "step"), profile.around(step):
                limits = health.limits(step) if config.training.skip_step else None
                state, step_metrics = run.train_step(state, batch, limits)
            # Read the step before while this one computes, so that the device never waits.
            _read_metrics(run, log, heartbeat, health, pending)
            pending = step, step_metrics

            # All processes decide alike here, since evaluating and saving involve all of them.
            exit_code = stop.exit_code()
            is_last = step == last or exit_code
            evaluating = is_due(step, config.training.eval_every) or step == last
            saving = is_due(step, config.training.checkpoint_every) or step in run.kept or is_last
            # Evaluate and save only after the metrics of this step are known to be finite.
            if evaluating or saving:
                _read_metrics(run, log, heartbeat, health, pending)
                pending = None
            if evaluating:
                # The last evaluation reads the whole split, whatever training.eval_steps is.
                most = 0 if step == last else config.training.eval_steps
                validation = _evaluate(run, log, heartbeat, state, step, judge, most)
                if best and _has_converged(best, log, step, validation, state) and not is_last:
                    say(f"stopping early: no improvement in {config.training.patience} evaluations")
                    last, is_last, saving = step, True, True
            if saving:
                _save(run, checkpoints, log, health, events, step, state)
            # Saving goes on in the background; an error in it ends the run at the next step.
            checkpoints.check()
            if is_last:
                break
        with log.watch("checkpoint"):
            checkpoints.wait()
        say(log.watch.summary())
    if exit_code and step < last:
        reason = f"stopped after step {step} of {last}, which is saved"
        raise UserError(exit_code, f"{reason}; the same command continues")


def _saved_health(checkpoints: Checkpoints, workdir: Path) -> Health:
    """Return the figures of the newest checkpoint, if any; say if metrics.jsonl has changed since
    then.
    """
    if not checkpoints.newest:
        return Health()
    facts = checkpoints.facts(checkpoints.newest)
    if jax.process_index() == 0:
        run_directory.check_records(workdir, facts)
    return Health(facts.get("health"))


def _evaluate(
    run: Run,
    log: Log,
    heartbeat: Heartbeat,
    state: TrainState,
    step: int,
    judge: Judge | None,
    most: int,
) -> dict[str, float]:
    """Return and log the metrics of the validation split, or of its first `most` batches, and those
    of a task.
    """
    with log.watch("evaluation"):
        params = run.whole(state)
        validation = run.evaluate(params, most, heartbeat.evaluated)
        if 0 < most < run.validation.validation_batches:
            validation[BATCHES] = most
        if judge:
            judged = judge(run.loaded(params, step))
            validation |= {f"{PREFIX}{name}": value for name, value in judged.items()}
    _check_finite(step, validation)
    log.write(step, "validation", validation)
    return validation


def _has_converged(
    best: BestCheckpoint, log: Log, step: int, validation: dict[str, float], state: TrainState
) -> bool:
    """Keep the parameters if they are the best so far; return True if nothing has improved for
    training.patience evaluations.
    """
    with log.watch("checkpoint"):
        best.record(step, validation, average_or_newest(state.params, state.opt_state))
    return best.is_over


def _save(
    run: Run,
    checkpoints: Checkpoints,
    log: Log,
    health: Health,
    events: list[dict[str, Any]],
    step: int,
    state: TrainState,
) -> None:
    """Start to save a checkpoint, after the metrics up to its step."""
    if not health.is_healthy:
        reason = "the loss or the gradient norm is far above those of the last healthy steps"
        if run.resolved.config.training.rollback:
            raise Diverged(step, f"step {step}: {reason}; this step is not saved")
        say(f"step {step}: {reason}; it is saved beside the last healthy checkpoints")
    with log.watch("checkpoint"):
        # Metrics go to disk first: a checkpoint never lacks those before it.
        metrics = log.sync()
        facts = {
            **run.text_read(step),
            "metrics": metrics,
            "health": health.to_json(),
            "history": events,
        }
        checkpoints.save(step, state, facts, healthy=health.is_healthy)
        log.callbacks.call("on_checkpoint", step, checkpoints.directory / f"{step}")


def _setting_of(run: Run, first: int, last: int) -> str:
    """Describe in one line which devices train, and from which step on."""
    mesh = run.program.mesh
    sizes = [f"{axis} {size}" for axis, size in mesh.shape.items() if size > 1]
    text = f"{mesh.size} × {jax.local_devices()[0].device_kind}"
    if sizes:
        text += f", mesh {' × '.join(sizes)}"
    text += f", {run.resolved.model.dtype}"
    attention = run.program.attention
    if attention:
        text += f", attention {attention}"
    if first >= last:
        text += f"; already at step {first} of {last}"
    elif first == run.resolved.config.start.step > 0:
        text += f"; a stage from step {first} to {last}"
    elif first:
        text += f"; continuing from step {first} of {last}"
    whole = unsplit_parts(run.resolved.model, mesh.shape)
    return "\n".join(filter(None, (text, run.program.arrangement, *whole)))


def _read_metrics(
    run: Run, log: Log, heartbeat: Heartbeat, health: Health, pending: tuple[int, dict] | None
) -> None:
    """Wait for a step's metrics, end the run if one is not finite, and log them when due."""
    if pending is None:
        return
    step, step_metrics = pending
    # This blocks until the device has computed the step.
    step_metrics = jax.device_get(step_metrics)
    values = mean_metrics(step_metrics.pop("sums"))
    values |= {name: float(value) for name, value in step_metrics.items()}
    heartbeat.finished(step)
    log.at(step)
    if values.pop("skipped", 0):
        health.skip()
        figures = f"loss {values['total_loss']:.4g}, gradient norm {values['gradient_norm']:.4g}"
        say(f"step {step}: {figures}; its update is left out")
        if health.skipped_in_a_row >= MOST_SKIPPED:
            reason = f"the updates of {MOST_SKIPPED} steps in a row were left out"
            raise Diverged(step, f"step {step}: {reason}; this step is not saved")
        return
    health.record(step, values["total_loss"], values["gradient_norm"])
    _check_finite(step, values)
    if run.resolved.config.training.skip_step:
        values["skipped_steps"] = health.skipped
    log.callbacks.call("on_step", step, values)
    if is_due(step, run.resolved.config.training.log_every) or step == run.resolved.steps:
        values["raw_tokens"] = run.text_read(step)["raw_tokens"]
        log.write(step, "train", values | run.rates(*log.lap(step)))


def _is_done(pending: tuple[int, dict] | None) -> bool:
    """Return True if no step is being computed."""
    return pending is None or all(value.is_ready() for value in jax.tree.leaves(pending[1]))


def _check_finite(step: int, step_metrics: dict) -> None:
    bad = first_not_finite(step_metrics)
    if bad:
        raise Diverged(step, f"step {step}: {bad} is {step_metrics[bad]}; this step is not saved")


def prefetch(batch_at: Callable[[int], Any], first: int, last: int, workers: int) -> Iterator[Any]:
    """Yield batch_at(first), …, batch_at(last − 1), made ahead by a pool of threads. Without
    workers, each batch is made when it is needed.
    """
    if not workers:
        yield from map(batch_at, range(first, last))
        return
    with ThreadPoolExecutor(workers) as pool:
        # Keep one batch ready while each worker makes another.
        ahead = workers + 1
        pending: deque[Future] = deque()
        for step in range(first, last + ahead):
            if step < last:
                # The thread inherits the permissions of the run: see config/permission.
                pending.append(pool.submit(copy_context().run, batch_at, step))
            if step >= first + ahead:
                yield pending.popleft().result()


class Profile:
    """Record a jax.profiler trace of steps (first, last) in WORKDIR/profile, or of those that this
    process runs.
    """

    def __init__(self, steps: tuple, workdir: Path):
        self._steps = steps
        self._directory = str(workdir / "profile")
        self._is_on = False

    @contextmanager
    def around(self, step: int) -> Iterator[None]:
        """Trace the step inside the block if it is one of the steps to record."""
        if self._steps and not self._is_on and self._steps[0] <= step <= self._steps[1]:
            jax.profiler.start_trace(self._directory)
            self._is_on = True
        yield
        if self._is_on and step == self._steps[1]:
            # Wait for the step, since calls return before the device is done.
            jax.effects_barrier()
            self._stop()

    def _stop(self) -> None:
        jax.profiler.stop_trace()
        self._is_on = False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._is_on:
            self._stop()


def is_due(step: int, every: int) -> bool:
    """Return True if something done every `every` steps (0: never) is due at this step."""
    return every > 0 and step % every == 0
