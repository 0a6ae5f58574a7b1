"""Compare our pipeline with seqio's, from text files to batches of T5's span corruption, tokenised
with T5's SentencePiece model.

    python benchmarks/text_to_rows.py PEER_PYTHON 'GLOB' SPIECE.MODEL

PEER_PYTHON: the python of an environment with seqio, t5 and TensorFlow. Both sides read the same
files on all cores of the machine. The peer's time starts after its imports. Ours covers the
`prepare` command, including its start-up, and one epoch of batches.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from record import keep

HERE = Path(__file__).parent
CONFIG = """
def get_config():
    return {"objective": "span_corruption", "model": {"architecture": "encoder_decoder"},
            "data": {"batch_size": 128, "lengths": {"inputs": 512, "targets": 114}}}
"""


def ours(files: str, model: str) -> tuple[float, float]:
    """Return the raw tokens that our pipeline reads, and the seconds that it takes."""
    from t5x_lite.config.files import load
    from t5x_lite.data.rows.batches import make_batches
    from t5x_lite.data.store.prepare import prepare
    from t5x_lite.resolve import plan

    with tempfile.TemporaryDirectory() as directory:
        config, store = Path(directory, "config.py"), Path(directory, "store")
        config.write_text(CONFIG)
        settings = [f"data.source={files}", f"data.tokenizer={model}", f"data.store={store}"]
        start = time.perf_counter()
        command = [sys.executable, "-m", "t5x_lite", "prepare", f"--config={config}"]
        subprocess.run(
            [*command, *(f"--config.{s}" for s in settings)],
            check=True,
            cwd=HERE.parent,
            capture_output=True,
        )
        prepared = time.perf_counter() - start
        config = load(str(config), settings)
        made = make_batches(plan(config), config.data, 0, prepare(config.data), "train")
        start = time.perf_counter()
        steps = made.num_steps(1 << 62, epochs=1)
        for step in range(steps):
            made.batch_at(step)
        return steps * made.raw_tokens, prepared + time.perf_counter() - start


def main(peer: str, files: str, model: str) -> None:
    """Run both sides in turn, three times, and print rates and ratios."""
    results = []
    for _ in range(3):
        tokens, spent = ours(files, model)
        out = subprocess.run(
            [peer, HERE / "seqio_rows.py", files, model], check=True, capture_output=True, text=True
        ).stdout
        theirs, seconds = map(float, out.split()[-2:])
        rates = tokens / spent / 1e6, theirs / seconds / 1e6
        print(
            f"ours {rates[0]:.2f} M raw tokens/s, seqio {rates[1]:.2f} M/s, ratio "
            f"{rates[0] / rates[1]:.1f}",
            flush=True,
        )
        results.append({"ours": rates[0], "seqio": rates[1]})
    keep("text_to_rows", {"million_raw_tokens_a_second": results}, peer)


if __name__ == "__main__":
    main(*sys.argv[1:])
