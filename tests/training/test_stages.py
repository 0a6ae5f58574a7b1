"""Stages: a run that is cut in two ends as the whole, and what goes on from one to the next."""

import json
import shutil
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
import pytest
from conftest import run, run_apart, settings, slow, with_devices
from ml_collections import ConfigDict

import t5x_lite
from t5x_lite import manifest
from t5x_lite.config import RunConfig, to_dict
from t5x_lite.config.files import build
from t5x_lite.errors import UserError
from t5x_lite.training import loop
from t5x_lite.training.checkpoint import Checkpoints
from t5x_lite.training.checksums import checksums
from t5x_lite.training.log import read_metrics
from t5x_lite.training.stages import directories_of, plan_stages

GROWN = "grow_depth(order='interleave')"
MORE = {"training.steps": 12, "optimizer.warmup_steps": 2}


@pytest.fixture(autouse=True)
def quiet():
    with t5x_lite.messages_to(lambda line: None):
        yield


def arrays(workdir: Path, step: int) -> dict:
    """Shape, type and checksum of each array."""
    return manifest.read(workdir / f"checkpoints/{step}")["arrays"]


def losses(*directories: Path) -> list[tuple]:
    records = [one for path in directories for one in read_metrics(path / "metrics.jsonl")]
    return [
        (one["step"], one["loss"], one["learning_rate"], one["raw_tokens"])
        for one in records
        if one["split"] == "train"
    ]


def planned(config: dict, workdir: Path) -> list:
    checked = build(RunConfig, config)
    return plan_stages(checked, directories_of(workdir, len(checked.stages)))


@pytest.mark.parametrize(
    ("cell", "more"),
    [
        (("causal_lm", "decoder"), {"training.keep_every": 4}),
        slow(("span_corruption", "encoder_decoder"), {"optimizer.name": "adafactor"}),
        (
            ("2 * prefix_lm + causal_lm", "decoder"),
            {"optimizer.name": "muon", "optimizer.schedule_unit": "tokens"},
        ),
    ],
    ids=["gpt", "t5", "mixture"],
)
def test_a_run_cut_in_three_is_the_whole(text_file, tmp_path, cell, more):
    whole = settings(text_file, *cell, **MORE, **more)
    t5x_lite.train(whole, tmp_path / "whole")
    t5x_lite.train(whole | {"stages": ({"until": 5}, {"until": "75%"}, {})}, tmp_path / "cut")
    stages = directories_of(tmp_path / "cut", 3)
    assert arrays(tmp_path / "cut", 12) == arrays(tmp_path / "whole", 12)
    assert losses(*stages) == losses(tmp_path / "whole")


def test_what_goes_on_and_what_begins_anew(text_file, tmp_path):
    stages = (
        {"until": 4},
        {"until": 6, "objective": "prefix_lm", "model": {"architecture": "prefix_decoder"}},
        {"until": 8, "optimizer": {"schedule": "linear", "warmup_steps": 0}},
        {"fresh_optimizer": True},
    )
    config = settings(text_file, **MORE) | {"stages": stages}
    starts = [stage.resolved.config.start for stage in planned(config, tmp_path / "run")]
    # Another mask is another model with the same parameters.
    assert [start.convert for start in starts] == [
        "",
        "decoder_to_prefix_decoder",
        "prefix_decoder_to_decoder",
        "",
    ]
    assert [start.optimizer_step for start in starts] == [0, 0, 0, 8]
    assert [(start.schedule_step, start.schedule_end) for start in starts] == [
        (0, 12),
        (0, 12),
        (6, 8),
        (0, 12),
    ]
    # Rows go on in one order, whatever is made of them.
    assert [start.skip_tokens for start in starts] == [0, 4 * 8 * 40, 6 * 8 * 40, 8 * 8 * 40]


def test_windows_of_other_lengths_go_on_in_the_same_order(text_file, tmp_path):
    """No part of the text is read twice, nor left out, where windows of 40 tokens follow others."""
    stages = ({"until": 4}, {"data": {"lengths": {"sequence_length": 20}, "batch_size": 4}})
    more = {"model.positions": "rotary", "training.steps": 8}
    first, second = planned(settings(text_file, **more) | {"stages": stages}, tmp_path / "run")
    longer, shorter = (stage.data.batches("train") for stage in (first, second))
    assert {one.resolved.config.data.block for one in (first, second)} == {40}
    assert shorter.first_row == 2 * 4 * 8
    end = longer.rows(range(4 * 8, 4 * 8 + 8))["decoder_targets"]
    np.testing.assert_array_equal(
        end.reshape(-1, 20),
        shorter.rows(range(shorter.first_row, shorter.first_row + 16))["decoder_targets"],
    )


