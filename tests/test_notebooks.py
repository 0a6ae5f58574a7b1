"""The tour runs from its first cell to its last, shows its figures, and its pretrained classifier
is better than the one from scratch.
"""

import ast
import inspect
import json
import os

import nbclient
import nbformat
import pytest
from conftest import ROOT

import t5x_lite

TOUR = ROOT / "notebooks" / "tour.ipynb"


def test_the_tour_names_arguments_that_exist():
    """Running it is slow, and a name that was dropped would not be missed elsewhere."""
    cells = nbformat.read(TOUR, as_version=4).cells
    tree = ast.parse("\n".join(cell.source for cell in cells if cell.cell_type == "code"))
    named = {
        (node.func.attr, keyword.arg)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if ast.unparse(node.func.value) == "t5x_lite"
        for keyword in node.keywords
        if keyword.arg
    }
    assert ("train", "on_log") in named
    for function, argument in named:
        assert argument in inspect.signature(getattr(t5x_lite, function)).parameters, function


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Jupyter's own parts
def test_the_tour_runs_and_shows(tmp_path, monkeypatch):
    monkeypatch.setenv("TOUR_WORKDIR", str(tmp_path / "tour"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    notebook = nbformat.read(TOUR, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=600, resources=resources).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    figures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(figures) == 5
    reached = [
        json.loads((tmp_path / "tour" / f"which_module, {start}" / "report.json").read_text())
        for start in ("pretrained", "from scratch")
    ]
    pretrained, from_scratch = (results["reached"]["accuracy"]["mean"] for results in reached)
    assert pretrained > from_scratch
