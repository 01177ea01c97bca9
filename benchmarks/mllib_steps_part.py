"""One size of ``benchmarks.mllib_steps``: a training with pyspark.mllib, in a process and a Spark of its own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.frame import Part, answer, tell
from benchmarks.local_spark import start_spark
from benchmarks.mllib_steps_records import LOGGING, Records

EXECUTORS = 2
FIELDS = 30
FRACTION = 0.1
# Small steps are over soon, and have few samples each.
SMALL, STEPS_OF_SMALL, STEPS = 1_000_000, 20, 6


@dataclass(frozen=True)
class Asked:
    """What to measure.

    Attributes:
        features: of the model.
        rows: of the data set.
        driver_memory: as Spark writes it.
        executor_memory: in MiB.
    """

    features: int
    rows: int
    driver_memory: str
    executor_memory: int


def measure(asked: Asked) -> Part:
    """Train, stop Spark, and read its records."""
    steps = STEPS_OF_SMALL if asked.features <= SMALL else STEPS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _train(asked, steps, folder)
        import os

        os.system(f"rm -rf /tmp/km_out/rec; cp -r {folder} /tmp/km_out/rec")
        import os

        os.system(f"rm -rf /tmp/km_out/rec; cp -r {folder} /tmp/km_out/rec")
        step = Records(folder).step()
    told = {part: f"{1e3 * seconds:.1f}" for part, seconds in step.items()}
    total = sum(step.values())
    tell(f"{asked.features:,} features: {total:.3f} s a step: {told}")
    size = {"features": f"{asked.features:,}", "ms a step": f"{1e3 * total:.1f}", **told}
    facts = {"rows": f"{asked.rows:,}", "fields": FIELDS, "fraction": FRACTION, "executors": EXECUTORS}
    return Part(facts=facts, sizes=[size])


def _train(asked: Asked, steps: int, folder: Path) -> None:
    from pyspark.mllib.classification import LogisticRegressionWithSGD
    from pyspark.mllib.linalg import DenseVector

    logging = folder / "log4j2.properties"
    logging.write_text(LOGGING)
    (folder / "events").mkdir()
    log = f"-Dlog4j2.configurationFile={logging.as_uri()} -Dbenchmark.log={folder}"
    recording = f"-XX:StartFlightRecording=filename={folder}/{{{{EXECUTOR_ID}}}}.jfr,dumponexit=true,settings=profile"
    settings = {
        "spark.driver.memory": asked.driver_memory,
        "spark.driver.maxResultSize": "0",
        "spark.driver.extraJavaOptions": f"{log}/driver.log",
        "spark.executor.memory": f"{asked.executor_memory}m",
        "spark.executor.extraJavaOptions": f"{log}/executor-{{{{EXECUTOR_ID}}}}.log {recording}",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }
    master = f"local-cluster[{EXECUTORS},1,{asked.executor_memory}]"
    spark = start_spark(master, "benchmarks.mllib_steps", settings)
    home, application = spark.sparkContext._jvm.System.getenv("SPARK_HOME"), spark.sparkContext.applicationId
    try:
        rows = spark.sparkContext.parallelize(range(EXECUTORS), EXECUTORS).flatMap(_generating(asked))
        LogisticRegressionWithSGD.train(
            rows,
            iterations=steps,
            miniBatchFraction=FRACTION,
            initialWeights=DenseVector(np.zeros(asked.features)),
            convergenceTol=0.0,
        )
    finally:
        spark.stop()
        if home is not None:
            shutil.rmtree(Path(home) / "work" / application, ignore_errors=True)  # of Spark's workers


def _generating(asked: Asked) -> Any:
    rows, features = asked.rows // EXECUTORS, asked.features

    def generate(number: int) -> Iterator[Any]:
        from pyspark.mllib.linalg import SparseVector
        from pyspark.mllib.regression import LabeledPoint

        rng = np.random.default_rng(number)
        span = features // FIELDS
        columns = (span * rng.random((rows, FIELDS)) ** 3).astype(np.int32) + span * np.arange(FIELDS, dtype=np.int32)
        ones = np.ones(FIELDS)
        for label, of_row in zip(rng.integers(0, 2, rows).tolist(), columns, strict=True):
            yield LabeledPoint(float(label), SparseVector(features, of_row, ones))

    return generate


if __name__ == "__main__":
    answer(Asked, measure)
