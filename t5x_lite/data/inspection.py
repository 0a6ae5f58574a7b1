"""Views of what a model will read: the first rows of a config in readable form, the ledger of the
run, and the contents of a token store.
"""

from collections.abc import Callable

import numpy as np

from t5x_lite.data.objectives.pairs import Pair
from t5x_lite.data.rows.batches import Batches, Ledger
from t5x_lite.data.rows.layouts import Row, lay_out
from t5x_lite.data.rows.streams import TextStream
from t5x_lite.data.store.corpus import Corpus, Tokens
from t5x_lite.data.tasks.kinds.table import kind_of
from t5x_lite.data.tasks.task_data import TaskSplit
from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.progress import columns

_COUNTED_AT_A_TIME = 1 << 24  # tokens; a store may be larger than memory


def show_rows(batches: Batches, tokenizer: Tokenizer, examples: int = 3) -> str:
    """Show the first rows of training: the text, the pairs that the objective turns it into, and
    what each stack of the model reads.
    """
    lines = []
    for row in range(examples):
        (number,), (index,) = batches.locate(np.array([batches.first_row + row]))
        stream = batches.streams[number]
        assert isinstance(stream, TextStream)
        member = f" of {stream}" if len(batches.streams) > 1 else ""
        lines.append(f"── row {row}{member} ──")
        lines.append(f"text     {tokenizer.decode(stream.read([index])[0])!r}")
        pairs, _ = stream.pairs([index])
        for segment in range(len(pairs)):
            pair = pairs.take(np.array([segment]))
            row = lay_out(pair, stream.shape, stream.vocabulary)
            lines += _show_pair(pair.each()[0], segment + 1, tokenizer)
            lines += _show_reading(row, tokenizer)
    return "\n".join(lines)


def _show_pair(pair: Pair, segment: int, tokenizer: Tokenizer) -> list[str]:
    """Show the inputs and targets of a pair, and its label if it has one."""
    counts = f"{len(pair.inputs)} inputs, {len(pair.targets)} targets"
    lines = [
        f"segment {segment}: {counts}",
        f"inputs   {tokenizer.decode(pair.inputs)!r}",
        f"targets  {show_targets(pair, tokenizer)}",
    ]
    if pair.labels is not None:
        lines.append(f"label    {pair.labels}")
    return lines


def _show_reading(row: Row, tokenizer: Tokenizer) -> list[str]:
    """Show the tokens of one segment that each stack of the model reads, how many of them are a
    prefix, and the loss weights.
    """
    lines = []
    for stack in ("encoder", "decoder"):
        if f"{stack}_tokens" not in row:
            continue
        is_real = row[f"{stack}_segments"][0] > 0
        read = row[f"{stack}_tokens"][0][is_real]
        lines.append(f"{stack}  {tokenizer.decode(read)!r}")
        prefix = row.get(f"{stack}_prefix")
        if prefix is not None:
            lines.append(f"prefix   the first {prefix.sum()} of {len(read)} are seen both ways")
        if f"{stack}_scored" in row:  # a list of scored positions, then empty slots
            is_real = row[f"{stack}_weights"][0] > 0
        if f"{stack}_weights" in row:
            lines.append(f"weights  {_run_lengths(row[f'{stack}_weights'][0][is_real])}")
    return lines


def show_targets(pair: Pair, tokenizer: Tokenizer) -> str:
    """Show the targets as text; for aligned pairs, show each target with its position."""
    if pair.scored is None:
        return repr(tokenizer.decode(pair.targets))
    placed = zip(pair.targets, pair.scored, strict=True)
    return " ".join(f"{tokenizer.decode([token])!r}@{position}" for token, position in placed)


def _run_lengths(weights: np.ndarray) -> str:
    """Show the run lengths of weights: [1, 1, 0] → "2 × 1, 1 × 0"."""
    cuts = np.flatnonzero(np.diff(weights)) + 1
    runs = [run for run in np.split(weights, cuts) if len(run)]
    return ", ".join(f"{len(run)} × {run[0]:g}" for run in runs) or "none"


