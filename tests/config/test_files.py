"""Config files, command lines and config.json: what is read, and what is refused, in a sentence."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, refusal, run, settings

from t5x_lite.config import RunConfig, default, to_dict
from t5x_lite.config import files as config_files
from t5x_lite.config.files import (
    build,
    build_comparison,
    find,
    flatten,
    get_config,
    load,
    load_comparison,
)
from t5x_lite.errors import BAD_CONFIG, USAGE


def refused(*overrides, file="gpt_tiny") -> str:
    return refusal(load, file, list(overrides))


# The configs that ship.


CONFIGS = [path for path in (ROOT / "configs").rglob("*.py") if path.parent.name != "tasks"]


@pytest.mark.parametrize("path", sorted(CONFIGS), ids=lambda p: p.stem)
def test_every_config_loads(path):
    name = f"{path}:gpt2_small" if path.stem == "published" else str(path)
    if "compare" in path.parts:
        comparison = load_comparison(name)
        assert build_comparison(to_dict(comparison)) == comparison
    else:
        config = load(name)
        assert build(RunConfig, to_dict(config)) == config
    assert "python -m t5x_lite" in path.read_text()


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("raffel_table2", ["base", "small", "tiny"]),
        ("modifications", ["base", "tiny"]),
        ("gpt_bert", ["tiny", "small"]),
        ("scaling", ["tiny"]),
    ],
)
def test_comparisons_of_several_sizes(name, sizes):
    for size in sizes:
        cells = load_comparison(f"compare/{name}:{size}").cells
        assert len(cells) > 2
    mistyped = f"compare/{name}:tinny"
    expected = f"--config={mistyped}: no such variant; did you mean tiny?"
    assert refusal(load_comparison, mistyped) == expected


def test_no_config_needs_jax():
    code = """
import sys
from t5x_lite.config.files import load
load("t5_tiny")
assert "jax" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize("name", ["gpt_tiny", "compare/python_docs", "published:gpt2_small"])
def test_get_config_is_what_load_reads(name):
    if "compare" in name:
        made, loaded = build_comparison(get_config(name).to_dict()), load_comparison(name)
    else:
        made, loaded = build(RunConfig, get_config(name).to_dict()), load(name)
    assert config_files.with_absolute_paths(made) == loaded


def test_get_config_takes_overrides_and_stays_locked():
    config = get_config("gpt_tiny", **{"training.steps": 5}, model={"num_layers": 3})
    assert (config.training.steps, config.model.num_layers) == (5, 3)
    assert config.model.d_model == get_config("gpt_tiny").model.d_model
    with pytest.raises(AttributeError):
        config.model.num_layer = 2
    compare = get_config("compare/python_docs", **{"cells.gpt.seed": 7})
    assert (compare.cells.gpt.seed, "seed" in compare.cells.bert) == (7, False)


# Command lines.


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ("optimizer.lerning_rate=1", "did you mean learning_rate?"),
        ("model.archtecture=decoder", "did you mean architecture?"),
        ("optimizer.schedule_unit=step", "did you mean steps?"),
        ("training.steps=-5", "expected at least 1"),
        ("training.steps=many", "expected a whole number"),
        ("training.steps=1.5", "expected a whole number"),
        ("training.steps=True", "expected a whole number"),
        ("model.scan=1", "expected True or False"),
        ("model.heads=[[]]", "model.heads: got [], expected text"),
        ("model.attention_rules=[1,2]", "model.attention_rules: got 1, expected text"),
        ("training.callbacks=[1]", "training.callbacks: got 1, expected text"),
        ("optimizer.learning_rate=nan", "expected a number"),
        ("optimizer.learning_rate=1e999", "expected a number"),
        ("model=5", "expected keys such as model.architecture"),
        ("model.dropout=0.95", "between 0.0 and 0.9"),
        ("model.num_heads=3", "does not divide model.d_model"),
        ("training.microbatches=7", "does not divide data.batch_size"),
        ("data.lengths.inputs=5", "has no such length"),
        ("data.lengths.sequence_length=0", "needs it"),
        ("data.lengths.sequence_length=99999999999999999999", "between 0 and"),
        ("mesh.data=0", "expected -1"),
        ("training.profile=[3,2]", "first <= last"),
        ("data.batch_size.x=1", "is a single value"),
        ("seed={[]:1}", "expected a whole number"),
        ("seed=1 seed=1", "given twice"),
        ("model.shared_input_layers=False", "architecture decoder has one stack; leave it out"),
        ("optimizer.decay_steps=50", "expected more than optimizer.warmup_steps"),
        ("cells.gpt.seed=1", "cells: no such setting"),
    ],
)
def test_bad_settings_are_refused_in_one_sentence(overrides, words):
    assert words in refused(*overrides.split())


