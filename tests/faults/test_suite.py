"""Each row of the fault suite, a few tries; make test-faults has all of them."""

import shutil
import sys

import pytest
from faults.suite import ROWS, SERVING, Runs, attempt, given

from t5x_lite.commands import COMMANDS

QUICK = {
    "checkpoint": range(10),
    "files": range(10),
    "kills": range(2),
    "power": range(1),
    "signals": range(2),
    "disk": range(2),
    "divergence": range(1),
    "hostile": (0, 1, 2, 10, 11, 39),  # one of each kind of file
    "meshes": range(1),
    "long_run": range(1),
    "many_cells": range(1),
    "trees": range(1),
    "options": range(20),
}
# tests/training and tests/parallel have cheaper ones of these.
SLOW = ("kills", "trees", "signals", "disk", "meshes", "long_run", "many_cells")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("faults"))


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=pytest.mark.slow) if row.name in SLOW else row for row in ROWS],
    ids=lambda row: row.name,
)
def test_a_few_tries_of_each_row(runs, row):
    if row.name in ("power", "disk") and (sys.platform != "linux" or not shutil.which("cc")):
        pytest.skip("needs Linux and a C compiler")
    for number in QUICK[row.name]:
        assert not attempt(row, number, runs)


def test_options_of_every_command_are_tried(runs, tmp_path):
    assert given(runs, tmp_path).keys() | SERVING == COMMANDS.keys()
