"""Read rows of queries from LIBSVM files: "qid:" after a line's label names the query, as in files for SVMlight.

Without "qid:", FILE.query beside FILE has the number of rows of each query, as for LightGBM. Spark's reader of LIBSVM
files accepts neither "qid:" nor comments at the ends of lines, so Spark's expressions split the lines here.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from pyspark.sql import functions as F

from ps2.algorithms.text.layouts import NUMBER
from ps2.algorithms.text.libsvm import MAX_CLASSES, MAX_FEATURES, LabelledRows, fault_of_entries, is_number
from ps2.algorithms.text.lines import find_fault, lines_of, shown
from ps2.algorithms.text.paths import reading
from ps2.errors import InputError
from ps2.run.spark.backend_lookup import with_python
from ps2.run.spark.files import file_system_of

MAX_RELEVANCE = 31
MAX_QUERY = 2**63 - 1
SIZES_SUFFIX = ".query"
# The white space between fields, for Java and Python alike: the characters that Java strips from a line.
BLANK = r"[\x00-\x20]+"
ENDS = f"^{BLANK}|{BLANK}$"
QUERY = "qid:([0-9]{1,19})"
ENTRY = f"[0-9]{{1,10}}:({NUMBER.pattern}|[+-]?NaN)"


def read(spark: Any, path: str, features: int) -> LabelledRows:
    """Read a file, or all files of a folder or glob, and cache the rows; the column query has integers.

    Raise InputError if there is no row, a line is malformed or has an index above ``features``, a label is no
    relevance, or FILE.query does not fit.
    """
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql.types import StructField, StructType

    with reading(spark, path):
        sizes = _sizes(spark, path)
        rows = _rows(spark, path, sizes).withColumn("is_row", _is_row(features))
        # Spark reads vectors from no other text than JSON.
        vector = f"struct(0 AS type, {features} AS size, transform(indices, i -> i - 1) AS indices, values)"
        json = F.to_json(F.struct(F.expr(vector).alias("features")))
        parsed = F.from_json(json, StructType([StructField("features", VectorUDT())])).features
        frame = rows.select("label", "query", F.when(F.col("is_row"), parsed).alias("features"), "is_row").persist()
        counts = frame.groupBy("label", "is_row").count().limit(MAX_CLASSES + 1).collect()
        if not all(row["is_row"] for row in counts):
            lines = lines_of(spark, path)
            raise InputError(str(find_fault(lines, lambda line, _: describe_fault(line, features, sizes is None))))
    table = LabelledRows(path, frame.drop("is_row"), {row["label"]: row["count"] for row in counts})
    if not len(table):
        raise InputError(f"{path}: expected lines 'label qid:query index:value ...', got no row at all")
    if sizes is not None and sum(sizes) != len(table):
        expected = f"numbers of rows with the sum {len(table):,}, as {path} has rows"
        raise InputError(f"{path}{SIZES_SUFFIX}: expected {expected}, got the sum {sum(sizes):,}")
    return table


def count_features(spark: Any, path: str) -> int:
    """Return the largest index in a file, or in all files of a folder or glob. ``read`` reports malformed lines."""
    with reading(spark, path):
        indices = _rows(spark, path, _sizes(spark, path)).select(F.max(F.array_max("indices")))
        return indices.first()[0] or 1


def describe_fault(line: str, features: int = MAX_FEATURES, has_query: bool = True) -> str | None:
    """Describe the fault of a line, which must be "label qid:query index:value ..."; None: no fault.

    ``has_query``: whether the line has the field of the query.
    """
    text = _text(line)
    if not text:
        return None
    label, *entries = re.split(BLANK, text)
    if not is_number(label) or not 0 <= float(label) <= MAX_RELEVANCE or float(label) % 1:
        return f"label: expected a relevance, a whole number from 0 to {MAX_RELEVANCE}, got {shown(label)}"
    if has_query:
        query, entries = (entries or [""])[0], entries[1:]
        match = re.fullmatch(QUERY, query)
        if match is None or int(match[1]) > MAX_QUERY:
            expected = (
                f"qid: and a number up to {MAX_QUERY} after the label (or each query's rows in FILE{SIZES_SUFFIX})"
            )
            return f"query: expected {expected}, got {shown(query)}"
    return fault_of_entries(entries, features)


def _text(line: str) -> str:
    return re.sub(ENDS, "", line.partition("#")[0])


def _rows(spark: Any, path: str, sizes: list[int] | None) -> Any:
    """Return a DataFrame of label, query, indices and values, and of the texts of the first two and of the entries.

    ``sizes``: the number of rows of each query; None: lines have queries.
    """
    text = F.regexp_replace(F.regexp_replace("line", "(?s)#.*", ""), ENDS, "").alias("text")
    lines = lines_of(spark, path).select(text).where("text != ''")
    if sizes is not None:
        ends = np.cumsum(sizes)

        def with_query(row: tuple[Any, int]) -> tuple[str]:
            label, *entries = re.split(BLANK, row[0].text, maxsplit=1)
            return (" ".join((label, f"qid:{np.searchsorted(ends, row[1], side='right')}", *entries)),)

        numbered = with_python(lines).rdd.zipWithIndex().map(with_query)
        lines = with_python(spark).createDataFrame(numbered, "text string")
    fields = lines.select(F.split("text", BLANK).alias("fields")).selectExpr(
        "get(fields, 0) AS label_text",
        "coalesce(get(fields, 1), '') AS query_text",
        "slice(fields, 3, greatest(size(fields) - 2, 0)) AS entries",
    )
    return fields.selectExpr(
        "*",
        "try_cast(label_text AS double) AS label",
        "try_cast(substring(query_text, 5) AS bigint) AS query",
        "transform(entries, entry -> try_cast(substring_index(entry, ':', 1) AS int)) AS indices",
        "transform(entries, entry -> try_cast(substring_index(entry, ':', -1) AS double)) AS values",
    )


def _is_row(features: int) -> Any:
    """Return a column that is true where ``describe_fault`` describes no fault."""
    matches = (
        F.col("label_text").rlike(f"^{NUMBER.pattern}$")
        & F.col("query_text").rlike(f"^{QUERY}$")
        & F.forall("entries", lambda entry: entry.rlike(f"^{ENTRY}$"))
    )
    values = F.expr(
        f"label BETWEEN 0 AND {MAX_RELEVANCE} AND label = rint(label) AND query IS NOT NULL"
        f" AND forall(indices, i -> i BETWEEN 1 AND {features}) AND indices = array_sort(array_distinct(indices))"
        " AND forall(values, value -> isnan(value) OR abs(value) < double('Infinity'))"
    )
    return F.coalesce(matches & values, F.lit(False))


def _sizes(spark: Any, path: str) -> list[int] | None:
    """Return the number of rows of each query from FILE.query; None: there is no such file, or lines have queries."""
    location, files = file_system_of(spark.sparkContext, path + SIZES_SUFFIX)
    first = next((text for row in lines_of(spark, path).take(100) if (text := _text(row["line"]))), "")
    if not files.exists(location) or any(field.startswith("qid:") for field in re.split(BLANK, first)):
        return None
    sizes = [row[0].strip() for row in spark.read.text(path + SIZES_SUFFIX).collect()]
    for number, size in enumerate(sizes, 1):
        if not re.fullmatch("[0-9]{1,18}", size) or not int(size):
            expected = "a query's number of rows, from 1 on"
            raise InputError(f"{path}{SIZES_SUFFIX}: line {number}: expected {expected}, got {shown(size)}")
    return list(map(int, sizes))
