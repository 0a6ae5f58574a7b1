"""Record a run: metrics.jsonl, loggers, a progress bar or plain lines, and a breakdown of its wall
time.
"""

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from t5x_lite import locks, storage
from t5x_lite.config import RunConfig
from t5x_lite.errors import BAD_CONFIG, IO_ERROR, NO_FILE, UserError, user_errors
from t5x_lite.manifest import Damage
from t5x_lite.model.heads import find_head
from t5x_lite.progress import bar, current_listener, messages_to
from t5x_lite.training.callbacks import Callbacks
from t5x_lite.training.loggers import Logger, find_loggers

_SHOWN_EVERY = 10.0  # seconds between the lines that stay above the bar


class Stopwatch:
    """Split wall time into named parts. The first part gets all time that no other part claims.

    >>> watch = Stopwatch("step", "evaluation")
    >>> with watch("evaluation"):
    ...     pass
    >>> sorted(watch.seconds())
    ['evaluation', 'step']

    Attributes:
        now: the part that time counts for at the moment.
    """

    def __init__(self, rest: str, *names: str):
        self._rest = self.now = rest
        self._spent = dict.fromkeys(names, 0.0)
        self._start = time.perf_counter()

    @contextmanager
    def __call__(self, name: str, counts: Callable[[], bool] = lambda: True) -> Iterator[None]:
        """Count the time inside the block for this part, or for the first part if `counts()` is
        false at the end of the block.
        """
        start, self.now = time.perf_counter(), name
        try:
            yield
        finally:
            self.now = self._rest
            if name != self._rest and counts():
                self._spent[name] += time.perf_counter() - start

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each part so far."""
        total = time.perf_counter() - self._start
        return {self._rest: total - sum(self._spent.values()), **self._spent}

    def summary(self) -> str:
        """Write the seconds of all parts as one line."""
        parts = [f"{name} {seconds:.1f}s" for name, seconds in self.seconds().items()]
        return "wall time: " + ", ".join(parts)


def read_metrics(path: Path) -> list[dict]:
    """Read the records of a metrics.jsonl. A last line without a line end is skipped: the run was
    killed while writing it.

    Raises:
        UserError: for any other line that is not a record.
    """
    # Split at line ends; the last piece is empty, or a line that was cut short.
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    records = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            if not isinstance(record["step"], int) or not isinstance(record["split"], str):
                raise TypeError("step and split are no number and text")
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(
                NO_FILE, f"{path}, line {number}: not a record ({error}); fix or remove it"
            ) from error
        records.append(record)
    return records


def check_metrics(path: Path, recorded: dict[str, Any]) -> None:
    """Compare a metrics.jsonl with what a checkpoint recorded about it. Records may have been added
    since then.

    Raises:
        Damage: if a record has changed or is missing.
    """
    if not recorded:
        return
    content = path.read_bytes() if path.exists() else b""
    found = hashlib.sha256(content[: recorded["bytes"]]).hexdigest()
    if found != recorded["sha256"]:
        raise Damage("a record has changed since the checkpoint was saved")


def mean_metrics(sums: dict[str, dict]) -> dict[str, float]:
    """Compute the metrics from the sums of a loss. Each sum is divided by its weight, once.

    loss: nats per scored token. accuracy: fraction of scored tokens predicted correctly.
    total_loss: the value minimised, summed over heads and auxiliary losses. loss_tokens, or
    loss_labels for a task: the divisor of the loss. label_loss, label_accuracy: for sequence
    labels. lm_loss, lm_accuracy: for the language model trained beside a task. Auxiliary losses and
    values measured by parts of the model are named by stack and name, such as decoder_balance.
    """
    metrics = {}
    total_loss = 0.0
    for name, term in sums.items():
        values = {key: float(value) for key, value in term.items()}
        weight = max(values["weight"], 1.0)
        total_loss += values.get("total_loss", 0.0) / weight
        if "nll" not in values:  # an auxiliary loss, or a value that a part has measured
            metrics[name] = values.get("total_loss", values.get("measured", 0.0)) / weight
            continue
        # The language model head has no prefix, so its loss is just `loss`.
        head = find_head(name)
        prefix = head.metric_prefix
        metrics[f"{prefix}loss"] = values["nll"] / weight
        metrics[f"{prefix}accuracy"] = values["correct"] / weight
        if not prefix:
            metrics["loss_tokens" if head.outputs is None else "loss_labels"] = weight
    return metrics | {"total_loss": total_loss}


def first_not_finite(metrics: dict) -> str | None:
    """Return the name of the first metric that is not finite, or None.

    >>> first_not_finite({"loss": 1.0, "gradient_norm": float("inf")})
    'gradient_norm'
    """
    return next((name for name, value in metrics.items() if not math.isfinite(value)), None)


class Log:
    """Write metrics to metrics.jsonl and the loggers, and show progress: a bar with the time left
    on a terminal, plain lines elsewhere. On resume, records after step `first` are cut, so that
    each (step, split) occurs once.

    Only the active process of a run writes and shows anything.

    Attributes:
        watch: the wall time by part of the run.
        callbacks: the callbacks that training.callbacks names.
    """

    def __init__(
        self,
        workdir: Path,
        config: RunConfig,
        first: int,
        last: int,
        active: bool = True,
        on_log: Callable[[dict], None] | None = None,
    ):
        # Time that no part claims is spent on steps: the host waits for the device.
        self.watch = Stopwatch("step", "compile", "data", "evaluation", "checkpoint")
        self._first, self._last = first, last
        self._active, self._on_log = active, on_log
        self.callbacks = Callbacks(workdir, config, active)
        self._workdir = workdir
        self._messages, self._listener = ExitStack(), current_listener()
        self._shown = time.monotonic()  # time of the last line above the bar
        self._lap = first, 0.0  # step of the last lap, and seconds of training until then
        self._bar = bar(workdir.name, counted=True)
        self._bar.disable |= not active
        self._task = self._bar.add_task("", total=last, completed=first, line="")
        # The other processes compute the same metrics, but do not write them.
        if active:
            path = workdir / "metrics.jsonl"
            _cut_metrics(path, first)
            self._loggers = _make_loggers(workdir, config, first)
            self._file = open(path, "a")
            self._written = hashlib.sha256(path.read_bytes())

    def __enter__(self):
        self._messages.enter_context(messages_to(self._say))
        self._bar.start()
        return self

    def __exit__(self, *_):
        self._bar.stop()
        self._messages.close()
        if self._active:
            self._file.close()
            self._of_each_logger(lambda logger: logger.close())
            storage.push(self._workdir)

    def status(self, text: str) -> None:
        """Show what the run is doing, until something else is shown."""
        self._bar.update(self._task, line=text)
        if self._bar.disable:
            self._say(text)

    def at(self, step: int) -> None:
        """Move the bar to a step."""
        self._bar.update(self._task, completed=step)

    def lap(self, step: int) -> tuple[float, int]:
        """Return the seconds of training (data and step) and the steps since the last call."""
        # Evaluation, saving and compilation do not count as training.
        spent = self.watch.seconds()
        now = spent["step"] + spent["data"]
        last_step, last_seconds = self._lap
        self._lap = step, now
        return now - last_seconds, step - last_step

    def write(self, step: int, split: str, metrics: dict) -> None:
        """Write metrics to metrics.jsonl, the loggers and the callbacks, and show a short line."""
        if not self._active:
            return
        # For programs: the file, the loggers, the callbacks.
        seconds = {name: round(value, 3) for name, value in self.watch.seconds().items()}
        # first_not_finite has ruled out NaN and infinity, which are not JSON.
        record = {"step": step, "split": split, **metrics, "seconds": seconds}
        line = json.dumps(record, allow_nan=False) + "\n"
        self._file.write(line)
        self._file.flush()
        self._written.update(line.encode())
        values = {f"{split}/{name}": value for name, value in metrics.items() if value is not None}
        self._of_each_logger(lambda logger: logger.write(step, values))
        storage.push(self._workdir, now=False)
        self.callbacks.call("on_log", record)
        if self._on_log:
            self._on_log(record)

        # For people: the bar, or a line if there is no bar.
        text = _line(split, metrics)
        self._bar.update(self._task, line=text)
        is_old = time.monotonic() - self._shown > _SHOWN_EVERY
        # On a terminal, keep a line now and then, and every evaluation, to scroll back to.
        if not self._bar.disable and (is_old or split != "train"):
            self._shown = time.monotonic()
            self._say(f"step {step} {text}")
        # Without a bar to show it, estimate the time left from the mean over all steps so far.
        if self._bar.disable:
            per_step = sum(seconds.values()) / max(step - self._first, 1)
            self._say(f"step {step}/{self._last} {text} ETA {per_step * (self._last - step):.0f}s")

    def _of_each_logger(self, call: Callable[[Logger], None]) -> None:
        """Call each logger. One that fails is dropped: a server that is down must not end a run."""
        for name, logger in list(self._loggers.items()):
            try:
                with user_errors(IO_ERROR, f"training.loggers: {name}: nothing more is written"):
                    call(logger)
            except UserError as error:
                with suppress(Exception):  # a logger that cannot write may also fail to close
                    self._loggers.pop(name).close()
                self._say(str(error))

    def sync(self) -> dict[str, Any]:
        """Flush everything to durable storage, before a checkpoint that relies on it.

        Returns:
            Size and hash of metrics.jsonl.
        """
        if not self._active:
            return {}
        os.fsync(self._file.fileno())
        # If another process has taken the directory over, do not write a checkpoint next to its
        # own.
        locks.check_only_writer(self._workdir)
        try:
            storage.push(self._workdir)
        except UserError as error:  # saving the checkpoint matters more than this copy
            self._say(f"{error}; it will be tried again")
        return {"bytes": self._file.tell(), "sha256": self._written.hexdigest()}

    def _say(self, text: str) -> None:
        """Show a line, above the bar if there is one."""
        if not self._active:
            return
        if self._bar.disable:
            self._listener(text)
        else:
            self._bar.console.print(text, markup=False)


def _make_loggers(workdir: Path, config: RunConfig, first: int) -> dict[str, Logger]:
    """Make the loggers that training.loggers names. If one fails, close those made before it."""
    loggers = {}
    with ExitStack() as made:
        for name, named in find_loggers(config).items():
            with user_errors(BAD_CONFIG, f"training.loggers: {name} cannot be made"):
                loggers[name] = named(workdir, config, first)
            made.callback(loggers[name].close)
        made.pop_all()
    return loggers


def _cut_metrics(path: Path, first: int) -> None:
    """Remove the records after step `first` from metrics.jsonl."""
    kept = [record for record in read_metrics(path) if record["step"] <= first]
    storage.write_durably(path, "".join(json.dumps(record) + "\n" for record in kept))


def _line(split: str, metrics: dict) -> str:
    """Write the most important metrics as one line."""
    loss = metrics.get("loss", metrics["total_loss"])  # no `loss` if all heads are the user's own
    text = f"{split} loss {loss:.4f}"
    # A task shows its own metrics in place of perplexity and accuracy per token.
    of_task = {name: value for name, value in metrics.items() if name.startswith("task_")}
    if of_task:
        for name, value in of_task.items():
            text += f" {name.removeprefix('task_').replace('_', ' ')} {value:.4f}"
    else:
        if "loss_tokens" in metrics:
            text += f" perplexity {perplexity(loss):,.1f}"
        if "accuracy" in metrics:
            text += f" accuracy {metrics['accuracy']:.3f}"
    if "tokens_per_second" in metrics:
        text += f" {metrics['tokens_per_second']:,.0f} tokens/s"
    if metrics.get("mfu"):
        text += f" MFU {metrics['mfu']:.1%}"
    return text


def perplexity(loss: float) -> float:
    """Return e^loss, or infinity if it is too large for a float.

    >>> perplexity(0.0), perplexity(1e9)
    (1.0, inf)
    """
    return math.exp(loss) if loss < 700 else math.inf
