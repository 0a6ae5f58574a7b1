"""Model cards, and their upload to a Hub, of which a small one is here."""

import base64
import json
import os
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from conftest import run, settings

import t5x_lite
from t5x_lite.interop.families.table import FAMILIES
from t5x_lite.interop.model_card import PIPELINES, without_directory
from t5x_lite.training.log import read_metrics


@pytest.fixture(scope="module")
def trained(tmp_path_factory, text_file):
    """A decoder, with an average of its parameters and two kept steps."""
    workdir = tmp_path_factory.mktemp("card") / "run"
    more = {"optimizer.average": "ema(decay=0.5)", "training.keep_every": 3}
    with t5x_lite.messages_to(lambda line: None):
        t5x_lite.train(settings(text_file, **more, **{"model.positions": "rotary"}), workdir)
    return workdir


def test_a_card_says_what_the_run_has_recorded(trained, tmp_path, text_file):
    out, _ = run("export", f"--workdir={trained}", "--license=apache-2.0", tmp_path / "my-gpt")
    assert "for GPTNeoXForCausalLM.from_pretrained" in out
    card = (tmp_path / "my-gpt/README.md").read_text()
    head, _, rest = card.removeprefix("---\n").partition("---\n")
    assert head.splitlines()[:3] == [
        "library_name: transformers",
        'license: "apache-2.0"',
        "pipeline_tag: text-generation",
    ]
    assert "trained with `causal_lm` for 6 steps, on 1,920 tokens of text." in rest
    assert 'model = GPTNeoXForCausalLM.from_pretrained("my-gpt")' in rest
    last = read_metrics(trained / "metrics.jsonl")[-1]
    evaluated = t5x_lite.evaluate(trained)
    assert f"| validation loss, nats per predicted token | {last['loss']:.4f} |" in rest
    assert f"validation text | {evaluated['bits_per_byte']:.4f} |" in rest
    corpus = json.loads((trained / "corpus.json").read_text())
    assert f"{corpus['train']['tokens']:,} tokens" in rest
    assert corpus["train"]["sha256"][:16] in rest
    assert "an average over the steps: ema(decay=0.5)" in rest
    assert "| `model.d_model` | `16` |" in rest

    # Nothing of this machine: the text is named without its directory.
    assert f"| sources | {text_file.name} |" in rest
    for place in (str(text_file.parent), str(trained.parent), str(tmp_path)):
        assert place not in card
    # What is added to a card does not make the model a damaged one.
    (tmp_path / "my-gpt/README.md").write_text(card + "\n## Limits\n")
    t5x_lite.load(tmp_path / "my-gpt")


def test_an_earlier_step_has_a_card_without_scores_that_are_not_its_own(trained, tmp_path):
    run("export", f"--workdir={trained}@3", tmp_path / "earlier")
    card = (tmp_path / "earlier/README.md").read_text()
    assert "for 3 steps, on 960 tokens" in card
    assert "## Scores" not in card
    assert "license" not in card


def test_a_card_tells_of_every_stage(tmp_path, text_file):
    other = tmp_path / "other.txt"
    other.write_text(text_file.read_text()[::-1])
    config = settings(text_file, **{"training.log_every": 4, "model.positions": "rotary"})
    first = {"until": 3, "objective": "prefix_lm", "data": {"source": str(other)}}
    with t5x_lite.messages_to(lambda line: None):
        t5x_lite.train(config | {"stages": (first, {})}, tmp_path / "run")
    run("export", f"--workdir={tmp_path / 'run'}", tmp_path / "out")
    card = (tmp_path / "out/README.md").read_text()
    # Counted by the checkpoint: the last record is that of step 4.
    assert "trained with `prefix_lm` to step 3, then with `causal_lm` to step 6, on 1,9" in card
    assert "| sources | other.txt |" in card
    assert f"| sources | {text_file.name} |" in card
    run("export", f"--workdir={tmp_path / 'run/stages/1'}", tmp_path / "first")
    card = (tmp_path / "first/README.md").read_text()
    assert "trained with `prefix_lm` for 3 steps" in card


