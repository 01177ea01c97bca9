"""A training of any family: faults of rows first, then its own clocks, in workers and driver by turns."""

from __future__ import annotations

import numpy as np
import pytest
from in_process import ArrayTable, training_context

from ps2 import STOP
from ps2.algorithms.training.faults import Form
from ps2.algorithms.training.run import FIRST_CLOCK, Training, run_training
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
def table():
    return ArrayTable.of(np.tile([1.0, 2.0], (6, 1)), np.arange(6.0), workers=2)


@pytest.fixture
def ps():
    with training_context() as ps:
        yield ps


def test_training_when_the_driver_stops_then_all_workers_stop(ps, table):
    family = Family()
    run_training(ps, Training(table, Form(size=2), family.program(), family.on_clock))
    assert family.taken == [(0, 15.0, 6), (1, 15.0, 6), (2, 15.0, 6)]


def test_training_when_a_row_is_wrong_then_no_clock_follows(ps, table):
    family = Family()
    with pytest.raises(InputError, match="label: 3 of 6 rows hold a label that is not one of the classes"):
        run_training(ps, Training(table, Form(size=2, classes=3), family.program(), family.on_clock))
    assert family.taken == []
