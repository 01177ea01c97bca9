"""Read rows with labels from LIBSVM files by Spark's reader; an error names the file and number of a line."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import functions as F

from ps2.algorithms.text.layouts import NUMBER
from ps2.algorithms.text.lines import find_fault, lines_of, shown
from ps2.algorithms.text.paths import reading
from ps2.errors import InputError
from ps2.run.spark.backend_lookup import with_python

# Lines that Spark may read wrongly without an error: an entry of libffm, "field:index:value", whose index it takes for
# the value; a number in Java's notation ("3f", "0x1p3"); or a number that may be infinite. NaN is a missing value.
SUSPECT = r":[^ ]*:|[0-9.][dDfF](\s|$)|0[xX]|Infinity|[eE]\+?[0-9]{3}|[0-9]{309}"
MISSING = re.compile(r"[+-]?NaN")
INDEX = re.compile(r"\d{1,10}", re.ASCII)
# The characters that Java strips from lines and numbers as white space. U+00A0, for example, is not among them.
BLANKS = "".join(map(chr, range(33)))
# Spark's indices have 32 bits.
MAX_FEATURES = 2**31 - 1
# The maximum number of labels in a message.
SHOWN_LABELS = 10
# The maximum number of classes of an estimator. At most one label more is counted.
MAX_CLASSES = 100


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """Rows in Spark's cache, with columns label and features (pyspark.ml's vectors), or with ``columns`` of a table.
    ``counts`` has the number of rows of each label, for at most ``MAX_CLASSES`` + 1 labels: numbers, or texts."""

    path: str
    frame: Any
    counts: dict[Any, int]
    label: str = "label"
    columns: Any = None

    def __len__(self) -> int:
        # ``counts`` may lack further labels.
        return self.frame.count() if len(self.counts) > MAX_CLASSES else sum(self.counts.values())

    def classes(self, limit: int = 2) -> tuple[Any, ...]:
        """Return the labels of the classes 0, 1, ...; raise InputError unless there are 2 to ``limit`` labels."""
        if not 2 <= len(self.counts) <= limit:
            expected = "two different values" if limit == 2 else f"2 to {limit} different values"
            raise InputError(f"{self.path}: labels: expected {expected}, got {self.shown_labels}")
        return tuple(sorted(self.counts))

    @property
    def shown_labels(self) -> str:
        """The first ``SHOWN_LABELS`` labels, for a message."""
        labels = sorted(self.counts)
        more = ", ..." if len(labels) > SHOWN_LABELS else ""
        return ", ".join(map(label_text, labels[:SHOWN_LABELS])) + more

    def classified(self, classes: tuple[Any, ...]) -> Any:
        """Return the rows with labels 0, 1, ...; raise InputError for a label that is not a class."""
        names = list(map(label_text, classes))
        if others := sorted(set(self.counts) - set(classes)):
            expected = f"{', '.join(names[:-1])} and {names[-1]}"
            raise InputError(f"{self.path}: expected labels {expected}, got {label_text(others[0])}")
        class_index = F.array_position(F.array(*map(F.lit, classes)), F.col(f"`{self.label}`")) - 1
        # The metadata list all classes, because a class may occur only in held-out rows.
        attribute = {"ml_attr": {"type": "nominal", "vals": names}}
        return self.frame.withColumn(self.label, class_index.cast("double")).withMetadata(self.label, attribute)


def label_text(label: Any) -> str:
    """Return a label as text: numbers without trailing zeros."""
    return label if isinstance(label, str) else f"{label:g}"


def read(spark: Any, path: str, features: int) -> LabelledRows:
    """Read a file, or all files of a folder or glob, and cache the rows. Files may be compressed, with a suffix as .gz.
    Raise InputError if there is no row, or a line is malformed or has an index above ``features``."""
    with _described_faults(spark, path, features):
        frame = spark.read.format("libsvm").option("numFeatures", str(features)).load(path).persist()
        counts = frame.groupBy("label").count().limit(MAX_CLASSES + 1).collect()
        line = F.trim("line")
        if lines_of(spark, path).where(line.rlike(SUSPECT) & ~line.startswith("#")).head(1):
            fault = _find_fault(spark, path, features)
        else:
            fault = None if counts else _no_row(path)
        if fault is not None:
            raise InputError(fault)
    return LabelledRows(path, frame, {row["label"]: row["count"] for row in counts})


def count_features(spark: Any, path: str) -> int:
    """Return the largest index in a file, or in all files of a folder or glob; raises like ``read``."""
    with _described_faults(spark, path, MAX_FEATURES):
        schema = spark.read.format("libsvm").load(path).schema
    return int(schema["features"].metadata["numFeatures"])


def fault_of(line: str, features: int = MAX_FEATURES) -> str | None:
    """Describe the fault of a line, which must be "label index:value ..." with ascending indices; None: no fault."""
    if _is_skipped(line):
        return None
    label, *entries = line.strip(BLANKS).split(" ")
    if not is_number(label):
        return f"label: expected a number, got {shown(label)}"
    return fault_of_entries(filter(None, entries), features)


def fault_of_entries(entries: Iterable[str], features: int) -> str | None:
    """Describe the first fault of the fields "index:value" of a line; None: no fault."""
    last = 0
    for entry in entries:
        index, colon, value = entry.partition(":")
        if not colon:
            return f"feature: expected index:value, got {shown(entry)} without ':'"
        if index == "qid":
            return f"index: expected a feature, got the query {shown(entry)}, which ps2 train gbt --task ranking reads"
        if not INDEX.fullmatch(index) or not last < int(index) <= features:
            lower_bound = f"above {last}, the index before, and" if last else "from 1 on,"
            return f"index: expected an integer {lower_bound} {features} at most, got {shown(index)} in {shown(entry)}"
        if not is_number(value) and not MISSING.fullmatch(value):
            return f"value: expected a number, got {shown(value)} in {shown(entry)}"
        last = int(index)
    return None


@contextmanager
def _described_faults(spark: Any, path: str, features: int) -> Iterator[None]:
    """Replace an error of Java by a description of the malformed line, which takes a second pass over the lines."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    with reading(spark, path):
        try:
            yield
        except (Py4JJavaError, PySparkException) as error:
            fault = _find_fault(spark, path, features)
            if fault is None:
                raise
            raise InputError(fault) from error


def _find_fault(spark: Any, path: str, features: int) -> str | None:
    lines = lines_of(spark, path)
    fault = find_fault(lines, lambda line, _: fault_of(line, features))
    if fault is not None or with_python(lines).rdd.filter(lambda row: not _is_skipped(row[1])).take(1):
        return fault
    return _no_row(path)


def _no_row(path: str) -> str:
    return f"{path}: expected lines 'label index:value ...', got no row at all"


def _is_skipped(line: str) -> bool:
    return (text := line.strip(BLANKS)) == "" or text.startswith("#")


def is_number(text: str) -> bool:
    """Return whether a text is a finite number, perhaps with white space around it."""
    return re.fullmatch(NUMBER.pattern, text.strip(BLANKS)) is not None and math.isfinite(float(text))
