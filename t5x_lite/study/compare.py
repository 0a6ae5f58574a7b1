"""Several runs side by side on the same text, and what came of them."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from t5x_lite.config import CompareConfig, ModelDimensions, RunConfig
from t5x_lite.data.rows.batches import Batches, Ledger, TextData, ledger
from t5x_lite.data.rows.plan import RowPlan
from t5x_lite.data.rows.streams import TextStream
from t5x_lite.data.store.corpus import Corpus
from t5x_lite.data.store.prepare import prepare
from t5x_lite.errors import BAD_CONFIG, NO_FILE, USAGE, UserError, read_json
from t5x_lite.inference.fill import fill
from t5x_lite.inference.generate import continue_texts
from t5x_lite.model.flops import step_flops
from t5x_lite.model.transformer import count_parameters
from t5x_lite.resolve import Resolved, plan_objective, resolve, text_data
from t5x_lite.specs import NO_CODE, AllowedCode
from t5x_lite.study import task_report
from t5x_lite.study.ngram import trigram_bits, unigram_bits
from t5x_lite.study.report import write
from t5x_lite.training import metrics, run_directory
from t5x_lite.training.loop import train

Say = Callable[[str], None]


class Member(NamedTuple):
    """One run of a comparison, ready to be trained."""

    resolved: Resolved
    data: TextData

    @property
    def corpus(self) -> Corpus:
        """The text that it reads."""
        return self.data.corpus


def make_member(config: RunConfig, rows: RowPlan, corpus: Corpus) -> Member:
    """A run on a prepared corpus."""
    resolved = resolve(config, corpus.tokenizer.vocabulary, rows)
    return Member(resolved, text_data(resolved, corpus))


def compare(
    config: CompareConfig, workdir: Path, say: Say = print, allowed: AllowedCode = None
) -> dict:
    """Train every member in WORKDIR/NAME, on from where it is, and write report.html, report.md and
    results.json.

    Members must share their text and tokenizer; each is refused, before any is trained, if its
    config cannot be run.
    """
    plans = {name: plan_objective(member, allowed) for name, member in config.members.items()}
    members = {}
    for name, member in config.members.items():
        corpus = prepare(member.data, say, allowed)
        members[name] = make_member(member, plans[name], corpus)
    check_same_reading(members)
    check_examples(config, members)
    results: dict[str, Any] = {"title": config.title, "members": {}}
    for name, member in members.items():
        say(f"{name}: training in {workdir / name}")
        train(member.resolved, member.data, workdir / name)
        results["members"][name] = summarise(workdir / name, member)
    corpus = next(iter(members.values())).corpus
    if config.ngram and any("bits_per_byte" in summary for summary in results["members"].values()):
        results["ngram"] = ngram_bits_per_byte(corpus)
    results["corpus"] = corpus.manifest
    results["examples"] = examples(config, workdir, allowed)
    (workdir / "results.json").write_text(json.dumps(results, indent=2))
    write(results, workdir)
    return results


def check_same_reading(members: dict[str, Member]) -> None:
    """Refuse members that do not read the same tokens in the same order, step by step."""
    first, *others = members
    expected = _reading(members[first])
    for name in others:
        for key, value in _reading(members[name]).items():
            if value != expected[key]:
                reason = f"{first} and {name} read different {key} ({expected[key]}, {value})"
                raise UserError(BAD_CONFIG, f"members: {reason}; make them the same")


def _reading(member: Member) -> dict[str, Any]:
    """What decides which text a step has read."""
    config, corpus = member.resolved.config, member.corpus
    batches = member.data.batches("train")
    blocks = {stream.block for stream in batches.streams if isinstance(stream, TextStream)}
    shares: dict[str, float] = {}
    for stream, share in zip(batches.streams, batches.shares.tolist(), strict=True):
        if isinstance(stream, TextStream):
            shares[stream.source] = round(shares.get(stream.source, 0.0) + share, 4)
    return {
        "text or tokens": {
            key: corpus.manifest[key] for key in ("tokenizer", "train", "validation")
        },
        "seed": config.seed,
        "shares of the sources": shares,
        "data.block": sorted(block for block in blocks if block),
        "raw tokens a step": batches.raw_tokens,
    }


def check_examples(config: CompareConfig, members: dict[str, Member]) -> None:
    """Refuse, before hours of training, texts that no member could answer."""
    lengths = [member.resolved.config.data.lengths for member in members.values()]
    shortest = min(max(length.sequence_length, length.inputs) for length in lengths)
    tokenizer = next(iter(members.values())).corpus.tokenizer
    for key in ("blanks", "spans", "prompts"):
        for text in getattr(config, key):
            needs_blank = key != "prompts"
            if not isinstance(text, str) or not text or (needs_blank and "___" not in text):
                expected = "a text with ___" if needs_blank else "a text"
                raise UserError(BAD_CONFIG, f"{key}: got {text!r}, expected {expected}")
            if len(tokenizer.encode(text)) + 4 > shortest:
                raise UserError(
                    BAD_CONFIG,
                    f"{key}: {text!r} is longer than a row of {shortest} tokens; shorten it",
                )


def summarise(workdir: Path, member: Member) -> dict[str, Any]:
    """The numbers of one run, from its records and its config."""
    resolved, corpus = member.resolved, member.corpus
    config, records = resolved.config, metrics.read(workdir / "metrics.jsonl")
    trained = [record for record in records if record["split"] == "train"]
    evaluated = [record for record in records if record["split"] == "validation"]
    if not trained or not evaluated:
        reason = "the run has not been evaluated yet"
        raise UserError(NO_FILE, f"{workdir}: {reason}; let it go on, or set training.eval_every")
    batches = member.data.batches("train")
    row = ledger(batches)
    rows = config.data.batch_size * trained[-1]["step"]
    seconds = sum(record["train_seconds"] for record in trained)
    last = evaluated[-1]
    summary = {
        "objective": config.objective,
        "architecture": config.model.architecture,
        "parameters": count_parameters(resolved.model),
        "raw_tokens": rows * row.raw_tokens,
        "model_tokens": round(rows * row.model_tokens),
        "loss_tokens": round(rows * row.loss_tokens),
        "padding": row.padding,
        "flops": rows * flops_per_row(resolved.model, batches, row),
        "seconds": seconds,
        "tokens_per_second": rows * row.model_tokens / seconds,
        "loss": last["loss"],
        "accuracy": last["accuracy"],
        "curve": [[record["step"], record["loss"]] for record in trained],
        "validation_curve": [[record["step"], record["loss"]] for record in evaluated],
    }
    if resolved.rows.scores_whole_text:
        summary["bits_per_byte"] = bits_per_byte(last, corpus)
    return summary


def bits_per_byte(evaluated: dict, corpus: Corpus) -> float:
    """Of a causal model's validation metrics: bits for all tokens, EOS counted, by bytes of the
    text.
    """
    bits = evaluated["loss"] * evaluated["loss_tokens"] / math.log(2)
    return bits / corpus.manifest["validation"]["bytes"]


def flops_per_row(model: ModelDimensions, batches: Batches, row: Ledger) -> float:
    """FLOPs of training on one row, the mean."""
    return step_flops(model, batches.shape, row.loss_tokens)


def ngram_bits_per_byte(corpus: Corpus) -> dict[str, float]:
    """Bits per byte of the validation text, EOS counted, by the classical models of the same
    tokens.
    """
    train_tokens, held_out = corpus.tokens["train"], corpus.tokens["validation"]
    vocab_size = corpus.tokenizer.vocabulary.size
    num_bytes = corpus.manifest["validation"]["bytes"]
    return {
        "unigram": unigram_bits(train_tokens, held_out, vocab_size) / num_bytes,
        "Kneser-Ney trigram": trigram_bits(train_tokens, held_out, vocab_size) / num_bytes,
    }


def examples(
    config: CompareConfig, workdir: Path, allowed: AllowedCode = NO_CODE
) -> dict[str, list[dict]]:
    """What each member does with the config's texts."""
    answers = {}
    for name in config.members:
        loaded = run_directory.load(workdir / name, allowed=allowed)
        if loaded.rows.aligned:
            answers[name] = [{"text": text, "words": fill(loaded, text)} for text in config.blanks]
        elif loaded.rows.uses_sentinels:
            answers[name] = [{"text": text, "spans": fill(loaded, text)} for text in config.spans]
        else:
            prompts = list(config.prompts)
            continuations = continue_texts(loaded, prompts, max_new_tokens=48)
            pairs = zip(prompts, continuations, strict=True)
            answers[name] = [{"text": text, "continuation": more} for text, more in pairs]
    return answers


def write_report(workdir: Path, say: Say = print, allowed: AllowedCode = NO_CODE) -> None:
    """Write the report of a finished comparison, or of a single run, once more."""
    path = workdir / "results.json"
    if path.is_file():
        results = read_json(path, "run the command that wrote it again")
        is_task = "task" in results
        try:
            (task_report.write if is_task else write)(results, workdir)
        except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
            command = "finetune" if is_task else "compare"
            reason = f"is not what {command} wrote ({error})"
            raise UserError(NO_FILE, f"{path}: {reason}; run {command} again") from error
        return
    resolved, _ = run_directory.read(workdir, allowed)
    if not isinstance(resolved.rows, RowPlan):
        reason = "has no results.json, which finetune leaves in its --workdir at the end"
        raise UserError(USAGE, f"{workdir}: {reason}: name that, or run the same command again")
    corpus = prepare(resolved.config.data, say, allowed)
    member = make_member(resolved.config, resolved.rows, corpus)
    run_directory.check_same_text(workdir, member.data)
    name = workdir.resolve().name
    summary = summarise(workdir, member)
    results = {"title": name, "members": {name: summary}, "corpus": corpus.manifest, "examples": {}}
    write(results, workdir)
