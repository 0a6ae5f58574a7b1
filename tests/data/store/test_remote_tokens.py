"""The ids of a store in a bucket, read shard by shard."""

import hashlib
import os
from collections import Counter
from types import SimpleNamespace

import fsspec
import numpy as np
import pytest

from t5x_lite.data.store import remote_tokens
from t5x_lite.data.store.remote_tokens import RemoteTokens
from t5x_lite.errors import BAD_DATA, IO_ERROR, UserError

SIZES = (5, 0, 7, 1, 20, 0, 11, 3)


@pytest.fixture
def text(request):
    """Ids, the address of their file, and its shards in the manifest."""
    ids = np.random.default_rng(0).integers(0, 1 << 16, sum(SIZES)).astype("<u2")
    address = f"memory://{request.node.name}/0.train.bin"
    fsspec.filesystem("memory").pipe_file(address, ids.tobytes())
    parts = np.split(ids, np.cumsum(SIZES)[:-1])
    shards = [
        {"tokens": len(part), "sha256": hashlib.sha256(part.tobytes()).hexdigest()}
        for part in parts
    ]
    return SimpleNamespace(ids=ids, address=address, shards=shards)


def opened(text, cache) -> RemoteTokens:
    return RemoteTokens(text.address, cache / "0.train", text.ids.dtype, text.shards)


def asked_for(monkeypatch) -> Counter:
    """Counts the bytes that the bucket is asked for, by where they begin."""
    counted: Counter = Counter()
    files = type(fsspec.filesystem("memory"))
    cat_ranges = files.cat_ranges

    def counting(self, paths, starts, ends, **options):
        counted.update(dict(zip(starts, np.subtract(ends, starts).tolist(), strict=True)))
        return cat_ranges(self, paths, starts, ends, **options)

    monkeypatch.setattr(files, "cat_ranges", counting)
    return counted


def test_they_are_read_like_an_array(text, tmp_path, monkeypatch):
    monkeypatch.setattr(remote_tokens, "_AT_A_TIME", 3)
    tokens, ids = opened(text, tmp_path), text.ids
    assert len(tokens) == len(ids)
    rng = np.random.default_rng(1)
    for _ in range(200):
        begin, end = rng.integers(-50, 60, 2).tolist()
        np.testing.assert_array_equal(tokens[begin:end], ids[begin:end])
        places = rng.integers(-100, 100, rng.integers(0, 4, 2))
        for mode in ("wrap", "clip"):
            np.testing.assert_array_equal(
                tokens.take(places, mode=mode), ids.take(places, mode=mode)
            )
        inside = places % len(ids)
        np.testing.assert_array_equal(tokens[inside], ids[inside])
    np.testing.assert_array_equal(np.asarray(tokens), ids)
    assert tokens[:3].dtype == ids.dtype
    with pytest.raises(IndexError):
        tokens.take(np.array([0, len(ids)]))


def test_a_shard_comes_once_and_only_where_it_is_read(text, tmp_path, monkeypatch):
    counted = asked_for(monkeypatch)
    tokens = opened(text, tmp_path)
    np.testing.assert_array_equal(tokens[6:14], text.ids[6:14])  # of shards 2, 3 and 4
    sizes = {2 * begin: 2 * size for begin, size in ((5, 7), (12, 1), (13, 20))}
    assert counted == sizes
    tokens.take(np.array([6, 14, 32]))
    opened(text, tmp_path)[6:14]  # another process of this machine
    assert counted == sizes


def test_what_was_damaged_here_comes_again(text, tmp_path, monkeypatch):
    np.asarray(opened(text, tmp_path))
    counted = asked_for(monkeypatch)
    damaged = tmp_path / "0.train"
    (damaged / "0.bin").write_bytes(b"x")
    (damaged / "2.bin").write_bytes(b"")
    (damaged / "4.bin").write_bytes(bytes(40))
    (damaged / "6.bin").unlink()
    np.testing.assert_array_equal(np.asarray(opened(text, tmp_path)), text.ids)
    assert set(counted) == {0, 10, 26, 66}


def test_what_changed_in_the_bucket_is_refused(text, tmp_path):
    changed = text.ids.copy()
    changed[20] += 1
    fsspec.filesystem("memory").pipe_file(text.address, changed.tobytes())
    tokens = opened(text, tmp_path)
    np.testing.assert_array_equal(tokens[:13], text.ids[:13])
    with pytest.raises(UserError, match=r"0.train.bin: changed since it was prepared \(token 13"):
        tokens[13:14]
    fsspec.filesystem("memory").rm_file(text.address)
    with pytest.raises(UserError, match=r"0.train.bin: cannot be read") as caught:
        tokens[33:34]
    assert caught.value.code == IO_ERROR != BAD_DATA


def test_a_disk_that_is_nearly_full_keeps_what_was_read_last(text, tmp_path, monkeypatch):
    tokens = opened(text, tmp_path)
    np.asarray(tokens)
    here = tmp_path / "0.train"
    for age, number in enumerate((3, 0, 2, 4, 6, 7)):
        os.utime(here / f"{number}.bin", (age, age))
    (here / "7.bin").unlink()
    disk = SimpleNamespace(total=100, used=96, free=4)
    monkeypatch.setattr(remote_tokens.shutil, "disk_usage", lambda _: disk)
    np.testing.assert_array_equal(tokens[44:], text.ids[44:])
    left = {path.name for path in here.glob("*.bin")}
    assert left == {f"{number}.bin" for number in (0, 2, 4, 6, 7)}
    np.testing.assert_array_equal(np.asarray(tokens), text.ids)


def test_no_place_is_one_sentence(text, tmp_path, monkeypatch):
    tokens = opened(text, tmp_path)

    def full(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(remote_tokens.Path, "write_bytes", full)
    with pytest.raises(UserError, match=r"set T5X_LITE_CACHE to a larger disk .*No space left"):
        tokens[:1]
