"""Rows of Arrow batches and records are the matrix that a loop over the rows makes of them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from pyspark.ml.linalg import DenseVector, SparseVector

from ps2.algorithms.frame.predict import as_row
from ps2.data.columns import read_features
from ps2.data.rows import LocalRows, Rows, number_columns, renumber
from ps2.errors import ConfigError, InputError, OutOfRangeError

VECTOR = pa.struct(
    [
        pa.field("type", pa.int8()),
        pa.field("size", pa.int32()),
        pa.field("indices", pa.list_(pa.int32())),
        pa.field("values", pa.list_(pa.float64())),
    ]
)
SPARSE, DENSE = 0, 1
NUMBERS = st.floats(-1e6, 1e6, width=32)


def sparse(size, entries):
    return {"type": SPARSE, "size": size, "indices": list(entries), "values": list(entries.values())}


def dense(values):
    return {"type": DENSE, "size": None, "indices": None, "values": list(values)}


def batch_of(vectors, labels=None, **columns):
    columns = {"label": np.arange(len(vectors)) if labels is None else labels, **columns}
    return pa.RecordBatch.from_pydict({"features": pa.array(vectors, VECTOR), **columns})


def matrix(vectors, size):
    """The same, one row after the other."""
    x = np.zeros((len(vectors), size))
    for row, vector in enumerate(vectors):
        columns = range(size) if vector["type"] == DENSE else vector["indices"]
        for column, value in zip(columns, vector["values"], strict=True):
            x[row, column] = value
    return x


@st.composite
def tables(draw):
    """Vectors of one size, sparse, dense or mixed."""
    size = draw(st.integers(1, 12))
    a_sparse = st.dictionaries(st.integers(0, size - 1), NUMBERS).map(lambda d: sparse(size, dict(sorted(d.items()))))
    a_dense = st.lists(NUMBERS, min_size=size, max_size=size).map(dense)
    a_vector = draw(st.sampled_from([a_sparse, a_dense, a_sparse | a_dense]))
    return size, draw(st.lists(a_vector, min_size=1, max_size=20))


@given(table=tables(), dtype=st.sampled_from(["float32", "float64"]), data=st.data())
def test_from_batches_when_vectors_are_sliced_then_matches(table, dtype, data):
    size, vectors = table
    whole = batch_of(vectors)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(vectors)), max_size=4)))
    bounds = zip([0, *cuts], [*cuts, len(vectors)], strict=True)
    rows = Rows.fromBatches([whole.slice(a, b - a) for a, b in bounds], dtype=dtype)
    assert rows.x.dtype == dtype
    np.testing.assert_array_equal(rows.x.toarray(), matrix(vectors, size).astype(dtype))
    np.testing.assert_array_equal(rows.y, np.arange(len(vectors)))


@given(table=tables(), dtype=st.sampled_from(["float32", "float64"]))
def test_from_records_when_vectors_are_mixed_then_matches(table, dtype):
    size, vectors = table
    created = [
        DenseVector(vector["values"])
        if vector["type"] == DENSE
        else SparseVector(size, vector["indices"], vector["values"])
        for vector in vectors
    ]
    rows = Rows.fromRecords(((float(i), vector, 2.0) for i, vector in enumerate(created)), dtype)
    assert rows.x.dtype == dtype
    np.testing.assert_array_equal(rows.x.toarray(), matrix(vectors, size).astype(dtype))
    np.testing.assert_array_equal(rows.y, np.arange(len(vectors)))
    np.testing.assert_array_equal(rows.weights, np.full(len(vectors), 2.0))


@given(
    shape=st.tuples(st.integers(0, 12), st.integers(1, 5)),
    kind=st.sampled_from([pa.list_(pa.float32()), pa.list_(pa.float64()), pa.large_list(pa.int64())]),
    begin=st.integers(0, 12),
)
def test_from_batches_when_features_are_arrays_then_matches(shape, kind, begin):
    x = np.arange(shape[0] * shape[1]).reshape(shape)
    batch = pa.RecordBatch.from_pydict({"features": pa.array(x.tolist(), kind)}).slice(begin)
    rows = Rows.fromBatches([batch], label=None)
    np.testing.assert_array_equal(rows.x.toarray().reshape(-1), x[begin:].reshape(-1))
    assert rows.y is None
    assert rows.weights is None


UNSORTED, SUMMED = {"type": SPARSE, "size": 4, "indices": [3, 0, 3], "values": [1.0, 2.0, 0.5]}, [2.0, 0.0, 0.0, 1.5]


def test_vectors_when_indices_do_not_ascend_then_summed():
    batch = batch_of([sparse(4, {1: 5.0}), UNSORTED, dense([1.0, 2.0, 3.0, 4.0])])
    vector = SimpleNamespace(**UNSORTED | {"indices": np.array([3, 0, 3]), "values": np.array([1.0, 2.0, 0.5])})
    for rows, before in (
        (Rows.fromBatches([batch]), 1),
        (Rows.fromRecords([(0.0, vector), (1.0, [1.0, 2.0, 3.0, 4.0])]), 0),
    ):
        assert rows.x.toarray()[before:].tolist() == [SUMMED, [1.0, 2.0, 3.0, 4.0]]
        assert rows.x.indices[rows.x.indptr[before] :].tolist() == [0, 3, 0, 1, 2, 3]
    assert as_row(vector, 4, missing=False).toarray().tolist() == [SUMMED]
    assert batch["features"][1].as_py() == UNSORTED


def test_vectors_when_an_index_adds_up_to_infinity_then_fault():
    huge = {**UNSORTED, "values": [3e38, 0.0, 3e38]}
    with pytest.raises(InputError, match="row 1: expected finite features that fit float32, got values of one index"):
        Rows.fromBatches([batch_of([dense(SUMMED), huge])], dtype="float32")


def test_from_batches_when_features_are_columns_then_keeps_order():
    batch = pa.RecordBatch.from_pydict({"a": [1, 2], "b": [True, False], "c": [0.5, 1.5]})
    rows = Rows.fromBatches([batch], ["c", "a"], label="b", weight="a")
    np.testing.assert_array_equal(rows.x.toarray(), [[0.5, 1], [1.5, 2]])
    np.testing.assert_array_equal(rows.y, [1, 0])
    np.testing.assert_array_equal(rows.weights, [1, 2])


def test_from_batches_when_no_batch_then_no_rows():
    rows = Rows.fromBatches([])
    assert (len(rows), rows.y.tolist(), len(rows.localize().keys)) == (0, [], 0)


def test_from_batches_when_no_batch_then_named_columns_are_known():
    assert Rows.fromBatches([], ["a", "b"]).x.shape == (0, 2)


def test_from_records_when_there_is_none_then_there_are_no_rows():
    assert len(Rows.fromRecords([])) == 0


# Each after a batch of two good rows, so that rows are counted on.
GOOD = batch_of([sparse(5, {1: 1.0}), dense(range(5))])


@pytest.mark.parametrize(
    ("vectors", "text"),
    [
        ([sparse(5, {}), None, None], r"column 'features', row 3: expected a vector .*, got null \(and 1 more"),
        ([dense([1, 2, 3, 4, None])], "row 2: expected finite features that fit float32, got null in it"),
        ([dense(range(5)), sparse(5, {4: float("nan")})], "row 3: expected finite features .*, got nan in it"),
        ([dense([1, 2, 3, 4, float("inf")])], "row 2: expected finite features that fit float32, got inf in it"),
        ([sparse(5, {0: 1.0}), sparse(5, {0: 1e39})], "row 3: expected finite features that fit float32, got 1e"),
        ([sparse(5, {0: 1.0}), sparse(6, {0: 1.0})], "row 3: expected size 5 as in the rows before, got 6"),
        ([sparse(5, {0: 1.0}), dense(range(4))], "row 3: expected size 5 as in the rows before, got 4"),
        ([dense(range(4))], "row 2: expected size 5 as in the rows before, got 4"),
        ([sparse(5, {0: 1.0}), sparse(5, {5: 1.0})], r"row 3: expected indices in \[0, 5\), got 5"),
        ([sparse(5, {-1: 1.0})], r"row 2: expected indices in \[0, 5\), got -1"),
        ([{**sparse(5, {1: 1.0}), "indices": [1, 2]}], "row 2: expected as many indices as values, got 1"),
    ],
)
def test_from_batches_when_vector_is_invalid_then_names_row(vectors, text):
    with pytest.raises(InputError, match=text):
        Rows.fromBatches([GOOD, batch_of(vectors)], dtype="float32")


def test_read_features_when_size_is_given_then_row_0_may_be_bad():
    batch = batch_of([dense(range(4)), dense(range(5))])
    with pytest.raises(InputError, match="row 7: expected size 5 as in training, got 4"):
        read_features(batch, "features", np.dtype("float64"), before=7, size=5)


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ([None, 1.0], "column 'label', row 2: expected a number, got null"),
        ([1.0, float("nan")], "column 'label', row 3: expected a finite number, got nan"),
        ([float("-inf"), 1.0], "column 'label', row 2: expected a finite number, got -inf"),
        (["a", "b"], "column 'label': expected numbers, got string"),
    ],
)
def test_from_batches_when_label_is_invalid_then_names_row(labels, text):
    with pytest.raises(InputError, match=text):
        Rows.fromBatches([GOOD, batch_of([sparse(5, {})] * 2, labels)])


def test_from_batches_when_weight_is_negative_then_names_row():
    batch = batch_of([dense([1.0])] * 3, w=[1.0, -2.0, -3.0])
    with pytest.raises(InputError, match=r"'w', row 1: expected a non-negative weight, got -2 \(and 1 more"):
        Rows.fromBatches([batch], weight="w")


def test_from_batches_when_column_is_missing_then_lists_present():
    with pytest.raises(InputError, match="there is no column 'feature'; there are: features, label"):
        Rows.fromBatches([GOOD], "feature")


def test_from_batches_when_number_overflows_then_names_column():
    batch = pa.RecordBatch.from_pydict({"a": [1.0], "b": [1e39]})
    with pytest.raises(InputError, match=r"column 'b', row 0: expected a number that fits float32, got 1e\+39"):
        Rows.fromBatches([batch], ["a", "b"], label=None, dtype="float32")


def test_from_batches_when_features_are_text_then_lists_types():
    batch = pa.RecordBatch.from_pydict({"features": ["a"]})
    with pytest.raises(InputError, match=r"expected a vector of pyspark.ml, an array of numbers, .*, got string"):
        Rows.fromBatches([batch], label=None)


def test_from_batches_when_dtype_is_not_float_then_config_error():
    with pytest.raises(ConfigError, match="dtype: expected float32 or float64, got 'int64'"):
        Rows.fromBatches([GOOD], dtype="int64")


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (3, r"record 1: expected \(label, vector\), .*, got 3"),
        ((1, "text"), "record 1: expected"),
        ((1, [1, 2, 3, 4, 5], 1, 1), "record 1: expected"),
        ((1, [[1], [2]]), "record 1: expected"),
        (("a", [1, 2, 3, 4, 5]), "record 1: expected"),
        ((1, np.ma.array([1.0, 2, 3, 4, 5], mask=[0, 1, 0, 0, 0])), "record 1: expected"),
        ((1, SimpleNamespace(size=5, indices=np.array([1]), values=np.array([1.0, 2.0]))), "record 1: expected"),
        ((1, [1, 2]), "record 1: expected a vector of size 5 as in the records before"),
        ((1, [1, 2, 3, 4, float("nan")]), "record 1: expected finite features that fit float32"),
        ((1, [1, 2, 3, 4, 1e39]), "record 1: expected finite features that fit float32"),
        ((float("nan"), [1, 2, 3, 4, 5]), "record 1: expected a finite label and weight"),
        ((1, [1, 2, 3, 4, 5], 1.0), "record 1: expected a weight in all records or in none"),
    ],
)
def test_from_records_when_record_is_invalid_then_names_it(record, text):
    with pytest.raises(InputError, match=text):
        Rows.fromRecords([(0, [1, 2, 3, 4, 5]), record], dtype="float32")


def test_from_records_when_weight_is_negative_then_names_record():
    with pytest.raises(InputError, match="record 1: expected a non-negative weight"):
        Rows.fromRecords([(0, [1], 0.0), (0, [1], -1.0)])


def local_of(columns_of_rows, size, seed=0):
    """Rows with these columns and random values, labels and weights."""
    indptr = np.cumsum([0, *map(len, columns_of_rows)])
    columns = np.array([column for row in columns_of_rows for column in row], np.int64)
    rng = np.random.default_rng(seed)
    x = sp.csr_array((rng.random(len(columns)), columns, indptr), shape=(len(columns_of_rows), size))
    return Rows(x, rng.random(len(columns_of_rows)), rng.random(len(columns_of_rows)))


@given(
    rows=st.lists(st.lists(st.integers(0, 300) | st.integers(0, 2**40), unique=True, max_size=6), max_size=8),
    data=st.data(),
)
def test_take_when_rows_are_localized_then_keeps_their_columns(rows, data):
    whole = local_of(rows, 2**40 + 1)
    numbers = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=6)) if rows else []
    part = whole.localize().take(numbers)
    assert part.keys.dtype == np.int64
    assert part.keys.tolist() == sorted({column for number in numbers for column in rows[number]})
    assert part.x.shape == (len(numbers), len(part.keys))
    for row, number in enumerate(numbers):
        here, there = part.x[[row]], whole.x[[number]]
        assert part.keys[here.indices].tolist() == there.indices.tolist()
        assert here.data.tolist() == there.data.tolist()
    np.testing.assert_array_equal(part.y, whole.y[numbers])
    np.testing.assert_array_equal(part.weights, whole.weights[numbers])


@given(ids=st.lists(st.integers(0, 500), max_size=80))
def test_renumber_when_compared_with_unique_then_equal(ids):
    ids, inverse = np.array(ids, np.int64), np.empty(len(ids), np.int32)
    keys, expected = np.unique(ids, return_inverse=True)
    assert renumber(ids, inverse, 501).tolist() == keys.tolist()
    assert inverse.tolist() == expected.tolist()


@pytest.mark.parametrize("largest", [100, 2**62])
def test_number_columns_when_far_or_near_then_restores_keys(largest):
    columns = np.array([largest, 0, 7, largest, 63, 64])
    keys, inverse = number_columns(columns)
    assert keys.tolist() == [0, 7, 63, 64, largest]
    assert keys[inverse].tolist() == columns.tolist()


def test_localize_when_column_exceeds_matrix_then_out_of_range():
    x = sp.csr_array((np.ones(1), np.array([2]), np.array([0, 1])), shape=(1, 3))
    x.indices[0] = 3
    with pytest.raises(OutOfRangeError, match=r"x: expected columns in \[0, 3\), got 3 to 3"):
        Rows(x).localize()


def test_take_when_a_row_is_outside_then_out_of_range():
    with pytest.raises(OutOfRangeError, match=r"rows: expected row numbers in \[0, 2\), got -1 to 1"):
        local_of([[1], [2]], 3).localize().take([1, -1])


@pytest.fixture(scope="module")
def many() -> LocalRows:
    return local_of([[i % 997] for i in range(20_000)], 997).localize()


def test_sample_when_the_generator_is_the_same_then_the_rows_are(many):
    one, other = (many.sample(0.1, np.random.default_rng(1)) for _ in range(2))
    np.testing.assert_array_equal(one.y, other.y)


@pytest.mark.parametrize("fraction", [0.005, 0.3])
def test_sample_when_rows_are_drawn_then_distinct_at_fraction(many, fraction):
    part = many.sample(fraction, np.random.default_rng(2))
    assert len(np.unique(part.y)) == len(part)
    assert abs(len(part) - 20_000 * fraction) < 6 * np.sqrt(20_000 * fraction)


def test_sample_when_rows_are_taken_then_they_stay_in_order(many):
    part = many.sample(0.1, np.random.default_rng(3))
    positions = {label: row for row, label in enumerate(many.y)}
    assert np.all(np.diff([positions[label] for label in part.y]) > 0)


def test_sample_when_the_fraction_is_one_then_takes_all(many):
    assert len(many.sample(1.0, np.random.default_rng(4))) == 20_000


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.1, float("nan")])
def test_sample_when_fraction_is_out_of_range_then_config_error(many, fraction):
    with pytest.raises(ConfigError, match="fraction: expected a number in"):
        many.sample(fraction, np.random.default_rng(5))


def test_rows_when_columns_are_32_bit_then_matrix_is_too():
    read = Rows.fromBatches([batch_of([sparse(9, {1: 2.0}), sparse(9, {8: 3.0})])])
    local = read.localize()
    for x in (read.x, local.x, local.take([1]).x):
        assert (x.indices.dtype, x.indptr.dtype) == (np.int32, np.int32)
