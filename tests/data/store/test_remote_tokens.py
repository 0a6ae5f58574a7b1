"""The ids of a store in a bucket, read shard by shard."""

import errno
import hashlib
import os
import pickle
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import fsspec
import numpy as np
import pytest

from t5x_lite.data.store import remote_tokens
from t5x_lite.data.store.remote_tokens import RemoteTokens
from t5x_lite.errors import BAD_DATA, IO_ERROR, UserError

SIZES = (5, 0, 7, 1, 20, 0, 11, 3)
MEMORY = fsspec.filesystem("memory")


def in_bucket(address, sizes, dtype="<u2"):
    """Ids, the address of their file, and its shards in the manifest."""
    ids = np.random.default_rng(0).integers(0, 1 << 16, sum(sizes)).astype(dtype)
    MEMORY.pipe_file(address, ids.tobytes())
    parts = np.split(ids, np.cumsum(sizes)[:-1])
    shards = [
        {"tokens": len(part), "sha256": hashlib.sha256(part.tobytes()).hexdigest()}
        for part in parts
    ]
    return SimpleNamespace(ids=ids, address=address, shards=shards)


@pytest.fixture
def text(request):
    return in_bucket(f"memory://{request.node.name}/0.train.bin", SIZES)


def opened(text, cache) -> RemoteTokens:
    return RemoteTokens(text.address, cache / "shards", text.ids.dtype, text.shards)


def kept(text, cache, number):
    return cache / "shards" / f"{text.shards[number]['sha256']}.bin"


@pytest.fixture
def asked_for(monkeypatch):
    """Counts how often the bucket is asked for what begins where."""
    counted: Counter = Counter()
    cat_ranges = type(MEMORY).cat_ranges

    def counting(self, paths, starts, ends, **options):
        counted.update(starts)
        return cat_ranges(self, paths, starts, ends, **options)

    monkeypatch.setattr(type(MEMORY), "cat_ranges", counting)
    return counted


def test_the_first_are_read_like_an_array_of_so_many(text, tmp_path, asked_for):
    whole, ids = opened(text, tmp_path), text.ids
    for length in range(len(ids) + 1):
        tokens = whole.first(length)
        assert len(tokens) == length
        np.testing.assert_array_equal(tokens, ids[:length])
        np.testing.assert_array_equal(tokens[3:-1], ids[:length][3:-1])
        places = np.arange(2 * len(ids))
        if length:
            wrapped = ids[:length].take(places, mode="wrap")
            np.testing.assert_array_equal(tokens.take(places, mode="wrap"), wrapped)
        with pytest.raises(IndexError):
            tokens.take(np.array([length]))
    assert len(whole) == len(ids)
    assert max(asked_for.values()) == 1  # what one has fetched, another need not


@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
def test_they_are_read_like_an_array(request, tmp_path, monkeypatch, dtype):
    monkeypatch.setattr(remote_tokens, "_AT_A_TIME", 3)
    text = in_bucket(f"memory://{request.node.name}/0.train.bin", SIZES, dtype)
    tokens, ids = opened(text, tmp_path), text.ids
    assert len(tokens) == len(ids)
    rng = np.random.default_rng(1)
    for _ in range(200):
        begin, end = rng.integers(-50, 60, 2).tolist()
        np.testing.assert_array_equal(tokens[begin:end], ids[begin:end])
        np.testing.assert_array_equal(tokens[begin:end:3], ids[begin:end:3])
        places = rng.integers(-100, 100, rng.integers(0, 4, 2)).astype(rng.choice(["i1", "i8"]))
        for mode in ("wrap", "clip"):
            found = tokens.take(places, mode=mode)
            np.testing.assert_array_equal(found, ids.take(places.astype(int), mode=mode))
        inside = places.astype(int) % len(ids)
        np.testing.assert_array_equal(tokens[inside.astype("u8")], ids[inside])
    np.testing.assert_array_equal(np.asarray(tokens), ids)
    np.testing.assert_array_equal(tokens == ids[3], ids == ids[3])
    np.testing.assert_array_equal(np.asarray(pickle.loads(pickle.dumps(tokens))), ids)
    assert tokens[:3].dtype == ids.dtype
    for outside in (-1, len(ids)):
        with pytest.raises(IndexError):
            tokens.take(np.array([0, outside]))
    with pytest.raises(TypeError, match="places of bool"):
        tokens[ids > 5]


def test_a_text_without_ids(request, tmp_path):
    tokens = opened(in_bucket(f"memory://{request.node.name}/0.train.bin", (0, 0)), tmp_path)
    assert len(tokens) == len(tokens[:]) == len(tokens.take(np.zeros(0, int))) == 0


