"""Several runs and fits of one context at a time, each in a thread: each is as if it were alone."""

from __future__ import annotations

import itertools
import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from pyspark.ml.evaluation import BinaryClassificationEvaluator
from pyspark.ml.linalg import Vectors
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder

from ps2 import DCV, Message, PS2Context
from ps2.algorithms.classification import GBTClassifier, LogisticRegression
from ps2.errors import StoppedError, UsageError, WorkerError

pytestmark = [
    pytest.mark.usefixtures("by_value"),
    # pyspark leaves the threads of its validators to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed running multiprocessing pool:ResourceWarning"),
]

DIM, CLOCKS = 50, 8
WAIT_S = 60.0


@pytest.fixture(scope="module")
def ps(spark, tmp_path_factory):
    with PS2Context.getOrCreate(
        spark, servers=2, checkpointDir=str(tmp_path_factory.mktemp("checkpoints")), checkpointEverySteps=3
    ) as context:
        yield context


@pytest.fixture
def pool():
    """Starts calls in threads."""
    with ThreadPoolExecutor(4) as threads:
        yield threads


def wait_for_file(path):
    give_up_s = time.monotonic() + WAIT_S
    while not os.path.exists(path):
        assert time.monotonic() < give_up_s
        time.sleep(0.02)


def descend(ps, sc, seed, before_clock=lambda worker: None, change=lambda clock: None):
    """Train with one worker by steps that depend on all earlier ones, in worker and driver; return the weights.

    ``before_clock(worker)`` is called in the worker, ``change(clock)`` in ``onClock``.
    """
    weights = DCV.dense(DIM, 2, dtype="float64")
    state = weights.derive().fill(1.0)

    def work(worker, rows):
        (row,) = rows
        for _ in worker.clocks(CLOCKS):
            before_clock(worker)
            factor = 1.0 if worker.message is None else worker.message
            noise = worker.rng().normal(size=DIM)
            weights.add(factor * (row + 0.1 * noise - 0.5 * weights.pull()))
            worker.report(float(weights.sum()))
        return worker.clock

    def on_clock(clock, reports):
        change(clock)
        state.mul(0.9).axpy(weights, 0.01)
        return Message(1.0 / (1.0 + abs(reports[0]) / DIM))

    ps.run(sc.parallelize([float(seed)], 1), work, 1, onClock=on_clock, seed=seed, timeoutS=WAIT_S)
    return np.concatenate([weights.pull(), state.pull()])


def until_others_run(folder, clock, both):
    """``overlap(worker)``: in a clock, wait until as many workers as ``both`` have come, so that their runs overlap."""
    folder = str(folder)

    def overlap(worker):
        if worker.clock == clock:
            with open(f"{folder}/{os.getpid()}", "w"):
                pass
            give_up_s = time.monotonic() + WAIT_S
            while len(os.listdir(folder)) < both:
                assert time.monotonic() < give_up_s
                time.sleep(0.02)

    return overlap


def test_two_runs_when_in_threads_then_equal_to_serial_ones(ps, sc, pool, tmp_path):
    alone = [descend(ps, sc, seed) for seed in (1, 2)]
    overlap = until_others_run(tmp_path, 2, 2)
    together = list(pool.map(lambda seed: descend(ps, sc, seed, overlap), (1, 2)))
    assert [weights.tolist() for weights in together] == [weights.tolist() for weights in alone]


def test_run_when_another_one_fails_then_it_goes_on(ps, sc, pool, tmp_path):
    alone, overlap = descend(ps, sc, 3), until_others_run(tmp_path, 2, 2)

    def fail(clock):
        if clock == 3:
            raise ValueError("of this run alone")

    failing = pool.submit(descend, ps, sc, 4, overlap, fail)
    other = pool.submit(descend, ps, sc, 3, overlap)
    with pytest.raises(ValueError, match="of this run alone"):
        failing.result(WAIT_S)
    assert other.result(WAIT_S).tolist() == alone.tolist()


def test_run_when_a_worker_of_another_fails_then_it_goes_on(ps, sc, pool, tmp_path):
    alone, overlap = descend(ps, sc, 3), until_others_run(tmp_path, 2, 2)

    def overlap_and_fail(worker):
        overlap(worker)
        if worker.clock == 3:
            raise ValueError("of this worker alone")

    failing = pool.submit(descend, ps, sc, 4, overlap_and_fail)
    other = pool.submit(descend, ps, sc, 3, overlap)
    with pytest.raises(WorkerError, match="of this worker alone"):
        failing.result(WAIT_S)
    assert other.result(WAIT_S).tolist() == alone.tolist()


