"""Rows with labels in LIBSVM files, read by Spark; a line that it cannot read is named with its file and number."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from ps2.algorithms.inputs import local_name, reading, shown
from ps2.errors import InputError

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
INDEX = re.compile(r"\d{1,10}", re.ASCII)
# Values of hashes by which rows are held out.
HASHES = 1 << 30
# Spark's indices have 32 bits.
MOST_FEATURES = 2**31 - 1
SHOWN_LABELS = 10
# As many as an estimator takes; of more different labels not all are counted.
MOST_CLASSES = 100


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """Rows in Spark's cache.

    Attributes:
        path: of the file, the folder or the glob.
        frame: DataFrame with columns label and features (vectors of pyspark.ml).
        counts: how many rows have each label; of very many labels some.
    """

    path: str
    frame: Any
    counts: dict[float, int]

    def __len__(self) -> int:
        return sum(self.counts.values())

    def classes(self, most: int = 2) -> tuple[float, ...]:
        """Return the labels of class 0, 1, ...; InputError unless there are two of them at least, and ``most`` at most.

        Args:
            most: from 2 to ``MOST_CLASSES``.
        """
        if not 2 <= len(self.counts) <= most:
            expected = "two different values" if most == 2 else f"2 to {most} different values"
            raise InputError(f"{self.path}: labels: expected {expected}, got {self.shown_labels}")
        return tuple(sorted(self.counts))

    @property
    def shown_labels(self) -> str:
        """The labels in words, the first few of them."""
        found = sorted(self.counts)
        more = ", ..." if len(found) > SHOWN_LABELS else ""
        return ", ".join(f"{label:g}" for label in found[:SHOWN_LABELS]) + more

    def classified(self, classes: tuple[float, ...]) -> Any:
        """Return the rows with labels 0, 1, ..., or raise InputError for a label of no class."""
        from pyspark.sql import functions as F

        strange = sorted(set(self.counts) - set(classes))
        if strange:
            raise InputError(f"{self.path}: expected labels {in_words(classes)}, got {strange[0]:g}")
        number = F.array_position(F.array(*map(F.lit, classes)), F.col("label")) - 1
        # Rows may be held out: the classes are these, even if those that are left do not have all of them.
        known = {"ml_attr": {"type": "nominal", "vals": [f"{label:g}" for label in classes]}}
        return self.frame.withColumn("label", number.cast("double")).withMetadata("label", known)


def in_words(labels: tuple[float, ...]) -> str:
    """Return some labels for a sentence: "-1 and 1"."""
    *others, last = (f"{label:g}" for label in labels)
    return f"{', '.join(others)} and {last}"


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
        found = frame.groupBy("label").count().limit(MOST_CLASSES + 1).collect()
    if not found:
        raise InputError(_no_row(path))
    return LabelledRows(path, frame, {row["label"]: row["count"] for row in found})


def held_out(frame: Any, share: float, seed: int, name: str) -> Any:
    """Return rows with a column of booleans that marks some to hold out.

    A hash of the row itself decides: on the same rows wherever they lie, and on rows that are equal alike.

    Args:
        frame: with columns label and features.
        share: of the rows, about.
        seed: of the hash.
        name: of the column.
    """
    from pyspark.sql import functions as F

    drawn = F.pmod(F.xxhash64(F.lit(seed), F.col("label"), F.col("features")), F.lit(HASHES))
    return frame.withColumn(name, drawn < round(share * HASHES))


def count_features(spark: Any, path: str) -> int:
    """Return the largest index of a file, or of all files of a folder or glob; raises as ``read``."""
    with _faults_named(spark, path, MOST_FEATURES):
        schema = spark.read.format("libsvm").load(path).schema
    return int(schema["features"].metadata["numFeatures"])


def fault_of(line: str, features: int = MOST_FEATURES) -> str | None:
    """Say what is wrong with a line, ``label index:value ...`` with ascending indices; None: Spark reads it."""
    line = line.strip()
    if not line or line.startswith("#"):
        return None
    label, *entries = line.split(" ")
    if not _is_number(label):
        return f"label: expected a number, got {shown(label)}"
    last = 0
    for entry in filter(None, entries):
        index, colon, value = entry.partition(":")
        if not colon:
            return f"feature: expected index:value, got {shown(entry)} without ':'"
        if not INDEX.fullmatch(index) or not last < int(index) <= features:
            after = f"above {last}, the one before, and" if last else "from 1 on,"
            return f"index: expected an integer {after} {features} at most, got {shown(index)} in {shown(entry)}"
        if not _is_number(value):
            return f"value: expected a number, got {shown(value)} in {shown(entry)}"
        last = int(index)
    return None


@contextmanager
def _faults_named(spark: Any, path: str, features: int) -> Iterator[None]:
    """Say what is wrong with a file instead of what Java says; so in a second look, only once something is."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    with reading(spark, path):
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
        return f"{local_name(file)}: line {number + 1}: {fault_of(line, features)}"
    is_row = lines.filter(lambda row: row[1].strip() and not row[1].strip().startswith("#"))
    return None if is_row.take(1) else _no_row(path)


def _no_row(path: str) -> str:
    return f"{path}: expected lines 'label index:value ...', got no row at all"


def _is_number(text: str) -> bool:
    return NUMBER.fullmatch(text) is not None and math.isfinite(float(text))
