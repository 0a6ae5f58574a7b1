"""What `inspect` shows: the rows of each objective as the model reads them, and the examples of a
task.
"""

import json

import pytest
from conftest import ALL_CELLS, run, settings

from t5x_lite import api
from t5x_lite.data.inspection import show_rows
from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.errors import UserError

OBJECTIVES = {
    "encoder": "masked_lm",
    "decoder": "causal_lm",
    "encoder_decoder": "span_corruption",
}
REVIEW = "classify({}, text=review, label=stars, validation_fraction=0)"
ENDS = "choose({}, text=start, choices=ends, label=right, validation_fraction=0)"
FACTS = "extract({}, text=ask, text_pair=in, label=answers, validation_fraction=0)"
RECORD = {
    "review": "a gem",
    "stars": "good",
    "start": "I am",
    "ends": ["up", "sea"],
    "right": 0,
    "ask": "who?",
    "in": "by Anna.",
    "answers": ["Anna"],
}
LINES = {
    ("encoder", REVIEW): ["reads    '[CLS]a gem[SEP]'", "label    1 at position 0, '[CLS]'"],
    ("decoder", REVIEW): ["reads    '<s>a gem[CLS]'", "label    1 at position 6, '[CLS]'"],
    ("encoder_decoder", REVIEW): ["reads    'one review: a gem</s>'", "writes   'good</s>'"],
    ("encoder", ENDS): [
        "reads    '[CLS]I am[SEP]up[SEP]'",
        "label    1 at position 0, '[CLS]'",
        "reads    '[CLS]I am[SEP]sea[SEP]'",
        "label    0 at position 0, '[CLS]'",
    ],
    ("encoder", FACTS): ["reads    '[CLS]who?[SEP]by Anna.[SEP]'", "label    8, 12 ' Anna'"],
    ("encoder_decoder", FACTS): [
        "reads    'one ask: who? in: by Anna.</s>'",
        "writes   'Anna</s>'",
    ],
}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    path = tmp_path_factory.mktemp("inspected") / "one.jsonl"
    other = {"stars": "bad"}
    path.write_text("\n".join(json.dumps(record) for record in (RECORD, RECORD | other)))
    return path


@pytest.mark.parametrize(("architecture", "task"), LINES)
def test_what_is_read_and_answered(text_file, records, architecture, task):
    config = settings(text_file, OBJECTIVES[architecture], architecture)
    shown = api.inspect_task(config, task.format(records), examples=1)
    heading, *lines, blank, count = shown.splitlines()
    assert heading.startswith("── example 0: ")
    assert lines == LINES[architecture, task]
    assert not blank
    assert count.startswith("train: 2 examples in ")


def test_the_command_and_a_kind_that_an_architecture_lacks(config_file, records):
    path = config_file()
    out, _ = run("inspect", f"--config={path}", f"--task={REVIEW.format(records)}", "--examples=2")
    assert out.count("reads") == 2
    _, err = run("inspect", f"--config={path}", f"--task={FACTS.format(records)}", code=78)
    assert "a decoder cannot learn to extract" in err
    assert "Traceback" not in err


def test_a_model_without_text_has_a_tokenizer(records):
    config = {**settings("", "masked_lm", "encoder")}
    shown = api.inspect_task(config, REVIEW.format(records), examples=1)
    assert "'[CLS]a gem[SEP]'" in shown


def test_a_prompt_may_say_all_that_is_read(text_file, tmp_path):
    path = tmp_path / "capitals.jsonl"
    path.write_text("\n".join(json.dumps({"land": x, "city": x[::-1]}) for x in ("Peru", "Mali")))
    task = f"generate({path}, label=city, validation_fraction=0"
    config = settings(text_file, "span_corruption", "encoder_decoder")
    shown = api.inspect_task(config, f'{task}, prompt="In {{land}}?")', 1)
    with pytest.raises(UserError, match="has no field 'text'"):
        api.inspect_task(config, f"{task})")
    assert "reads    'In Peru?</s>'" in shown


@pytest.mark.parametrize("split_documents", [False, True])
@pytest.mark.parametrize(("objective", "architecture"), ALL_CELLS)
def test_rows_are_shown_as_each_stack_reads_them(
    batches_of, objective, architecture, split_documents
):
    if split_documents and "second" in objective:
        pytest.skip("sentence pairs are rows of one pair")
    batches = batches_of(objective, architecture, **{"data.split_documents": split_documents})
    shown = show_rows(batches, Tokenizer(), examples=8)
    for stack in ("encoder", "decoder"):
        reads = [line for line in shown.splitlines() if line.startswith(stack)]
        assert bool(reads) == (getattr(batches.shape, stack) > 0)
        if (
            "mask" in objective and "salient" not in objective and reads
        ):  # the text has no such spans
            assert any("[MASK]" in line for line in reads)
    has_prefix = batches.shape.bidirectional_prefix or batches.shape.looks_ahead > 0
    assert has_prefix == ("are seen both ways" in shown)