def test_run_when_another_ones_job_is_cancelled_then_goes_on(ps, sc, pool, tmp_path):
    alone, overlap, gate = (
        descend(ps, sc, 3),
        until_others_run(tmp_path, 2, 2),
        tmp_path.parent / f"{tmp_path.name}-gate",
    )
    path = str(gate)

    def overlap_and_wait(worker):
        overlap(worker)
        if worker.clock == 4:
            wait_for_file(path)

    def cancelled_run():
        sc.setJobGroup("cancelled alone", "")
        return descend(ps, sc, 4, overlap_and_wait)

    cancelled = pool.submit(cancelled_run)
    other = pool.submit(
        descend, ps, sc, 3, overlap_and_wait, lambda clock: clock == 3 and sc.cancelJobGroup("cancelled alone")
    )
    with pytest.raises(StoppedError, match="Spark cancelled the job"):
        cancelled.result(WAIT_S)
    gate.touch()
    assert other.result(WAIT_S).tolist() == alone.tolist()


def test_run_when_another_is_interrupted_then_it_goes_on(ps, sc, pool, tmp_path):
    alone, overlap = descend(ps, sc, 3), until_others_run(tmp_path, 2, 2)
    other = pool.submit(descend, ps, sc, 3, overlap)

    def interrupt(clock):
        if clock == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        descend(ps, sc, 4, overlap, interrupt)
    assert other.result(WAIT_S).tolist() == alone.tolist()


def test_two_runs_when_a_server_is_killed_then_as_without(ps, sc, pool, tmp_path, until):
    alone = [descend(ps, sc, seed) for seed in (5, 6)]
    overlap, before = until_others_run(tmp_path, 5, 3), len(ps.recoveries)
    runs = [pool.submit(descend, ps, sc, seed, overlap) for seed in (5, 6)]
    until(lambda: len(os.listdir(tmp_path)) == 2, "both runs are in clock 5", WAIT_S)
    ps._coordinator.fleet.launcher._children[0].kill()
    until(lambda: len(ps.recoveries) > before, "the server is back", WAIT_S)
    (tmp_path / "released").touch()
    assert [run.result(WAIT_S).tolist() for run in runs] == [weights.tolist() for weights in alone]
    assert ps.recoveries[-1].rolledBack


def test_slots_when_two_runs_need_all_then_one_waits(ps, sc, pool):
    def work(worker, rows):
        times = []
        for _ in worker.clocks(3):
            times.append(time.time())
            time.sleep(0.1)
        return times[0], time.time()

    rows = sc.parallelize(range(4), 2)
    runs = [pool.submit(ps.run, rows, work, 2, timeoutS=WAIT_S) for _ in range(3)]
    spans = sorted((min(begin for begin, _ in run.result(WAIT_S)), max(end for _, end in run.result())) for run in runs)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))


@pytest.fixture(scope="module")
def labelled(spark):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(200, 5))
    y = (x @ [1.0, -2.0, 0.5, 0.0, 1.0] + rng.normal(size=200) > 0).astype(float)
    rows = [(label, Vectors.dense(row)) for label, row in zip(y.tolist(), x, strict=True)]
    return spark.createDataFrame(rows, ["label", "features"]).coalesce(2).cache()


@pytest.mark.parametrize(
    ("make", "grid"),
    [
        (lambda: LogisticRegression(maxIter=10), {"regParam": [0.0, 0.01, 0.1, 1.0]}),
        (lambda: GBTClassifier(maxIter=3, maxDepth=3, seed=1), {"stepSize": [0.05, 0.1, 0.3, 0.5]}),
        (lambda: LogisticRegression(maxIter=5, via="servers", numWorkers=2), {"regParam": [0.01, 1.0]}),
    ],
    ids=["LogisticRegression", "GBTClassifier", "servers"],
)
def test_cross_validation_when_parallel_then_as_serial(ps, labelled, make, grid):
    def metrics(parallelism):
        estimator = make()
        ((name, values),) = grid.items()
        maps = ParamGridBuilder().addGrid(estimator.getParam(name), values).build()
        evaluator = BinaryClassificationEvaluator()
        validator = CrossValidator(
            estimator=estimator,
            estimatorParamMaps=maps,
            evaluator=evaluator,
            numFolds=2,
            parallelism=parallelism,
            seed=7,
            collectSubModels=True,
        )
        model = validator.fit(labelled)
        return model.avgMetrics, [
            [sub.transform(labelled).select("rawPrediction").collect() for sub in fold] for fold in model.subModels
        ]

    assert metrics(4) == metrics(1)


def test_run_when_within_on_clock_of_its_thread_then_usage_error(ps, sc):
    def nested(clock):
        with pytest.raises(UsageError, match="under way in this thread"):
            descend(ps, sc, 1)

    descend(ps, sc, 1, change=nested)
