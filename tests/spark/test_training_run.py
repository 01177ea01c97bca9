"""A training of any family: faults of rows first, then its own clocks, in workers and driver by turns."""

from __future__ import annotations

import pytest

from ps2 import STOP
from ps2.algorithms.training.faults import ColumnNames, Form
from ps2.algorithms.training.run import FIRST_CLOCK, Training, run_training
from ps2.algorithms.training.table import Table
from ps2.errors import InputError

CLOCKS = 9


class Family:
    """Adds up labels until the driver has had enough of them."""

    def __init__(self):
        self.taken = []

    def program(self):
        def work(worker, reading):
            for _ in worker.clocks(FIRST_CLOCK + CLOCKS):
                worker.report({"labels": reading.training.y.sum(), "rows": len(reading.training)})

        return work

    def on_clock(self, clock, reports):
        self.taken.append((clock, reports[0]["labels"], reports[0]["rows"]))
        return STOP if len(self.taken) == 3 else None


@pytest.fixture
def table(spark):
    rows = spark.sparkContext.parallelize([([1.0, 2.0], float(label)) for label in range(6)], 2)
    return Table(spark.createDataFrame(rows, "features array<double>, label double"), ColumnNames(), 2)


def test_training_when_the_driver_stops_then_all_workers_stop(ps, by_value, table):
    family = Family()
    run_training(ps, Training(table, Form(size=2), family.program(), family.on_clock))
    assert family.taken == [(0, 15.0, 6), (1, 15.0, 6), (2, 15.0, 6)]


def test_training_when_a_row_is_wrong_then_no_clock_follows(ps, by_value, table):
    family = Family()
    with pytest.raises(InputError, match="label: 3 of 6 rows hold a label that is not one of the classes"):
        run_training(ps, Training(table, Form(size=2, classes=3), family.program(), family.on_clock))
    assert family.taken == []