def test_overrides_reach_settings_the_file_does_not_name():
    overrides = [
        "mesh.fsdp=2",
        "training.profile=[1,2]",
        "model.feed_forward=gated_mlp",
        "model.tie_embeddings=false",
        "data.source=my text.txt",
    ]
    config = load("gpt_tiny", overrides)
    assert (config.mesh.fsdp, config.training.profile) == (2, (1, 2))
    assert (config.model.feed_forward, config.model.tie_embeddings) == ("gated_mlp", False)
    # The run finds its text from any directory.
    assert config.data.source == str(Path.cwd() / "my text.txt")


# What was meant.


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("lr=1", "optimizer.learning_rate"),
        ("optimizer.lr=1", "optimizer.learning_rate"),
        ("max_steps=1", "training.steps"),
        ("n_layer=1", "model.num_layers"),
        ("model.n_embd=1", "model.d_model"),
        ("block_size=1", "data.lengths.sequence_length"),
        ("steps=1", "training.steps"),
        ("batch_size=1", "data.batch_size"),
        ("training.batch_size=1", "data.batch_size"),
        ("optimizer.d_model=1", "model.d_model"),
        ("model.learning_rate=1", "optimizer.learning_rate"),
    ],
)
def test_a_setting_of_another_section_or_another_framework_is_found(override, key):
    name = override.partition("=")[0]
    assert refused(override) == f"{name}: no such setting; did you mean {key}?"


def test_every_alias_names_a_setting():
    assert set(config_files._ALIASES.values()) <= set(flatten(get_config().to_dict()))


# Config files.


@pytest.fixture
def bad_file(tmp_path):
    """A function that writes a config file of that body and returns its name."""

    def write(body):
        path = tmp_path / "bad.py"
        path.write_text(f"from t5x_lite.config import default\n\ndef get_config():\n{body}\n")
        return str(path)

    return write


@pytest.mark.parametrize(
    ("typo", "words"),
    [
        ("config.model.num_layer = 2", "num_layers"),
        ("config.model.update(num_layer=2)", "num_layer"),
        ("config.modl.num_layers = 2", "modl"),
        ("config.training.steps = 'many'", "steps"),
        ("1 / 0", "ZeroDivisionError"),
        ("raise SystemExit('no')", "SystemExit: no"),
    ],
)
def test_a_typo_in_a_config_file_fails_with_its_file_and_line(bad_file, typo, words):
    name = bad_file(f"    config = default()\n    config.seed = 1\n    {typo}\n    return config")
    message = refused(file=name)
    assert message.startswith(f"{name}, line 6: ")
    assert words in message
    assert "Other fields present" not in message


def test_a_config_file_that_is_no_python_fails_with_its_file_and_line(bad_file):
    name = bad_file("    x = (")
    assert "(bad.py, line 4)" in refused(file=name)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def get_config():\n    return None\n", ": expected a function get_config()"),
        ("def get_config():\n    return 5\n", ": expected a function get_config()"),
        ("x = 5\n", ": expected a function get_config()"),
        ("", ": expected a function get_config()"),
        ("def get_config():\n    return {}['foo']\n", ", line 2: KeyError: foo"),
        ("def get_config(:\n", ": SyntaxError: "),
    ],
)
def test_config_files_that_are_none(tmp_path, text, words):
    path = tmp_path / "bad.py"
    path.write_text(text)
    assert refused(file=str(path)).startswith(f"{path}{words}")


