"""Columns of every type of Spark, in every role: what the driver accepts is what workers read, to the value."""

from __future__ import annotations

from itertools import product

import pyarrow as pa
import pytest
from pyspark.ml.functions import array_to_vector
from pyspark.ml.linalg import DenseMatrix, MatrixUDT
from pyspark.mllib.linalg import DenseVector as OldVector
from pyspark.mllib.linalg import VectorUDT as OldVectorUDT
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType, UserDefinedType

from ps2.algorithms.embeddings.graph_frame import INTEGERS as INTEGER_TYPES
from ps2.algorithms.embeddings.graph_frame import collect_arrow, id_type
from ps2.algorithms.embeddings.sentence_frame import check_sentences
from ps2.algorithms.embeddings.sentences import edges_of, encode_words
from ps2.algorithms.frame.tables import check_columns, check_numbers
from ps2.algorithms.training.faults import ColumnNames, error_of
from ps2.algorithms.training.reading import read
from ps2.data.ids import Ids, Names
from ps2.errors import InputError

INTEGERS = ("tinyint", "smallint", "int", "bigint")
NUMBERS = (*INTEGERS, "float", "double", "decimal(10,2)", "decimal(38,0)", "decimal(38,30)")
# As SQL has them, each with a value of two rows.
SCALARS = {
    **dict.fromkeys(NUMBERS, ("1", "2")),
    "boolean": ("true", "false"),
    "string": ("'1'", "'2'"),
    "binary": ("X'01'", "X'02'"),
    "date": ("DATE'2024-01-01'", "DATE'2024-01-02'"),
    "timestamp": ("TIMESTAMP'2024-01-01 00:00:00'", "TIMESTAMP'2024-01-02 00:00:00'"),
    "timestamp_ntz": ("TIMESTAMP_NTZ'2024-01-01 00:00:00'", "TIMESTAMP_NTZ'2024-01-02 00:00:00'"),
    "interval day to second": ("INTERVAL '1' DAY", "INTERVAL '2' DAY"),
    "interval year to month": ("INTERVAL '1' YEAR", "INTERVAL '2' YEAR"),
    "void": ("NULL", "NULL"),
    "map<string,double>": ("map('a', 1D)", "map('a', 2D)"),
    "struct<a:double>": ("named_struct('a', 1D)", "named_struct('a', 2D)"),
}
# Arrow does not carry it.
UNKNOWN_TO_ARROW = {"interval year to month", "array<interval year to month>"}
ARRAYS = {f"array<{kind}>": tuple(f"array({value})" for value in values) for kind, values in SCALARS.items()}
NESTED = {f"array<array<{kind}>>": tuple(f"array(array({v}))" for v in SCALARS[kind]) for kind in ("double", "string")}
SQL = SCALARS | ARRAYS | NESTED
VECTORS = ("vector", "old vector")
EVERY = (*SQL, *VECTORS, "matrix", "own", "array<vector>")

ACCEPTED = {
    "features": {*(f"array<{kind}>" for kind in NUMBERS), *VECTORS},
    "features of several columns": {*NUMBERS, "boolean"},
    "labels": {*NUMBERS, "boolean"},
    "weights": {*NUMBERS, "boolean"},
    "held out": {"boolean", "tinyint"},
    "weights of edges": {*NUMBERS, "boolean"},
    "sentences": {"array<string>"},
}
OF_ROWS = ("features", "features of several columns", "labels", "weights", "held out")


class OwnNumber(UserDefinedType):
    """A number that only its class knows."""

    @classmethod
    def sqlType(cls):
        return LongType()

    @classmethod
    def module(cls):
        return __name__

    def serialize(self, obj):
        return obj

    def deserialize(self, datum):
        return datum


