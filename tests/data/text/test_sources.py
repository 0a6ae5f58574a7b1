import os
import sys
from itertools import islice

import pytest

from t5x_lite.config import files as config_files
from t5x_lite.config.permission import allow
from t5x_lite.data.text import schemes, sources
from t5x_lite.errors import BAD_CONFIG, BAD_DATA, NO_FILE, UserError


@pytest.mark.slow
def test_the_built_in_text_is_the_same_each_time():
    documents = list(sources.python_docs())
    assert documents[:100] == list(islice(sources.python_docs(), 100))
    assert sum(map(len, documents)) > 1_500_000
    assert any("context manager" in text for text in documents)
    paragraphs = [set(text.split("\n\n")) for text in documents]
    long = [text for texts in paragraphs for text in texts if len(text) >= 40]
    assert len(long) == len(set(long))  # nothing is held out that another document has


def test_what_does_not_exist_is_refused_naming_the_setting(tmp_path):
    for source in ("", str(tmp_path / "none.txt"), str(tmp_path / "*.txt"), str(tmp_path)):
        with pytest.raises(UserError, match=r"data.validation_source=.*: no such text") as caught:
            list(sources.documents(source, key="data.validation_source"))
        assert caught.value.code == NO_FILE


def test_a_fingerprint_changes_with_the_text_and_stays_short(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    one_file = sources.fingerprint(str(tmp_path))
    assert one_file == sources.fingerprint(str(tmp_path))
    (tmp_path / "a.txt").write_text("other")
    assert sources.fingerprint(str(tmp_path)) != one_file
    for number in range(100):
        (tmp_path / f"{number}.txt").write_text("more")
    assert len(sources.fingerprint(str(tmp_path))) == 16
    (tmp_path / os.fsdecode(b"\xff.txt")).write_text("of a name in no encoding")
    assert len(sources.fingerprint(str(tmp_path))) == 16


@pytest.mark.parametrize("address", ["hf:{}/set", "tfds:c4/en:3.1.0?data_dir={}"])
def test_a_data_set_on_this_machine_is_known_by_its_files(tmp_path, monkeypatch, address):
    for name in ("set", "c4/en/3.1.0"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "part").write_text("one")
    monkeypatch.chdir(tmp_path)
    config = config_files.load("gpt_tiny", [f"data.source={address.format('.')}"])
    source = config.data.source
    assert source == address.format(tmp_path)
    before = sources.fingerprint(source)
    assert before == sources.fingerprint(source)
    for name in ("set", "c4/en/3.1.0"):
        (tmp_path / name / "part").write_text("other")
    changed = sources.fingerprint(source)
    assert changed != before
    for name in ("set", "c4/en/3.1.0"):
        (tmp_path / name / "validation").mkdir()
        (tmp_path / name / "part").rename(tmp_path / name / "validation" / "part")
    assert sources.fingerprint(source) != changed


def test_splits_of_a_data_set_may_be_added():
    name, options = schemes._parse_query("c4?split=train+validation&name=en")
    assert name == "c4"
    assert options == {"split": "train+validation", "name": "en"}


@pytest.mark.parametrize(
    ("source", "module"), [("tfds:c4/en:3.1.0", "tensorflow_datasets"), ("hf:c4", "datasets")]
)
def test_an_extra_that_is_not_installed_is_named(monkeypatch, source, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=r"pip install -e '\.\[(tfds|hf)\]'"):
        list(sources.documents(source))


# Functions of the user's own.

OWN_TEXT = """
def some():
    yield 'a b'
    yield b'c'
def wrong():
    yield 5
def one():
    return 'one text'
def nothing():
    pass
def fails():
    yield 'a'
    raise KeyError('b')
"""


@pytest.mark.usefixtures("own_code")
def test_a_function_of_the_users_own(tmp_path, monkeypatch):
    (tmp_path / "own_text.py").write_text(OWN_TEXT)
    (tmp_path / "broken_text.py").write_text("def f(:")
    monkeypatch.syspath_prepend(tmp_path)
    assert list(sources.documents("python:own_text.some")) == ["a b", b"c"]
    not_importable = ["own_text.none", "nowhere.some", "broken_text.f"]
    not_texts = [f"own_text.{name}" for name in ("wrong", "one", "nothing", "fails")]
    for name in not_importable + not_texts:
        with pytest.raises(UserError, match=name) as caught:
            list(sources.documents(f"python:{name}"))
        assert caught.value.code == (BAD_CONFIG if name in not_importable else BAD_DATA)


@pytest.mark.usefixtures("own_code")
def test_the_fingerprint_of_a_function_is_that_of_its_file(tmp_path, monkeypatch):
    (tmp_path / "fingerprinted_text.py").write_text(OWN_TEXT)
    monkeypatch.syspath_prepend(tmp_path)
    before = sources.fingerprint("python:fingerprinted_text.some")
    assert f"; {tmp_path}/fingerprinted_text.py " in before
    (tmp_path / "fingerprinted_text.py").write_text(OWN_TEXT + "# changed")
    assert sources.fingerprint("python:fingerprinted_text.some") != before


def test_code_is_imported_only_where_it_is_allowed(tmp_path, monkeypatch):
    (tmp_path / "guarded_text.py").write_text(OWN_TEXT)
    monkeypatch.syspath_prepend(tmp_path)
    source = "python:guarded_text.some"
    for permitted in ((), ["another_module"]):
        with allow(permitted):
            with pytest.raises(UserError, match="--allow-code=guarded_text"):
                list(sources.documents(source))
            with pytest.raises(UserError, match="--allow-code=guarded_text"):
                sources.fingerprint(source)
    assert "guarded_text" not in sys.modules
    with allow(["guarded_text"]):
        assert list(sources.documents(source)) == ["a b", b"c"]
