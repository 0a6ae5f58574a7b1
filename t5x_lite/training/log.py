"""What a run records: metrics.jsonl, the curves of its loggers, lines or a progress bar, and where
its time went.
"""

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

from t5x_lite import locks, storage
from t5x_lite.config import RunConfig
from t5x_lite.errors import IO_ERROR, NO_FILE, UserError, user_errors
from t5x_lite.model.heads import find_head
from t5x_lite.progress import bar, current_listener, messages_to
from t5x_lite.training.callbacks import Callbacks
from t5x_lite.training.loggers import Logger, find_loggers

_SHOWN_EVERY = 10.0  # seconds after which a line is left above the bar


class Stopwatch:
    """Splits wall time into named parts; the first one is the time that is in no other.

    >>> watch = Stopwatch("step", "evaluation")
    >>> with watch("evaluation"):
    ...     pass
    >>> sorted(watch.seconds())
    ['evaluation', 'step']

    Attributes:
        now: the part that time goes to.
    """

    def __init__(self, rest: str, *names: str):
        self._rest = self.now = rest
        self._spent = dict.fromkeys(names, 0.0)
        self._start = time.perf_counter()

    @contextmanager
    def __call__(self, name: str, counts: Callable[[], bool] = lambda: True) -> Iterator[None]:
        """Time spent within counts for that part; for the rest, where `counts()` is false at its
        end.
        """
        start, self.now = time.perf_counter(), name
        try:
            yield
        finally:
            self.now = self._rest
            if name != self._rest and counts():
                self._spent[name] += time.perf_counter() - start

    def seconds(self) -> dict[str, float]:
        """Seconds of each part so far."""
        total = time.perf_counter() - self._start
        return {self._rest: total - sum(self._spent.values()), **self._spent}

    def summary(self) -> str:
        """The parts in one line."""
        parts = [f"{name} {seconds:.1f}s" for name, seconds in self.seconds().items()]
        return "wall time: " + ", ".join(parts)


def read_metrics(path: Path) -> list[dict]:
    """The records of a metrics.jsonl; a last line that a kill cut short is skipped, any other is
    refused.
    """
    # What follows the last line end was cut short.
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


def mean_metrics(sums: dict[str, dict]) -> dict[str, float]:
    """The metrics of a loss's sums, each divided once.

    loss: nats per scored token. accuracy. total_loss: what is minimised, of all heads and auxiliary
    losses. loss_tokens, or loss_labels of a task: what the loss was divided by. label_loss and
    label_accuracy: of sequence labels. lm_loss and lm_accuracy: of the language model beside a
    task. Auxiliary losses, and what parts measure: by stack and name, such as decoder_balance.
    """
    metrics = {}
    total_loss = 0.0
    for name, term in sums.items():
        values = {key: float(value) for key, value in term.items()}
        weight = max(values["weight"], 1.0)
        total_loss += values.get("total_loss", 0.0) / weight
        if "nll" not in values:  # an auxiliary loss, or what a part has measured
            metrics[name] = values.get("total_loss", values.get("measured", 0.0)) / weight
            continue
        head = find_head(name)
        prefix = head.metric_prefix
        metrics[f"{prefix}loss"] = values["nll"] / weight
        metrics[f"{prefix}accuracy"] = values["correct"] / weight
        if not prefix:
            metrics["loss_tokens" if head.outputs is None else "loss_labels"] = weight
    return metrics | {"total_loss": total_loss}


def first_not_finite(metrics: dict) -> str | None:
    """The name of the first metric that is not finite, None where all are.

    >>> first_not_finite({"loss": 1.0, "gradient_norm": float("inf")})
    'gradient_norm'
    """
    return next((name for name, value in metrics.items() if not math.isfinite(value)), None)


