"""Which positions of a row each device of `sequence` holds."""

import numpy as np


def sequence_order(length: int, devices: int) -> np.ndarray:
    """Return the positions of a row in the order in which the devices hold them.

    Each device has a piece from the front and its mirror image from the end, so that causal
    attention is the same work for all of them (Llama 3: Dubey et al., 2024, §3.3.2).

    >>> sequence_order(8, 2).tolist()
    [0, 1, 6, 7, 2, 3, 4, 5]
    """
    pieces = np.arange(length).reshape(2 * devices, -1)
    pairs = [(pieces[i], pieces[-1 - i]) for i in range(devices)]
    return np.concatenate([piece for pair in pairs for piece in pair])
