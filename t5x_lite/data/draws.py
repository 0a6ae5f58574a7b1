"""Random numbers as a function of place: those of a row depend on its own number and on nothing beside it."""

import numpy as np


class Draws:
    """Random numbers for several rows at once, whatever rows they are and in whatever company.

    Row (key, index, piece) takes its d-th draw of n words from the words index·n … of the stream that counter-based
    Philox (Salmon et al., 2011) makes of key (seed, key) and counter (·, d and n, piece): neighbours are read in one
    go, and any row can be read alone. Only the raw words come from numpy, whose streams of these are fixed; what is
    made of them here never changes with numpy's version.

    >>> rows, alone = Draws(0, 0, [6, 7, 8]), Draws(0, 0, [7])
    >>> rows.integers(10, 4)[1].tolist() == alone.integers(10, 4)[0].tolist()
    True
    """

    def __init__(self, seed: int, key: int, indices, pieces=0):
        self._key, self._draw = seed << 64 | key, 0
        self._indices = np.atleast_1d(np.asarray(indices, np.int64))
        self._pieces = np.broadcast_to(pieces, self._indices.shape)
        same = (self._indices[1:] == self._indices[:-1] + 1) & (self._pieces[1:] == self._pieces[:-1])
        cuts = np.flatnonzero(~same) + 1  # where the next row is not the next index
        self._runs = list(zip([0, *cuts], [*cuts, len(self)], strict=True))

    def __len__(self) -> int:
        return len(self._indices)

    def words(self, n: int) -> np.ndarray:
        """The next n random words of each row: uint64 [rows, n]."""
        made = []
        for first, end in self._runs:
            piece, index = int(self._pieces[first]), int(self._indices[first])
            block, skipped = divmod(index * n, 4)  # a Philox block is four words
            # Numbers for pieces of other lengths are others; the 1 keeps them away from what `permute` draws.
            counter = block + (self._draw << 64) + (n << 96) + (piece << 128) + (1 << 192)
            stream = np.random.Philox(key=self._key, counter=counter)
            made.append(stream.random_raw(skipped + int(end - first) * n)[skipped:])
        self._draw += 1
        return (made[0] if len(made) == 1 else np.concatenate(made)).reshape(len(self), n)

    def uniform(self, n: int) -> np.ndarray:
        """Numbers in [0, 1), in steps of 2⁻⁵³: float64 [rows, n]."""
        return (self.words(n) >> np.uint64(11)) * 2.0**-53

    def integers(self, high, n: int = 1) -> np.ndarray:
        """Integers in [0, high): int64 [rows, n]; high is a number or an array that broadcasts, each below 2³²."""
        return (self.uniform(n) * high).astype(np.int64)

    def keys(self, n: int) -> np.ndarray:
        """Words that are all different within a row and below the largest: their order is a random order of n."""
        low = np.uint64((1 << n.bit_length()) - 1)
        return self.words(n) & ~low | np.arange(n, dtype=np.uint64)

    def order(self, n: int) -> np.ndarray:
        """A random order of range(n) for each row: int64 [rows, n]."""
        return np.argsort(self.keys(n), axis=1)

    def subset(self, among, count) -> np.ndarray:
        """Which are chosen when `count` of each row's candidates are, every subset equally likely: bool [rows, n].

        among: the candidates, bool [rows, n], or n where all are. count: a number, or one for each row, at most as many
        as there are candidates.
        """
        n = among if isinstance(among, int) else among.shape[1]
        keys = self.keys(n)
        if not isinstance(among, int):
            keys[~among] = ~np.uint64(0)
        if np.ndim(count) == 0:
            if not 0 < count < n:
                return np.full(keys.shape, count > 0)
            return keys < np.partition(keys, count, axis=1)[:, count : count + 1]
        count = np.asarray(count)
        ordered = np.partition(keys, np.unique(np.minimum(count, n - 1)), axis=1)
        border = np.take_along_axis(ordered, np.minimum(count, n - 1)[:, None], 1)
        return keys < np.where(count[:, None] < n, border, ~np.uint64(0))