def test_a_variant_needs_a_config_that_has_some():
    assert "this config has no variants; use --config=gpt_tiny" in refused(file="gpt_tiny:small")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"cells": 5}, "cells: got 5, expected names"),
        ({"cells": {"../x": {}}}, "got the name '../x', expected that of a directory"),
        ({"cells": {"": {}, "a": {}}}, "got the name '', expected that of a directory"),
        ({"cells": {"..": {}}}, "got the name '..', expected that of a directory"),
        ({"cells": {"a\0b": {}}}, "expected that of a directory"),
        ({"cells": {"x" * 201: {}}}, "of at most 200 bytes"),
        ({"cells": {"logs": {}}}, "and not logs"),
        ({"cells": {"a": {1: 2}}}, "cells.a.1: no such setting"),
        ({"cells": {"a": 3}}, "cells.a: got 3, expected settings"),
        ({"base": 4}, "base: got 4, expected settings"),
        ({"base": {"model": {"width": 2}}}, "no such setting"),
        ({"cells": {"a": {"model": {"width": 2}}}}, "no such setting"),
        ({"cells": {"a": {"training": {"steps": 0}}}}, "cells.a.training.steps: got 0"),
        ({"baseline": "b"}, "baseline: got 'b', expected one of the cells a"),
        ({"title": "x", "seeds": 0}, "seeds: got 0"),
        ({"mach": "flops"}, "mach: no such setting; did you mean match?"),
    ],
)
def test_comparisons_that_are_none(bad_file, values, words):
    lengths = {"data": {"lengths": {"sequence_length": 8}}}
    values = {"base": lengths, "cells": {"a": {}}} | values
    if isinstance(values["base"], dict):
        values["base"] = values["base"] | lengths
    assert words in refusal(load_comparison, bad_file(f"    return {values!r}"))


def test_a_typo_is_that_of_a_setting_of_the_comparison_or_of_its_base():
    message = refusal(load_comparison, "compare/python_docs", ["mtach=flops"])
    assert message == "mtach: no such setting; did you mean match?"
    message = refusal(load_comparison, "compare/python_docs", ["lr=1e-3"])
    assert "did you mean base.optimizer.learning_rate?" in message


def test_a_typo_in_the_name_of_a_cell_is_not_one_cell_more():
    message = refusal(load_comparison, "compare/python_docs", ["cells.gtp.seed=1"])
    assert message == "cells.gtp: no such cell; did you mean gpt?"


def test_a_setting_without_a_cell_is_one_of_all():
    compare = load_comparison("compare/python_docs", ["seed=3", "budget=5000", "seeds=2"])
    assert {cell.seed for cell in compare.cells.values()} == {3}
    assert (compare.budget, compare.seeds) == (5000, 2)
    message = refusal(load_comparison, "compare/python_docs", ["optimizer.beta2=0.9"])
    assert "each cell has a value of its own; set it as cells.NAME.optimizer.beta2" in message


def test_a_grid_makes_cells_of_the_config_of_a_run():
    compare = load_comparison(
        "gpt_tiny", (), ["optimizer.learning_rate=1e-3,3e-3", "data.batch_size=4,8"]
    )
    assert list(compare.cells) == [
        "learning_rate=1e-3-batch_size=4",
        "learning_rate=1e-3-batch_size=8",
        "learning_rate=3e-3-batch_size=4",
        "learning_rate=3e-3-batch_size=8",
    ]
    assert compare.cells["learning_rate=3e-3-batch_size=4"].optimizer.learning_rate == 3e-3
    assert "is one run, not a comparison; add --grid" in refusal(load_comparison, "gpt_tiny")
    split = load_comparison(
        "compare/python_docs", ["baseline=gpt-d_model=64"], ["model.d_model=64,96"]
    )
    assert next(iter(split.cells)) == "gpt-d_model=64"
    assert len(split.cells) == 6
    for bad, words, code in [
        ("seed", "expected KEY=VALUE", USAGE),
        ("seed=1,,2", "expected KEY=VALUE", USAGE),
        ("seed=1,1", "a value is given twice", USAGE),
        ("sed=1,2", "cells.sed=1.sed: no such setting; did you mean seed?", BAD_CONFIG),
    ]:
        assert words in refusal(load_comparison, "gpt_tiny", (), [bad], code=code)


def test_what_a_config_changes_makes_it_again():
    for name in ("bert_tiny", "t5_tiny", "gpt2_small"):
        changed = config_files.merge(default().to_dict(), config_files.changes_of(name))
        assert build(RunConfig, changed) == build(RunConfig, get_config(name).to_dict())


# Names.


