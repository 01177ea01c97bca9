"""Rows of two classes in LIBSVM files, read by Spark; a line that it cannot read is named with its file and number."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from ps2.errors import InputError

# What Hadoop takes for a pattern of paths.
PATTERN = re.compile(r"[*?[{\\]")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
INDEX = re.compile(r"\d{1,10}", re.ASCII)
# Spark's indices have 32 bits.
MOST_FEATURES = 2**31 - 1
SHOWN_LABELS = 10
SHOWN_CHARS = 40


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """Rows in Spark's cache.

    Attributes:
        path: of the file, the folder or the glob.
        frame: DataFrame with columns label and features (vectors of pyspark.ml).
        counts: how many rows have each label; of very many labels the first few.
    """

    path: str
    frame: Any
    counts: dict[float, int]

    def __len__(self) -> int:
        return sum(self.counts.values())

    def classes(self) -> tuple[float, float]:
        """Return the labels of class 0 and of class 1; InputError unless there are just two."""
        found = sorted(self.counts)
        if len(found) != 2:
            shown = ", ".join(f"{label:g}" for label in found[:SHOWN_LABELS])
            more = ", ..." if len(found) > SHOWN_LABELS else ""
            raise InputError(f"{self.path}: labels: expected two different values, got {shown}{more}")
        return found[0], found[1]

    def classified(self, classes: tuple[float, float]) -> Any:
        """Return the rows with labels 0 and 1, or raise InputError for a label of neither class."""
        from pyspark.sql import functions as F

        strange = sorted(set(self.counts) - set(classes))
        if strange:
            raise InputError(f"{self.path}: expected labels {classes[0]:g} and {classes[1]:g}, got {strange[0]:g}")
        return self.frame.withColumn("label", (F.col("label") == classes[1]).cast("double"))


@dataclass(frozen=True)
class Measure:
    """Of a model on ``rows`` rows: mean log-loss, share of right predictions, area under the ROC curve."""

    rows: int
    loss: float
    accuracy: float
    auc: float


def read(spark: Any, path: str, features: int) -> LabelledRows:
    """Read a file, or all files of a folder or glob, and keep the rows; gzip and the like by their endings.

    Args:
        path: any URL that Spark reads.
        features: how many there may be.

    Raises:
        InputError: there is no such file or no row, or a line is malformed.
    """
    with _faults_named(spark, path, features):
        frame = spark.read.format("libsvm").option("numFeatures", str(features)).load(path).persist()
        found = frame.groupBy("label").count().limit(SHOWN_LABELS + 1).collect()
    if not found:
        raise InputError(_no_row(path))
    return LabelledRows(path, frame, {row["label"]: row["count"] for row in found})


def count_features(spark: Any, path: str) -> int:
    """Return the largest index of a file, or of all files of a folder or glob; raises as ``read``."""
    with _faults_named(spark, path, MOST_FEATURES):
        schema = spark.read.format("libsvm").load(path).schema
    return int(schema["features"].metadata["numFeatures"])


def measure(model: Any, frame: Any) -> Measure:
    """Measure a model of ``ps2.algorithms.LogisticRegression`` on rows of ``LabelledRows.classified``."""
    from pyspark.ml.evaluation import MulticlassClassificationEvaluator

    # Its type hints do not know all of its metrics.
    evaluator: Any = MulticlassClassificationEvaluator
    summary = model.evaluate(frame)
    predictions = summary.predictions.persist()
    try:
        loss = evaluator(metricName="logLoss").evaluate(predictions)
        return Measure(summary.numInstances, loss, summary.accuracy, summary.areaUnderROC)
    finally:
        predictions.unpersist()


def check_local(path: str) -> None:
    """Raise InputError if a local file or folder is missing, which needs no Spark to see; patterns are left to it."""
    scheme, found, rest = path.partition(":")
    if found and "/" not in scheme:
        if scheme != "file":
            return
        path = "/" + rest.lstrip("/")
    elif "HADOOP_CONF_DIR" in os.environ:  # then a path may be one of HDFS
        return
    if not PATTERN.search(path) and not os.path.exists(path):
        raise InputError(f"{path}: there is no such file")


def fault_of(line: str, features: int = MOST_FEATURES) -> str | None:
    """Say what is wrong with a line, ``label index:value ...`` with ascending indices; None: Spark reads it."""
    line = line.strip()
    if not line or line.startswith("#"):
        return None
    label, *entries = line.split(" ")
    if not _is_number(label):
        return f"label: expected a number, got {_shown(label)}"
    last = 0
    for entry in filter(None, entries):
        index, colon, value = entry.partition(":")
        if not colon:
            return f"feature: expected index:value, got {_shown(entry)} without ':'"
        if not INDEX.fullmatch(index) or not last < int(index) <= features:
            after = f"above {last}, the one before, and" if last else "from 1 on,"
            return f"index: expected an integer {after} {features} at most, got {_shown(index)} in {_shown(entry)}"
        if not _is_number(value):
            return f"value: expected a number, got {_shown(value)} in {_shown(entry)}"
        last = int(index)
    return None


@contextmanager
def _faults_named(spark: Any, path: str, features: int) -> Iterator[None]:
    """Say what is wrong with a file instead of what Java says; so in a second look, only once something is."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    _check_exists(spark.sparkContext, path)
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        found = _find_fault(spark, path, features)
        if found is None:
            raise
        raise InputError(found) from error


def _find_fault(spark: Any, path: str, features: int) -> str | None:
    from pyspark.sql import functions as F

    lines = spark.read.text(path).select(F.input_file_name(), "value").rdd
    faulty = lines.filter(lambda row: fault_of(row[1], features) is not None).take(1)
    if faulty:
        # Spark may look at the parts of a file in any order; Hadoop's lines come in that of the text.
        file = unquote(faulty[0][0])
        numbered = spark.sparkContext.textFile(file).zipWithIndex()
        line, number = numbered.filter(lambda pair: fault_of(pair[0], features) is not None).first()
        return f"{file.removeprefix('file://')}: line {number + 1}: {fault_of(line, features)}"
    is_row = lines.filter(lambda row: row[1].strip() and not row[1].strip().startswith("#"))
    return None if is_row.take(1) else _no_row(path)


def _no_row(path: str) -> str:
    return f"{path}: expected lines 'label index:value ...', got no row at all"


def _check_exists(spark_context: Any, path: str) -> None:
    location = spark_context._jvm.org.apache.hadoop.fs.Path(path)
    found = location.getFileSystem(spark_context._jsc.hadoopConfiguration()).globStatus(location)
    if found is None or len(found) == 0:
        raise InputError(f"{path}: there is no such file")


def _is_number(text: str) -> bool:
    return NUMBER.fullmatch(text) is not None and math.isfinite(float(text))


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "...")