def test_another_text_is_read_from_its_beginning(text_file, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text(text_file.read_text()[::-1])
    of_other = {"data": {"source": str(other)}}
    stages = ({"until": 4}, {"until": 8} | of_other, {})
    starts = [
        stage.resolved.config.start
        for stage in planned(settings(text_file, **MORE) | {"stages": stages}, tmp_path / "run")
    ]
    in_a_step = 8 * 40
    assert [start.raw_tokens for start in starts] == [0, 4 * in_a_step, 8 * in_a_step]
    assert [start.skip_tokens for start in starts] == [0, 0, 4 * in_a_step]


def test_from_a_decoder_to_an_encoder(text_file, tmp_path):
    """What is said of a decoder that goes on as an encoder: the same stack, another objective."""
    stages = (
        {"until": 6},
        {"objective": "masked_lm", "model": {"architecture": "encoder", "mlm_head": True}},
    )
    config = settings(text_file, **MORE) | {"stages": stages}
    lines: list[str] = []
    with t5x_lite.messages_to(lines.append):
        model = t5x_lite.train(config, tmp_path / "run")
        t5x_lite.train(config, tmp_path / "run")
    assert model.config.objective == "masked_lm"
    said = "\n".join(lines)
    assert "stage 2 of 2: masked_lm" in said
    assert "newly drawn: head/bias, head/dense/" in said
    assert f"stage 1 of 2: causal_lm, in {tmp_path / 'run/stages/1'}: done" in said
    assert "already at step 12 of 12" in said
    assert [step for step, *_ in losses(*directories_of(tmp_path / "run", 2))] == [*range(1, 13)]


@pytest.mark.parametrize("name", ["muon", *map(slow, ("adafactor", "adamw", "lion"))])
def test_the_optimizer_goes_on_under_other_names(text_file, tmp_path, name):
    """An encoder and back: what the optimizer knew of the decoder, it knows of the encoder."""
    stages = (
        {"until": 2},
        {"until": 4, "objective": "masked_lm", "model": {"architecture": "encoder"}},
        {},
    )
    more = {"optimizer.name": name, "model.positions": "rotary", "training.steps": 6}
    config = settings(text_file, **more) | {"stages": stages}
    run = planned(config, tmp_path / "run")
    assert [stage.resolved.config.start.optimizer_step for stage in run] == [0, 0, 0]
    t5x_lite.train(config, tmp_path / "run")
    # The second stage begins with the arrays that the first one ended with, under other names.
    second = loop.Run(run[1].resolved, run[1].data)
    places = directories_of(tmp_path / "run", 3)
    with second.within():
        state = second.start(Checkpoints(tmp_path / "none", {}, read_only=True))
    found = sorted(
        (path.replace("encoder", "decoder"), total)
        for path, total in sums_of(state).items()
        if not path.endswith("step")
    )
    expected = sorted(
        (path, checksum)
        for path, (_, _, checksum) in arrays(places[0], 2).items()
        if not path.endswith("step")
    )
    assert found == expected
    assert int(state.step) == 2


@pytest.mark.parametrize("saved_by_one", [True, slow(False)])
def test_stages_on_a_mesh_are_those_on_one_device(text_file, tmp_path, saved_by_one):
    """Also where the second stage takes what one device has saved, and the vocabulary is padded."""
    encoder = {"objective": "masked_lm", "model": {"architecture": "encoder"}}
    deeper = encoder | {"model": encoder["model"] | {"num_layers": 4}, "convert": GROWN}
    more = {"model.positions": "rotary", "model.vocab_multiple": 1, "optimizer.name": "muon"}
    stages = ({"until": 3}, {"until": 6} | encoder, deeper)
    values = settings(text_file, **more, **{"training.steps": 9}) | {"stages": stages}
    path = tmp_path / "config.py"
    path.write_text(f"def get_config():\n    return {values!r}\n")
    run("train", f"--config={path}", f"--workdir={tmp_path / 'one'}")
    mesh = ("--config.mesh.fsdp=2", "--config.mesh.tensor=2")
    if saved_by_one:
        shutil.copytree(tmp_path / "one/stages/1", tmp_path / "four/stages/1")
    command = ("train", f"--config={path}", f"--workdir={tmp_path / 'four'}", *mesh)
    run_apart(*command, env=with_devices(4))
    ours, theirs = (losses(*directories_of(tmp_path / of, 3)) for of in ("four", "one"))
    np.testing.assert_allclose(ours, theirs, rtol=2e-5)


def sums_of(state) -> dict[str, int]:
    leaves = ocp.tree.to_flat_dict(state, sep="/")
    return dict(zip(leaves, checksums(list(leaves.values())), strict=True))


@pytest.mark.parametrize(
    ("stages", "reason"),
    [
        (({"until": 4}, {"until": 4}, {}), r"stages\[1\].until: got 4, expected more than 4"),
        (({"until": "100%"}, {}), r"stages\[0\].until: got '100%', expected more than 0, and less"),
        (({"until": "half"}, {}), r"stages\[0\].until: got 'half', expected a step, or a share"),
        (({}, {}), r"stages\[0\].until: got None, expected a step, or a share"),
        (({"until": 4},), r"stages\[0\].until: the last stage ends with training.steps"),
        (({"until": 4}, {"seed": 1}), r"stages\[1\].seed: is the same in all stages"),
        (({"until": 4}, {"modl": {}}), r"stages\[1\].modl: no such setting; did you mean model"),
        (({"until": 4}, {"training": {"steps": 8}}), r"stages\[1\].training.steps: until says"),
        (({"until": 4}, {"training": 3}), r"stages\[1\].training: got 3, expected keys such as"),
        (({"untill": 4}, {}), r"stages\[0\].untill: no such setting; did you mean until"),
        (
            ({"until": 4}, {"optimizer.name": "lion"}),
            r'stages\[1\].optimizer.name: no such setting; write {"optimizer": {"name": …}}',
        ),
        (({"until": 4}, {"data": 3}), r"stages\[1\].data: got 3, expected keys such as"),
        (
            ({"until": 4}, {"model": {"d_model": 32}}),
            r"stages\[1\].model.d_model: got 32, but init_from=.* has 16",
        ),
        (
            ({"until": 4}, {"convert": "grow_widths"}),
            r"stages\[1\].start.convert=grow_widths: no such conversion; did you mean grow_width",
        ),
        (
            ({"until": 4}, {"convert": "encoder_to_decoder"}),
            r"stages\[1\].start.convert=encoder_to_decoder: got architectures decoder and decoder",
        ),
        (
            ({"until": 4}, {"objective": "masked_lm"}),
            r"stages\[1\].objective masked_lm on architecture decoder",
        ),
        (("causal_lm",), r"stages\[0\]: got 'causal_lm', expected settings, such as"),
        (({"until": 4}, {"fresh_optimizer": 1}), r"stages\[1\].fresh_optimizer: got 1, expected"),
    ],
)
def test_stages_that_cannot_be(text_file, tmp_path, stages, reason):
    config = settings(text_file, **MORE) | {"stages": stages}
    with pytest.raises(UserError, match=reason):
        t5x_lite.train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_other_stages_are_not_mixed_up(text_file, tmp_path):
    config = settings(text_file, **MORE)
    t5x_lite.train(config | {"stages": ({"until": 4}, {})}, tmp_path / "run")
    other = ({"until": 4, "model": {"dropout": 0.1}}, {})
    with pytest.raises(UserError, match=r"model.dropout: the run in .*stages/1 has 0.0"):
        t5x_lite.train(config | {"stages": other}, tmp_path / "run")


def test_what_was_trained_is_not_lost_by_other_stages(text_file, tmp_path):
    """A stage that is over may not become longer or shorter; nothing is trained before that."""
    config = settings(text_file, **MORE)
    t5x_lite.train(config | {"stages": ({"until": 4}, {"until": 8}, {})}, tmp_path / "run")
    before = arrays(tmp_path / "run/stages/1", 4)
    for until in (6, 2):
        other = ({"until": until}, {"until": 8}, {})
        with pytest.raises(UserError, match=r"training.steps: got 2, but|start.step: the run in"):
            t5x_lite.train(config | {"stages": other}, tmp_path / "run")
    assert [path.name for path in (tmp_path / "run/stages/1/checkpoints").iterdir()] == ["4"]
    assert arrays(tmp_path / "run/stages/1", 4) == before
    # A stage that others have gone on from is needed no more, and not trained again.
    shutil.rmtree(tmp_path / "run/stages/1")
    t5x_lite.train(config | {"stages": ({"until": 4}, {"until": 8}, {})}, tmp_path / "run")
    assert not (tmp_path / "run/stages/1").exists()


def test_another_tokenizer_reads_from_the_beginning(text_file, tmp_path):
    other = {"data": {"tokenizer": "byte_level_bpe(vocab_size=540)"}, "convert": "new_vocabulary"}
    config = settings(text_file, **MORE) | {"stages": ({"until": 4}, other)}
    _, second = planned(config, tmp_path / "run")
    assert second.resolved.config.start.skip_tokens == 0
    assert second.resolved.config.start.raw_tokens == 4 * 8 * 40


def test_stages_of_a_config_dict(text_file):
    config = t5x_lite.config.default()
    config.data.lengths.sequence_length = 8
    config.stages = [ConfigDict({"until": 4, "model": {"d_model": 8}}), ConfigDict()]
    built = build(RunConfig, config)
    assert built.stages == ({"until": 4, "model": {"d_model": 8}}, {})


def test_stages_of_data_reach_no_file_of_the_workdir(text_file, tmp_path):
    """config.json of a run, which is data, names a file in the directory that it is trained in."""
    secret = tmp_path / "mine/secret.txt"
    secret.parent.mkdir()
    secret.write_text("word " * 4000)
    config = settings("world:facts", **MORE)
    stages = [{"until": 2, "data": {"source": str(secret)}}, {}]
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    data = to_dict(build(RunConfig, config)) | {"stages": stages}
    (foreign / "config.json").write_text(json.dumps(data))
    command = ("train", f"--config={foreign}", f"--workdir={secret.parent}")
    _, err = run(*command, code=78)
    assert "stages[0].data.source" in err
    assert "--allow-path" in err
