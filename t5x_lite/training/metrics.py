"""What a run records: metrics.jsonl, TensorBoard event files, lines or a progress bar, and where its time went."""

import json
import math
import os
import time
from contextlib import contextmanager, suppress
from pathlib import Path

from t5x_lite.errors import NO_FILE, Refusal
from t5x_lite.progress import bar


class Stopwatch:
    """Splits wall time into named parts; the first one is what is in no other.

    >>> watch = Stopwatch("step", "evaluation")
    >>> with watch("evaluation"):
    ...     pass
    >>> sorted(watch.seconds())
    ['evaluation', 'step']
    """

    def __init__(self, rest: str, *names: str):
        self._rest, self._spent = rest, dict.fromkeys(names, 0.0)
        self._start = time.perf_counter()

    @contextmanager
    def __call__(self, name: str, counts=lambda: True):
        """What happens within is that part's; or the rest's, where `counts()` says no at its end."""
        start = time.perf_counter()
        try:
            yield
        finally:
            if name != self._rest and counts():
                self._spent[name] += time.perf_counter() - start

    def seconds(self) -> dict[str, float]:
        """Seconds of each part so far."""
        total = time.perf_counter() - self._start
        return {self._rest: total - sum(self._spent.values()), **self._spent}

    def summary(self) -> str:
        """The parts in one line."""
        return "wall time: " + ", ".join(f"{name} {seconds:.1f}s" for name, seconds in self.seconds().items())


def read(path: Path) -> list[dict]:
    """The records of a metrics.jsonl; a last line that a kill cut short is passed over, any other is refused."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    records = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            record["step"] + 0, record["split"] + ""
        except (ValueError, TypeError, KeyError) as error:
            raise Refusal(NO_FILE, f"{path}, line {number}: not a record ({error}); mend or remove it") from error
        records.append(record)
    return records


def means(sums: dict) -> dict[str, float]:
    """The figures of a loss's sums: loss in nats per scored token, accuracy, both of labels where rows have them, and
    whatever is no sum as it is.
    """
    values = {name: float(value) for name, value in sums.items()}
    if "label_weight" in values:
        rows = max(values.pop("label_weight"), 1.0)
        values |= {"label_loss": values.pop("label_nll") / rows, "label_accuracy": values.pop("label_correct") / rows}
    weight = max(values.pop("weight"), 1.0)
    loss, correct, objective = (values.pop(k) / weight for k in ("nll", "correct", "objective"))
    return {"loss": loss, "accuracy": correct, "objective": objective, "loss_tokens": weight, **values}


def not_finite(figures: dict) -> str | None:
    """The name of the first figure that is not finite, None where all are.

    >>> not_finite({"loss": 1.0, "gradient_norm": float("inf")})
    'gradient_norm'
    """
    return next((name for name, value in figures.items() if not math.isfinite(value)), None)


class Log:
    """Writes metrics.jsonl and TensorBoard event files, and shows a bar with the time left on a terminal, plain lines
    elsewhere. On resume the records past `first` are cut, so that each (step, split) stands once.

    Only the active process of a run writes and shows. Attribute: `watch`, where the time went.
    """

    def __init__(self, workdir: Path, first: int, last: int, active: bool = True):
        self.watch = Stopwatch("step", "compile", "data", "evaluation", "checkpoint")
        self._first, self._last, self._active = first, last, active
        self._lap = first, 0.0
        self._bar = bar(workdir.name, counted=True)
        self._bar.disable |= not active
        self._task = self._bar.add_task("", total=last, completed=first, line="")
        if not active:
            return
        path = workdir / "metrics.jsonl"
        partial = path.with_suffix(".partial")
        kept = [record for record in read(path) if record["step"] <= first]
        partial.write_text("".join(json.dumps(record) + "\n" for record in kept))
        os.replace(partial, path)
        self._file = open(path, "a")
        from tensorboardX import SummaryWriter

        self._board = SummaryWriter(str(workdir / "tensorboard"), purge_step=first + 1 if first else None)

    def __enter__(self):
        self._bar.start()
        return self

    def __exit__(self, *_):
        self._bar.stop()
        if self._active:
            self._file.close()
            self._board.close()

    def at(self, step: int) -> None:
        """Move the bar."""
        self._bar.update(self._task, completed=step)

    def lap(self, step: int) -> tuple[float, int]:
        """Seconds of training (data and step) and steps since the last call."""
        spent = self.watch.seconds()
        now = spent["step"] + spent["data"]
        (before, then), self._lap = self._lap, (step, now)
        return now - then, step - before

    def write(self, step: int, split: str, figures: dict) -> None:
        """One line of metrics.jsonl, the same to TensorBoard, and the figures that matter to the eye."""
        if not self._active:
            return
        seconds = {name: round(value, 3) for name, value in self.watch.seconds().items()}
        record = {"step": step, "split": split, **figures, "seconds": seconds}
        self._file.write(json.dumps(record, allow_nan=False) + "\n")
        self._file.flush()
        for name, value in figures.items():
            if value is not None:
                self._board.add_scalar(f"{split}/{name}", value, step)
        text = f"{split} loss {figures['loss']:.4f} accuracy {figures['accuracy']:.3f}"
        if "tokens_per_second" in figures:
            text += f" {figures['tokens_per_second']:,.0f} tokens/s"
        if figures.get("mfu"):
            text += f" MFU {figures['mfu']:.1%}"
        self._bar.update(self._task, line=text)
        if self._bar.disable:
            left = sum(seconds.values()) / max(step - self._first, 1) * (self._last - step)
            self.say(f"step {step}/{self._last} {text} ETA {left:.0f}s")

    def sync(self) -> None:
        """What is written outlives the machine; called before a checkpoint that counts on it."""
        if self._active:
            os.fsync(self._file.fileno())

    def say(self, text: str) -> None:
        """A line of its own."""
        if self._active and not self._bar.disable:
            self._bar.console.print(text, markup=False)
        elif self._active:
            with suppress(BrokenPipeError):  # a reader that went away must not end a run
                print(text, flush=True)
