"""``ps.run`` when a worker dies, raises, or has nothing to do: changes count once, and errors name the rank."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest

from ps2 import DCV
from ps2.errors import (
    ConfigError,
    DeadlineError,
    InputError,
    LimitError,
    RolledBack,
    SlotsError,
    UsageError,
    WorkerError,
)
from ps2.run.job import WorkerJob
from ps2.run.spark.classic import ClassicSpark

CLOCKS = 6
DIM = 10


@pytest.fixture
def total(ps):
    return DCV.dense(DIM, dtype="int64")


@pytest.fixture
def rows(sc):
    return sc.parallelize(range(4), 2)


def counting(total, before=None, log=None):
    """A worker that adds 1 to every column in each clock, and calls ``before(worker)`` before that."""

    def work(worker, rows):
        pids = [os.getpid()]
        for _ in worker.clocks(CLOCKS):
            if before is not None:
                before(worker)
            total.add(np.ones(DIM, np.int64))
        return pids[0]

    return work


def once_in(folder, what):
    """``what(worker)`` in rank 1's clock 3, in its first attempt only; it leaves its pid in the folder."""
    path = str(folder / "died")

    def act(worker):
        if worker.rank == 1 and worker.clock == 3 and not os.path.exists(path):
            with open(path, "w") as file:
                file.write(str(os.getpid()))
            what()

    return act


def raise_error():
    raise ValueError("on purpose")


def kill_myself():
    os.kill(os.getpid(), signal.SIGKILL)


pytestmark = pytest.mark.usefixtures("by_value")


@pytest.mark.parametrize(
    ("how", "staleness"), [(raise_error, 0), (kill_myself, 0), (kill_myself, 1), (kill_myself, None)]
)
def test_run_when_worker_dies_in_mid_clock_then_exact(how, staleness, ps, total, rows, tmp_path):
    dies = once_in(tmp_path, how)

    def half_way(worker):
        total.add(np.ones(DIM, np.int64))
        dies(worker)

    ps.run(rows, counting(total, half_way), workers=2, staleness=staleness)
    assert np.unique(total.pull()).tolist() == [2 * 2 * CLOCKS]
    assert (tmp_path / "died").exists()


def test_run_when_worker_is_killed_then_other_keeps_its_process(ps, total, rows, tmp_path):
    pids = tmp_path / "pids"
    pids.mkdir()
    dies = once_in(tmp_path, kill_myself)

    def note(worker):
        (pids / f"{worker.rank}-{os.getpid()}").touch()
        dies(worker)

    ps.run(rows, counting(total, note), workers=2)
    names = [path.name.split("-")[0] for path in pids.iterdir()]
    assert sorted(names) == ["0", "1", "1"]


def test_run_when_every_attempt_raises_then_shows_traceback(ps, total, rows):
    def fails(worker):
        if worker.rank == 1 and worker.clock == 2:
            raise_error()

    with pytest.raises(WorkerError, match="rank 1 failed in clock 2") as caught:
        ps.run(rows, counting(total, fails), workers=2)
    text = str(caught.value)
    assert text.rstrip().endswith("ValueError: on purpose")
    assert "in raise_error" in text
    assert "py4j" not in text
    assert caught.value.__cause__ is None


def test_run_when_spark_does_not_retry_then_error_comes_first(ps, total, rows, capfd, monkeypatch):
    monkeypatch.setattr(ClassicSpark, "retries_tasks", lambda spark: False)
    with pytest.raises(
        WorkerError, match=r"^run: rank . failed in clock 0: ValueError: on purpose\nTraceback"
    ) as caught:
        ps.run(rows, counting(total, lambda worker: raise_error()), workers=2)
    assert "in raise_error" in str(caught.value)
    assert "Lost task" not in capfd.readouterr().err


def test_run_when_attempts_end_by_rollback_then_says_so(ps, total, rows):
    def rolls_back(worker):
        raise RolledBack("the fleet rolled back to a checkpoint")

    with pytest.raises(WorkerError, match=r"if Spark allows one: the limit is spark\.task\.maxFailures"):
        ps.run(rows, counting(total, rolls_back), workers=2)


def test_run_when_every_attempt_dies_then_names_rank_and_clock(ps, total, rows):
    def dies(worker):
        if worker.rank == 1 and worker.clock == 2:
            kill_myself()

    with pytest.raises(WorkerError, match=r"rank 1 in clock 2 was lost.*Python worker exited unexpectedly") as caught:
        ps.run(rows, counting(total, dies), workers=2)
    assert len(str(caught.value).splitlines()) <= 2


def test_run_when_another_rank_failed_before_then_names_dead_one(ps, total, rows, tmp_path):
    raises = once_in(tmp_path, raise_error)

    def both(worker):
        raises(worker)
        if worker.rank == 0 and worker.clock == 5:
            kill_myself()

    with pytest.raises(WorkerError, match="rank 0 in clock 5 was lost"):
        ps.run(rows, counting(total, both), workers=2)


