import json
from collections import Counter
from html.parser import HTMLParser

import numpy as np
import pytest
from conftest import run, run_apart, settings

from t5x_lite.study import ngram, report


def brute_kneser_ney(train, history, word, size):
    """The textbook recursion, by dictionaries."""

    def discount(counts):
        n = Counter(counts.values())
        return n[1] / (n[1] + 2 * n[2]) if n[1] and n[2] else 0.5

    def probability(counts, history, word):
        d = discount(counts)
        shorter = Counter(gram[1:] for gram in counts)
        lower = probability(shorter, history[1:], word) if len(history) else 1 / size
        same = {gram: count for gram, count in counts.items() if gram[:-1] == history}
        total = sum(same.values())
        if not total:
            return lower
        return (max(counts.get((*history, word), 0) - d, 0) + d * len(same) * lower) / total

    grams = Counter(tuple(train[i : i + 3]) for i in range(len(train) - 2))
    return probability(grams, tuple(history), word)


@pytest.mark.parametrize("size", [3, 7])
def test_kneser_ney_against_the_textbook_recursion(size):
    rng = np.random.default_rng(size)
    train = np.minimum(rng.geometric(0.4, 60) - 1, size - 1)
    for history in ([0, 0], [1, 0], [size - 1, size - 1], [2, 1]):
        grams = np.array([[*history, word] for word in range(size)])
        ours = ngram.kneser_ney(train, grams, size)
        assert ours.sum() == pytest.approx(1)
        expected = [brute_kneser_ney(train.tolist(), history, word, size) for word in range(size)]
        np.testing.assert_allclose(ours, expected, rtol=1e-12)


def test_unigram_bits():
    train, held = np.array([0, 0, 1]), np.array([0, 2])
    assert ngram.unigram_bits(train, held, 3) == pytest.approx(-np.log2(3 / 6) - np.log2(1 / 6))


def test_a_comparison_from_end_to_end(tmp_path, text_file):
    cells = {
        "bert": ("masked_lm", "encoder"),
        "t5": ("span_corruption", "encoder_decoder"),
        "gpt": ("causal_lm", "decoder"),
    }
    rows = {
        "bert": {"sequence_length": 42},
        "t5": {"inputs": 37, "targets": 9},
        "gpt": {"sequence_length": 40},
    }
    more = {"training.steps": 12}
    members = {
        n: settings(text_file, *cell, **more, **{"data.lengths": rows[n]})
        for n, cell in cells.items()
    }
    values = {
        "title": "A <test>",
        "members": members,
        "blanks": ["the ___ sees"],
        "spans": ["the ___ sees"],
        "prompts": ["the"],
    }
    path = tmp_path / "config.py"
    path.write_text(f"def get_config():\n    return {values!r}\n")
    command = ("compare", f"--config={path}", f"--workdir={tmp_path / 'run'}")
    run_apart(*command)
    results = json.loads((tmp_path / "run/results.json").read_text())
    gpt = results["members"]["gpt"]
    assert gpt["raw_tokens"] == gpt["loss_tokens"] == 12 * 8 * 40
    bytes_ = results["corpus"]["validation"]["bytes"]
    tokens = results["corpus"]["validation"]["tokens"]
    assert gpt["bits_per_byte"] == pytest.approx(gpt["loss"] * tokens / np.log(2) / bytes_)
    assert results["ngram"]["Kneser-Ney trigram"] < results["ngram"]["unigram"] < 8
    html = (tmp_path / "run/report.html").read_text()
    HTMLParser().feed(html)
    assert "A &lt;test&gt;" in html
    assert "http" not in html
    assert html.count("<polyline") == 6
    for text in (html, (tmp_path / "run/report.md").read_text()):
        assert "bits per byte" in text
        assert all(name in text for name in members)
    lossy = results | {"corpus": results["corpus"] | {"lossless": False}}
    assert "lossy tokenizer, not comparable" in report.markdown(lossy)
    assert "lossy" not in report.markdown(results)
    (tmp_path / "run/report.html").unlink()
    run("report", f"--workdir={tmp_path / 'run'}")
    assert (tmp_path / "run/report.html").read_text() == html
    run("report", f"--workdir={tmp_path / 'run/gpt'}")
    assert (tmp_path / "run/gpt/report.html").exists()
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
