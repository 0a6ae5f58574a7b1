import dataclasses
import json
import os

import pytest
from conftest import ALL_CELLS, run, start

from t5x_lite.__main__ import main
from t5x_lite.config.files import load
from t5x_lite.data.rows.batches import ledger
from t5x_lite.data.rows.row_plan import plan_rows
from t5x_lite.data.store.corpus import open_store
from t5x_lite.errors import UserError
from t5x_lite.hardware import CHIPS, parse_topology
from t5x_lite.planning import report as plan_report
from t5x_lite.planning import search as plan_search
from t5x_lite.planning.compiler import Compiled
from t5x_lite.planning.plan import Assumptions, expected_tokens, make_plan
from t5x_lite.report import page
from t5x_lite.resolve import text_data

GiB = 2**30


def planned(config, topology, *settings, **assumed):
    return make_plan(load(config, settings), parse_topology(topology), Assumptions(**assumed))


@pytest.mark.parametrize(
    ("objective", "architecture", "lengths", "tokens"),
    [
        ("causal_lm", "decoder", {"sequence_length": 512}, (512, 512, 512, 512)),
        ("span_corruption", "encoder_decoder", {"inputs": 512, "targets": 114},
         (568, 626, 114, 114)),
        ("masked_lm", "encoder", {"sequence_length": 512}, (510, 512, 76, 76)),
        ("prefix_lm(split=0.5)", "prefix_decoder", {"sequence_length": 512}, (512, 512, 256, 256)),
        ("2 * causal_lm + 2 * prefix_lm(split=0.5)", "decoder", {"sequence_length": 512},
         (512, 512, 384, 384)),
        # Half of the positions, whose weights add up to all.
        ("masked_diffusion", "encoder", {"sequence_length": 512}, (510, 512, 510, 255)),
        ("masked_diffusion", "decoder", {"sequence_length": 512}, (512, 512, 512, 256)),
    ],
)  # fmt: skip
def test_tokens_are_known_before_the_text(objective, architecture, lengths, tokens):
    config = load("gpt_tiny")
    written = dataclasses.replace(config.data.lengths, **lengths)
    rows = plan_rows(objective, architecture, written)
    found = dataclasses.astuple(expected_tokens(rows))
    assert found[:3] == pytest.approx(tokens[:3], abs=1)
    # A few rows are looked at, which hide any number of tokens each.
    assert found[3] == pytest.approx(tokens[3], rel=0.05 if "diffusion" in objective else 0.01)


@pytest.mark.parametrize(("objective", "architecture"), ALL_CELLS)
def test_expected_tokens_are_those_of_the_ledger(make, objective, architecture):
    """What depends on the text is counted on another one, whose sentences have other lengths."""
    resolved, corpus = make(objective, architecture)
    counted = ledger(text_data(resolved, corpus).batches("train"))
    expected = expected_tokens(resolved.rows)
    assert expected.raw == pytest.approx(counted.raw_tokens)
    close = 0.35 if resolved.rows.has_sentence_pairs else 0.1
    assert expected.model == pytest.approx(counted.model_tokens, rel=close)
    assert expected.loss == pytest.approx(counted.loss_tokens, rel=close)
    assert expected.scored == pytest.approx(counted.scored, rel=close)


def test_the_state_is_split_as_the_mesh_says():
    whole = planned("gpt2_small", "v5p:2x2x2")
    assert whole.memory["parameters"] == pytest.approx(4 * 124.5e6, rel=0.01)  # padded to 50,304
    assert whole.memory["optimizer"] == pytest.approx(2 * whole.memory["parameters"], rel=0.01)
    split = planned("gpt2_small", "v5p:2x2x2", "mesh.fsdp=4", "mesh.tensor=2")
    for name in ("parameters", "optimizer"):
        assert split.memory[name] == pytest.approx(
            whole.memory[name] / 8, rel=0.02
        )  # vectors are whole
    assert sum(split.modules.values()) == pytest.approx(split.parameters, rel=0.001)
    by = {one.path: one.by for one in split.splits}
    assert by["embedding"] == ("tensor", "fsdp")


@pytest.mark.parametrize(
    ("config", "pf_days"),
    # Brown et al. (2020), table D.1, of 300 billion tokens; it counts neither attention's logits
    # nor embeddings.
    [("gpt3_125m", 2.60), ("gpt3_1.3b", 27.5), ("gpt3_13b", 268), ("gpt3_175b", 3640)],
)
def test_the_compute_of_gpt3(config, pf_days):
    plan = planned(f"published:{config}", "v5p:8x8x8", "mesh.fsdp=256", "data.batch_size=512")
    steps = 300e9 / (512 * 2048)
    days = plan.flops * steps / (1e15 * 86400)
    # The head and half of attention's square are a larger share of a small model.
    share = {"gpt3_125m": 1.45, "gpt3_1.3b": 1.12}.get(config, 1.05)
    assert pf_days < days < share * pf_days


