"""A store that a pipeline makes is byte for byte the one that this machine makes."""

import gzip
import json
import os
from pathlib import Path

import pytest
from conftest import run, sentences

from t5x_lite import storage
from t5x_lite.config import Data, TextCleaning
from t5x_lite.data.store import beam_pipeline, shards
from t5x_lite.data.store import prepare as preparing
from t5x_lite.data.store.prepare import prepare
from t5x_lite.errors import BAD_DATA, IO_ERROR, NO_FILE, UserError

pytest.importorskip("apache_beam")
HERE = ("--runner=DirectRunner",)


@pytest.fixture
def text(tmp_path, monkeypatch) -> Path:
    """A directory of files of several kinds, which are many parts of many shards."""
    monkeypatch.setattr(shards, "SHARD_BYTES", 2000)
    monkeypatch.setattr(shards, "PART_BYTES", 3000)
    directory = tmp_path / "text"
    directory.mkdir()
    for number in range(6):
        texts = sentences(40 + 30 * number, seed=number).split("\n\n")
        (directory / f"{number}.txt").write_text("\n".join(texts))
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (directory / f"{number}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (directory / "few.txt").write_bytes(b"one two\nthree \xff four\n\nx\r\n")
    (directory / "empty.txt").write_text("\n \n")
    return directory


def files_of(store: Path) -> dict[str, bytes]:
    return {
        path.relative_to(store).as_posix(): path.read_bytes()
        for path in store.rglob("*")
        if path.is_file()
    }


SETTINGS = {
    "lines": {"source": "TEXT", "document": "line"},
    "files": {"source": "TEXT"},
    "a learned vocabulary": {"source": "TEXT", "tokenizer": "sentencepiece(vocab_size=600)"},
    "few documents": {"source": "TEXT/few.txt + TEXT/1.txt", "document": "line"},
    "one document": {"source": "TEXT/2.txt"},
    "one document among empty files": {"source": "TEXT/*e*.txt", "document": "file"},
    "held out text": {"source": "TEXT/*.gz", "validation_source": "TEXT/*.txt"},
    "a function": {"source": "python:pages.texts + TEXT/1.txt"},
    "skipped documents": {
        "source": "TEXT",
        "document": "line",
        "text_cleaning": TextCleaning(invalid_utf8="skip", single_token="skip"),
    },
}


_SLOW = ("files", "one document", "few documents", "skipped documents", "a learned vocabulary")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in _SLOW else ()) for name in SETTINGS],
)
@pytest.mark.usefixtures("own_code")
def test_the_same_bytes(text, tmp_path, monkeypatch, name):
    module = "def texts():\n    return [f'page {number} ' * 40 for number in range(300)]\n"
    (tmp_path / "pages.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    settings = {
        key: value.replace("TEXT", str(text)) if isinstance(value, str) else value
        for key, value in SETTINGS[name].items()
    }
    data = Data(**{"tokenizer": "bytes", **settings})
    stores = [tmp_path / "here", tmp_path / "beam"]
    here = prepare(Data(**vars(data) | {"store": str(stores[0])}))
    prepare(Data(**vars(data) | {"store": str(stores[1])}), beam_options=HERE)
    assert files_of(stores[0]) == files_of(stores[1])
    assert not list(tmp_path.glob("*staging*"))
    if name in ("lines", "files"):
        assert len(here.manifest["sources"][0]["train"]["shards"]) > 10