class Log:
    """Writes metrics.jsonl and to the loggers, and shows a bar with the time left on a terminal,
    plain lines elsewhere. On resume the records past `first` are cut, so that each (step,
    split) occurs once.

    Only the active process of a run writes and shows.

    Attributes:
        watch: where the time went.
        callbacks: those of training.callbacks.
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
        self.watch = Stopwatch("step", "compile", "data", "evaluation", "checkpoint")
        self._first, self._last = first, last
        self._active, self._on_log = active, on_log
        self.callbacks = Callbacks(workdir, config, active)
        self._workdir = workdir
        self._messages, self._listener = ExitStack(), current_listener()
        self._shown = time.monotonic()  # when a line was last left above the bar
        self._lap = first, 0.0  # step, and seconds of training until then
        self._bar = bar(workdir.name, counted=True)
        self._bar.disable |= not active
        self._task = self._bar.add_task("", total=last, completed=first, line="")
        if active:
            self._loggers: dict[str, Logger] = {
                name: named(workdir, config, first) for name, named in find_loggers(config).items()
            }
            self._file = _cut_metrics(workdir / "metrics.jsonl", first)

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
        """Show what is going on, until something else is shown."""
        self._bar.update(self._task, line=text)
        if self._bar.disable:
            self._say(text)

    def at(self, step: int) -> None:
        """Move the bar."""
        self._bar.update(self._task, completed=step)

    def lap(self, step: int) -> tuple[float, int]:
        """Seconds of training (data and step) and steps since the last call."""
        # What is evaluated, saved and compiled does not count.
        spent = self.watch.seconds()
        now = spent["step"] + spent["data"]
        last_step, last_seconds = self._lap
        self._lap = step, now
        return now - last_seconds, step - last_step

    def write(self, step: int, split: str, metrics: dict) -> None:
        """One line of metrics.jsonl, the same to the loggers and the callback, and what matters to
        the eye.
        """
        if not self._active:
            return
        # For programs: the file, the loggers, the callback.
        seconds = {name: round(value, 3) for name, value in self.watch.seconds().items()}
        record = {"step": step, "split": split, **metrics, "seconds": seconds}
        self._file.write(json.dumps(record, allow_nan=False) + "\n")
        self._file.flush()
        values = {f"{split}/{name}": value for name, value in metrics.items() if value is not None}
        self._of_each_logger(lambda logger: logger.write(step, values))
        storage.push(self._workdir, now=False)
        self.callbacks.call("on_log", record)
        if self._on_log:
            self._on_log(record)

        # For the eye: the bar, or a line where there is none.
        text = _line(split, metrics)
        self._bar.update(self._task, line=text)
        is_old = time.monotonic() - self._shown > _SHOWN_EVERY
        if not self._bar.disable and (is_old or split != "train"):  # what scrolls back
            self._shown = time.monotonic()
            self._say(f"step {step} {text}")
        if self._bar.disable:
            per_step = sum(seconds.values()) / max(step - self._first, 1)
            self._say(f"step {step}/{self._last} {text} ETA {per_step * (self._last - step):.0f}s")

    def _of_each_logger(self, call: Callable[[Logger], None]) -> None:
        """One that fails is left out from then on: a server that is down ends no run."""
        for name, logger in list(self._loggers.items()):
            try:
                with user_errors(IO_ERROR, f"training.loggers: {name}: nothing more is written"):
                    call(logger)
            except UserError as error:
                del self._loggers[name]
                self._say(str(error))

    def sync(self) -> None:
        """Flush everything to durable storage, before a checkpoint that relies on it."""
        if self._active:
            os.fsync(self._file.fileno())
            locks.check_only_writer(self._workdir)
            try:
                storage.push(self._workdir)
            except UserError as error:  # the checkpoint is worth more
                self._say(f"{error}; it is tried again")

    def _say(self, text: str) -> None:
        """Show a line of its own, above the bar where there is one."""
        if not self._active:
            return
        if self._bar.disable:
            self._listener(text)
        else:
            self._bar.console.print(text, markup=False)


def _cut_metrics(path: Path, first: int) -> TextIO:
    """The file, without the records past a step, opened to append."""
    kept = [record for record in read_metrics(path) if record["step"] <= first]
    partial = path.with_suffix(".partial")
    partial.write_text("".join(json.dumps(record) + "\n" for record in kept))
    os.replace(partial, path)
    return open(path, "a")


def _line(split: str, metrics: dict) -> str:
    """The metrics that matter to the eye."""
    loss = metrics["loss"]
    text = f"{split} loss {loss:.4f}"
    of_task = {name: value for name, value in metrics.items() if name.startswith("task_")}
    if of_task:
        for name, value in of_task.items():
            text += f" {name.removeprefix('task_').replace('_', ' ')} {value:.4f}"
    else:
        if "loss_tokens" in metrics:
            text += f" perplexity {perplexity(loss):,.1f}"
        text += f" accuracy {metrics['accuracy']:.3f}"
    if "tokens_per_second" in metrics:
        text += f" {metrics['tokens_per_second']:,.0f} tokens/s"
    if metrics.get("mfu"):
        text += f" MFU {metrics['mfu']:.1%}"
    return text


def perplexity(loss: float) -> float:
    """e^loss; infinite where that is no float any more.

    >>> perplexity(0.0), perplexity(1e9)
    (1.0, inf)
    """
    return math.exp(loss) if loss < 700 else math.inf
