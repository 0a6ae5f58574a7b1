"""BibTeX of the papers behind a comparison."""

import re
import string

import pytest

from t5x_lite.comparison.report import papers_of
from t5x_lite.report.papers import PAPERS, bibtex, check_papers


@pytest.mark.parametrize("key", PAPERS)
def test_an_entry_is_bibtex(key):
    entry = bibtex([key])
    assert entry.startswith(f"@misc{{{key},\n")
    depth = 0
    for character in re.sub(r"\\.", "", entry):
        depth += {"{": 1, "}": -1}.get(character, 0)
        assert depth >= 0
    assert depth == 0
    # Authors are whole names, joined by "and". The key is the first one and the year, with a letter
    # where there are several of one year.
    authors = PAPERS[key].authors.split(" and ")
    assert all(" " in author or author == "others" for author in authors)
    plain = f"{authors[0].split()[-1].lower()}{PAPERS[key].year}"
    several = [other for other in PAPERS if other.startswith(plain)]
    letters = ["", *string.ascii_lowercase] if len(several) == 1 else string.ascii_lowercase
    assert several == [f"{plain}{letter}" for letter in letters[: len(several)]]
    assert key in several


def test_a_paper_of_your_own_is_its_entry():
    own = "@article{me2026,\n  title = {Mine}\n}"
    check_papers([own, "raffel2020"])
    assert bibtex([own, "raffel2020"]).startswith(own + "\n\n@misc{raffel2020,")


def test_a_report_cites_its_question_and_its_methods():
    results = {"papers": ["raffel2020", "lester2021"], "spans": {"count": 0}, "scaling": {}}
    assert papers_of(results) == ["raffel2020", "lester2021"]
    results = {"spans": {"count": 9}, "adapt_tokens": 5, "scaling": {"loss": {}}}
    assert papers_of(results) == ["joshi2020", "lester2021", "hoffmann2022", "kaplan2020"]
