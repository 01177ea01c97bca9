"""Processes that a task starts: refused, so that none of the task's own updates is lost to them."""

from __future__ import annotations

import operator
import os

import numpy as np
import pytest

from ps2 import DCV
from tests.forks import in_child

DAEMON = "spark.python.daemon.module"

pytestmark = pytest.mark.usefixtures("by_value")

ADD = operator.methodcaller("add", np.array([100.0, 0.0]))  # where spawned children can import it
REFUSED = "UsageError: vectors work in a task or a driver itself"
VALUES = np.array([10.0, 1.0])


def forked_first(vector):
    text = in_child(lambda: ADD(vector))
    vector.add(VALUES)
    return text


def forked_later(vector):
    vector.add(VALUES)
    return in_child(lambda: ADD(vector))


def forked_to_read(vector):
    vector.add(VALUES)
    return in_child(vector.pull)


def forked_with_additions_under_way(vector):
    vector.add(VALUES, wait=False)
    text = in_child(vector.flush)
    vector.flush()
    return text


def started_by_multiprocessing(method):
    def start(vector):
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        vector.add(VALUES)
        with ProcessPoolExecutor(1, mp_context=get_context(method)) as pool:
            error = pool.submit(ADD, vector).exception()
        return f"{type(error).__name__}: {error}"

    return start


WAYS = {
    "os.fork before the task's first call": forked_first,
    "os.fork after it": forked_later,
    "os.fork, and only a pull": forked_to_read,
    "os.fork, with additions under way": forked_with_additions_under_way,
    "multiprocessing, fork": started_by_multiprocessing("fork"),
    "multiprocessing, spawn": started_by_multiprocessing("spawn"),
    "multiprocessing, forkserver": started_by_multiprocessing("forkserver"),
}


@pytest.mark.parametrize("way", WAYS)
def test_task_child_when_it_uses_vector_then_refused(ps, sc, way):
    vector, start = DCV.dense(2, dtype="float64"), WAYS[way]
    (text,) = sc.parallelize(range(1), 1).map(lambda _: start(vector)).collect()
    assert text.startswith(REFUSED)
    assert vector.pull().tolist() == [10.0, 1.0]


def test_task_child_when_task_had_not_used_ps2_then_refused(ps, sc):
    """The handle comes by a broadcast, which is unpickled where it is first looked at."""
    vector = DCV.dense(2, dtype="float64")
    sent = sc.broadcast(vector)

    def work(_):
        import sys

        known = "ps2.client.sessions" in sys.modules
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            try:
                sent.value.add([100.0, 0.0])
            except ValueError as error:
                os.write(writer, f"{type(error).__name__}: {error}".encode())
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as messages:
            text = messages.read()
        os.waitpid(child, 0)
        sent.value.add([10.0, 1.0])
        return known, text

    # Another daemon, Spark's own, so a Python worker that has imported nothing yet.
    settings = sc._jsc.sc().conf()
    ours = settings.get(DAEMON)
    settings.set(DAEMON, "pyspark.daemon")
    try:
        ((known, text),) = sc.parallelize(range(1), 1).map(work).collect()
    finally:
        settings.set(DAEMON, ours)
    assert not known
    assert text.startswith(REFUSED)
    assert vector.pull().tolist() == [10.0, 1.0]


def test_run_worker_child_when_it_uses_vector_then_refused(ps, sc):
    vector = DCV.dense(2, dtype="float64")

    def work(worker, rows):
        texts = []
        for _ in worker.clocks(2):
            texts.append(in_child(lambda: ADD(vector)))
            vector.add(VALUES)
            texts.append(in_child(worker.barrier))
            texts.append(in_child(lambda: worker.log(loss=1.0)))
        return texts

    result = ps.run(sc.parallelize(range(2), 2), work, workers=2)
    assert all(text.startswith(REFUSED) for texts in result for text in texts)
    assert vector.pull().tolist() == [40.0, 4.0]


def test_task_threads_when_using_vector_then_each_update_counts(ps, sc):
    vector = DCV.dense(2, dtype="float64")

    def work(_):
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: vector.add(VALUES), range(8)))

    sc.parallelize(range(2), 2).foreach(work)
    assert vector.pull().tolist() == [160.0, 16.0]


def test_table_function_child_when_it_uses_vector_then_refused(ps, spark):
    vector = DCV.dense(2, dtype="float64")

    def serve(batches):
        import pyarrow as pa

        for _ in batches:
            text = in_child(lambda: ADD(vector))
            vector.add(VALUES)
            yield pa.RecordBatch.from_pydict({"text": [text]})

    (row,) = spark.range(0, 1, 1, 1).mapInArrow(serve, "text string").collect()
    assert row.text.startswith(REFUSED)
    assert vector.pull().tolist() == [10.0, 1.0]
