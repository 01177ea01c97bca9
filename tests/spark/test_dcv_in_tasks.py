"""A handle means the same in a task as in the driver."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import ps2
from ps2 import DCV

pytestmark = pytest.mark.usefixtures("by_value")

DIM = 9
U = np.arange(1.0, DIM + 1)
V = np.linspace(-2.0, 2.0, DIM)


def batched(u, v):
    with ps2.batch():
        u.axpy(v, 0.5)
        total = u.sum()
        v.zero()
    return total.result()


def many_rows(u, v):
    matrix = DCV.dense(DIM, 3, "float64").matrix()
    matrix.add([0, 1, 1], [U, V, V])
    matrix.axpy([2], [1], 0.5)
    return matrix.pull([2, 0, 1]), matrix.dot([0, 2], [1, 1]), matrix.pull([1], columns=[8, 0])


def dense_of_its_own(u, v):
    own = DCV.dense(DIM, dtype="float64").push(U * 2)
    return own.pull(), own.sum()


def sparse_of_its_own(u, v):
    own = DCV.sparse(2**62, dtype="float64").add([1.0, 2.0, 3.0], [2**61, 7, 7])
    return own.pull(), own.nnz()


def derived(u, v):
    return u.derive().fill(3.0).add(v).pull()


def adam(u, v):
    velocity, square = u.derive(), u.derive()
    return u.zip(velocity, square, v).apply("adam", lr=0.1, step=1)


def with_index(u, v):
    return u.zip(v).mapPartitionsWithIndex(lambda p, a, b: (p.index, p.begin, p.end, float(a @ b))).collect()


def swapped(u, v):
    def swap(a, b):
        a[:], b[:] = b.copy(), a.copy()

    u.zip(v).mapPartitions(swap)


OPERATIONS = {
    "pull": lambda u, v: u.pull(),
    "pull at indices": lambda u, v: u.pull([8, 0, 8, 3]),
    "push": lambda u, v: u.push(V * 10),
    "push at indices": lambda u, v: u.push([5.0, 6.0], [7, 1]),
    "add": lambda u, v: u.add(U),
    "add at indices": lambda u, v: u.add([1.0, 2.0, 4.0], [2, 2, 8]),
    "add a vector": lambda u, v: u.add(v),
    "mul a number": lambda u, v: u.mul(3),
    "sub": lambda u, v: u.sub(V),
    "div a vector": lambda u, v: v.div(u),
    "dot": lambda u, v: u.dot(v),
    "norm2": lambda u, v: u.norm2(),
    "max": lambda u, v: (u.max(), v.min(), v.nnz()),
    "axpy": lambda u, v: u.axpy(v, -0.25),
    "copy": lambda u, v: u.copy(v),
    "zero": lambda u, v: u.zero(),
    "u + v": lambda u, v: u + v,
    "2 * u - v": lambda u, v: 2 * u - v,
    "zip.apply": adam,
    "zip.mapPartitions": swapped,
    "zip.mapPartitionsWithIndex": with_index,
    "derive": derived,
    "DCV.dense": dense_of_its_own,
    "DCV.sparse": sparse_of_its_own,
    "DCVMatrix": many_rows,
    "batch": batched,
}
CHANGES = ["push", "add at indices", "axpy", "zip.apply", "zip.mapPartitions", "batch"]


@pytest.fixture(scope="module")
def pair(ps):
    """``pair()``: two co-located vectors with the values of U and V."""

    def make():
        u = DCV.dense(DIM, dtype="float64").push(U)
        return u, u.derive().push(V)

    return make


def answer_of(name, u, v):
    answer = OPERATIONS[name](u, v)
    return answer.pull() if isinstance(answer, DCV) else answer


def assert_same(came, expected):
    if isinstance(expected, (tuple, list)):
        assert len(came) == len(expected)
        for one, other in zip(came, expected, strict=True):
            assert_same(one, other)
    else:
        np.testing.assert_array_equal(came, expected)


@pytest.fixture(scope="module")
def answers(pair, sc, by_value):
    """What a task answers to each operation, each on vectors of its own."""
    pairs = {name: pair() for name in OPERATIONS}

    def work(rows):
        return [(name, answer_of(name, *vectors)) for name, vectors in pairs.items()]

    return dict(sc.parallelize([0], 1).mapPartitions(work).collect())


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_when_in_map_partitions_then_same_as_in_driver(name, pair, answers):
    assert_same(answers[name], answer_of(name, *pair()))


@pytest.fixture(scope="module")
def changed(pair, sc, by_value):
    """Vectors that a task has changed, by operation."""
    pairs = {name: pair() for name in CHANGES}

    def work(rows):
        for name, vectors in pairs.items():
            answer_of(name, *vectors)

    sc.parallelize([0], 1).foreachPartition(work)
    return pairs


@pytest.mark.parametrize("name", CHANGES)
def test_change_when_made_in_foreach_partition_then_driver_sees(name, pair, changed):
    here = pair()
    answer_of(name, *here)
    assert_same([vector.pull() for vector in changed[name]], [vector.pull() for vector in here])


def test_add_when_called_in_many_tasks_then_every_one_counts(ps, sc):
    total = DCV.dense(DIM, dtype="int64")

    def work(rows):
        for row in rows:
            total.add(np.full(DIM, row))

    sc.parallelize(range(40), 8).foreachPartition(work)
    assert total.pull().tolist() == [sum(range(40))] * DIM


def test_a_handle_when_it_comes_back_from_a_task_then_it_works(ps, sc):
    u = DCV.dense(DIM, dtype="float64").push(U)
    (back,) = sc.parallelize([0], 1).map(lambda _: u).collect()
    np.testing.assert_array_equal(back.pull(), U)


def test_vector_when_made_in_task_then_handle_outlives_task(ps, sc):
    (created,) = sc.parallelize([0], 1).map(lambda _: DCV.dense(DIM, dtype="float64").push(U)).collect()
    np.testing.assert_array_equal(created.pull(), U)


def test_a_handle_when_broadcast_then_it_works_in_tasks(ps, sc):
    u = sc.broadcast(DCV.dense(DIM, dtype="float64").push(U))
    assert sc.parallelize(range(2), 2).map(lambda _: u.value.sum()).collect() == [U.sum()] * 2


def test_matrix_handle_when_in_closure_then_tasks_add_to_rows(ps, sc):
    matrix = DCV.dense(DIM, 2, "float64").matrix()
    sc.parallelize(range(4), 4).foreach(lambda row: matrix.add([row % 2], [U]))
    np.testing.assert_array_equal(matrix.pull([0, 1]), [2 * U, 2 * U])


def test_handle_when_in_dataframe_foreach_partition_then_works(ps, spark):
    total = DCV.dense(1, dtype="int64")

    def work(rows):
        total.add([sum(row.id for row in rows)])

    spark.range(0, 10, 1, 2).foreachPartition(work)
    assert total.sum() == 45


def test_a_handle_when_in_a_udf_then_it_works(ps, spark):
    from pyspark.sql import functions

    u = DCV.dense(DIM, dtype="float64").push(U)
    look_up = functions.udf(lambda i: float(u.pull([i])[0]), "double", useArrow=False)
    rows = spark.range(0, DIM, 1, 2).select(look_up("id").alias("value")).collect()
    assert [row.value for row in rows] == U.tolist()


def test_a_handle_when_in_an_arrow_udf_then_it_works(ps, spark):
    from pyspark.sql import functions

    if not hasattr(functions, "arrow_udf"):
        pytest.skip("this Spark has no functions on Arrow arrays that do without pandas")
    import pyarrow as pa

    u = DCV.dense(DIM, dtype="float64").push(U)
    look_up = functions.arrow_udf(lambda ids: pa.array(u.pull(ids.to_numpy())), "double")
    rows = spark.range(0, DIM, 1, 2).select(look_up("id").alias("value")).collect()
    assert [row.value for row in rows] == U.tolist()


def test_handle_when_in_both_shuffle_stages_then_both_count(ps, spark):
    from pyspark.sql import functions

    total = DCV.dense(1, dtype="int64")

    def count(i):
        total.add([1])
        return i

    counted = functions.udf(count, "long", useArrow=False)
    frame = spark.range(0, 8, 1, 2).select(counted("id").alias("i")).repartition(2, "i").select(counted("i"))
    frame.collect()
    assert total.sum() == 16


@pytest.fixture
def other_thread():
    """``other_thread(fn)``: call a function in a thread that has not talked to Spark before."""

    def call(fn):
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(fn).result()

    return call


def test_job_when_submitted_in_another_thread_then_reaches_fleet(ps, sc, other_thread):
    u = DCV.dense(DIM, dtype="float64").push(U)
    assert other_thread(lambda: sc.parallelize([0], 1).map(lambda _: u.sum()).collect()) == [U.sum()]


def test_dataframe_when_collected_in_thread_then_reaches_fleet(ps, spark, other_thread):
    from pyspark.sql import functions

    u = DCV.dense(DIM, dtype="float64").push(U)
    frame = spark.range(0, 1, 1, 1).select(functions.udf(lambda _: u.sum(), "double", useArrow=False)("id").alias("s"))
    assert other_thread(frame.collect)[0].s == U.sum()


def test_context_when_started_in_thread_then_tasks_reach_it(spark, sc, other_thread, ps):
    from ps2 import PS2Context

    ps.stop()
    with other_thread(lambda: PS2Context.getOrCreate(spark, servers=1)):
        u = DCV.dense(DIM, dtype="float64").push(U)
        assert sc.parallelize([0], 1).map(lambda _: u.sum()).collect() == [U.sum()]