def test_a_step_takes_as_long_as_its_slowest_part():
    plan = planned("llama_7b", "v5p:4x4x4", "mesh.fsdp=64", "data.batch_size=128")
    at_peak = (plan.flops + plan.computed_again) / (64 * 459e12)
    assert plan.seconds["compute"] == pytest.approx(at_peak)
    # Two gathers of bfloat16 and one reduction of float32 of what fsdp splits: 54 GB.
    assert plan.sent["fsdp"] == pytest.approx(53.9e9, rel=0.01)
    assert plan.seconds["fsdp"] == pytest.approx(plan.sent["fsdp"] / 600e9)
    assert plan.bound_by == "compute"
    # The forward pass is computed again, but for the head: 3/4 of the work counts.
    assert 0.75 < plan.max_mfu < 0.77
    assert plan.days == pytest.approx(plan.step_seconds * plan.config.training.steps / 86400)


def test_assumptions_of_the_user_count():
    plan = planned("llama_7b", "v5p:4x4x4", "mesh.fsdp=64", mfu=0.5, dollars=2.0, watts=300)
    hours = 24 * plan.days
    assert plan.step_seconds == pytest.approx(plan.flops / (0.5 * 64 * 459e12))
    assert plan.dollars == pytest.approx(hours * 64 * 2)
    assert plan.kilowatt_hours == pytest.approx(hours * 64 * 0.3)
    unknown = planned("llama_7b", "v5p:4x4x4", "mesh.fsdp=64")
    assert unknown.kilowatt_hours is None  # not published
    assert planned("gpt_tiny", "cpu:2").days is None


def test_sources_get_tokens_by_their_rates():
    plan = planned("gpt_tiny", "cpu:1", "data.source=3 * a.txt + b.txt")
    (a, tokens_a), (b, tokens_b) = plan.tokens_of_sources().items()
    assert a.endswith("a.txt")
    assert b.endswith("b.txt")
    assert tokens_a == 3 * tokens_b


@pytest.mark.parametrize("topology", ["v5e:2x4", "h100:1x8", "cpu:8", "2*v5e:2x2"])
@pytest.mark.parametrize("config", ["gpt_tiny", "t5_tiny", "bert_tiny"])
def test_every_family_is_planned_on_every_kind_of_device(config, topology):
    plan = planned(config, topology, "model.dtype=bfloat16", "data.batch_size=16")
    assert plan.mesh["data"] == 8
    assert plan.memory_in_all > 0
    assert plan.sent.get("data")
    assert bool(plan.seconds) == (topology != "cpu:8")
    assert plan_report.show(config, plan)


def test_frozen_parameters_take_room_and_have_no_optimizer_state():
    whole = planned("gpt_tiny", "cpu:1")
    last = planned("gpt_tiny", "cpu:1", "adapt=last(1)", "init_from=nowhere")
    assert last.parameters == whole.parameters
    assert last.memory["parameters"] == whole.memory["parameters"]
    assert last.memory["optimizer"] < 0.5 * whole.memory["optimizer"]

    settings = ["adapt=lora(rank=4)", "init_from=nowhere", "model.lora_rank=4"]
    adapted = planned("gpt_tiny", "cpu:1", *settings)
    assert adapted.parameters > whole.parameters
    assert adapted.memory["parameters"] > whole.memory["parameters"]
    assert adapted.memory["optimizer"] < 0.1 * whole.memory["optimizer"]


@pytest.mark.slow
def test_search_finds_what_fits_and_ranks_it():
    config = load("gpt2_small", ["data.batch_size=64"])
    found = plan_search.search(config, parse_topology("v5e:2x2"))
    assert all(plan.fits for plan in found)
    times = [max(plan.seconds.values()) for plan in found]
    assert times == sorted(times)
    meshes = [{axis: size for axis, size in plan.mesh.items() if size > 1} for plan in found]
    for mesh in ({"data": 4}, {"fsdp": 4}, {"data": 2, "tensor": 2}):
        assert mesh in meshes
    assert "mesh.fsdp=4" in plan_report.show_found(found)


@pytest.mark.slow
def test_search_says_what_the_least_is(monkeypatch):
    config = load("llama_7b", ["data.batch_size=4"])
    with pytest.raises(
        UserError, match=r"the state alone takes 25\.1 GiB per device; 7 devices can"
    ):
        plan_search.search(config, parse_topology("v5e:2x2"))
    # Room for the state and little else.
    small = dataclasses.replace(CHIPS["v5e"], memory=1.9)
    monkeypatch.setitem(CHIPS, "v5e", small)
    config = load("gpt2_small", ["data.batch_size=1"])
    with pytest.raises(UserError, match=r"nothing fits v5e:1x1: the smallest plan takes"):
        plan_search.search(config, parse_topology("v5e:1x1"))
    odd = load("llama_7b", ["data.batch_size=1", "data.lengths.sequence_length=511"])
    with pytest.raises(UserError, match=r"no mesh of 64 devices divides this model and batch"):
        plan_search.search(odd, parse_topology("v5e:8x8"))


