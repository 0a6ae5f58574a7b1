import pytest
from conftest import run

from t5x_lite.training.log import mean_metrics, read_metrics
from t5x_lite.training.whole_text import whole_text_bits


def test_profiles_tensorboard_and_records(tmp_path, config_file):
    settings = {"training.profile": [2, 3], "training.steps": 4}
    run("train", f"--config={config_file(**settings)}", f"--workdir={tmp_path / 'run'}")
    assert list((tmp_path / "run/profile").rglob("*.xplane.pb"))
    assert list((tmp_path / "run/tensorboard").glob("events*"))
    record = read_metrics(tmp_path / "run/metrics.jsonl")[0]
    expected = {"step", "split", "loss", "accuracy", "total_loss", "learning_rate"}
    expected |= {
        "tokens_per_second",
        "step_seconds",
        "device_memory",
        "mfu",
        "gradient_norm",
        "parameter_norm",
        "raw_tokens",
    }
    assert expected <= set(record)
    assert set(record["seconds"]) == {"step", "compile", "data", "evaluation", "checkpoint"}


@pytest.mark.slow
def test_a_profile_outlives_a_resume(trained):
    workdir, command = trained
    run(*command, "--config.training.steps=8", "--config.training.profile=[2,20]")
    assert list((workdir / "profile").rglob("*.xplane.pb"))


def test_damaged_records_are_refused_and_kept(trained):
    workdir, command = trained
    records = workdir / "metrics.jsonl"
    whole = records.read_bytes()
    more = (*command, "--config.training.steps=7")
    for damaged in (b"5\n", b"\xff\n", b'{"step"\n'):
        records.write_bytes(damaged + whole)
        _, err = run(*more, code=66)
        assert "metrics.jsonl, line 1: not a record" in err
        assert records.read_bytes() == damaged + whole
    records.write_bytes(whole + b'{"step": 7, "spl')  # a line that a kill cut short
    (workdir / "corpus.json").write_text("null")
    _, err = run(*more, code=66)
    assert "corpus.json: holds NoneType" in err
    assert [record["step"] for record in read_metrics(records)] == [1, 2, 3, 4, 5, 6, 6]


def test_a_run_without_evaluation_has_no_report(trained):
    workdir, command = trained
    (workdir / "metrics.jsonl").unlink()
    run(*command)
    _, err = run("report", f"--workdir={workdir}", code=66)
    assert "has not been evaluated yet" in err


def test_means_divide_each_sum_once():
    words = {"total_loss": 30.0, "nll": 20.0, "correct": 4.0, "weight": 10.0}
    labels = {"total_loss": 6.0, "nll": 6.0, "correct": 3.0, "weight": 4.0}
    balance = {"total_loss": 8.0, "weight": 16}
    figures = mean_metrics({"mlm": words, "sequence_label": labels, "balance": balance})
    assert figures == {
        "loss": 2.0,
        "accuracy": 0.4,
        "loss_tokens": 10.0,
        "label_loss": 1.5,
        "label_accuracy": 0.75,
        "balance": 0.5,
        "total_loss": pytest.approx(3.0 + 1.5 + 0.5),
    }
    nothing = mean_metrics({"lm": dict.fromkeys(words, 0.0)})
    assert nothing == {"loss": 0.0, "accuracy": 0.0, "loss_tokens": 1.0, "total_loss": 0.0}


def test_a_run_says_where_it_trains_and_from_where_it_goes_on(tmp_path, config_file):
    def train(steps):
        config = config_file(**{"training.steps": steps, "training.eval_steps": 1})
        return run("train", f"--config={config}", f"--workdir={tmp_path / 'run'}")[0]

    assert "1 × cpu, float32, attention plain\n" in train(2)
    assert "1 × cpu, float32, attention plain; continuing from step 2 of 4" in train(4)
    assert "1 × cpu, float32, attention plain; already at step 4 of 4" in train(4)


def test_evaluations_on_the_way_may_read_some_batches_only(tmp_path, config_file, make):
    resolved, corpus = make()
    tokens, bits = {}, {}
    for most in (0, 1, 1000):
        settings = {"training.steps": 2, "training.eval_every": 1, "training.eval_steps": most}
        run("train", f"--config={config_file(**settings)}", f"--workdir={tmp_path / str(most)}")
        records = read_metrics(tmp_path / str(most) / "metrics.jsonl")
        evaluated = [record for record in records if record["split"] == "validation"]
        tokens[most] = [record["loss_tokens"] for record in evaluated]
        bits[most] = [whole_text_bits(r, resolved.rows, corpus.manifest) for r in evaluated]
    assert tokens[1][0] < tokens[0][0]
    assert tokens[1][1] == tokens[0][1] == tokens[0][0]  # the last one reads the whole split
    assert not bits[1][0]  # of a part of the text, they would be too few
    assert bits[1][1] == bits[0][1]
    assert bits[1000] == bits[0]  # more than there are is all of them
    assert bits[0][0]["bits_per_byte"] > bits[0][1]["bits_per_byte"] > 1
