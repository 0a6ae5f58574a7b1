"""What settings name outside of the package, and whose settings may."""

import os

import pytest
from conftest import refusal, settings

from t5x_lite.cache import cache_directory
from t5x_lite.config import CompareConfig, RunConfig, Task, to_dict
from t5x_lite.config.files import build
from t5x_lite.config.grammar import is_generated
from t5x_lite.config.permission import (
    Permission,
    allow,
    check_named,
    check_place,
    grant,
    guarded,
    permission,
    with_permission,
)
from t5x_lite.config.provenance import known_places, names_in, names_in_settings, remember
from t5x_lite.data.tasks.records import TASK_SCHEMES


@pytest.fixture
def config(text_file):
    return build(RunConfig, settings(text_file))


def test_names_are_found_by_the_roles_of_settings(text_file):
    config = build(
        RunConfig,
        settings(
            text_file,
            "2 * mine.words(x=1) + causal_lm",
            **{
                "data.source": f"3 * {text_file} + python:my.text.documents + world:facts",
                "data.validation_source": "python_docs",
                "data.tokenizer": "/there/vocab.txt",
                "data.store": "gs://bucket/store",
                "data.field": "not_mine.f",
                "init_from": "/there/run@4000",
                "model.mixer": "my.parts.Mixer(size=3)",
                "model.attention_rules": ["my_rules.near", "window(size=8)"],
                "training.loggers": ["wandb", "my_logs.Logger"],
            },
        ),
    )
    modules, places = names_in(config)
    assert modules == {"mine", "my.text", "my.parts", "my_rules", "my_logs"}
    files = {str(text_file), "/there/vocab.txt", "gs://bucket/store", "/there/run@4000"}
    assert places == files | {"service:wandb"}


def test_names_in_tasks_and_comparisons(config):
    task = Task(name="a", source="/there/{split}.tsv", prepare="m.clean", metrics=("n.score",))
    assert names_in(task) == ({"m", "n"}, {"/there/{split}.tsv"})
    compare = CompareConfig(
        cells={"a": config},
        tune={"optimizer": {"name": ("adamw", "mine.shampoo")}},
        finetune=("optimizer.schedule=mine_too.flat",),
    )
    assert names_in(compare) == ({"mine", "mine_too"}, {config.data.source})


def test_names_in_settings_of_the_command_line():
    given = [
        "data.source=corpus.txt",
        "base.objective=mine.words",
        "cells.a.optimizer.name=b.c,d.e",
    ]
    modules, places = names_in_settings([*given, "data.field=not.code", "nonsense", "seed=x.y"])
    assert modules == {"mine", "b", "d"}  # and not corpus
    assert places == {"corpus.txt"}


def test_a_place_permits_what_lies_below_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    permitted = Permission(set(), {"/data", str(tmp_path / "here"), "gs://bucket/a"}, True)
    for place in ("/data", "/data/x/y.txt", "here/x", "./here", "/x/../data/y", "gs://bucket/a/b"):
        assert permitted.admits_place(place), place
    for place in (
        *("/", "/datas", "/data/../etc/passwd", "there", "gs://bucket", "gs://bucket/ab"),
        *("gs://bucket/a/../b", "gs://bucket/a/x::file:///etc/passwd", "hf:data", ""),
    ):
        assert not permitted.admits_place(place), place


def test_python_code_opens_what_it_writes_and_a_guard_closes():
    check_place("/etc/passwd", "data.source")
    with guarded():
        message = refusal(check_place, "/etc/it's", "data.source")
        assert message.startswith("data.source=/etc/it's: the file that names it is data")
        assert "add --allow-path='/etc/it'\"'\"'s'" in message
        with allow(paths=["/etc"]):
            check_place("/etc/passwd", "data.source")
        grant(places=["/etc"])
        check_place("/etc/passwd", "data.source")
    with guarded():  # what was granted has ended
        refusal(check_place, "/etc/passwd", "data.source")


def test_all_that_is_refused_stands_in_one_sentence():
    with guarded(), allow(code=["a"], paths=["/a"]):
        check_named({"a"}, {"/a/b"}, "report.json")
        message = refusal(check_named, {"a", "b"}, {"/a/b", "/c d", "hf:x"}, "report.json")
    assert message.endswith("add --allow-code=b --allow-path='/c d' --allow-path=hf:x")


def test_what_another_process_is_told():
    with guarded(), allow(code=["a"], paths=["/a"]):
        told = permission()
    with with_permission(told):
        check_place("/a/b", "data.source")
        assert permission().modules == {"a"}


def test_settings_are_known_again_with_the_places_that_were_permitted(
    config, tmp_path, monkeypatch
):
    monkeypatch.setenv("T5X_LITE_CACHE", str(tmp_path / "cache"))
    source = config.data.source
    assert known_places(to_dict(config)) == set()
    with guarded():
        remember(config)  # it names a text that this command may not read
        assert known_places(to_dict(config)) == set()
        grant(places=[source])
        remember(config, ["/a/task.tsv"])
        assert known_places(to_dict(config)) == {source}
    with guarded(), allow(paths=["/a"]):
        remember(config, ["/a/task.tsv"])
        assert known_places(to_dict(config)) == {source, "/a/task.tsv"}
    assert known_places(to_dict(config) | {"seed": 1}) == set()
    (tmp_path / "cache").chmod(0o777)
    assert known_places(to_dict(config)) == set()
    remember(config)
    monkeypatch.setenv("T5X_LITE_CACHE", "/proc/nowhere")
    assert known_places(to_dict(config)) == set()
    remember(config)


def test_permitting_the_working_directory_permits_no_service_and_no_address(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with guarded(), allow(paths=[".", "hf:allenai/c4", "/there/run"]):
        now = permission()
    for place in ("a.txt", "hf:allenai/c4?name=en&split=train", "/there/run@4", "/there/run/x"):
        assert now.admits_place(place), place
    for place in (
        *("service:wandb", "FILE:///etc/x", "arrow_hdfs://h/x", "a.b+c:x", ":/../x", "hf:a"),
        *("hf:allenai/c4?data_files=/etc/passwd", "hf:allenai/c4x", "/there/run2@4", "/x@4"),
    ):
        assert not now.admits_place(place) or place == ":/../x", place


@pytest.mark.parametrize("scheme", TASK_SCHEMES)
def test_a_scheme_opens_something_unless_the_grammar_says_that_it_is_generated(scheme):
    opens = hasattr(TASK_SCHEMES[scheme], "directory")
    assert is_generated(f"{scheme}:x") != opens
    assert not is_generated(f"not_{scheme}:x")


def test_code_may_have_any_name():
    assert names_in_settings(["objective=übel.wörter"]).modules == {"übel"}
    assert names_in_settings(["training.loggers=['wandb']"]).places == {"service:wandb"}


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no users")
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_cache_that_others_may_write_to_is_refused(tmp_path, monkeypatch, mode):
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(mode)
    monkeypatch.setenv("T5X_LITE_CACHE", str(cache))
    message = refusal(cache_directory, code=74)
    assert "others may write to it" in message
    assert f"chmod go-w {cache}" in message
    cache.chmod(mode & ~0o022)
    assert cache_directory() == cache
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    if cache.stat().st_uid:
        assert "belongs to somebody else" in refusal(cache_directory, code=74)
