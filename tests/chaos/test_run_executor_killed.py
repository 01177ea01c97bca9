"""An executor that is killed (-9) with the worker that it runs; Spark starts another."""

from __future__ import annotations

import numpy as np
import pytest
from faults import processes, staying

from ps2 import DCV, PS2Context

CLOCKS = 60
DIM = 100
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(400)]


@pytest.fixture(scope="module", autouse=True)
def staying_by_value():
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(staying)
    yield
    cloudpickle.unregister_pickle_by_value(staying)


def test_run_when_executor_is_killed_then_exact(cluster, tmp_path):
    with PS2Context.getOrCreate(cluster, servers=2) as ps:
        ps.waitForSlots(2)
        total = DCV.dense(DIM, dtype="int64")

        def on_clock(clock):
            if clock == 20:
                processes.kill(processes.executors()[0])

        rows = cluster.sparkContext.parallelize(range(2), 2)
        ps.run(rows, staying.counting(total, CLOCKS, tmp_path), workers=2, onClock=on_clock)
        assert np.unique(total.pull()).tolist() == [2 * CLOCKS]
    # One of the two ranks was started again; the other one kept its process.
    assert sorted(number for _, number in staying.attempts(tmp_path)) == [0, 0, 1]