def test_a_run_when_it_has_failed_then_the_next_one_works(ps, total, rows):
    with pytest.raises(WorkerError):
        ps.run(rows, lambda worker, rows: raise_error(), workers=2)
    ps.run(rows, counting(total), workers=2)
    assert np.unique(total.pull()).tolist() == [2 * CLOCKS]


def test_run_when_function_is_not_picklable_then_usage_error(ps, rows):
    lock = threading.Lock()
    with pytest.raises(UsageError, match=r"cannot be pickled.*lock"):
        ps.run(rows, lambda worker, rows: lock, workers=2)


def test_run_when_function_holds_context_then_error_says_where(ps, rows):
    with pytest.raises(UsageError, match="belongs to the driver"):
        ps.run(rows, lambda worker, rows: ps.nextStep, workers=2)


def test_run_when_started_in_task_then_says_where_it_belongs(ps, sc):
    with pytest.raises(Exception, match="belongs to the driver"):
        sc.parallelize(range(2), 2).foreach(lambda _: ps.run)


def test_run_when_result_is_unpicklable_then_names_rank_and_type(ps, rows):
    def work(worker, rows):
        return threading.Lock() if worker.rank == 1 else None

    with pytest.raises(WorkerError, match="rank 1 returned a lock that cannot be pickled"):
        ps.run(rows, work, workers=2)


def test_run_when_result_is_too_large_then_limit_error_advises(ps, rows):
    with pytest.raises(LimitError, match=r"rank \d: expected a result of at most .* got 8\d,.*keep large data"):
        ps.run(rows, lambda worker, rows: bytes(80_000_000), workers=2)


def test_run_when_request_exceeds_server_then_fails_at_once(ps, total, rows):
    def work(worker, rows):
        for clock in worker.clocks(CLOCKS):
            if clock == 3 and worker.rank == 1:
                total.add(np.ones(1, np.int64), np.zeros(1, np.int64))
                raise LimitError("2 bytes, and 1 is left")

    with pytest.raises(LimitError, match=r"^rank 1 in clock 3: 2 bytes, and 1 is left"):
        ps.run(rows, work, workers=2)
    assert total.pull()[0] == 1


def test_run_when_rdd_partition_is_empty_then_error_names_rank(ps, sc):
    with pytest.raises(InputError, match=r"rank [01] of 2 has no rows"):
        ps.run(sc.parallelize([1], 2), lambda worker, rows: None, workers=2)


def test_run_when_onclock_raises_then_exception_is_unchanged(ps, total, rows):
    class MyError(Exception):
        pass

    def on_clock(clock):
        if clock == 2:
            raise MyError("mine")

    with pytest.raises(MyError, match="mine"):
        ps.run(rows, counting(total), workers=2, onClock=on_clock)


def test_run_when_driver_fails_then_tasks_end_without_error(ps, total, rows, monkeypatch):
    """They hear of it, so Spark cancels none of them, which would end their Python workers."""
    cancelled, errors, join = [], [], WorkerJob.join

    def joined(job, timeout_s=None):
        errors.append(join(job, timeout_s))
        return errors[-1]

    monkeypatch.setattr("ps2.run.driver.CANCEL_DELAY_S", 20.0)
    monkeypatch.setattr(WorkerJob, "cancel", cancelled.append)
    monkeypatch.setattr(WorkerJob, "join", joined)

    def on_clock(clock):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        ps.run(rows, counting(total), workers=2, onClock=on_clock)
    assert (cancelled, set(errors)) == ([], {None})


def test_run_when_function_has_no_clocks_then_results_come(ps, rows):
    assert list(ps.run(rows, lambda worker, rows: (worker.rank, sorted(rows)), workers=2)) == [(0, [0, 1]), (1, [2, 3])]


def test_run_when_worker_returns_early_then_error_names_it(ps, total, rows):
    def work(worker, rows):
        for _ in worker.clocks(CLOCKS if worker.rank else 2):
            total.add(np.ones(DIM, np.int64))

    with pytest.raises(WorkerError, match="rank 0 returned in clock 2"):
        ps.run(rows, work, workers=2)


def test_run_when_too_slow_then_deadline_error_names_clocks(ps, rows):
    def work(worker, rows):
        for _ in worker.clocks(1_000_000):
            time.sleep(0.01)

    with pytest.raises(DeadlineError, match=r"not finished after 1.5 s \(timeoutS\).*rank 1: \d+"):
        ps.run(rows, work, workers=2, timeoutS=1.5)


def test_run_when_onclock_spark_job_is_slow_then_deadline_error(ps, total, rows, sc):
    with pytest.raises(DeadlineError, match=r"not finished after 2 s \(timeoutS\)"):
        ps.run(rows, counting(total), onClock=lambda clock: sc.parallelize([1], 1).count(), timeoutS=2)


def test_run_when_onclock_job_gets_no_slot_then_slots_error(ps, total, rows, sc, monkeypatch):
    monkeypatch.setattr("ps2.run.job_monitor.START_TIMEOUT_S", 1.0)
    with pytest.raises(SlotsError, match=r"onClock has started a Spark job .* the 2 workers keep their slots"):
        ps.run(rows, counting(total), onClock=lambda clock: sc.parallelize([1], 1).count())