def show_task(split: TaskSplit, tokenizer: Tokenizer, examples: int = 3) -> str:
    """Show the first examples of a task: what the model reads, and the answer."""
    formatted = split.formatted
    task, labels = split.examples.task, formatted.pairs.segment_labels
    lines = []
    for number, example in enumerate(split.examples.examples[:examples]):
        label = kind_of(task).readable(task, example.label, example)
        lines.append(f"── example {example.id}: {label} ──")
        for pair in np.flatnonzero(formatted.example_of_pair == number).tolist():
            (inputs,) = formatted.pairs.inputs.take(np.array([pair])).arrays()
            (targets,) = formatted.pairs.targets.take(np.array([pair])).arrays()
            # A decoder reads the start token, then all of its targets except the last one.
            read = inputs if len(inputs) else np.array([tokenizer.vocabulary.start, *targets[:-1]])
            lines.append(f"reads    {tokenizer.decode(read)!r}")
            # Show one label per scored position, the text to write, or one label for the pair.
            if formatted.pairs.scored is not None:
                (scored,) = formatted.pairs.scored.take(np.array([pair])).arrays()
                names = [str(task.labels[number]) for number in targets.tolist()]
                shown = [f"{name}@{place}" for name, place in zip(names, scored, strict=True)]
                lines.append(f"labels   {' '.join(shown)}")
                continue
            if labels is None:
                lines.append(f"writes   {tokenizer.decode(targets)!r}")
                continue
            values = ", ".join(f"{value:g}" for value in labels.values[pair])
            position = int(labels.positions[pair])
            place = f"at position {position}, {tokenizer.decode(read[position : position + 1])!r}"
            if formatted.words_of_pair:  # the label is a span
                first, last = labels.values[pair].astype(int)
                place = f"{tokenizer.decode(read[first : last + 1])!r}"
            lines.append(f"label    {values} {place}")
    return "\n".join([*lines, "", str(split)])


def show_ledger(batches: Batches, row: Ledger, steps: int, flops_per_row: float) -> str:
    """Show what one row holds, and what the whole run will read and compute. For a mixture, also
    show each member.
    """
    rows = batches.batch_size * steps
    counts = {
        "raw tokens": row.raw_tokens,
        "model tokens": row.model_tokens,
        "loss tokens": row.loss_tokens,
    }
    lines = [("ledger", "a row", "the run")]
    lines += [(name, f"{n:,.1f}", f"{n * rows:,.0f}") for name, n in counts.items()]
    lines.append(("FLOPs", f"{flops_per_row:.3g}", f"{flops_per_row * rows:.3g}"))
    lines.append(("padding", f"{row.padding:.2%}", ""))
    if row.left_out:
        lines.append(("left out", f"{row.left_out:.2%}", ""))
    if row.cut:
        lines.append(("rows cut", f"{row.cut:.2%}", ""))
    is_mixture = len(batches.streams) > 1
    if not is_mixture:
        lines.append(("epochs", "", f"{batches.streams[0].epochs(rows):.2f}"))
    ledger = columns(lines, "<>>")
    return f"{ledger}\n\n{_show_members(batches, row, rows)}" if is_mixture else ledger


def _show_members(batches: Batches, row: Ledger, rows: int) -> str:
    """Show, for each member of a mixture, its tokens, its share of the rows and of all raw tokens,
    its epochs and its padding.
    """
    lines = [("member", "tokens", "rows", "of all read", "epochs", "raw", "loss", "padding")]
    for stream, share, member in zip(batches.streams, batches.shares, row.members, strict=True):
        assert isinstance(stream, TextStream)
        read = share * member.raw_tokens / row.raw_tokens
        cells = (
            str(stream),
            f"{len(stream.windows.tokens):,}",
            f"{share:.1%}",
            f"{read:.1%}",
            f"{stream.epochs(rows * share):.2f}",
            f"{member.raw_tokens}",
            f"{member.loss_tokens:.1f}",
            f"{member.padding:.2%}",
        )
        lines.append(cells)
    return columns(lines, "<>>>>>>>")


