"""Data sets whose own files name code, or files and addresses outside. That their libraries do as
they are told was seen with tensorflow-datasets 4.9.10 and datasets 5.2.0.
"""

import json

import pytest
from conftest import refusal

from t5x_lite.data.text.foreign_sets import check_card, check_features, check_files

OWN = "tensorflow_datasets.core.features.text_feature.Text"


@pytest.mark.parametrize("place", ["1.0.0", "en/1.0.0", ""])
@pytest.mark.parametrize(
    "features",
    [
        {"pythonClassName": "evil.Dict"},
        {"type": "evil.Dict", "content": {}},
        {"python_class_name": "evil.Dict"},
        {"pythonClassName": OWN, "featuresDict": {"features": {"x": {"type": "evil.Dict"}}}},
        {"pythonClassName": OWN, "list": [{"pythonClassName": "tensorflow_datasets_evil.Dict"}]},
    ],
)
def test_a_class_of_another_package_is_refused(tmp_path, place, features):
    directory = tmp_path / place
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "features.json").write_text(json.dumps(features))
    message = refusal(check_features, tmp_path, "data.source=tfds:x", code=65)
    assert "evil.Dict, and data imports no module" in message


def test_classes_of_the_library_are_not(tmp_path):
    check_features(tmp_path / "nowhere", "here")
    (tmp_path / "1.0.0").mkdir()
    features = {"pythonClassName": OWN, "x": {"type": "plain"}, "version": "1.0"}
    (tmp_path / "1.0.0/features.json").write_text(json.dumps(features))
    check_features(tmp_path, "here")
    (tmp_path / "1.0.0/features.json").write_text("{")
    refusal(check_features, tmp_path, "here", code=65)


CARD = "{start}---\nconfigs:\n- config_name: a\n  {key}:\n  - split: train\n    path: {path}\n---\n"


@pytest.mark.parametrize("start", ["", "\n", " \n\n"])
@pytest.mark.parametrize("key", ["data_files", "data_dir"])
@pytest.mark.parametrize(
    "path",
    [
        "../secret.txt",
        "/etc/passwd",
        "a/../../b",
        "file:///etc/passwd",
        "http://x/y",
        "a::b",
        "['/a']",
    ],
)
def test_a_card_that_leads_out_is_refused(tmp_path, start, key, path):
    (tmp_path / "README.md").write_text(CARD.format(start=start, key=key, path=path))
    message = refusal(check_card, tmp_path, "data.source=hf:x", code=65)
    assert "which is not in its directory" in message


def test_a_card_of_its_own_files_is_not(tmp_path):
    check_card(tmp_path, "here")
    for text in (
        "# A set",
        CARD.format(start="", key="data_files", path="data/*.parquet"),
        "---\n",
    ):
        (tmp_path / "README.md").write_text(text)
        check_card(tmp_path, "here")
    (tmp_path / "README.md").write_text("---\n{a: [\n---\n")
    assert "cannot be read" in refusal(check_card, tmp_path, "here", code=65)
    (tmp_path / "README.md").unlink()
    (tmp_path / "train").mkdir()
    (tmp_path / "train/state.json").write_text('{"_data_files": [{"filename": "../../a.arrow"}]}')
    assert "names the file ../../a.arrow" in refusal(check_card, tmp_path, "here", code=65)


def test_files_that_the_library_has_found_are_its_own():
    check_files([["hf://datasets/a@1/x.txt"], []], "hf://", "here")
    check_files([["/set/x.txt", "/set/y/../z.txt"]], "/set/", "here")
    for file, inside in (("/etc/passwd", "hf://"), ("/set/../x", "/set/"), ("http://x", "/set/")):
        refusal(
            check_files, [["/set/a"] if inside == "/set/" else [], [file]], inside, "here", code=65
        )
