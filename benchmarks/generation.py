"""Compare greedy generation on CPU, in tokens per second, with `transformers` + torch. Both sides
take turns, and the result is the median of the rounds' ratios.

    python benchmarks/generation.py PEER_PYTHON [ROUNDS]

Each model generates 64 tokens after prompts of 64. The models have the shapes of GPT-2 small and T5
small, with random weights, and 1 or 8 rows. Both sides run in float32 and bfloat16, and the peer
with both of its caches. The fastest variants of the two sides are compared, once in float32 and
once in any dtype.
"""

import statistics
import sys

from record import keep
from step_time import OURS, PEERS, ask, worker


def main(peer: str, rounds: int) -> None:
    """Print the tokens per second of each variant, and the ratios."""
    results = {}
    for family in ("gpt2", "t5"):
        for rows in ("1", "8"):
            workers = {}
            for dtype in ("float32", "bfloat16"):
                workers["ours", dtype] = worker(
                    sys.executable, "our_generation.py", OURS, family, rows, dtype
                )
                for cache in ("dynamic", "static"):
                    mode = f"{dtype} {cache}"
                    workers["peer", mode] = worker(
                        peer, "peer_generation.py", PEERS, family, rows, dtype, cache
                    )
            # Wait until all have started and compiled, then let them take turns.
            for process in workers.values():
                ask(process, 2)
            times = {mode: [] for mode in workers}
            for _ in range(rounds):
                for mode, process in workers.items():
                    times[mode].append(ask(process, 1))
            for process in workers.values():
                process.kill()
                process.communicate()
            results[f"{family}, {rows} rows"] = {" ".join(m): t for m, t in times.items()}
            # Speeds of all variants, then the ratio of the fastest: in float32, and in any dtype.
            speeds = {
                mode: int(rows) * 64e3 / statistics.median(found) for mode, found in times.items()
            }
            for (whose, mode), speed in speeds.items():
                print(f"{family}, {rows} rows: {whose} {mode} {speed:.1f} tokens/s", flush=True)
            for kind in ("float32", ""):
                ours, theirs = (
                    min(
                        (t for m, t in times.items() if m[0] == w and kind in m[1]),
                        key=statistics.median,
                    )
                    for w in ("ours", "peer")
                )
                ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
                print(
                    f"{family}, {rows} rows: ours is {ratio:.2f} × as fast {kind and 'in float32'}",
                    flush=True,
                )
    keep("generation", {"milliseconds_of_64_tokens": results}, peer)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5)