def test_run_when_worker_exits_then_error_has_its_output(ps, sc):
    def leave(worker, rows):
        raise SystemExit("no data, giving up")

    with pytest.raises(WorkerError, match=r"rank 0 failed in clock 0:(.|\n)*SystemExit: no data, giving up"):
        ps.run(sc.parallelize([1], 1), leave)


class Breaks:
    """What cannot be unpickled."""

    def __reduce__(self):
        return eval, ("1 / 0",)


def test_run_when_result_cannot_be_unpickled_then_names_rank(ps, sc, by_value):
    with pytest.raises(WorkerError, match=r"the result of rank 0 cannot be unpickled in the driver: ZeroDivisionError"):
        ps.run(sc.parallelize([1], 1), lambda worker, rows: Breaks())


@pytest.mark.parametrize(
    ("function", "call", "message"),
    [
        (lambda: 1, None, r"run: expected a function of \(worker, rows\), got .*: too many positional arguments"),
        (lambda worker, rows: 1, lambda: 1, r"onClock: expected a function of \(clock\), got .*: too many positional"),
    ],
)
def test_run_when_function_signature_is_wrong_then_usage_error(ps, rows, function, call, message):
    with pytest.raises(UsageError, match=message):
        ps.run(rows, function, onClock=call)


def test_run_when_function_uses_mp_main_copy_then_finds_module(ps, sc, monkeypatch):
    import sys
    import types

    from scipy.special import expit

    copy = types.ModuleType("__mp_main__")  # as PySpark makes one for pandas
    copy.expit = expit
    monkeypatch.setattr(sys, "modules", {"__mp_main__": copy, **sys.modules})
    assert list(ps.run(sc.parallelize([1], 1), lambda worker, rows: float(expit(0.0)))) == [0.5]


def test_run_when_worker_swallows_exceptions_then_still_ends(ps, total, rows):
    def work(worker, rows):
        while True:
            try:
                for _ in worker.clocks(1_000_000):
                    total.add(np.ones(DIM, np.int64))
            except Exception:
                pass

    with pytest.raises(DeadlineError):
        ps.run(rows, work, workers=2, timeoutS=1.5)


def test_run_when_local_slots_are_too_few_then_error_names_both(ps, sc, monkeypatch):
    monkeypatch.setattr("ps2.run.runs.SLOTS_TIMEOUT_S", 1e6)
    with pytest.raises(SlotsError, match=r"has \d free task slots after 0 s, and 3 are needed"):
        ps.run(sc.parallelize(range(6), 3), lambda worker, rows: None, workers=3)


def test_a_run_when_another_one_is_under_way_then_usage_error(ps, total, rows):
    message = []

    def on_clock(clock):
        with pytest.raises(UsageError, match="another run of this context is under way in this thread") as caught:
            ps.run(rows, counting(total), workers=2)
        message.append(caught.value)

    ps.run(rows, counting(total), workers=2, onClock=on_clock)
    assert len(message) == CLOCKS


def test_a_run_in_a_step_when_tried_then_usage_error(ps, total, rows):
    with pytest.raises(UsageError, match="a step is in progress"), ps.step():
        ps.run(rows, counting(total), workers=2)


def test_a_step_in_a_run_when_tried_then_usage_error(ps, total, rows):
    def on_clock(clock):
        with ps.step():
            pass

    with pytest.raises(UsageError, match="its clocks are the steps"):
        ps.run(rows, counting(total), workers=2, onClock=on_clock)


def test_a_run_when_given_what_is_no_data_then_config_error(ps):
    with pytest.raises(ConfigError, match="expected a DataFrame or an RDD"):
        ps.run({1: 2}, lambda worker, rows: None)


def test_run_when_over_then_servers_and_master_keep_nothing(ps, total, rows):
    def remembered():
        scopes = sum(ps._coordinator.fleet.control.status(address).applied_scopes for address in ps.servers)
        return scopes, len(ps._coordinator.fleet.master._calls)

    total.zero()
    before = remembered()
    seen = []
    ps.run(rows, counting(total), workers=2, onClock=lambda clock: seen.append(remembered()[0]))
    # One scope a rank on each of the two shards, however many clocks there are.
    assert max(seen) - before[0] <= 2 * 2
    assert remembered() == before


def test_run_when_worker_makes_vector_then_next_attempt_gets_it(ps, total, rows, tmp_path):
    dies = once_in(tmp_path, raise_error)

    def work(worker, rows):
        mine = worker.once(lambda: DCV.dense(DIM, dtype="int64"))
        for _ in worker.clocks(CLOCKS):
            mine.add(np.ones(DIM, np.int64))
            dies(worker)
        return mine

    created = ps.run(rows, work, workers=2)
    assert np.unique(created[0].pull()).tolist() == [2 * CLOCKS]