@pytest.mark.slow
def test_worker_processes(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text(sentences(50, seed=number))
    data = Data(source=str(tmp_path / "*.txt"), document="line", tokenizer="bytes")
    stores = [tmp_path / "here", tmp_path / "beam"]
    prepare(Data(**vars(data) | {"store": str(stores[0])}))
    out, _ = run(
        "prepare", "--config=gpt_tiny", f"--config.data.source={tmp_path}/*.txt",
        "--config.data.document=line", "--config.data.tokenizer=bytes",
        f"--config.data.store={stores[1]}",
        "--beam=--direct_running_mode=multi_processing --direct_num_workers=2",
    )  # fmt: skip
    assert out.splitlines()[-1] == f"store: {stores[1]}"
    assert files_of(stores[0]) == files_of(stores[1])


def test_options_that_are_not_closed_are_one_sentence(tmp_path):
    _, err = run("prepare", "--config=gpt_tiny", "--beam=--project='x", code=2)
    assert "--beam=--project='x: no closing quotation; close it" in err


def test_a_pipeline_that_was_killed_goes_on(text, tmp_path, monkeypatch):
    data = Data(source=str(text), document="line", tokenizer="bytes", store=str(tmp_path / "a"))
    prepare(data)
    again = Data(**vars(data) | {"store": str(tmp_path / "b")})
    encode = beam_pipeline.ShardEncoder.__call__
    calls = []

    def dies(self, shard):
        calls.append(shard)
        if len(calls) == 8:
            raise ConnectionError("the machine is gone")
        return encode(self, shard)

    monkeypatch.setattr(beam_pipeline.ShardEncoder, "__call__", dies)
    with pytest.raises(UserError, match=r"the pipeline failed: .*the machine is gone") as error:
        prepare(again, beam_options=HERE)
    assert error.value.code == IO_ERROR
    prepare(again, beam_options=HERE)
    count = sum(len(split["shards"]) for split in _splits(tmp_path / "a"))
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")
    assert len({shards.shard_hash(shard) for shard in calls}) == len(calls) - 1 <= count


def _splits(store: Path) -> list[dict]:
    (source,) = json.loads((store / "manifest.json").read_text())["sources"]
    return [source["train"], source["validation"]]


def test_what_this_machine_has_made_is_not_made_again(text, tmp_path, monkeypatch):
    data = Data(source=str(text), document="line", tokenizer="bytes", store=str(tmp_path / "a"))
    prepare(data)
    half = Data(**vars(data) | {"store": str(tmp_path / "b")})
    written = []
    write = preparing._Journal.write

    def stops(self, record):
        write(self, record)
        written.append(record)
        if len(written) == 9:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(preparing._Journal, "write", stops)
        with pytest.raises(KeyboardInterrupt):
            prepare(half)
    prepare(half, beam_options=HERE)
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")


def test_an_error_of_a_worker_is_its_sentence(text, tmp_path):
    cleaning = TextCleaning(invalid_utf8="stop")
    store = str(tmp_path / "store")
    data = Data(source=str(text), document="line", tokenizer="bytes", text_cleaning=cleaning)
    with pytest.raises(UserError, match="has the issue invalid_utf8; fix it") as error:
        prepare(Data(**vars(data) | {"store": store}), beam_options=HERE)
    assert error.value.code == BAD_DATA


def test_workers_that_cannot_write_the_staging_directory(text, tmp_path, monkeypatch):
    monkeypatch.setattr(beam_pipeline.storage, "write", lambda *_: None)
    data = Data(source=str(text), tokenizer="bytes", store=str(tmp_path / "store"))
    with pytest.raises(UserError, match=r"no worker wrote .* name a data.store that all workers"):
        prepare(data, beam_options=HERE)


def test_without_beam(text, tmp_path, monkeypatch):
    def missing(module, extra, what):
        raise UserError(NO_FILE, f"{what}: needs {module}: t5x_lite[{extra}]")

    monkeypatch.setattr(beam_pipeline, "optional_import", missing)
    data = Data(source=str(text), tokenizer="bytes", store=str(tmp_path / "store"))
    with pytest.raises(UserError, match=r"--beam: needs apache_beam: t5x_lite\[beam\]"):
        prepare(data, beam_options=HERE)
    assert storage.exists(str(tmp_path / "store/journal.jsonl"))
    assert os.listdir(tmp_path / "store")
