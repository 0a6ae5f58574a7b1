"""Tables in LaTeX."""

import re

from t5x_lite.report.page import Bold, Page, Section, Table
from t5x_lite.report.tex import escape, tex

HOSTILE = r"50% of $x_1 & #2 {a} \input{b} ~^ <c>"


def test_what_is_special_to_latex_is_escaped():
    text = escape(HOSTILE)
    assert r"\textbackslash{}input\{b\}" in text
    # Without commands and symbols in maths, nothing special is left.
    without = re.sub(r"\\[a-z]+\{\}|\\[&%$#_{}]|\$[<>]\$", "", text)
    assert not set(without) & set("\\&%$#_{}~^<>")


def test_every_table_is_a_float_with_its_rows():
    rows = [["gpt_a", Bold("1.9 ± 0.1")], ["t5", "2.3\n"]]
    sections = [
        Section("Scores", [Table(["model", "bits"], rows, "3 seeds"), "a paragraph"]),
        Section("Costs", [Table(["cell", "steps"], [["gpt", "12"]])]),
        Section("Texts", [Table(["step", "text"], [["9", "7 cats\r\n" * 20]], texts=(1,))]),
    ]
    written = tex(Page("A title\nof two lines", "", sections))
    assert written.count(r"\begin{table}") == written.count(r"\end{table}") == 3
    assert r"\caption{Scores. 3 seeds.}" in written
    assert r"\caption{Costs.}" in written
    assert "{lr}" in written
    assert r"{rp{0.7\linewidth}}" in written  # lines of a text may break
    lines = written.splitlines()
    assert r"    gpt\_a & \textbf{1.9 $\pm$ 0.1} \\" in lines
    assert r"    t5 & 2.3 \\" in lines
    assert lines[0].startswith("%")
    assert not lines[1]
    assert written.count("{") == written.count("}")
