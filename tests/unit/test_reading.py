"""A worker's batches become rows for training and validation, and bad rows are counted by kind."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from ps2.algorithms.training.faults import LENGTH, ColumnNames, Form, error_of
from ps2.algorithms.training.reading import read
from ps2.errors import InputError

VECTOR = pa.struct(
    [
        pa.field("type", pa.int8()),
        pa.field("size", pa.int32()),
        pa.field("indices", pa.list_(pa.int32())),
        pa.field("values", pa.list_(pa.float64())),
    ]
)
ALL = ColumnNames(weight="weight", validation="validation")


def sparse(size, entries):
    return {"type": 0, "size": size, "indices": list(entries), "values": list(entries.values())}


def dense(*values):
    return {"type": 1, "size": None, "indices": None, "values": list(values)}


def batch(vectors, label=None, kind=VECTOR, **columns):
    label = pa.array([0.0] * len(vectors) if label is None else label, pa.float64())
    return pa.RecordBatch.from_pydict({"features": pa.array(vectors, kind), "label": label, **columns})


PLAIN = ColumnNames()


def message(*batches, columns=PLAIN, **options):
    form = Form(**options)
    return str(error_of(np.stack([read(batches, columns, form).faults]), columns, form))


def test_read_when_rows_are_valid_then_builds_matrix_with_keys():
    first = batch([sparse(9, {1: 2.0, 8: 3.0}), sparse(9, {})], [1.0, 0.0], weight=[2.0, 0.5])
    second = batch([sparse(9, {4: 5.0})], [1.0], weight=[1.0])
    reading = read([first, second], ColumnNames(weight="weight"), Form(dtype="float32", classes=2))
    assert reading.training.keys.tolist() == [1, 4, 8]
    assert reading.training.x.toarray().tolist() == [[2, 0, 3], [0, 0, 0], [0, 5, 0]]
    assert reading.training.x.dtype == np.float32
    assert reading.training.y.tolist() == [1, 0, 1]
    assert reading.training.weights.tolist() == [2, 0.5, 1]
    assert (reading.held_out, reading.size) == (None, 9)
    assert error_of(reading.faults[None]) is None


def test_read_when_an_index_adds_up_to_no_category_then_fault():
    twice = {"type": 0, "size": 2, "indices": [1, 0, 1], "values": [1.0, 1.0, 2.0]}
    assert read([batch([twice])], PLAIN, Form(categories={1: 4})).training.x.toarray().tolist() == [[1.0, 3.0]]
    with pytest.raises(InputError, match="features: expected categories"):
        read([batch([twice])], PLAIN, Form(categories={1: 3}))


def test_read_when_rows_are_marked_for_validation_then_held_out():
    one = batch([sparse(9, {1: 2.0}), sparse(9, {8: 3.0})], [1.0, 0.0], weight=[2.0, 3.0], validation=[False, True])
    two = batch([sparse(9, {1: 4.0})], [1.0], weight=[1.0], validation=[True])
    reading = read([one, two], ALL)
    assert (reading.training.keys.tolist(), reading.held_out.keys.tolist()) == ([1, 8], [1, 8])
    assert reading.training.x.toarray().tolist() == [[2, 0]]
    assert reading.held_out.x.toarray().tolist() == [[0, 3], [4, 0]]
    assert (reading.held_out.y.tolist(), reading.held_out.weights.tolist()) == ([0, 1], [3, 1])


@pytest.mark.parametrize("columns", [ColumnNames(), ALL])
def test_read_when_there_are_no_batches_then_there_are_no_rows(columns):
    reading = read([], columns)
    assert (len(reading.training), reading.size) == (0, None)
    assert error_of(reading.faults[None]) is None
    assert reading.held_out is None or len(reading.held_out) == 0


def test_read_when_features_are_number_columns_then_in_matrix():
    rows = pa.RecordBatch.from_pydict({"a": [1, 2], "b": [True, False], "y": [0.5, 1.5]})
    reading = read([rows], ColumnNames(features=("a", "b"), label="y"))
    assert reading.training.x.toarray().tolist() == [[1, 1], [2, 0]]
    assert reading.size == 2


NAN, INF = float("nan"), float("inf")
FINE = sparse(5, {1: 1.0})


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (None, "features: 1 of 4 rows hold null, such as row 2 of rdd_partition 0"),
        (dense(1.0, None, 0, 0, 0), "features: 1 of 4 rows hold null, such as row 2 of rdd_partition 0"),
        (dense(1.0, NAN, 0, 0, 0), "features: 1 of 4 rows hold NaN or infinite values, such as row 2 of"),
        (sparse(5, {1: INF, 2: -INF}), "features: 1 of 4 rows hold NaN or infinite values, such as inf in row 2 of"),
        (sparse(6, {5: 1.0}), "features: 1 of 4 rows have another size than the rest, such as 6 in row 2 of"),
        (dense(1.0), "features: 1 of 4 rows have another size than the rest, such as 1 in row 2 of"),
        (sparse(5, {5: 1.0}), "features: 1 of 4 rows hold indices outside their size"),
        (sparse(5, {-1: 1.0}), "features: 1 of 4 rows hold indices outside their size"),
        ({**FINE, "indices": [1, 2]}, "or not as many of them as values, such as row 2 of"),
    ],
)
def test_read_when_a_vector_is_bad_then_it_is_counted_once(bad, expected):
    text = message(batch([FINE, dense(1, 0, 0, 0, 0), bad, FINE]))
    assert expected in text
    assert ";" not in text


ADVICE = " (impute null and NaN, or drop these rows)"


@pytest.mark.parametrize(
    ("rows", "is_absent"),
    [
        (batch([FINE, dense(1.0, NAN, 0, 0, 0)]), True),
        (batch([FINE, FINE], [0, NAN]), True),
        (batch([FINE, FINE], [None, 1]), True),
        (batch([FINE, FINE], [0, 5]), False),
    ],
)
def test_read_when_a_number_is_absent_then_says_what_to_do(rows, is_absent):
    assert message(rows, classes=2).endswith(ADVICE) == is_absent


@pytest.mark.parametrize(
    ("label", "classes", "expected"),
    [
        ([0, None], None, "label: 1 of 2 rows hold null, such as row 1 of rdd_partition 0"),
        ([0, NAN], 2, "label: 1 of 2 rows hold NaN or an infinite value, such as row 1"),
        ([-INF, NAN], None, "label: 2 of 2 rows hold NaN or an infinite value, such as -inf in row 0"),
        ([0, 2], 2, "label: 1 of 2 rows hold a label that is not one of the classes, such as 2 in row 1"),
        ([0.5, 1], 3, "one of the classes, such as 0.5 in row 0"),
        ([-1, 1], 2, "one of the classes, such as -1 in row 0"),
    ],
)
def test_read_when_a_label_is_bad_then_it_is_counted_once(label, classes, expected):
    text = message(batch([FINE, FINE], label), classes=classes)
    assert expected in text
    assert ";" not in text


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        ([1, None], "weight: 1 of 2 rows hold null, such as row 1"),
        ([NAN, 1], "weight: 1 of 2 rows hold NaN or an infinite value, such as row 0"),
        ([1, INF], "weight: 1 of 2 rows hold NaN or an infinite value, such as inf in row 1"),
        ([1, -0.5], "weight: 1 of 2 rows hold a negative value, such as -0.5 in row 1"),
    ],
)
def test_read_when_a_weight_is_bad_then_it_is_counted_once(weight, expected):
    weights = pa.array(weight, pa.float64())
    text = message(batch([FINE, FINE], weight=weights), columns=ColumnNames(weight="weight"))
    assert expected in text
    assert ";" not in text


def test_read_when_validation_mark_is_null_then_is_counted():
    marks = pa.array([True, None])
    text = message(batch([FINE, FINE], validation=marks), columns=ColumnNames(validation="validation"))
    assert text == "validation: 1 of 2 rows hold null, such as row 1 of rdd_partition 0"


def test_read_when_bad_batch_comes_later_then_numbers_all_rows():
    fine, bad = batch([FINE] * 3), batch([FINE, dense(NAN, 0, 0, 0, 0)], [NAN, 0])
    reading = read([fine, bad, fine, bad], ColumnNames())
    text = str(error_of(reading.faults[None]))
    assert "features: 2 of 10 rows hold NaN or infinite values, such as row 4 of" in text
    assert "label: 2 of 10 rows hold NaN or an infinite value, such as row 3 of" in text
    assert len(reading.training) == 0


def test_read_when_batch_is_bad_then_sizes_are_of_earlier_ones():
    text = message(batch([FINE]), batch([sparse(7, {}), sparse(7, {})]))
    assert text == "features: 2 of 3 rows have another size than the rest, such as 7 in row 1 of rdd_partition 0"


def test_read_when_the_size_is_given_then_other_sizes_are_faults():
    assert "such as 5 in row 0" in message(batch([FINE]), size=4)


def test_read_when_value_overflows_float32_then_is_infinite():
    rows = batch([dense(1e300)])
    assert "1 of 1 rows hold NaN or infinite values" in message(rows, dtype="float32")
    assert message(rows) == "None"


@pytest.mark.parametrize("bad", [None, [1.0, None], [1.0, NAN], [1.0]])
def test_read_when_an_array_is_bad_then_it_is_counted_once(bad):
    text = message(batch([[1.0, 2.0], bad], kind=pa.list_(pa.float64())))
    assert text.startswith("features: 1 of 2 rows ")
    assert ";" not in text


def test_read_when_number_column_is_bad_then_counts_its_rows():
    rows = pa.RecordBatch.from_pydict({"a": [1.0, None, NAN], "b": [None, None, INF], "y": [0.5, 1.5, 0]})
    text = message(rows, columns=ColumnNames(features=("a", "b"), label="y"))
    assert "features (a, b): 2 of 3 rows hold null, such as row 0" in text
    assert "features (a, b): 1 of 3 rows hold NaN or infinite values, such as row 2" in text


MISSING = {"missing": True}


def test_read_when_missing_is_allowed_then_nan_is_and_zeros_stay():
    arrays = batch([[1.0, None], [NAN, 0.0]], kind=pa.list_(pa.float64()))
    vectors = batch([sparse(3, {1: NAN, 2: 0.0}), dense(0.0, NAN, 2.0)])
    numbers = pa.RecordBatch.from_pydict({"a": [1, None], "b": [NAN, 0.0], "label": [0.5, 1.5]})
    result = [
        read([rows], columns, Form(**MISSING)).training.x
        for rows, columns in ((arrays, PLAIN), (vectors, PLAIN), (numbers, ColumnNames(features=("a", "b"))))
    ]
    np.testing.assert_array_equal(result[0].data, [1.0, NAN, NAN, 0.0])
    np.testing.assert_array_equal(result[1].data, [NAN, 0.0, 0.0, NAN, 2.0])
    assert result[1].indptr.tolist() == [0, 2, 5]
    np.testing.assert_array_equal(result[2].toarray(), [[1.0, NAN], [NAN, 0.0]])


def test_read_when_missing_is_allowed_then_null_rows_are_bad():
    text = message(batch([FINE, None, dense(NAN, INF, 0, 0, 0)]), **MISSING)
    assert "features: 1 of 3 rows hold null, such as row 1" in text
    assert "features: 1 of 3 rows hold infinite values, or too large ones, such as inf in row 2" in text
    assert text.endswith("rdd_partition 0: feature 1, where NaN or a finite number that fits float64 was expected")
    rows = pa.RecordBatch.from_pydict({"a": [NAN, INF, None], "label": [0.5, 1.5, 0]})
    text = message(rows, columns=ColumnNames(features=("a",)), **MISSING)
    assert text.startswith("features (a): 1 of 3 rows hold infinite values, or too large ones, such as inf in row 1 of")
    assert "rdd_partition 0: feature 'a', where NaN or" in text
    assert ";" not in text


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (dense(0, 3, 0, 0, 0), "such as 3 in row 2 of rdd_partition 0: feature 1 has 3 categories, so expected NaN or"),
        (dense(0, -1, 0, 0, 0), "such as -1 in row 2 of rdd_partition 0: feature 1 has"),
        (sparse(5, {1: 0.5, 4: 2.0}), "such as 0.5 in row 2 of rdd_partition 0: feature 1 has"),
        (
            sparse(5, {4: 2.0}),
            "such as 2 in row 2 of rdd_partition 0: feature 4 has 2 categories, so expected NaN",
        ),
    ],
)
def test_read_when_value_is_no_category_then_error_names_feature(bad, expected):
    rows = batch([FINE, dense(9, NAN, 9, 9, 1), bad, sparse(5, {0: 7.5})])
    text = message(rows, categories={1: 3, 4: 2}, size=5, **MISSING)
    assert f"features: 1 of 4 rows hold values that are no category, {expected}" in text
    assert ";" not in text


def test_read_when_column_holds_no_category_then_error_names_it():
    rows = pa.RecordBatch.from_pydict({"a": [9, 9], "b": [0, 4], "label": [0.5, 1.5]})
    text = message(rows, columns=ColumnNames(features=("a", "b")), categories={1: 4})
    assert "such as 4 in row 1 of rdd_partition 0: feature 'b' has 4 categories, so expected NaN or" in text
    assert text.endswith("a whole number from 0 to 3")


def test_read_when_batch_is_slice_then_counts_only_its_rows():
    rows = batch([None, FINE, dense(NAN, 0, 0, 0, 0), FINE, sparse(5, {7: 1.0})])
    text = message(rows.slice(1, 3))
    expected = "features: 1 of 3 rows hold NaN or infinite values, such as row 1 of rdd_partition 0: feature 0, where"
    assert text.startswith(expected)


@pytest.mark.parametrize(
    "columns",
    [
        ColumnNames(features="x"),
        ColumnNames(label="x"),
        ColumnNames(weight="features"),
        ColumnNames(validation="label"),
    ],
)
def test_read_when_column_is_unusable_then_fails_at_once(columns):
    with pytest.raises(InputError, match="column"):
        read([batch([FINE])], columns)


def test_error_of_when_workers_fail_then_sums_and_shows_first():
    bad, fine = batch([FINE, dense(NAN, 0, 0, 0, 0)]), batch([FINE] * 1000)
    faults = np.stack([read(batches, ColumnNames()).faults for batches in ([fine], [fine, bad], [bad])])
    assert faults.shape == (3, LENGTH)
    expected = "features: 2 of 2,004 rows hold NaN or infinite values, such as row 1001 of rdd_partition 1"
    assert str(error_of(faults)).startswith(expected)


def test_error_of_when_feature_sizes_differ_then_names_both():
    faults = np.stack([read(batches, ColumnNames()).faults for batches in ([], [batch([FINE])], [batch([dense(1.0)])])])
    assert str(error_of(faults)) == "features: expected one size, got 5 in rdd_partition 1 and 1 in rdd_partition 2"


COUNTS = ColumnNames(label=None)


def test_read_when_the_size_is_known_then_the_error_says_which():
    assert message(batch([FINE, dense(1.0)]), size=5).endswith("such as 1 in row 1 of rdd_partition 0: expected size 5")


@pytest.mark.parametrize("value", [-1.0, 0.5, 2.0**31])
def test_read_when_a_value_is_no_count_then_one_is_shown(value):
    text = message(
        batch([sparse(5, {1: 3.0}), sparse(5, {}), sparse(5, {0: 1.0, 4: value})]), columns=COUNTS, counts=True
    )
    assert (
        f"features: 1 of 3 rows hold values that are no counts, such as {value:g} in row 2 of rdd_partition 0" in text
    )
    assert text.endswith(": feature 4 is a count, so expected a whole number from 0 to 2,147,483,647")


def test_read_when_there_are_no_labels_then_has_only_counts():
    documents = pa.RecordBatch.from_pydict({"features": pa.array([[0, 2], [0, 0]], pa.list_(pa.int32()))})
    rows = read([documents], COUNTS, Form(size=2, counts=True)).training
    assert (rows.y, rows.x.toarray()[:, rows.keys == 1].tolist()) == (None, [[2], [0]])
