import pytest

from t5x_lite.errors import UserError
from t5x_lite.inference.few_shot import few_shot_prompt, read_examples


def test_examples_are_what_they_are(tmp_path):
    (tmp_path / "x").write_text('{"input": "the {target}\u2028is", "target": "mer"}\n', "utf-8")
    (example,) = read_examples(tmp_path / "x")
    assert few_shot_prompt([example], "q", 1) == "the {target}\u2028is => mer\nq =>"
    with pytest.raises(UserError, match="after it"):
        few_shot_prompt([example], "q", 1, template="{target} <= {input}\n")


def test_examples_that_are_none(tmp_path):
    for text, message in (("[1]", "expected"), ("{", "no JSON"), ("", "no examples")):
        (tmp_path / "x").write_text(text)
        with pytest.raises(UserError, match=message):
            read_examples(tmp_path / "x")
