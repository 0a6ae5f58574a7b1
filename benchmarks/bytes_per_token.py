"""Measure the bytes per token of the tokenizers that can be trained, on text that they have not
seen.

    python benchmarks/bytes_per_token.py [FILE ...] [--vocab-size=8192]

The texts are the README's first example, the built-in text, and the given files or directories.
Each tokenizer is trained on the first nine tenths of a text and judged by the last tenth.
"""

import argparse
import time
from pathlib import Path

from t5x_lite.data.text import sources
from t5x_lite.data.tokenizers.tokenizer import make
from t5x_lite.progress import columns, messages_to

KINDS = (
    "sentencepiece(vocab_size={size}, model_type='bpe')",
    "sentencepiece(vocab_size={size}, model_type='unigram')",
    "byte_level_bpe(vocab_size={size})",
)


def texts_of(files: list[str]) -> dict[str, str]:
    """Return the texts by name."""
    cats = [f"The cat sat on mat {i} and saw {i * 7} dogs.\n" for i in range(1, 501)]
    texts = {"README's example": "".join(cats), "python_docs": "\n".join(sources.python_docs())}
    for name in files:
        path = Path(name)
        paths = sorted(path.rglob("*.txt")) if path.is_dir() else [path]
        text = "\n".join(one.read_text("utf-8", errors="replace") for one in paths)
        texts[path.name] = text[:20_000_000]
    return texts


def main() -> None:
    """Print a table: text, tokenizer, ids, bytes per token, seconds to train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--vocab-size", type=int, default=8192)
    args = parser.parse_args()
    rows = [("text", "bytes", "tokenizer", "ids", "bytes a token", "seconds")]
    for name, text in texts_of(args.files).items():
        cut = len(text) * 9 // 10
        held_out = text[cut:]
        for kind in KINDS:
            begin = time.perf_counter()
            with messages_to(lambda message: None):
                tokenizer = make(kind.format(size=args.vocab_size), [text[:cut]])
            seconds = time.perf_counter() - begin
            ids = tokenizer.encode(held_out)
            assert tokenizer.decode(ids) == held_out, "it loses something"
            rows.append(
                (
                    name,
                    f"{len(text.encode()):,}",
                    kind.format(size=args.vocab_size),
                    f"{tokenizer.vocabulary.size:,}",
                    f"{len(held_out.encode()) / len(ids):.3f}",
                    f"{seconds:.1f}",
                )
            )
    print(columns(rows, "<><>>>"))


if __name__ == "__main__":
    main()
