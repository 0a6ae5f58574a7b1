import json
from html.parser import HTMLParser

import numpy as np
import pytest
from conftest import run, settings

from t5x_lite.study import report

CELLS = {
    "bert": ("masked_lm", "encoder", {"sequence_length": 42}),
    "t5": ("span_corruption", "encoder_decoder", {"inputs": 37, "targets": 9}),
    "gpt": ("causal_lm", "decoder", {"sequence_length": 40}),
}


def test_a_comparison_from_end_to_end(tmp_path, text_file):
    members = {
        name: settings(
            text_file,
            objective,
            architecture,
            **{"training.steps": 12, "data.lengths": lengths},
        )
        for name, (objective, architecture, lengths) in CELLS.items()
    }
    values = {
        "title": "A <test>",
        "members": members,
        "blanks": ["the ___ sees"],
        "spans": ["the ___ sees"],
        "prompts": ["the"],
    }
    path, workdir = tmp_path / "config.py", tmp_path / "run"
    path.write_text(f"def get_config():\n    return {values!r}\n")
    command = ("compare", f"--config={path}", f"--workdir={workdir}")
    out, err = run(*command)
    assert "Traceback" not in out + err

    results = json.loads((workdir / "results.json").read_text())
    gpt = results["members"]["gpt"]
    assert gpt["raw_tokens"] == gpt["loss_tokens"] == 12 * 8 * 40
    num_bytes = results["corpus"]["validation"]["bytes"]
    tokens = results["corpus"]["validation"]["tokens"]
    assert gpt["bits_per_byte"] == pytest.approx(gpt["loss"] * tokens / np.log(2) / num_bytes)
    assert results["ngram"]["Kneser-Ney trigram"] < results["ngram"]["unigram"] < 8
    html = (workdir / "report.html").read_text()
    HTMLParser().feed(html)
    assert "A &lt;test&gt;" in html
    assert "http" not in html
    assert html.count("<polyline") == 6
    for text in (html, (workdir / "report.md").read_text()):
        assert "bits per byte" in text
        assert all(name in text for name in members)
    lossy = results | {"corpus": results["corpus"] | {"lossless": False}}
    assert "lossy tokenizer, not comparable" in report.markdown(lossy)
    assert "lossy" not in report.markdown(results)

    # Evaluated once more, the same bits per byte.
    out, _ = run("evaluate", f"--workdir={workdir / 'gpt'}", "--json")
    evaluated = json.loads(out.splitlines()[-1])
    assert evaluated["bits_per_byte"] == pytest.approx(gpt["bits_per_byte"], rel=1e-6)

    # Reports are written again, of all and of one.
    (workdir / "report.html").unlink()
    run("report", f"--workdir={workdir}")
    assert (workdir / "report.html").read_text() == html
    run("report", f"--workdir={workdir / 'gpt'}")
    assert (workdir / "gpt/report.html").exists()

    # The same command trains nothing anew.
    out, _ = run(*command)
    assert "step 1/12" not in out
    _, err = run(*command, "--config.members.gpt.data.validation_fraction=0.2", code=78)
    assert "read different text or tokens" in err
    for setting, words in [
        ("members.gpt.seed=3", "read different seed"),
        ("members.gpt.data.batch_size=4", "read different raw tokens a step"),
        ("prompts=[5]", "expected a text"),
        ("blanks=['no blank']", "expected a text with ___"),
        (f"prompts=['{'x' * 90}']", "longer than a row"),
        ("members.gtp.seed=1", "no such member; did you mean gpt?"),
        ("members=5", "expected"),
    ]:
        _, err = run(*command, f"--config.{setting}", code=78)
        assert words in err