@pytest.mark.parametrize("end", [{}, {"training.steps": 100, "data.epochs": 1}])
def test_a_part_of_the_validation_text_gives_no_score(tmp_path, text_file, end):
    more = {"training.eval_every": 3, "training.eval_steps": 1, "training.keep_every": 3, **end}
    with t5x_lite.messages_to(lambda line: None):
        t5x_lite.train(
            settings(text_file, **more, **{"model.positions": "rotary"}), tmp_path / "run"
        )
    last = read_metrics(tmp_path / "run/metrics.jsonl")[-1]["step"]
    for step, has_scores in ((3, False), (last, True)):
        run("export", f"--workdir={tmp_path / 'run'}@{step}", tmp_path / f"{step}")
        assert ("## Scores" in (tmp_path / f"{step}/README.md").read_text()) == has_scores


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("/home/me/a.txt", "a.txt"),
        ("texts/*.jsonl", "*.jsonl"),
        ("hf:wikitext?name=x&token=secret", "hf:wikitext"),
        ("hf:me/data", "hf:me/data"),
        ("hf:/home/me/data", "hf:data"),
        ("tfds:c4/en:3.1.0?data_dir=/home/me", "tfds:c4/en:3.1.0"),
        ("https://me:secret@there.org/a/b.txt?token=secret", "b.txt"),
        ("gs://mine/a/b.txt", "b.txt"),
        ("python:my_module.texts", "python:my_module.texts"),
        ("world:facts", "world:facts"),
        ("python_docs", "python_docs"),
    ],
)
def test_a_source_is_named_without_its_place(source, named):
    assert without_directory(source) == named


def test_a_fine_tuned_model_has_the_score_of_its_task(tmp_path, text_file):
    of_bert = {"norm_position": "post", "embedding_norm": True, "token_types": 2, "mlm_head": True}
    more = {f"model.{key}": value for key, value in of_bert.items()}
    encoder = settings(text_file, "masked_lm", "encoder", **more)
    with t5x_lite.messages_to(lambda line: None):
        t5x_lite.train(encoder | {"training": {"steps": 2}}, tmp_path / "base")
    rows = [f"the cat sees {n}\tcats" if n % 3 else f"a dog {n}\tdogs" for n in range(30)]
    (tmp_path / "pets").mkdir()
    for split in ("train", "dev"):
        (tmp_path / f"pets/{split}.tsv").write_text("\n".join(["text\tlabel", *rows]))
    run(
        "finetune", f"--init={tmp_path / 'base'}", f"--workdir={tmp_path / 'tuned'}",
        f"--task=classify({tmp_path}/pets, validation=dev, test=)", "--config.data.epochs=1",
    )  # fmt: skip
    run("export", f"--workdir={tmp_path / 'tuned'}", tmp_path / "out")
    card = (tmp_path / "out/README.md").read_text()
    scored = json.loads((tmp_path / "tuned/report.json").read_text())["scored"]
    amounts = np.array(scored["units"]["amounts"])
    half = 1.96 * amounts.std() / np.sqrt(len(amounts))
    assert f"| {scored['mean']:.4f} ± {half:.4f} |" in card
    assert "fine-tuned for pets" in card
    assert "pipeline_tag: text-classification" in card
    assert "| begins | with the parameters of base |" in card


@pytest.mark.parametrize("family", FAMILIES)
def test_every_class_has_a_pipeline(family):
    of = FAMILIES[family]
    names = [of.class_name, of.class_with_label_head, of.class_without_head, of.encoder_class]
    for name in filter(None, [*names, *of.task_classes.values()]):
        assert any(name.endswith(end) for end in PIPELINES), name


