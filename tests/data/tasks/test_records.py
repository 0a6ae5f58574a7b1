"""Records of every kind of file, and what is no record."""

import gzip
import json

import pyarrow
import pyarrow.parquet
import pytest

from t5x_lite.config import Task
from t5x_lite.config.ranges import list_type
from t5x_lite.config.roles import setting_types
from t5x_lite.data.tasks.examples import load_split, with_labels_of
from t5x_lite.data.tasks.load import load_task
from t5x_lite.data.tasks.records import bad_lines_of, read_split
from t5x_lite.errors import UserError

ROWS = [{"sentence": f'a "quoted, {i}', "label": str(i % 2)} for i in range(4)]


def write(path, rows=ROWS):
    """The same rows in the format that the name of the file asks for."""
    name = path.name.removesuffix(".gz")
    if name.endswith(".parquet"):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        return path
    if name.endswith(".tsv"):
        lines = ["sentence\tlabel", *(f"{row['sentence']}\t{row['label']}" for row in rows)]
    elif name.endswith(".csv"):
        cells = [row["sentence"].replace('"', '""') for row in rows]
        lines = ["sentence,label"]
        lines += [f'"{cell}",{row["label"]}' for cell, row in zip(cells, rows, strict=True)]
    elif name.endswith(".jsonl"):
        lines = [json.dumps(row) for row in rows]
    else:
        lines = [json.dumps(rows)]
    content = ("\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl", "a.json", "a.parquet", "a.tsv.gz"])
def test_the_same_rows_from_every_format(tmp_path, name):
    task = Task(name="a", source=str(write(tmp_path / name)))
    assert list(read_split(task, "train", bad_lines_of(task))) == ROWS


def test_splits_of_a_directory_and_of_a_pattern(tmp_path):
    write(tmp_path / "train.tsv")
    write(tmp_path / "dev.jsonl", ROWS[:1])
    for source in (str(tmp_path), f"{tmp_path}/{{split}}.*"):
        task = Task(
            name="a", source=source, validation="dev", text="sentence", labels=("no", "yes")
        )
        assert len(load_split(task, "train")) == 4
        assert len(load_split(task, "validation")) == 1
        with pytest.raises(UserError, match=r"task a: has no test split; set task\.test"):
            load_split(task, "test")


def test_one_file_is_split_by_a_hash_of_its_examples(tmp_path):
    rows = [{"sentence": f"text {i}", "label": str(i % 2)} for i in range(400)]
    path = write(tmp_path / "all.tsv", rows)
    task = load_task(f"classify({path}, text=sentence, labels=no|yes)")
    train, held_out = load_split(task, "train"), load_split(task, "validation")
    assert {example.id for example in train.examples}.isdisjoint(
        example.id for example in held_out.examples
    )
    assert len(train) + len(held_out) == 400
    assert 20 < len(held_out) < 60
    # The same ones, whatever stands beside them.
    write(path, rows[:100])
    fewer = load_split(task, "validation").examples
    assert {one.text for one in fewer} == {
        one.text for one in held_out.examples if int(one.text.split()[1]) < 100
    }


def test_a_broken_line_stops_or_is_skipped_and_counted(tmp_path):
    path = write(tmp_path / "a.tsv")
    path.write_text(path.read_text() + "one cell\nand\tthree\tcells\n")
    task = Task(name="a", source=str(path), text="sentence", labels=("no", "yes"), train="")
    with pytest.raises(UserError, match=r"a.tsv, line 6: has 1 cells, expected 2 \(sentence, lab"):
        load_split(task, "validation")
    skipping = load_task(f"classify({path}, text=sentence, labels=no|yes, bad_lines=skip, train=)")
    examples = load_split(skipping, "validation")
    assert len(examples) == 4
    assert examples.skipped == 2


CASES = [
    ("sentence", "maybe", "example 0 of a: got the label 'maybe', expected one of no, yes"),
    ("text", "0", "has no field 'text'; expected one of sentence, label"),
]


@pytest.mark.parametrize(("field", "label", "words"), CASES)
def test_what_is_wrong_with_an_example_is_said(tmp_path, field, label, words):
    path = write(tmp_path / "a.tsv", [{"sentence": "x", "label": label}])
    task = Task(name="a", source=str(path), text=field, labels=("no", "yes"), train="")
    with pytest.raises(UserError, match=words.replace("of a", "of .*")):
        load_split(task, "validation")


def test_files_that_are_missing_or_empty(tmp_path):
    task = Task(name="a", source=str(tmp_path / "none.tsv"), labels=("no", "yes"))
    with pytest.raises(UserError, match="no such examples; expected a file, directory or glob"):
        load_split(task, "train")
    empty = write(tmp_path / "empty.tsv", [])
    task = Task(name="a", source=str(empty), text="sentence", labels=("no", "yes"))
    with pytest.raises(UserError, match=r"task a: its train split, train, is empty; give some"):
        load_split(task, "train")


def test_labels_are_found_where_none_are_named(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"text": str(i), "label": "bac"[i % 3]} for i in range(9)])
    assert with_labels_of(Task(name="a", source=str(path))).labels == ("a", "b", "c")
    write(path, [{"text": "x", "label": "a"}])
    with pytest.raises(UserError, match="the column label holds 1 different labels"):
        with_labels_of(Task(name="a", source=str(path)))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("clasify(a.tsv)", "--task=clasify: no such task"),
        ("sst3", "--task=sst3: no such task; did you mean sst2?"),
        ("classify(a.tsv, txt=b)", "task.txt: no such setting; did you mean text?"),
        ("classify(a.tsv, text=a, text=b)", "each option once"),
        ("classify(a.tsv", "expected name or name"),
        ("mine.py", "--task=mine.py: no such file"),
        ("reviews.csv", "a file of yours needs its kind: --task='classify.reviews.csv, text="),
        ("data/{split}.tsv", "a file of yours needs its kind"),
    ],
)
def test_misspelt_tasks(spec, words):
    with pytest.raises(UserError, match=words):
        load_task(spec)


def test_lists_of_a_task():
    for labels in ("no|yes", "'no'|'yes'", "'no|yes'"):
        assert load_task(f"classify(a.tsv, labels={labels})").labels == ("no", "yes")


def test_a_label_that_is_no_answer_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "q", "choices": ["x", "y"], "label": "D"}')
    task = load_task(f"choose({path}, choices=choices, labels=A|B|C|D, train=)")
    with pytest.raises(UserError, match="got the answer 'D', expected the number or the text"):
        load_split(task, "validation")


def test_a_task_of_the_users_own_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("TASKS = {'first': {'source': 'a.tsv'}, 'second': {'source': 'b.tsv'}}")
    assert load_task(str(path)).name == "first"
    assert load_task(f"{path}:second").source.endswith("/b.tsv")
    path.write_text("TASKS = 3")
    with pytest.raises(UserError, match=r"expected TASKS = \{name: "):
        load_task(str(path))


LISTS = [name for name, kind in setting_types(Task).items() if list_type(kind)]


@pytest.mark.parametrize("name", LISTS)
def test_bars_separate_the_items_of_every_list(name):
    task = load_task(f"classify(x.tsv, text=a, label=b, {name}=a|1)")
    assert getattr(task, name) == ("a", "1")