@pytest.fixture(scope="module")
def frame(spark):
    """Two rows, with a column of each type."""
    own = StructType(
        [
            StructField("number", LongType()),
            StructField("old vector", OldVectorUDT()),
            StructField("matrix", MatrixUDT()),
            StructField("own", OwnNumber()),
        ]
    )
    rows = [(n, OldVector([float(n)]), DenseMatrix(1, 1, [float(n)]), None) for n in (1, 2)]
    created = spark.createDataFrame(rows, own).coalesce(1)
    first = F.col("number") == 1
    for kind, (one, two) in SQL.items():
        value = F.when(first, F.expr(f"CAST({one} AS {kind})")).otherwise(F.expr(f"CAST({two} AS {kind})"))
        created = created.withColumn(kind, value if "void" not in kind else F.expr(one))
    vector = array_to_vector(F.array(F.col("number").cast("double")))
    return created.withColumn("vector", vector).withColumn("array<vector>", F.array(vector)).persist()


@pytest.fixture(scope="module")
def batches(frame):
    """The rows as workers get them."""
    carried = [f"`{name}`" for name in frame.columns if name not in UNKNOWN_TO_ARROW]
    return collect_arrow(frame.select(*carried)).combine_chunks().to_batches()


def names_of(role, kind):
    return {
        "features": ColumnNames(kind, label=None),
        "features of several columns": ColumnNames((kind,), label=None),
        # A label that is an input is refused before its type is looked at.
        "labels": ColumnNames("array<float>" if kind == "array<double>" else "array<double>", label=kind),
        "weights": ColumnNames("array<double>", label=None, weight=kind),
        "held out": ColumnNames("array<double>", label=None, validation=kind),
    }[role]


def accepts(frame, role, kind):
    """Whether the driver does, before any job."""
    try:
        if role == "sentences":
            check_sentences(frame, kind)
        elif role == "weights of edges":
            check_numbers(frame, kind, "weights")
        else:
            check_columns(frame, names_of(role, kind))
    except InputError as error:
        return f"column {kind!r}: expected" not in str(error)
    return True


@pytest.mark.parametrize("role", ACCEPTED)
def test_a_column_when_of_any_type_then_the_driver_takes_some(frame, role):
    assert {kind for kind in EVERY if accepts(frame, role, kind)} == ACCEPTED[role]


@pytest.mark.parametrize("role", OF_ROWS)
def test_a_column_when_the_driver_takes_it_then_workers_read_it(batches, role):
    for kind in sorted(ACCEPTED[role]):
        names = names_of(role, kind)
        result = read(batches, names)
        assert error_of(result.faults[None], names) is None, kind
        rows = result.training
        if role == "held out":
            # A number is that of a validation set; 0: a row to train on.
            assert (len(rows), len(result.held_out)) == ((1, 1) if kind == "boolean" else (0, 2))
        else:
            values = {"labels": rows.y, "weights": rows.weights}.get(role, rows.x.toarray()[:, 0])
            assert values.tolist() == ([1, 0] if kind == "boolean" else [1, 2]), kind


@pytest.mark.parametrize("role", OF_ROWS)
def test_a_column_when_the_driver_refuses_it_then_workers_do(batches, role):
    carried = set(batches[0].schema.names)
    # What is below a type of one's own only the driver knows.
    for kind in (set(EVERY) & carried) - ACCEPTED[role] - {"own"}:
        with pytest.raises(InputError, match="expected"):
            read(batches, names_of(role, kind))


def test_ids_when_of_any_two_types_then_integers_or_strings(frame, batches):
    inputs = {name: batches[0].column(name) for name in (*INTEGERS, "string")}
    for source, target in product(EVERY, EVERY):
        if (source in INTEGERS and target in INTEGERS) or source == target == "string":
            kind = INTEGER_TYPES.get(type(id_type(frame, source, target)), pa.string())
            edges = pa.record_batch([inputs[name].cast(kind) for name in (source, target)], ["source", "target"])
            (result,) = edges_of([edges], Ids.from_values(edges.column(0)))
            assert (result.sources.tolist(), result.targets.tolist()) == ([0, 1], [0, 1])
        else:
            with pytest.raises(InputError, match="expected ids, integers in both or strings in both"):
                id_type(frame, source, target)


def test_sentences_when_the_driver_takes_them_then_workers_do(batches):
    tokens, lengths = encode_words(batches[0].column("array<string>"), Names(pa.array(["2", "1"])))
    assert (tokens.tolist(), lengths.tolist()) == ([1, 0], [1, 1])