class Hub(BaseHTTPRequestHandler):
    """The part of the Hub's interface that an upload uses."""

    def log_message(self, *args):
        pass

    def answer(self, content: dict, code: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.server.asked.append(("GET", self.path))
        self.answer({"id": "me/gpt", "sha": "0" * 40, "siblings": [], "private": True})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append(("POST", self.path))
        if self.server.broken:
            return self.answer({"error": "no room"}, 507)
        if self.path.endswith("/repos/create"):
            self.server.created.append(json.loads(body))
            return self.answer({"url": f"{self.server.url}/me/gpt", "id": "me/gpt"})
        if self.path.endswith("/validate-yaml"):
            return self.answer({"errors": [], "warnings": []})
        if "/branch/" in self.path:
            return self.answer({})
        if "/preupload/" in self.path:
            files = [
                {"path": one["path"], "uploadMode": "regular", "shouldIgnore": False}
                for one in json.loads(body)["files"]
            ]
            return self.answer({"files": files})
        if "/commit/" in self.path:
            revision = self.path.rpartition("/commit/")[2]
            lines = [json.loads(line) for line in body.splitlines()]
            self.server.commits[revision] = {
                line["value"]["path"]: base64.b64decode(line["value"]["content"])
                for line in lines
                if line["key"] == "file"
            }
            url = f"{self.server.url}/me/gpt/commit/{'0' * 40}"
            return self.answer({"commitUrl": url, "commitOid": "0" * 40, "success": True})
        return self.answer({"error": self.path}, 404)


@pytest.fixture
def hub(monkeypatch):
    """A Hub on this machine, which holds what was uploaded to it."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.url = f"http://127.0.0.1:{server.server_port}"
    server.asked, server.created, server.commits, server.broken = [], [], {}, False
    threading.Thread(target=server.serve_forever, daemon=True).start()
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_of_a_test")
    yield server
    server.shutdown()
    server.server_close()


def test_a_model_is_uploaded_with_all_its_files(trained, tmp_path, hub):
    out, _ = run("export", f"--workdir={trained}", "--push=me/gpt", tmp_path / "out")
    assert out.splitlines()[-1] == "uploaded: me/gpt"
    (created,) = hub.created
    assert "private" in (created.get("visibility"), *(key for key in created if created[key]))
    files = hub.commits["main"]
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert {"README.md", "config.json", "model.safetensors", "manifest.json"} <= files.keys()
    assert b'from_pretrained("me/gpt")' in files["README.md"]


def test_revisions_are_uploaded_as_branches(trained, tmp_path, hub):
    run("export", f"--workdir={trained}", "--push=me/gpt", "--revisions", tmp_path / "out")
    assert hub.commits.keys() == {"step3", "step6", "main"}
    assert hub.commits["main"] == hub.commits["step6"]
    for revision in ("step3", "step6"):
        card = hub.commits[revision]["README.md"].decode()
        assert f'from_pretrained("me/gpt", revision="{revision}")' in card
    branches = [path for method, path in hub.asked if "/branch/" in path]
    assert [path.rpartition("/")[2] for path in branches] == ["step3", "step6"]


def test_an_upload_that_failed_can_be_repeated(trained, tmp_path, hub):
    hub.broken = True
    command = ("export", f"--workdir={trained}", "--push=me/gpt", tmp_path / "out")
    _, err = run(*command, code=74)
    assert re.search(r"me/gpt: cannot be uploaded; the export is in .*/out \(.*507", err)
    assert err.count("\n") == 1
    hub.broken = False
    out, _ = run(*command)
    assert out.splitlines() == [f"{tmp_path / 'out'} exists", "uploaded: me/gpt"]
    # The card is no other one: what would be different there is named.
    _, err = run(*command, "--license=mit", code=2)
    assert 'README.md: it has no line license: "mit"; edit it, or remove' in err
    # Another model is not taken for it.
    _, err = run("export", f"--workdir={trained}@3", "--push=me/gpt", tmp_path / "out", code=2)
    assert "holds an export with step=6, not 3" in err


@pytest.mark.parametrize("name", ["gpt", "me/", "a/b/c", "../x", "me/g pt"])
def test_what_is_no_repository_is_refused_before_anything_is_written(trained, tmp_path, name):
    _, err = run("export", f"--workdir={trained}", f"--push={name}", tmp_path / "out", code=2)
    assert f"--push: got {name!r}, expected USER/NAME" in err
    assert not os.path.exists(tmp_path / "out")


def test_a_licence_is_a_name(trained, tmp_path):
    _, err = run("export", f"--workdir={trained}", "--license=a\nb: c", tmp_path / "x", code=2)
    assert "--license: got 'a\\nb: c', expected the name that the Hub has for it" in err