@pytest.mark.slow
def test_weak_scaling_keeps_the_rows_of_a_device():
    config = load("gpt2_small", ["mesh.fsdp=2", "data.batch_size=512"])
    plans = plan_search.weak_scaling(config, parse_topology("v5p:4x4x4"))
    assert [plan.topology.count for plan in plans] == [2**power for power in range(3, 13)]
    assert {plan.rows // plan.topology.count for plan in plans} == {8}
    assert [plan.mesh["fsdp"] for plan in plans][-2:] == [256, 256]  # which divides d_model, 768
    memory = [plan.memory_in_all for plan in plans]
    assert memory == sorted(memory, reverse=True)
    written = plan_report.scaling_page("gpt2", plans)
    assert "16x16x16" in page.markdown(written)


def test_command(capsys, tmp_path):
    assert main(["plan", "--config=gpt2_small", "--topology=h100:1x8", "--splits"]) == 0
    shown = capsys.readouterr().out
    for text in ("124,439,808", "it fits", "bound by", "PF-days", "dollars", "kWh", "split by"):
        assert text in shown
    command = ["plan", "--config=gpt_tiny", "--topology=h100:1x8", "--json"]
    command += ["--config.data.batch_size=8"]
    assert main(command) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["devices"] == 8
    assert record["memory_in_all"] == sum(record["memory"].values())
    assert {split["path"] for split in record["splits"]} >= {
        "embedding",
        "decoder/final_norm/scale",
    }
    assert main([*command, "--scale", f"--workdir={tmp_path}"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 10
    assert (tmp_path / "report.md").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--config=gpt_tiny", "--topology=v5e"], "--topology=v5e: expected such as v5e:4x4"),
        (["--topology=v5e:2x2"], "--config=FILE is missing"),
        (["--config=gpt_tiny", "--config.mesh.fsdp=3"], "does not make the 1 devices here"),
    ],
)
def test_bad_input_is_one_sentence(arguments, reason, capsys):
    assert main(["plan", *arguments]) in (2, 78)
    assert reason in capsys.readouterr().err


def test_what_does_not_fit_is_said_with_what_would_help():
    shown = plan_report.show("llama_7b", planned("llama_7b", "v5e:2x2", "data.batch_size=64"))
    assert "it does not fit: the state alone takes 25.10 GiB per device; use at least 7" in shown
    plan = planned("llama_7b", "v5e:4x4", "data.batch_size=64", "model.remat=False")
    assert plan.fits is False
    shown = plan_report.show("llama_7b", plan)
    assert "it does not fit: " in shown
    assert "mesh.fsdp" in shown
    assert "model.remat=True" in shown
    assert "training.microbatches" in shown


def test_an_estimate_that_is_close_is_no_promise():
    plan = planned("gpt_tiny", "v5e:2x4")
    room = {"at work": round(0.9 * plan.room), **dict.fromkeys(list(plan.memory)[:-1], 0)}
    close = dataclasses.replace(plan, memory=room)
    assert "it may fit; ask the compiler" in plan_report.show("gpt2_small", close)
    compiled = Compiled(GiB, 3 * GiB, 2 * GiB, fits=True)
    assert "it fits" in plan_report.show("gpt2_small", close, compiled)


def test_nothing_is_free_that_is_given_as_such():
    plan = planned("gpt_tiny", "v4:2x2x2", "model.dtype=bfloat16", dollars=0.0, watts=0.0)
    assert (plan.dollars, plan.kilowatt_hours) == (0.0, 0.0)
    assert "0.00 per device and hour, as given" in plan_report.show("gpt2_small", plan)


def test_what_is_assumed_is_held_against_the_roofline():
    hopeful = planned("gpt_tiny", "v5e:2x4", "model.dtype=bfloat16", mfu=0.99)
    shown = plan_report.show("gpt_tiny", hopeful)
    assert "more than the roofline allows" in shown
    known = planned("gpt_tiny", "v5e:2x4", "model.dtype=bfloat16")
    twice = planned("gpt_tiny", "v5e:2x4", "model.dtype=bfloat16", tflops=2 * 197)
    assert twice.seconds["compute"] == pytest.approx(known.seconds["compute"] / 2)
    of_float32 = planned("gpt_tiny", "v5e:2x4", "model.dtype=float32", tflops=50)
    assert of_float32.days is not None


def test_what_is_sent_nobody_knows_how_fast_is_said():
    plan = planned("gpt2_small", "h100_pcie:4x8", "mesh.fsdp=32")
    assert plan.unknown == ["fsdp"]
    shown = plan_report.show("gpt2_small", plan)
    assert "roofline, over fsdp, s" in shown
    assert "unless traffic over fsdp takes longer" in shown


def test_times_are_those_of_what_the_compiler_sends_where_it_was_asked():
    plan = planned("gpt2_small", "v5e:2x2", "mesh.tensor=4")
    half = plan.with_sent({axes: size // 2 for axes, size in plan.sent.items()})
    assert half.seconds["tensor"] == pytest.approx(plan.seconds["tensor"] / 2)
    assert half.seconds["compute"] == plan.seconds["compute"]


def test_slices_of_a_topology_stay_as_they_are(monkeypatch):
    monkeypatch.setattr(plan_search, "make_plan", lambda config, topology, *_: topology)
    config = load("gpt_tiny", ["data.batch_size=512"])
    found = plan_search.weak_scaling(config, parse_topology("2*v5p:4x4x4"))
    assert list(map(str, found[:4])) == ["v5p:2x2x2", "v5p:2x2x4", "v5p:2x4x4", "v5p:4x4x4"]
    assert str(found[-1]) == "64*v5p:4x4x4"
    shared = load("gpt_tiny", ["data.batch_size=512", "mesh.tensor=2", "mesh.sequence=8"])
    found = plan_search.weak_scaling(shared, parse_topology("v5p:4x4x4"))
    assert [topology.count for topology in found] == [2**power for power in range(4, 13)]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--scale", "--search"), "leave --search out"),
        (("--scale", "--splits"), "leave --splits out"),
        (("--workdir=x",), "--workdir is for the page of --scale"),
    ],
)
def test_options_that_do_not_go_together(words, reason):
    _, err = run("plan", "--config=gpt_tiny", "--topology=cpu:1", *words, code=2)
    assert reason in err


@pytest.mark.parametrize("platform", ["tpu", pytest.param("cuda", marks=pytest.mark.slow)])
def test_no_accelerator_is_asked_for(platform):
    environment = os.environ | {"JAX_PLATFORMS": platform}
    words = ("plan", "--config=gpt_tiny", "--topology=v5e:2x2", "--no-compile")
    out, _ = start(*words, env=environment).communicate(timeout=120)
    assert "it fits" in out


def test_what_the_compiler_says_stands_beside_the_estimate():
    plan = planned("llama_7b", "v5p:4x4x4", "mesh.fsdp=64", "data.batch_size=128")
    compiled = Compiled(GiB, 3 * GiB, 2 * GiB, fits=True, cycles=1_050_000_000)
    shown = plan_report.show("llama_7b", plan, compiled)
    assert "the compiler expects, s" in shown
    assert " 0.6000" in shown  # at 1.75 GHz
    too_large = dataclasses.replace(compiled, fits=False, peak=200 * GiB)
    assert "200.00" in plan_report.show("llama_7b", plan, too_large)


def test_epochs_are_those_of_the_store_where_there_is_one(tmp_path):
    for name in "ab":
        lines = [f"{name} {number}" for number in range(400 if name == "a" else 100)]
        (tmp_path / f"{name}.txt").write_text("\n".join(lines))
    sources = f"{tmp_path}/a.txt + {tmp_path}/b.txt"
    words = [
        "--config=gpt_tiny", "--config.data.document=line", "--config.data.tokenizer=bytes",
        f"--config.data.store={tmp_path}/store",
    ]  # fmt: skip
    command = ("plan", "--topology=cpu:1", "--json", *words)
    assert (
        json.loads(run(*command, f"--config.data.source={sources}")[0])["epochs_of_sources"] == {}
    )
    run("prepare", *words, f"--config.data.source={sources}")
    planned = json.loads(run(*command, f"--config.data.source={sources}")[0])
    corpus = open_store(tmp_path / "store")
    total = sum(len(source.tokens["train"]) for source in corpus.sources)
    (read,) = planned["tokens_of_sources"].values()
    assert planned["epochs_of_sources"] == {sources: read / total}
    part = ("--config.data.unique_tokens=1000", f"--config.data.source={sources}")
    planned = json.loads(run(*command, *part)[0])
    assert planned["epochs_of_sources"] == {sources: pytest.approx(read / 1000)}

    rated = f"3 * {tmp_path}/a.txt + 1 * {tmp_path}/b.txt"
    planned = json.loads(run(*command, f"--config.data.source={rated}")[0])
    for source, share in zip(corpus.sources, (0.75, 0.25), strict=True):
        epochs = planned["epochs_of_sources"][source.name]
        assert epochs == pytest.approx(share * read / len(source.tokens["train"]))
    out, _ = run("plan", *words, f"--config.data.source={rated}", "--topology=cpu:1")
    assert f"{epochs:,.2f} epochs" in out
