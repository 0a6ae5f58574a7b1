"""Which checkpoint of a run the address of a model names, such as RUN@10M-words."""

import math
from contextlib import suppress
from pathlib import Path

from t5x_lite import manifest
from t5x_lite.config.amounts import Amount, parse_amount
from t5x_lite.config.files import load_run_config
from t5x_lite.errors import NO_FILE, UserError
from t5x_lite.model_address import ModelAddress
from t5x_lite.training.best import best_directory
from t5x_lite.training.checkpoint import Checkpoints
from t5x_lite.training.run_directory import saved_steps

_NEAR = 0.02  # fraction by which a checkpoint "10M-tokens" may have read more or less than that


def choose_step(checkpoints: Checkpoints, address: ModelAddress) -> int:
    """Return the step of the checkpoint that an address names, and check its files.

    Raises:
        UserError: if it was not kept, or is damaged. The message names the steps that were kept.
    """
    which, kept = address.checkpoint, checkpoints.steps
    if which in ("", "best"):  # in the directory `best`, the newest checkpoint is the best one
        step = checkpoints.newest
        if step is None:
            raise UserError(NO_FILE, f"{address.directory}: no checkpoint yet; train first")
        return step
    amount, found = parse_amount(which), None
    if amount and amount.unit == "steps":
        found = int(amount.number) if amount.number in kept else None
    elif amount:
        found = _nearest_step(checkpoints, amount)
    elif which == "0" and 0 in kept:  # the parameters of an imported model
        found = 0
    if found is None:
        steps = ", ".join(map(str, kept)) or "none"
        expected = f"expected a step that was kept ({steps}), best, or an amount of text"
        reason = f"no such checkpoint; {expected}, as 10M-tokens or 10M-words"
        raise UserError(NO_FILE, f"{address.directory}@{which}: {reason}")
    checkpoints.check_files(found)
    return found


def step_to_load(address: ModelAddress) -> int:
    """Return the step of the checkpoint that is loaded for an address."""
    if address.checkpoint:
        return step_of(address)
    return max(saved_steps(checkpoints_of(address)), default=0)


def step_of(address: ModelAddress) -> int:
    """Return how many steps a model was trained for; 0 for one that was not trained here."""
    directory = address.directory / "checkpoints"
    if not address.checkpoint:
        return max(saved_steps(directory), default=0)
    checkpoints = Checkpoints(checkpoints_of(address), {}, read_only=True)
    try:
        with manifest.verification("off"):
            return choose_step(checkpoints, address)
    finally:
        checkpoints.close()


def revisions(workdir: Path) -> dict[str, ModelAddress]:
    """Return the addresses of all kept checkpoints of a run, by the revision names that published
    models use: chck_10M for 10M-words (BabyLM), step4000 for step 4000 (Pythia).
    """
    config = load_run_config(workdir / "config.json")
    checkpoints = Checkpoints(workdir / "checkpoints", {}, read_only=True)
    try:
        steps = checkpoints.steps
        amounts = {text: parse_amount(text) for text in config.training.keep_at}
        named = {
            f"chck_{text.removesuffix('-words')}": _nearest_step(checkpoints, amount)
            for text, amount in amounts.items()
            if amount and amount.unit != "steps"
        }
    finally:
        checkpoints.close()
    if not steps:
        raise UserError(NO_FILE, f"{workdir}: no checkpoint yet; train first")
    # A run in progress has not reached all of its amounts.
    named = {name: step for name, step in named.items() if step is not None}
    named |= {f"step{step}": step for step in steps if step not in named.values()}
    return {name: ModelAddress(workdir, str(step)) for name, step in named.items()}


def _nearest_step(checkpoints: Checkpoints, amount: Amount) -> int | None:
    """Return the kept step that had read about this much text, or None. Batches do not end at round
    numbers, so a step may differ from the amount by half a batch, or by the fraction _NEAR.
    """
    key = "raw_tokens" if amount.unit == "tokens" else "words"
    nearest, least = None, math.inf
    for step in checkpoints.steps:
        with suppress(UserError):  # skip a checkpoint whose manifest is damaged
            read = checkpoints.facts(step).get(key, 0)
            away = abs(read - amount.number)
            batch = read / max(step, 1)
            allowed = batch if step == 1 else batch / 2  # step 1 also stands for smaller amounts
            if away <= max(_NEAR * amount.number, allowed) and away < least:
                nearest, least = step, away
    return nearest


def checkpoints_of(address: ModelAddress) -> Path:
    """Return the directory to load from: `best`, for a run on a task, or `checkpoints`."""
    best = best_directory(address.directory)
    of_best = saved_steps(best)
    if address.checkpoint == "best" and not of_best:
        reason = "no best checkpoint; only runs on a task keep one"
        raise UserError(NO_FILE, f"{address.directory}: {reason}")
    if of_best and address.checkpoint in ("", "best", *map(str, of_best)):
        return best
    return address.directory / "checkpoints"
