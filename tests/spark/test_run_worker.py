"""What a worker of ps.run can do, clocks, random numbers, metrics, barriers, one for all; its timeline."""

from __future__ import annotations

import time

import numpy as np
import pytest

from ps2 import DCV
from ps2.run.timeline import ended

DEADLINE_S = 60.0


@pytest.fixture
def rdd(sc):
    return sc.parallelize(range(10), 2)


def attempt():
    from pyspark import TaskContext

    return TaskContext.get().attemptNumber()


def message_of(fn):
    """Call ``fn``; return what it says is wrong."""
    from ps2 import PS2Error

    try:
        fn()
    except PS2Error as error:
        return str(error)
    return None


pytestmark = pytest.mark.usefixtures("by_value")


# -- who and where


def test_run_when_given_an_rdd_then_results_are_by_rank(ps, rdd):
    result = ps.run(rdd, lambda worker, rows: (worker.rank, worker.workers, worker.clock, list(rows)))
    assert result == [(0, 2, 0, [0, 1, 2, 3, 4]), (1, 2, 0, [5, 6, 7, 8, 9])]


def test_run_when_given_a_dataframe_then_rows_are_batches(ps, spark):
    def work(worker, batches):
        return worker.rank, [number for batch in batches for number in batch.column("id").to_pylist()]

    result = ps.run(spark.range(0, 10, 1, 2), work)
    assert result == [(0, [0, 1, 2, 3, 4]), (1, [5, 6, 7, 8, 9])]


@pytest.mark.parametrize("first", [0, 7])
def test_clocks_when_two_loops_then_second_continues_numbering(ps, rdd, first):
    def work(worker, rows):
        seen = [worker.clock]
        for end in (first + 2, np.int64(first + 3)):
            for t in worker.clocks(end):
                seen += [t, worker.clock]
            seen.append(worker.clock)
        return [t - first for t in seen]

    result = ps.run(rdd, work, firstClock=first)
    assert result == [[0, 0, 0, 1, 1, 2, 2, 2, 3]] * 2


def test_clocks_when_they_are_over_then_another_loop_has_none(ps, rdd):
    def work(worker, rows):
        return [list(worker.clocks(n)) for n in (2, 2, 0, 1)]

    assert ps.run(rdd, work) == [[[0, 1], [], [], []]] * 2


def test_clocks_when_asked_wrongly_then_says_what_was_expected(ps, rdd):
    def work(worker, rows):
        messages = [message_of(lambda n=n: worker.clocks(n)) for n in (2.5, "3", None, True, -1)]
        for _ in worker.clocks(1):
            messages.append(message_of(lambda: list(worker.clocks(2))))
        return messages

    expected = [f"clocks: expected an integer, the number of clocks, got {n!r}" for n in (2.5, "3", None, True)]
    expected += [
        "clocks: expected a number of clocks that is not negative, got -1",
        "clocks: loops over clocks do not nest",
    ]
    assert ps.run(rdd, work)[0] == expected


# -- random numbers


def test_rng_when_a_task_is_started_again_then_it_draws_the_same(ps, rdd):
    first = DCV.dense(4, 2, dtype="float64")
    sample = [first, first.derive()]

    def work(worker, rows):
        for t in worker.clocks(2):
            mine = worker.rng(5).random(4)
            if t == 1 and attempt() == 0:
                sample[worker.rank].push(mine)
                raise RuntimeError("the first attempt fails in clock 1")
        return mine.tolist(), attempt()

    for rank, (mine, number) in enumerate(ps.run(rdd, work)):
        assert number == 1
        np.testing.assert_array_equal(sample[rank].pull(), mine)


def test_rng_when_rank_clock_or_key_differ_then_draws_differ(ps, rdd):
    def work(worker, rows):
        return [worker.rng(*key).random() for _ in worker.clocks(3) for key in ((), (0,), (1,), (0, 1))]

    sample = [number for numbers in ps.run(rdd, work) for number in numbers]
    assert len(set(sample)) == len(sample) == 2 * 3 * 4


def test_rng_when_the_seed_is_the_same_then_so_are_the_numbers(ps, rdd):
    def work(worker, rows):
        return worker.rng().random()

    one, again, other = (list(ps.run(rdd, work, seed=seed)) for seed in (1, 1, 2))
    assert one == again
    assert not set(one) & set(other)


# -- metrics


def test_log_when_the_job_still_runs_then_the_driver_hears_of_it(ps, rdd):
    flag = DCV.dense(1)
    received = []

    def on_log(rank, clock, name, value):
        received.append((rank, clock, name, value))
        flag.push([1.0])

    def work(worker, rows):
        for t in worker.clocks(2):
            if t == 0 and worker.rank == 1:
                worker.log(loss=0.25)
            until_s = time.monotonic() + DEADLINE_S
            while t == 1 and not flag.pull()[0]:
                assert time.monotonic() < until_s, "onLog was not called while the job ran"

    ps.run(rdd, work, onLog=on_log)
    assert received == [(1, 0, "loss", 0.25)]


def test_log_when_values_are_any_numbers_then_result_has_them(ps, rdd):
    def work(worker, rows):
        for t in worker.clocks(3):
            worker.log(loss=np.float32(t + 0.5), rows=np.int64(worker.rank), flag=np.bool_(True), zero=np.array(2.0))

    result = ps.run(rdd, work, firstClock=1)
    assert result.metricNames == ["flag", "loss", "rows", "zero"]
    assert result.metrics("loss").tolist() == [[1.5, 2.5]] * 2
    assert result.metrics("rows").tolist() == [[0, 0], [1, 1]]
    assert result.toPandas()["zero"].tolist() == [2.0] * 4


