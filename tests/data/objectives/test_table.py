"""The table of objectives, from their docstrings."""

import re

from conftest import ROOT

from t5x_lite.data.objectives import OBJECTIVES
from t5x_lite.data.objectives.table import table


def test_every_objective_has_a_meaning_a_source_and_an_example():
    heading, _, *rows = [line.strip("|").split("|") for line in table().splitlines()]
    assert [row[0].strip(" `") for row in rows] == list(OBJECTIVES)
    for _, meaning, source, _, targets in rows:
        assert meaning.strip()
        assert re.search(r"(19|20)\d\d", source)
        assert targets.strip(" `")
    assert len(heading) == 5


def test_examples_are_what_the_code_makes():
    cells = [
        "`iid_denoising`",
        "Drop tokens independently, neighbours sharing one sentinel",
        "Raffel et al., 2020, §3.2.4",
        "`the cat sat<extra_id_0>n the<extra_id_1>mat</s>`",
        "`<extra_id_0> o<extra_id_1> </s>`",
    ]
    assert f"| {' | '.join(cells)} |" in table()


def test_every_copy_of_the_table_is_up_to_date():
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
    for page in pages:
        text = page.read_text()
        assert table().splitlines()[0] not in text or table() in text, page