def test_a_bare_name_is_not_shadowed_by_what_stands_in_the_directory(tmp_path, monkeypatch):
    shipped = load("gpt_tiny")
    monkeypatch.chdir(tmp_path)
    Path("gpt_tiny.py").write_text("raise RuntimeError('this is run')\n")
    assert find("gpt_tiny").is_relative_to(ROOT)
    assert load("gpt_tiny") == shipped
    for path in ("./gpt_tiny.py", "gpt_tiny.py", "./gpt_tiny"):
        assert "this is run" in refused(file=path)
    Path("my_own.py").write_text("raise RuntimeError('mine')\n")
    assert "mine" in refused(file="my_own")


def test_a_bare_name_is_not_shadowed_by_a_run_of_that_name(tmp_path, monkeypatch):
    """`train --config=gpt_tiny --workdir=gpt_tiny`, twice."""
    shipped = load("gpt_tiny")
    monkeypatch.chdir(tmp_path)
    for name in ("gpt_tiny", "other"):
        Path(name).mkdir()
        Path(name, "config.json").write_text(json.dumps(to_dict(shipped) | {"seed": 5}))
    assert load("gpt_tiny") == shipped
    for run_directory in ("./gpt_tiny", "other"):
        assert load(run_directory).seed == 5


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpt_tinny", "did you mean gpt_tiny?"),
        ("gpt2", "did you mean gpt2_small"),
        ("zzz", "expected one of"),
    ],
)
def test_a_config_that_does_not_exist(name, words):
    message = refusal(load, name, code=66)
    assert message.startswith(f"--config={name}: no such file; ")
    assert words in message


def test_a_model_of_hugging_face_is_no_config(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    assert "import it" in refused(file=str(tmp_path))


# Data is not code.


OWN_CODE = """
from t5x_lite.data.objectives.language import causal_lm as mine

def documents():
    return [f"the cat sees {number} dogs. " * 20 for number in range(30)]
"""


@pytest.mark.parametrize(
    "setting", [{"objective": "effect.mine"}, {"data.source": "python:effect.documents"}]
)
def test_code_that_a_config_json_names_is_not_run_unless_allowed(
    tmp_path, text_file, write_module, setting
):
    mark, workdir = write_module("effect", OWN_CODE), tmp_path / "run"
    workdir.mkdir()
    values = settings(text_file, **{"data.validation_fraction": 0.3} | setting)
    (workdir / "config.json").write_text(json.dumps(values))
    command = ["inspect", f"--config={workdir}", "--examples=1", f"--allow-path={text_file}"]

    for more in ([], ["--allow-code=effec"], [f"--allow-code={tmp_path}"], ["--allow-code="]):
        _, err = run(*command, *more, code=BAD_CONFIG)
        assert "is data, which imports no module" in err
        assert "if you trust effect, add --allow-code=effect" in err
        assert not mark.exists()
        assert "effect" not in sys.modules
    out, _ = run(*command, "--allow-code=effect")
    assert "ledger" in out
    assert mark.exists()


def test_code_named_on_the_command_line_is_allowed(tmp_path, text_file, write_module):
    mark = write_module("effect", OWN_CODE)
    (tmp_path / "config.json").write_text(json.dumps(settings(text_file)))
    command = ["inspect", f"--config={tmp_path}", "--examples=1", f"--allow-path={text_file}"]
    run(*command, "--config.objective=effect.mine")
    assert mark.exists()


# Paths.


def test_paths_are_absolute_and_stay_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    overrides = [
        "data.source=2 * a.txt + ~/b*.txt + python:a.b + gs://c/d.txt + python_docs",
        "data.validation_source=c.txt",
        "data.store=store",
        "data.tokenizer=vocab.txt",
        "init_from=runs/a",
    ]
    config = load("gpt_tiny", overrides)
    source = f"2.0 * {tmp_path}/a.txt + 1.0 * {tmp_path}/home/b*.txt + 1.0 * python:a.b"
    assert config.data.source == f"{source} + 1.0 * gs://c/d.txt + 1.0 * python_docs"
    assert config.data.validation_source == f"{tmp_path}/c.txt"
    assert config.data.store == f"{tmp_path}/store"
    assert config.data.tokenizer == f"{tmp_path}/vocab.txt"
    assert config.init_from == f"{tmp_path}/runs/a"
    assert config_files.with_absolute_paths(config) == config
    assert load("gpt_tiny").data.tokenizer.startswith("sentencepiece(")


def test_the_same_text_by_two_paths_is_trained_on_too():
    overrides = ["data.source=2 * a.txt + b.txt", "data.validation_source=./a.txt"]
    assert "it is trained on too" in refused(*overrides)