def test_a_shard_comes_once_and_only_where_it_is_read(text, tmp_path, asked_for):
    tokens = opened(text, tmp_path)
    np.testing.assert_array_equal(tokens[6:14], text.ids[6:14])  # of shards 2, 3 and 4
    tokens.take(np.array([6, 14, 32]))
    opened(text, tmp_path)[6:14]  # another process of this machine
    assert asked_for == {2 * place: 1 for place in (5, 12, 13)}


def test_threads_share_what_comes(request, tmp_path, asked_for):
    sizes = (1_000_000,) * 8
    text = in_bucket(f"memory://{request.node.name}/0.train.bin", sizes)
    tokens = opened(text, tmp_path)
    places = np.random.default_rng(2).integers(0, sum(sizes), (16, 100))
    with ThreadPoolExecutor(8) as pool:
        for row, found in zip(places, pool.map(tokens.take, places), strict=True):
            np.testing.assert_array_equal(found, text.ids[row])
    assert set(asked_for.values()) == {1}
    assert len(list((tmp_path / "shards").iterdir())) == len(sizes)


def test_what_was_damaged_here_comes_again(text, tmp_path, asked_for):
    tokens = opened(text, tmp_path)
    np.asarray(tokens)
    asked_for.clear()
    kept(text, tmp_path, 0).write_bytes(b"x")
    kept(text, tmp_path, 2).write_bytes(b"")
    kept(text, tmp_path, 4).write_bytes(bytes(38))
    kept(text, tmp_path, 6).unlink()
    np.testing.assert_array_equal(np.asarray(tokens), text.ids)
    assert asked_for == {0: 1, 10: 1, 26: 1, 66: 1}
    kept(text, tmp_path, 4).write_bytes(bytes(40))
    np.testing.assert_array_equal(np.asarray(opened(text, tmp_path)), text.ids)


def test_what_changed_in_the_bucket_is_refused(text, tmp_path):
    changed = text.ids.copy()
    changed[20] += 1
    MEMORY.pipe_file(text.address, changed.tobytes())
    tokens = opened(text, tmp_path)
    np.testing.assert_array_equal(tokens[:13], text.ids[:13])
    with pytest.raises(UserError, match=r"0.train.bin: changed since it was prepared \(token 13"):
        tokens[13:14]
    MEMORY.rm_file(text.address)
    with pytest.raises(UserError, match=r"0.train.bin: cannot be read") as caught:
        tokens[33:34]
    assert caught.value.code == IO_ERROR != BAD_DATA


def test_errors_may_be_returned_instead_of_raised(text, tmp_path, monkeypatch):
    """As by older versions of fsspec."""
    error = OSError("the bucket is away")
    monkeypatch.setattr(type(MEMORY), "cat_ranges", lambda *_, **__: [error])
    with pytest.raises(UserError, match=r"0.train.bin: cannot be read .*the bucket is away"):
        opened(text, tmp_path)[:1]


def test_a_disk_that_is_nearly_full_keeps_what_was_read_last(text, tmp_path, monkeypatch):
    tokens = opened(text, tmp_path)
    np.asarray(tokens)
    for age, number in enumerate((3, 0, 2, 4, 6, 7)):
        os.utime(kept(text, tmp_path, number), (age, age))
    kept(text, tmp_path, 7).unlink()
    disk = SimpleNamespace(total=100, used=96, free=4)
    monkeypatch.setattr(remote_tokens.shutil, "disk_usage", lambda _: disk)
    np.testing.assert_array_equal(tokens[44:], text.ids[44:])
    left = set((tmp_path / "shards").iterdir())
    assert left == {kept(text, tmp_path, number) for number in (0, 2, 4, 6, 7)}
    np.testing.assert_array_equal(np.asarray(tokens), text.ids)
    # Of a large disk a share of 4 % is room enough.
    disk.total, disk.free = 10 << 40, 400 << 30
    np.asarray(tokens)
    assert all(kept(text, tmp_path, number).exists() for number in (0, 2, 3, 4, 6, 7))


def test_where_nothing_can_be_kept_all_is_fetched(text, tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    tokens = opened(text, tmp_path)
    monkeypatch.setattr(remote_tokens.os, "replace", full)
    for _ in range(2):
        np.testing.assert_array_equal(np.asarray(tokens), text.ids)
    assert not list((tmp_path / "shards").iterdir())
    said = capsys.readouterr().err
    assert said.count("(Disk quota exceeded), so they are fetched each time; make room") == 1
