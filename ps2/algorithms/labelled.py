"""Rows with labels in LIBSVM files, read by Spark; an error names the file and number of a line that it cannot read."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from ps2.algorithms.inputs import local_name, numbered_lines, reading, shown
from ps2.errors import InputError
from ps2.run.spark.backend_lookup import with_python

# Lines that Spark may read, and should not: an entry of libffm, "field:index:value", of which it takes the index as the
# value; and a number as Java writes it ("3f", "0x1p3"), or one that may be infinite. NaN is a missing value.
SUSPECT = r":[^ ]*:|[0-9.][dDfF](\s|$)|0[xX]|Infinity|[eE]\+?[0-9]{3}|[0-9]{309}"
MISSING = re.compile(r"[+-]?NaN")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
INDEX = re.compile(r"\d{1,10}", re.ASCII)
# What Java takes for white space around lines and numbers; U+00A0, for one, is none.
BLANKS = "".join(map(chr, range(33)))
# Number of hash values that decide which rows are held out.
HASHES = 1 << 30
# Spark's indices have 32 bits.
MAX_FEATURES = 2**31 - 1
SHOWN_LABELS = 10
# The largest number of classes that an estimator takes; beyond it, not all labels are counted.
MAX_CLASSES = 100


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """Rows in Spark's cache.

    Attributes:
        path: of the file, the folder or the glob.
        frame: DataFrame with columns label and features (vectors of pyspark.ml).
        counts: number of rows by label; incomplete if there are very many labels.
    """

    path: str
    frame: Any
    counts: dict[float, int]

    def __len__(self) -> int:
        return sum(self.counts.values())

    def classes(self, most: int = 2) -> tuple[float, ...]:
        """Return the labels of class 0, 1, ...; raise InputError unless there are 2 to ``most`` of them.

        Args:
            most: from 2 to ``MAX_CLASSES``.
        """
        if not 2 <= len(self.counts) <= most:
            expected = "two different values" if most == 2 else f"2 to {most} different values"
            raise InputError(f"{self.path}: labels: expected {expected}, got {self.shown_labels}")
        return tuple(sorted(self.counts))

    @property
    def shown_labels(self) -> str:
        """The first few labels, for a message."""
        found = sorted(self.counts)
        more = ", ..." if len(found) > SHOWN_LABELS else ""
        return ", ".join(f"{label:g}" for label in found[:SHOWN_LABELS]) + more

    def classified(self, classes: tuple[float, ...]) -> Any:
        """Return the rows with labels 0, 1, ...; raise InputError for a label that is not a class."""
        from pyspark.sql import functions as F

        strange = sorted(set(self.counts) - set(classes))
        if strange:
            raise InputError(f"{self.path}: expected labels {in_words(classes)}, got {strange[0]:g}")
        number = F.array_position(F.array(*map(F.lit, classes)), F.col("label")) - 1
        # Rows may be held out. The metadata keep all classes, even those that only held-out rows have.
        known = {"ml_attr": {"type": "nominal", "vals": [f"{label:g}" for label in classes]}}
        return self.frame.withColumn("label", number.cast("double")).withMetadata("label", known)


def in_words(labels: tuple[float, ...]) -> str:
    """Return some labels for a sentence: "-1 and 1"."""
    *others, last = (f"{label:g}" for label in labels)
    return f"{', '.join(others)} and {last}"


def read(spark: Any, path: str, features: int) -> LabelledRows:
    """Read a file, or all files of a folder or glob, and cache the rows; suffixes such as .gz tell the compression.

    Args:
        path: any URL that Spark reads.
        features: the largest number of features.

    Raises:
        InputError: there is no such file or no row, or a line is malformed.
    """
    with _faults_named(spark, path, features):
        frame = spark.read.format("libsvm").option("numFeatures", str(features)).load(path).persist()
        found = frame.groupBy("label").count().limit(MAX_CLASSES + 1).collect()
        _check_entries(spark, path, features)
    if not found:
        raise InputError(_no_row(path))
    return LabelledRows(path, frame, {row["label"]: row["count"] for row in found})


def held_out(frame: Any, share: float, seed: int, name: str) -> Any:
    """Return rows with a boolean column that marks the rows to hold out.

    A hash of the row decides, so the choice does not depend on where rows lie, and equal rows are treated alike.

    Args:
        frame: with columns label and features.
        share: approximate share of the rows.
        seed: of the hash.
        name: of the column.
    """
    from pyspark.sql import functions as F

    drawn = F.pmod(F.xxhash64(F.lit(seed), F.col("label"), F.col("features")), F.lit(HASHES))
    return frame.withColumn(name, drawn < round(share * HASHES))


def count_features(spark: Any, path: str) -> int:
    """Return the largest index of a file, or of all files of a folder or glob; raises like ``read``."""
    with _faults_named(spark, path, MAX_FEATURES):
        schema = spark.read.format("libsvm").load(path).schema
    return int(schema["features"].metadata["numFeatures"])


def fault_of(line: str, features: int = MAX_FEATURES) -> str | None:
    """Describe what is wrong with a line, ``label index:value ...`` with ascending indices; None: nothing."""
    if _is_skipped(line):
        return None
    label, *entries = line.strip(BLANKS).split(" ")
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
        if not _is_number(value) and not MISSING.fullmatch(value):
            return f"value: expected a number, got {shown(value)} in {shown(entry)}"
        last = int(index)
    return None


@contextmanager
def _faults_named(spark: Any, path: str, features: int) -> Iterator[None]:
    """Replace Java's error by a description of the fault; this second pass runs only after an error."""
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


def _check_entries(spark: Any, path: str, features: int) -> None:
    from pyspark.sql import functions as F

    line = F.trim("value")
    suspects = spark.read.text(path).where(line.rlike(SUSPECT) & ~line.startswith("#")).head(1)
    if suspects and (fault := _find_fault(spark, path, features)):
        raise InputError(fault)


def _find_fault(spark: Any, path: str, features: int) -> str | None:
    from pyspark.sql import functions as F

    lines = with_python(spark).read.text(path).select(F.input_file_name(), "value").rdd
    faulty = lines.filter(lambda row: fault_of(row[1], features) is not None).take(1)
    if faulty:
        # Spark may read the parts of a file in any order; Hadoop returns lines in the order of the text.
        file = faulty[0][0]
        numbered = numbered_lines(spark, file)
        line, number = numbered.filter(lambda pair: fault_of(pair[0], features) is not None).first()
        return f"{local_name(unquote(file))}: line {number + 1}: {fault_of(line, features)}"
    is_row = lines.filter(lambda row: not _is_skipped(row[1]))
    return None if is_row.take(1) else _no_row(path)


def _no_row(path: str) -> str:
    return f"{path}: expected lines 'label index:value ...', got no row at all"


def _is_skipped(line: str) -> bool:
    return (text := line.strip(BLANKS)) == "" or text.startswith("#")


def _is_number(text: str) -> bool:
    return NUMBER.fullmatch(text.strip(BLANKS)) is not None and math.isfinite(float(text))