def test_log_when_a_value_is_no_number_then_it_is_named(ps, rdd):
    values = ["0.5", None, [1.0], np.ones(1), 1j, np.complex64(1)]

    def work(worker, rows):
        return [message_of(lambda value=value: worker.log(good=1, loss=value)) for value in values]

    result = ps.run(rdd, work)
    assert result[0] == [f"log: loss: expected a number, got {value!r}" for value in values]
    assert result.metricNames == []


# -- meeting the others


def test_barrier_when_passed_then_earlier_changes_are_visible(ps, rdd):
    total = DCV.dense(3)

    def work(worker, rows):
        seen = []
        for _ in worker.clocks(3):
            total.add([1.0, 1.0, 1.0], wait=False)
            worker.barrier()
            seen.append(total.pull().tolist())
            worker.barrier()
        return seen

    assert ps.run(rdd, work, staleness=None) == [[[n] * 3 for n in (2.0, 4.0, 6.0)]] * 2


def test_once_when_called_by_all_then_one_calls_and_all_see(ps, rdd):
    calls = DCV.dense(1)

    def work(worker, rows):
        def make():
            calls.add([1.0])
            return worker.rank, worker.rng().random()

        return [worker.once(make) for _ in range(2)] + [worker.once(make) for _ in worker.clocks(2)]

    first, second = ps.run(rdd, work)
    assert first == second
    assert calls.pull().tolist() == [4.0]


def test_once_when_it_makes_a_vector_then_all_can_use_it(ps, rdd):
    def work(worker, rows):
        weight = worker.once(lambda: DCV.dense(6).fill(2.0))
        for _ in worker.clocks(2):
            weight.add(np.ones(6))
        return weight.pull().tolist()

    assert ps.run(rdd, work) == [[6.0] * 6] * 2


def test_once_when_function_raises_then_error_is_the_tasks(ps, rdd):
    def work(worker, rows):
        if attempt() == 0:
            return worker.once(lambda: 1 // 0)
        return worker.once(lambda: worker.workers)

    assert ps.run(rdd, work) == [2, 2]


# -- where the time went


def assert_no_time_is_lost(result):
    """Each row begins where the one before it ended."""
    for table in result._tables:
        until_returned = table[:-2]
        np.testing.assert_allclose(until_returned.began[1:], ended(until_returned)[:-1], rtol=0, atol=1e-9)
        assert all((table[kind] >= 0).all() for kind in ("wait", "pull", "compute", "push"))


def test_timeline_when_run_is_over_then_parts_sum_to_clock_time(ps, rdd):
    weight = DCV.dense(100)

    def work(worker, rows):
        sum(rows)
        weight.pull()
        worker.barrier()
        for n in (3, 5):
            for _ in worker.clocks(n):
                weight.add(weight.pull(), wait=False)
                worker.barrier()
                worker.once(lambda: weight.pull().tolist())
            weight.add(np.ones(100), wait=False)

    result = ps.run(rdd, work, onClock=lambda t: weight.zero())
    assert_no_time_is_lost(result)
    for inside, outside in zip(result.timeline, result.outside, strict=True):
        assert inside.clock.tolist() == [0, 1, 2, 3, 4]
        assert outside.clock.tolist() == [0, 0, 3, 5, 5, 5]  # with its start, and two of its end
        assert all((inside[kind] > 0).all() for kind in ("wait", "pull", "compute", "push"))
        assert (inside.onClock > 0).tolist() == [
            False,
            True,
            True,
            False,
            True,
        ]  # clock 3 is entered after a loop's end
        assert (outside.onClock > 0).tolist()[:4] == [False, False, True, True]
        assert outside.began[-1] < result.seconds


def test_shares_when_run_is_over_then_little_is_unaccounted(ps, rdd):
    weight = DCV.dense(1000)

    def work(worker, rows):
        sum(rows)
        for _ in worker.clocks(20):
            weight.add(weight.pull())

    result = ps.run(rdd, work, onClock=lambda t: weight.zero()).shares
    assert sum(result.values()) == pytest.approx(1.0, abs=1e-12)
    assert result["other"] < 0.1
    assert all(result[name] > 0 for name in ("pull", "push", "onClock", "coordinator", "connect", "spark"))


def test_timeline_when_worker_waits_at_barrier_then_is_wait(ps, rdd):
    flag = DCV.dense(1)

    def work(worker, rows):
        held_s = 0.0
        for _ in worker.clocks(1):
            if worker.rank == 0:
                began_s = time.monotonic()
                worker.barrier()
                held_s = time.monotonic() - began_s
            else:
                until_s = time.monotonic() + 0.2
                while time.monotonic() < until_s:
                    flag.pull()
                worker.barrier()
        return held_s

    result = ps.run(rdd, work)
    row = result.timeline[0][0]
    assert row.wait + row.push > 0.5 * result[0]


def test_timeline_when_task_restarts_then_shows_both_attempts(ps, rdd):
    def work(worker, rows):
        for t in worker.clocks(3):
            worker.log(try_=attempt())
            if t == 1 and worker.rank == 0 and attempt() == 0:
                raise RuntimeError("the first attempt fails in clock 1")

    result = ps.run(rdd, work)
    assert result.timeline[0].clock.tolist() == [0, 1, 1, 2]
    assert result.timeline[1].clock.tolist() == [0, 1, 2]
    assert result.outside[0].clock.tolist() == [0, 0, 1, 0, 3, 3, 3]
    assert (np.diff(result._tables[0].began) >= 0).all()
    assert result.metrics("try_").tolist() == [[0, 1, 1], [0, 0, 0]]