def show_store(corpus: Corpus, examples: int = 3, most_frequent: int = 20) -> str:
    """Show what a token store holds: counts, issues that text cleaning found, a histogram of
    document lengths, the most frequent tokens, and a few documents.
    """
    manifest, tokenizer = corpus.manifest, corpus.tokenizer
    lossless = "lossless" if tokenizer.lossless else "not lossless"
    lines = [
        f"{corpus.path}",
        f"tokenizer {tokenizer.fingerprint}: {tokenizer.vocabulary.size:,} ids, {lossless}",
    ]
    for number, (source, counts) in enumerate(
        zip(corpus.sources, manifest["sources"], strict=True)
    ):
        lines += ["", f"── source {number}: {source.name} ──"]
        issues = counts["text_cleaning"].items()
        if issues:
            lines.append(columns(((name, f"{n:,}", "documents") for name, n in issues), "<><"))
        for split, tokens in source.tokens.items():
            if len(tokens):
                lines += _show_split(
                    split, tokens, counts[split], tokenizer, examples, most_frequent
                )
    return "\n".join(lines)


def _show_split(
    split: str,
    tokens: Tokens,
    counts: dict,
    tokenizer: Tokenizer,
    examples: int,
    most_frequent: int,
) -> list[str]:
    """Show one split of a source: its counts, document lengths, frequent tokens and first
    documents.
    """
    lines = ["", split]
    figures = {f"  {name}": f"{counts[name]:,}" for name in ("documents", "tokens", "bytes")}
    figures["  shards"] = f"{len(counts['shards']):,}"
    figures["  bytes/token"] = f"{counts['bytes'] / counts['tokens']:.2f}"
    lines.append(columns(figures.items(), "<>"))

    frequencies, ends = _count_tokens(tokens, tokenizer)
    lengths = np.diff(ends, prepend=-1)  # EOS included
    lines += _length_histogram(lengths)

    name = _token_namer(tokenizer)
    frequent = [token for token in np.argsort(-frequencies)[:most_frequent] if frequencies[token]]
    shares = [f"{name(token)} {frequencies[token] / len(tokens):.1%}" for token in frequent]
    lines.append("  most frequent: " + ", ".join(shares))
    for end, length in list(zip(ends, lengths, strict=True))[:examples]:
        document = tokens[end + 1 - length : end + 1]
        lines.append(f"  {tokenizer.decode(document)[:300]!r}")
    return lines


def _count_tokens(tokens: Tokens, tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Return how often each id occurs, and the positions where documents end."""
    frequencies = np.zeros(tokenizer.vocabulary.size, np.int64)
    ends = []
    for start in range(0, len(tokens), _COUNTED_AT_A_TIME):
        part = tokens[start : start + _COUNTED_AT_A_TIME]
        frequencies += np.bincount(part, minlength=len(frequencies))
        ends.append(np.flatnonzero(part == tokenizer.vocabulary.eos) + start)
    return frequencies, np.concatenate(ends)


def _length_histogram(lengths: np.ndarray) -> list[str]:
    """Draw a histogram of document lengths, by powers of two."""
    lines = ["  tokens a document (EOS counted)"]
    powers = np.bincount(np.int64(np.log2(lengths)))
    rows = []
    for power in np.flatnonzero(powers):
        bar = "█" * round(40 * powers[power] / powers.max())
        least, most = 2**power, 2 ** (power + 1) - 1
        rows.append((f"  {least:,}", f"– {most:,}", f"{powers[power]:,}", bar))
    return [*lines, columns(rows, "><><")]


def _token_namer(tokenizer: Tokenizer) -> Callable[[int], str]:
    """Return a function that shows a token by its text, or by its name if it has no text. Decoding
    the token instead would drop a space at its start.
    """
    texts = dict(enumerate(tokenizer.vocabulary.texts()))

    def name(token: int) -> str:
        text = texts.get(token)
        return repr(tokenizer.name(token) if text is None else text.decode(errors="replace"))

    return name
