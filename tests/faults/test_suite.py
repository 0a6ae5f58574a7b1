"""Each row of the fault suite, a few times; make test-faults has all of its tries."""

import pytest
from faults.suite import ROWS, Runs, attempt

QUICK = {"checkpoint": 12, "files": 10, "kills": 1, "signals": 1, "disk": 1, "divergence": 2}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("faults"))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_few_tries_of_each_row(runs, row):
    for number in range(QUICK[row.name]):
        assert not attempt(row, number, runs)
