"""Each row of the fault suite, a few times; make test-faults has all of its tries."""

import shutil
import sys

import pytest
from faults.suite import ROWS, SERVING, Runs, attempt, given

from t5x_lite.commands import COMMANDS

QUICK = {
    "checkpoint": 10,
    "files": 10,
    "kills": 2,
    "power": 3,
    "signals": 2,
    "disk": 2,
    "divergence": 1,
    "hostile": 30,
    "meshes": 1,
    "long_run": 1,
    "many_cells": 1,
    "trees": 1,
    "options": 20,
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
    for number in range(QUICK[row.name]):
        assert not attempt(row, number, runs)


def test_options_of_every_command_are_tried(runs, tmp_path):
    assert given(runs, tmp_path).keys() | SERVING == COMMANDS.keys()
