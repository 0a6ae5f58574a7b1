from typing import get_args

import pytest

from t5x_lite.config import TextCleaning, type_hints
from t5x_lite.data.text import sources
from t5x_lite.data.text.cleaning import Cleaner
from t5x_lite.errors import BAD_DATA, UserError

# A document with each issue, and what it is replaced by.
ISSUES = {
    "invalid_utf8": (b"a\xffb", "a\ufffdb"),
    "lone_surrogate": ("a\ud800b", "a\ufffdb"),
    "byte_order_mark": (b"\xef\xbb\xbfab", "ab"),
    "nul": (b"a\0b", "a\ufffdb"),
    "carriage_return": (b"a\r\nb\rc", "a\nb\nc"),
    "empty": (b" \n", None),
}


@pytest.mark.parametrize("issue", ISSUES)
def test_each_issue_has_its_policy_and_is_counted(issue):
    document, replaced = ISSUES[issue]
    for policy in get_args(type_hints(TextCleaning)[issue]):
        cleaner = Cleaner(TextCleaning(**{issue: policy}), "here")
        assert cleaner(b"clean") == "clean"
        if policy == "stop":
            words = f"here: document 2 has the issue {issue}; .* set data.text_cleaning.{issue}"
            with pytest.raises(UserError, match=words) as caught:
                cleaner(document)
            assert caught.value.code == BAD_DATA
            continue
        text = cleaner(document)
        assert cleaner.counts == {issue: 1}
        if policy == "keep":
            assert text == document.decode()
        elif policy == "skip":
            assert text is None
        else:
            assert text == replaced


def test_all_issues_of_a_document_are_counted_though_it_is_skipped():
    cleaner = Cleaner(TextCleaning(invalid_utf8="skip"), "here")
    assert cleaner(b"\xef\xbb\xbf\xff\0\r") is None
    issues = ("invalid_utf8", "byte_order_mark", "nul", "carriage_return")
    assert cleaner.counts == dict.fromkeys(issues, 1)


def test_json_lines_have_the_same_issues(tmp_path):
    lines = b'{"text": "caf\xe9 x"}\n{"text": null}\n{"text": "\\ud800"}\n'
    (tmp_path / "a.jsonl").write_bytes(lines)
    cleaner = Cleaner(TextCleaning(), "here")
    texts = [cleaner(document) for document in sources.documents(str(tmp_path / "a.jsonl"))]
    assert texts == ["caf\ufffd x", None, "\ufffd"]
    assert cleaner.counts == {"lone_surrogate": 2, "empty": 1}
