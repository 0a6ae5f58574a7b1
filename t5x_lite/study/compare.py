"""Several runs side by side on the same text, and what came of them."""

import json
import math
from pathlib import Path

from t5x_lite.config import CompareConfig, RunConfig
from t5x_lite.data import batches, objectives
from t5x_lite.data.corpus import Corpus
from t5x_lite.data.prepare import prepare
from t5x_lite.errors import BAD_CONFIG, NO_FILE, Refusal, read_json
from t5x_lite.inference.fill import fill
from t5x_lite.inference.generate import continue_texts
from t5x_lite.model.flops import step_flops
from t5x_lite.model.transformer import count_parameters
from t5x_lite.study.ngram import trigram_bits, unigram_bits
from t5x_lite.study.report import write
from t5x_lite.training import metrics, rundir
from t5x_lite.training.loop import train


def compare(config: CompareConfig, workdir: Path, say=print) -> dict:
    """Train every member in WORKDIR/NAME, on from where it is, and write report.html, report.md and results.json.

    Members must share their text and tokenizer; each is refused, before any is trained, if its config cannot be run.
    """
    prepared = {}
    for name, member in config.members.items():
        corpus = prepare(member.data, say)
        resolved = rundir.resolve(member, corpus.tokenizer.vocabulary)
        batches.make(resolved, corpus, "train")
        prepared[name] = resolved, corpus
    same_reading(prepared)
    check_examples(config, prepared)
    results = {"title": config.title, "members": {}}
    for name, (_, corpus) in prepared.items():
        say(f"{name}: training in {workdir / name}")
        train(config.members[name], corpus, workdir / name)
        results["members"][name] = summarise(workdir / name, corpus)
    if config.ngram and any("bits_per_byte" in member for member in results["members"].values()):
        results["ngram"] = ngram(corpus)
    results["corpus"] = corpus.manifest
    results["examples"] = examples(config, workdir)
    (workdir / "results.json").write_text(json.dumps(results, indent=2))
    write(results, workdir)
    return results


def same_reading(prepared: dict) -> None:
    """Refuse members that do not read the same tokens in the same order, step by step: {name: (config, corpus)}."""

    def reading(config, corpus):
        made = batches.make(config, corpus, "train")
        text = {key: corpus.manifest[key] for key in ("tokenizer", "train", "validation")}
        return {
            "text or tokens": text,
            "seed": config.seed,
            "data.block": sorted({stream.windows.order.block for stream in made.streams if stream.shuffled}),
            "raw tokens a step": made.raw_tokens,
        }

    first, *others = prepared
    expected = reading(*prepared[first])
    for name in others:
        for key, value in reading(*prepared[name]).items():
            if value != expected[key]:
                raise Refusal(
                    BAD_CONFIG,
                    f"members: {first} and {name} read different {key} ({expected[key]}, {value}); make them the same",
                )


def check_examples(config: CompareConfig, prepared: dict) -> None:
    """Refuse, before hours of training, texts that no member could answer."""
    shortest = min(max(member.data.lengths.row, member.data.lengths.inputs) for member, _ in prepared.values())
    (_, corpus), *_ = prepared.values()
    for key in ("blanks", "spans", "prompts"):
        for text in getattr(config, key):
            if not isinstance(text, str) or not text or (key != "prompts" and "___" not in text):
                wanted = "a text" if key == "prompts" else "a text with ___"
                raise Refusal(BAD_CONFIG, f"{key}: got {text!r}, expected {wanted}")
            if len(corpus.tokenizer.encode(text)) + 4 > shortest:
                raise Refusal(BAD_CONFIG, f"{key}: {text!r} is longer than a row of {shortest} tokens; shorten it")


def summarise(workdir: Path, corpus: Corpus) -> dict:
    """The figures of one run, from its records and its config."""
    (config, _), records = rundir.read(workdir), metrics.read(workdir / "metrics.jsonl")
    train_batches = batches.make(config, corpus, "train")
    steps = [r for r in records if r["split"] == "train"]
    evaluated = [r for r in records if r["split"] == "validation"]
    if not steps or not evaluated:
        raise Refusal(
            NO_FILE, f"{workdir}: the run has not been evaluated yet; let it go on, or set training.eval_every"
        )
    row, rows = batches.ledger(train_batches), config.data.batch_size * steps[-1]["step"]
    seconds, last = sum(record["train_seconds"] for record in steps), evaluated[-1]
    summary = {
        "objective": config.objective,
        "architecture": config.model.architecture,
        "parameters": count_parameters(config.model),
        "raw_tokens": rows * row["raw_tokens"],
        "model_tokens": round(rows * row["model_tokens"]),
        "loss_tokens": round(rows * row["loss_tokens"]),
        "padding": row["padding"],
        "flops": rows * flops_per_row(config, train_batches),
        "seconds": seconds,
        "tokens_per_second": rows * row["model_tokens"] / seconds,
        "loss": last["loss"],
        "accuracy": last["accuracy"],
        "curve": [[r["step"], r["loss"]] for r in steps],
        "validation_curve": [[r["step"], r["loss"]] for r in evaluated],
    }
    if [objective.name for _, objective in objectives.mixture(config.objective)] == ["causal_lm"]:
        bits = last["loss"] * last["loss_tokens"] / math.log(2)
        summary["bits_per_byte"] = bits / corpus.manifest["validation"]["bytes"]
    return summary


def flops_per_row(config: RunConfig, made: batches.Batches) -> float:
    """FLOPs of training on one row, the mean."""
    return step_flops(config.model, made.shape, batches.ledger(made)["loss_tokens"])


def ngram(corpus: Corpus) -> dict:
    """Bits per byte of the validation text, EOS counted, by the classical models of the same tokens."""
    args = corpus.tokens["train"], corpus.tokens["validation"], corpus.tokenizer.vocabulary.size
    size = corpus.manifest["validation"]["bytes"]
    return {"unigram": unigram_bits(*args) / size, "Kneser-Ney trigram": trigram_bits(*args) / size}


def examples(config: CompareConfig, workdir: Path) -> dict:
    """What each member does with the config's prompts."""
    done = {}
    for name in config.members:
        trained = rundir.load(workdir / name)
        objective = objectives.mixture(trained.config.objective)[0][1]
        if objective.aligned:
            done[name] = [{"text": text, "words": fill(trained, text)} for text in config.blanks]
        elif objective.uses_sentinels:
            done[name] = [{"text": text, "spans": fill(trained, text)} for text in config.spans]
        else:
            written = continue_texts(trained, list(config.prompts), max_new=48) if config.prompts else []
            done[name] = [{"text": t, "continuation": w} for t, w in zip(config.prompts, written, strict=True)]
    return done


def again(workdir: Path) -> None:
    """Write the report of a finished comparison, or of a single run, once more."""
    if (workdir / "results.json").is_file():
        results = read_json(workdir / "results.json", "run compare again")
        try:
            write(results, workdir)
        except (KeyError, TypeError, AttributeError) as error:
            mend = "run compare again"
            raise Refusal(
                NO_FILE, f"{workdir / 'results.json'}: is not what compare wrote ({error}); {mend}"
            ) from error
    else:
        config, _ = rundir.read(workdir)
        corpus = prepare(config.data)
        rundir.same_text(workdir, corpus)
        results = {"title": workdir.resolve().name, "members": {workdir.resolve().name: summarise(workdir, corpus)}}
        write(results | {"corpus": corpus.manifest, "examples": {}}, workdir)
