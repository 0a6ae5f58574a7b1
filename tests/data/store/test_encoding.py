import dataclasses
import hashlib

import numpy as np
import pytest

from t5x_lite.config import Data, TextCleaning
from t5x_lite.data.store import shards
from t5x_lite.data.store.encoding import EncoderPool, Progress, ShardEncoder
from t5x_lite.data.store.prepare import prepare
from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.errors import BAD_DATA, UserError
from t5x_lite.progress import messages_to

SHARD = [("train", b"ab"), ("validation", b"c"), ("train", b"x")]


def encoder(single_token="keep") -> ShardEncoder:
    return ShardEncoder(Tokenizer(), single_token, np.dtype("<u2"))


def test_documents_are_encoded_by_split_and_end_in_eos():
    encoded = encoder()(SHARD)
    eos = Tokenizer().vocabulary.eos
    train = np.frombuffer(encoded.ids["train"], "<u2").tolist()
    assert train == [ord("a"), ord("b"), eos, ord("x"), eos]
    assert np.frombuffer(encoded.ids["validation"], "<u2").tolist() == [ord("c"), eos]
    assert encoded.counts["train"] == {
        "documents": 2,
        "tokens": 5,
        "bytes": 3,
        "words": 2,
        "single_token": 1,
        "sha256": hashlib.sha256(encoded.ids["train"]).hexdigest(),
    }


def test_documents_of_one_token_may_be_skipped_or_stopped_at():
    skipped = encoder("skip")(SHARD)
    assert skipped.counts["train"]["documents"] == 1
    assert skipped.counts["validation"]["documents"] == 0
    assert skipped.counts["validation"]["single_token"] == 1
    assert skipped.ids["validation"] == b""
    with pytest.raises(UserError, match=r"b'x' is one token; .* data.text_cleaning.single_token"):
        encoder("stop")(SHARD)


def test_a_shard_is_encoded_the_same_in_another_process(tmp_path):
    tokenizer = Tokenizer()
    tokenizer.save(tmp_path)
    with EncoderPool(tmp_path, tokenizer, Data(processes=2), np.dtype("<u2")) as pool:
        here, elsewhere = [pool.submit(SHARD) for _ in range(2)]
        assert here.result() == elsewhere.result() == encoder()(SHARD)


def test_an_error_comes_back_from_another_process(tmp_path, monkeypatch):
    lines = ["some words"] * 400 + ["x"] + ["more words"] * 400
    (tmp_path / "a.txt").write_text("\n".join(lines))
    monkeypatch.setattr(shards, "SHARD_BYTES", 2000)
    data = Data(
        source=str(tmp_path / "a.txt"),
        document="line",
        tokenizer="bytes",
        text_cleaning=TextCleaning(single_token="stop"),
    )
    with pytest.raises(UserError, match=r"data.text_cleaning.single_token") as caught:
        prepare(dataclasses.replace(data, processes=2))
    assert caught.value.code == BAD_DATA


def test_progress_is_a_line_now_and_then_where_there_is_no_terminal(monkeypatch):
    lines = []
    seconds = iter([0.0, 1.0, 10.0, 11.0, 20.0])
    monkeypatch.setattr("time.monotonic", lambda: next(seconds, 20.0))
    monkeypatch.setattr("sys.stderr.isatty", lambda: False, raising=False)
    progress = Progress("books", 8_000_000)
    with messages_to(lines.append):
        for _ in range(4):
            progress.add_read(2_000_000)
            progress.add_written(1_000_000)
    first, last = lines
    assert first.startswith("prepare: books: ")
    assert "MB of tokens, ETA " in first
    assert "8 MB read, 0.4 MB/s, 4 MB of tokens" in last
    assert "ETA" not in last
