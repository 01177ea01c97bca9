"""Workers whose tasks Spark starts a second time: the copies wait, and take over from those that die."""

from __future__ import annotations

import numpy as np
import pytest
from faults import processes, staying
from faults.sparks import sparking, workers_on

from ps2 import DCV, PS2Context

CLOCKS = 60
DIM = 100
COPIES_S = 60
# A copy of a task that takes longer than others; also where all tasks are slow.
SPECULATION = {
    "spark.executor.memory": "1g",
    "spark.executor.cores": "2",  # copies are started for so many tasks at most
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.task.duration.threshold": "2s",
}

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(400)]


@pytest.fixture(scope="module", autouse=True)
def staying_by_value():
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(staying)
    yield
    cloudpickle.unregister_pickle_by_value(staying)


@pytest.fixture(scope="module")
def speculating(jvm, leaves_nothing):
    """Two executors of two slots each."""
    with workers_on("127.0.0.7", "127.0.0.8", cores=2) as master, sparking(master, SPECULATION) as session:
        yield session


@pytest.fixture
def until_copies(until):
    """``until_copies(ps)``: wait for a copy of each of the two workers, which then waits for a place."""
    return lambda ps: until(
        lambda: ps._coordinator.active_runs.newest.attempts == 4, "copies of both tasks wait", COPIES_S
    )


def test_run_when_tasks_are_speculated_then_copies_do_nothing(speculating, tmp_path, until_copies):
    with PS2Context.getOrCreate(speculating, servers=2) as ps:
        ps.waitForSlots(4)
        total = DCV.dense(DIM, dtype="int64")

        def on_clock(clock):
            if clock == CLOCKS // 2:
                until_copies(ps)

        rows = speculating.sparkContext.parallelize(range(2), 2)
        ps.run(rows, staying.counting(total, CLOCKS, tmp_path), workers=2, onClock=on_clock)
        assert np.unique(total.pull()).tolist() == [2 * CLOCKS]
    # Whichever came first: the other one has never had the place.
    assert sorted(rank for rank, _ in staying.attempts(tmp_path)) == [0, 1]


def test_run_when_attempt_dies_then_waiting_copy_continues(speculating, tmp_path, until_copies):
    with PS2Context.getOrCreate(speculating, servers=2) as ps:
        ps.waitForSlots(4)
        total = DCV.dense(DIM, dtype="int64")

        def on_clock(clock):
            if clock == CLOCKS // 2:
                until_copies(ps)
                (worker,) = (pid for (rank, _), pid in staying.attempts(tmp_path).items() if rank == 1)
                processes.kill(worker)

        rows = speculating.sparkContext.parallelize(range(2), 2)
        ps.run(rows, staying.counting(total, CLOCKS, tmp_path), workers=2, onClock=on_clock)
        assert np.unique(total.pull()).tolist() == [2 * CLOCKS]
    assert sorted(rank for rank, _ in staying.attempts(tmp_path)) == [0, 1, 1]
