"""What a model will be shown: the first rows of a config as a person would read them, and the ledger."""

import numpy as np

from t5x_lite.config import RunConfig
from t5x_lite.data import batches
from t5x_lite.data.corpus import Corpus
from t5x_lite.data.objectives.pairs import Pair
from t5x_lite.data.tokenizer import Tokenizer

_AT_A_TIME = 1 << 24  # tokens that are counted: a store may be larger than memory


def hidden(pair: Pair, tokenizer: Tokenizer) -> str:
    """What is hidden: the targets at their places, or nothing but the future."""
    if pair.scored is None:
        return tokenizer.decode(pair.targets)
    shown = (f"{tokenizer.decode([t])!r}@{p}" for t, p in zip(pair.targets, pair.scored, strict=True))
    return " ".join(shown)


def show(config: RunConfig, corpus: Corpus, examples: int = 3) -> str:
    """The first rows of training: text, what is hidden, inputs and targets decoded with sentinels, and weights."""
    made, tokenizer = batches.make(config, corpus, "train"), corpus.tokenizer
    lines = []
    for index in range(examples):
        (number,), (at,) = made.places(np.array([index]))
        stream = made.streams[number]
        of = f" of {_member(stream)}" if len(made.streams) > 1 else ""
        lines += [f"── row {index}{of} ──", f"text     {tokenizer.decode(stream.raw([at])[0])!r}"]
        pairs, _ = stream.pairs([at])
        for segment, pair in enumerate(pairs.each(), 1):
            lines.append(f"segment {segment}: {len(pair.inputs)} inputs, {len(pair.targets)} targets")
            lines.append(f"inputs   {tokenizer.decode(pair.inputs)!r}")
            lines.append(f"{'targets' if pair.scored is None else 'hidden '}  {hidden(pair, tokenizer)}")
            weights = np.append(np.full(len(pair.inputs), float(pair.score_inputs)), pair.weights)
            lines.append(f"weights  {_runs(pair.weights if pair.scored is not None else weights)}")
            if pairs.labels is not None:
                lines.append(f"label    {pairs.labels[segment - 1]}")
    return "\n".join(lines)


def _runs(weights: np.ndarray) -> str:
    """[1, 1, 0] → "2 × 1, 1 × 0"."""
    cuts = np.flatnonzero(np.diff(weights)) + 1
    return ", ".join(f"{len(run)} × {run[0]:g}" for run in np.split(weights, cuts) if len(run)) or "none"


def ledger(config: RunConfig, corpus: Corpus, flops_per_row: float) -> str:
    """What the whole run will read and compute, and what one row of it is; of a mixture, each of its members too."""
    made = batches.make(config, corpus, "train")
    row = batches.ledger(made)
    rows = config.data.batch_size * batches.last_step(config, made)
    lines = [f"{'ledger':<14}{'a row':>14}{'the run':>22}"]
    for key in ("raw_tokens", "model_tokens", "loss_tokens"):
        lines.append(f"{key.replace('_', ' '):<14}{row[key]:>14,.1f}{row[key] * rows:>22,.0f}")
    lines.append(f"{'FLOPs':<14}{flops_per_row:>14.3g}{flops_per_row * rows:>22.3g}")
    lines.append(f"{'padding':<14}{row['padding']:>14.2%}")
    if config.data.split_documents:
        lines.append(f"{'left out':<14}{row['left_out']:>14.2%}")
    if len(made.streams) == 1:
        lines.append(f"{'epochs':<14}{made.streams[0].windows.epochs(rows):>36.2f}")
        return "\n".join(lines)
    wide = max(len(_member(stream)) for stream in made.streams) + 2
    heads = f"{'tokens':>14}{'rows':>8}{'of all read':>13}{'epochs':>8}{'raw':>8}{'loss':>8}{'padding':>9}"
    lines.append(f"\n{'member':<{wide}}{heads}")
    for stream, share, part in zip(made.streams, made.shares, row["members"], strict=True):
        read = share * part["raw_tokens"] / row["raw_tokens"]
        windows = stream.windows
        figures = f"{len(windows.tokens):>14,}{share:>8.1%}{read:>13.1%}{windows.epochs(rows * share):>8.2f}"
        figures += f"{part['raw_tokens']:>8}{part['loss_tokens']:>8.1f}{part['padding']:>9.2%}"
        lines.append(f"{_member(stream):<{wide}}{figures}")
    return "\n".join(lines)


def _member(stream) -> str:
    return f"{stream.objective} on {stream.source}"


def store(corpus: Corpus, examples: int = 3, most: int = 20) -> str:
    """What a token store holds: counts, dirt, a histogram of the lengths of documents, its most frequent tokens, and a
    few documents.
    """
    manifest, tokenizer = corpus.manifest, corpus.tokenizer
    lossless = "lossless" if tokenizer.lossless else "not lossless"
    lines = [f"{corpus.path}", f"tokenizer {tokenizer.fingerprint}: {tokenizer.vocabulary.size:,} ids, {lossless}"]
    for number, (source, counted) in enumerate(zip(corpus.sources, manifest["sources"], strict=True)):
        lines += ["", f"── source {number}: {source.name} ──"]
        lines += [f"{case:<18}{met:>14,} documents" for case, met in counted["dirt"].items()]
        for split, tokens in source.tokens.items():
            if len(tokens):
                lines += _split(split, tokens, counted[split], tokenizer, examples, most)
    return "\n".join(lines)


def _split(split, tokens, counted, tokenizer, examples, most) -> list[str]:
    figures = counted | {"shards": len(counted["shards"])}
    lines = ["", split, *(f"  {key:<12}{figures[key]:>16,}" for key in ("documents", "tokens", "bytes", "shards"))]
    lines.append(f"  {'bytes/token':<12}{counted['bytes'] / counted['tokens']:>16.2f}")
    counts, ends = np.zeros(tokenizer.vocabulary.size, np.int64), []
    for start in range(0, len(tokens), _AT_A_TIME):
        part = tokens[start : start + _AT_A_TIME]
        counts += np.bincount(part, minlength=len(counts))
        ends.append(np.flatnonzero(part == tokenizer.vocabulary.eos) + start)
    ends = np.concatenate(ends)
    lengths = np.diff(ends, prepend=-1)  # EOS counted
    powers = np.bincount(np.int64(np.log2(lengths)))
    lines.append("  tokens a document (EOS counted)")
    for power in np.flatnonzero(powers):
        bar = "█" * round(40 * powers[power] / powers.max())
        lines.append(f"  {2**power:>9,} – {2 ** (power + 1) - 1:<9,}{powers[power]:>10,} {bar}")
    often = [token for token in np.argsort(-counts)[:most] if counts[token]]
    texts = dict(enumerate(tokenizer.vocabulary.texts()))  # decoding would leave out the blank at the start of each

    def shown(token):
        text = texts.get(token)
        written = tokenizer.name(token) if text is None else text.decode(errors="replace")
        return f"{written!r} {counts[token] / len(tokens):.1%}"

    lines.append("  most frequent: " + ", ".join(map(shown, often)))
    for end, length in list(zip(ends, lengths, strict=True))[:examples]:
        lines.append(f"  {tokenizer.decode(tokens[end + 1 - length : end + 1])[:300]!r}")
    return lines
