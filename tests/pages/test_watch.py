"""The page that follows runs: which it finds, what it says of them, and what a browser shows."""

import json
import threading
from contextlib import closing, contextmanager
from http.client import HTTPConnection

import pytest
from browser import BROWSER, Browser
from conftest import refusal, run, settings

from t5x_lite.config import RunConfig, to_dict
from t5x_lite.config.files import build
from t5x_lite.errors import NO_FILE
from t5x_lite.pages.watch import describe, find_runs, watch_server


def record(step, split="train", loss=3.0, **more):
    of_train = {"tokens_per_second": 1000.0, "step_seconds": 0.5, "learning_rate": 1e-3}
    return {"step": step, "split": split, "loss": loss, **(of_train if split == "train" else more)}


def write(directory, records):
    (directory / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))


@pytest.fixture
def make_run(text_file):
    """A function that makes the directory of a run as it is while it trains."""
    config = to_dict(build(RunConfig, settings(text_file, **{"training.steps": 100})))

    def make(directory, records=()):
        directory.mkdir(parents=True)
        (directory / "config.json").write_text(json.dumps(config))
        write(directory, records)
        return directory

    return make


@contextmanager
def serving(*directories):
    with watch_server(directories) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


def ask(server, path):
    with closing(HTTPConnection("127.0.0.1", server.server_port)) as connection:
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())


def test_runs_of_a_comparison_and_stages_are_found_as_they_begin(make_run, tmp_path):
    study, single = tmp_path / "study", make_run(tmp_path / "single")
    study.mkdir()
    assert list(find_runs([study, single])) == ["single"]
    for path in ("gpt", "gpt/stages/1", "trunks/bert-1"):
        make_run(study / path)
    names = ["study/gpt", "study/gpt/stages/1", "study/trunks/bert-1", "single"]
    assert sorted(find_runs([study, single])) == sorted(names)
    twin = make_run(tmp_path / "other" / "single")
    assert list(find_runs([single, twin])) == [str(single), str(twin)]
    found = describe("single", single)
    assert (found["learns"], found["steps"]) == ("causal_lm", 100)
    assert 0 <= found["silent"] < 1000
    (single / "metrics.jsonl").unlink()
    assert describe("single", single)["silent"] is None


def test_records_are_sent_once_and_anew_after_a_run_has_gone_back(make_run, tmp_path):
    records = [record(step) for step in (10, 20, 30)]
    directory = make_run(tmp_path / "run", records)
    with serving(directory) as server:
        for known, before in ((0, 0), (2, 2), (3, 3)):
            (one,) = ask(server, f"/runs?run={known}")
            assert (one["before"], one["records"]) == (before, records[before:])
        write(directory, records[:1])
        (one,) = ask(server, "/runs?run=3")
        assert (one["before"], one["records"]) == (0, records[:1])


def test_what_cannot_be_read_is_one_sentence(make_run, tmp_path):
    directory = make_run(tmp_path / "run", [record(10)])
    with serving(tmp_path / "run") as server:
        (directory / "metrics.jsonl").write_text("{\n")
        (one,) = ask(server, "/runs")
        assert "metrics.jsonl, line 1: not a record" in one["error"]
        for text, words in (("{}", "it lacks 'task'"), ("[", "config.json"), ("[]", "holds list")):
            (directory / "config.json").write_text(text)
            (one,) = ask(server, "/runs")
            assert words in one["error"]
    message = refusal(watch_server, [tmp_path / "none"], code=NO_FILE)
    assert message.endswith("none: no such directory; name a run, or a directory of runs")
    _, err = run("watch", tmp_path / "none", code=NO_FILE)
    assert "no such directory" in err


@pytest.mark.skipif(not BROWSER, reason="needs Chromium")
def test_in_a_browser(make_run, tmp_path):
    records = [record(step, loss=5 - step / 50) for step in range(5, 50, 5)]
    records.append(record(45, "validation", 4.0, accuracy=0.25))
    directory = make_run(tmp_path / "study" / "a", records)
    make_run(tmp_path / "study" / "<b>", records[:3])
    with serving(tmp_path / "study") as server, Browser(str(tmp_path / "browser")) as browser:
        for width, dark in ((390, True), (1280, False)):
            browser.open(server.address, width, dark=dark)
            browser.wait("document.body.dataset.looked > 0")
            page = "document.documentElement"
            assert browser.run(f"{page}.scrollWidth - {page}.clientWidth") <= 0
        text = "[...document.querySelectorAll('{}')].map(e => e.textContent)"
        shown = browser.run(text.format(".run"))
        assert any("study/a" in one and "step 45 of 100" in one for one in shown)
        assert any("loss 4.100 · 1000 tokens/s · 28 s left" in one for one in shown)
        assert any("study/<b>" in one for one in shown)
        charts = ["loss", "accuracy", "learning rate", "tokens per second"]
        assert browser.run(text.format("figure h2")) == charts
        lines = "document.querySelector('figure').querySelectorAll('polyline').length"
        assert browser.run(lines) == 3  # training of both, validation of one
        # New records are drawn; a run that is not wanted is not.
        write(directory, [*records, record(100, loss=2.0), record(100, "validation", 2.5)])
        browser.run("document.dispatchEvent(new Event('visibilitychange'))")
        browser.wait("document.body.innerText.includes('step 100 of 100')")
        assert any("done" in one for one in browser.run(text.format(".run")))
        browser.run("document.querySelectorAll('input')[1].click()")
        assert browser.run(lines) == 1
