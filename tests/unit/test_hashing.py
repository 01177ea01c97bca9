"""Rows of keys from columns, by hashing."""

from __future__ import annotations

import json
import pickle
from datetime import date
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import xxhash

from ps2.data.hashing import Field, FieldHasher
from ps2.errors import ConfigError, InputError

ALL = FieldHasher(
    (
        Field.categorical("site"),
        Field.categorical("user"),
        Field.categorical("new"),
        Field.categorical("tags"),
        Field.numeric("price"),
        Field.buckets("price"),
        Field.buckets("user", (0.0, 5.0)),
        Field.cross("site", "price"),
        Field.cross("new", "user"),
        Field.keys("ids", "shares", width=2),
    ),
    seed=7,
)


def _row(i):
    return {
        "site": "aé" * i if i % 3 else None,
        "user": [2**60 + i, -5, -(2**63), 2**63 - 1, None][i % 5],
        "new": bool(i % 2),
        "tags": [None, ["a", None, str(i)], []][i % 3],
        "price": None if i % 7 == 0 else i * 1.5 - 30,
        "ids": [i, 2**62],
        "shares": [0.5, -float(i)],
    }


ROWS = [_row(i) for i in range(160)]
BATCH = pa.RecordBatch.from_pylist(ROWS)


def _equal(a, b):
    for name in ("indptr", "keys", "values", "fields"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
        assert getattr(a, name).dtype == getattr(b, name).dtype
    assert a.width == b.width


def _keys(column):
    batch = pa.RecordBatch.from_pydict({"x": column})
    return FieldHasher((Field.categorical("x"),)).rows(batch).keys


def test_rows_when_dicts_then_those_of_the_batch():
    _equal(ALL.rows(BATCH), ALL.rows_of_dicts(ROWS))


def test_rows_when_batch_is_a_slice_then_those_rows():
    _equal(ALL.rows(BATCH.slice(9, 40)), ALL.rows(BATCH).take(9, 49))


def test_key_when_text_then_xxh3_seeded_by_the_field():
    seed = xxhash.xxh3_64_intdigest(b"x", 0)
    assert _keys(pa.array(["oak"])).tolist() == [xxhash.xxh3_64_intdigest(b"oak", seed) >> 1]


@pytest.mark.parametrize("values", [[1, -20, 300], [2**62, 0, 7]])
def test_keys_when_integers_then_those_of_their_texts(values):
    texts = list(map(str, values))
    expected = _keys(pa.array(texts))
    for column in (pa.array(values), pa.array(texts, pa.large_string()), pa.array(texts).dictionary_encode()):
        np.testing.assert_array_equal(_keys(column), expected)


def test_keys_when_shared_then_those_of_the_other_column():
    """The items of a list have the keys of a column that shares them, in batches, in dicts, and after JSON."""
    hasher = FieldHasher((Field.categorical("item"), Field.categorical("clicked", shared="item")))
    hasher = FieldHasher.from_json(json.loads(json.dumps(hasher.to_json())))
    batch = pa.RecordBatch.from_pydict({"item": ["a", "b"], "clicked": [["b", "a"], []]})
    a, b = (hasher.key(hasher.fields[0], text) for text in "ab")
    for rows in (hasher.rows(batch), hasher.rows_of_dicts(batch.to_pylist())):
        assert (rows.keys.tolist(), rows.fields.tolist()) == ([a, b, a, b], [0, 1, 1, 0])


def test_width_when_no_value_is_absent_then_pairs_a_row():
    rows = FieldHasher((Field.categorical("new"), Field.keys("ids", width=2))).rows(BATCH)
    assert rows.width == 3
    np.testing.assert_array_equal(rows.fields.reshape(-1, 3)[5], [0, 1, 2])


def test_rows_when_null_then_field_is_absent():
    rows = FieldHasher((Field.categorical("site"), Field.numeric("price"))).rows(BATCH)
    assert rows.width is None
    np.testing.assert_array_equal(np.diff(rows.indptr)[:4], [0, 2, 2, 1])


def test_rows_when_dictionary_has_a_null_then_it_is_absent():
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), pa.array(["a", None]))
    lists = pa.ListArray.from_arrays([0, 2, 2, 3], column)
    hasher = FieldHasher((Field.categorical("x"), Field.categorical("y")))
    result = hasher.rows(pa.record_batch({"x": column, "y": lists}))
    expected = hasher.rows_of_dicts([{"x": "a", "y": ["a"]}, {"x": None, "y": []}, {"x": "a", "y": ["a"]}])
    assert result.keys.tolist() == expected.keys.tolist()
    assert result.indptr.tolist() == [0, 2, 2, 4]


def test_dicts_when_a_number_is_a_decimal_then_as_in_a_batch():
    hasher, row = FieldHasher((Field.numeric("x"),)), {"x": Decimal("1.20")}
    assert hasher.rows_of_dicts([row]).values.tolist() == hasher.rows(pa.RecordBatch.from_pylist([row])).values.tolist()


def test_dicts_when_numbers_round_to_float32_then_as_in_batch():
    """Java writes the largest float32 as 3.4028235E38, which is larger as a float64."""
    hasher = FieldHasher((Field.numeric("x"), Field.buckets("x"), Field.keys("k", "v")))
    rows = [{"x": number, "k": [1], "v": [number]} for number in (3.4028235e38, -3.4028235e38, Decimal("3.4028235e38"))]
    columns = {"x": [float(row["x"]) for row in rows], "k": [[1]] * 3, "v": [[float(row["x"])] for row in rows]}
    _equal(hasher.rows_of_dicts(rows), hasher.rows(pa.RecordBatch.from_pydict(columns)))
    for number in (2.0**128 - 2.0**103, 2.0**128):
        with pytest.raises(InputError, match="fits float32"):
            hasher.rows_of_dicts([{"x": number, "k": [1], "v": [1.0]}])


@pytest.mark.parametrize("nan", ["NaN", "-NaN", "sNaN"])
def test_dicts_when_a_decimal_is_nan_then_null(nan):
    """As databases' drivers return it, and pandas takes it for missing."""
    hasher = FieldHasher((Field.categorical("s"), Field.numeric("x")))
    assert len(hasher.rows_of_dicts([{"s": Decimal(nan), "x": Decimal(nan)}]).keys) == 0


def test_dicts_when_a_category_is_a_bytearray_then_as_in_a_batch():
    """A Row of pyspark has one where its column is binary."""
    hasher, rows = FieldHasher((Field.categorical("x"),)), [{"x": bytearray(b"a")}, {"x": b"b"}]
    assert hasher.rows_of_dicts(rows).keys.tolist() == hasher.rows(pa.RecordBatch.from_pylist(rows)).keys.tolist()


def test_buckets_when_by_logarithm_then_zero_and_sign_matter():
    rows = FieldHasher((Field.buckets("n"),)).rows(
        pa.RecordBatch.from_pydict({"n": [0.0, 0.9, 1.0, 2.9, 3.0, -0.5, -2]})
    )
    assert len(set(rows.keys.tolist())) == 5
    assert rows.keys[0] == rows.keys[1]
    assert rows.keys[2] == rows.keys[3]


def test_inverse_when_asked_then_field_and_value_of_each_key():
    hasher = FieldHasher((Field.categorical("s"), Field.cross("s", "n"), Field.buckets("n", (10,)), Field.numeric("n")))
    batch = pa.RecordBatch.from_pydict({"s": ["a", "b", "a"], "n": [1, 2, 30]})
    named = hasher.inverse(batch)
    row = [named[key] for key in hasher.rows(batch).keys.reshape(3, 4)[2].tolist()]
    assert row == [("s", "a"), ("s x n", "a x [10, inf)"), ("n (buckets)", "[10, inf)"), ("n", None)]


def test_hasher_when_json_or_pickle_then_the_same():
    assert FieldHasher.from_json(json.loads(json.dumps(ALL.to_json()))) == ALL
    assert pickle.loads(pickle.dumps(ALL)) == ALL


@pytest.mark.parametrize(
    ("field", "column", "message"),
    [
        (Field.categorical("x"), [1.5], "expected strings, integers or booleans"),
        (
            Field.categorical("x"),
            [date(2026, 1, 2)],
            "or booleans, or arrays of them, got date32.*: cast the column to string",
        ),
        (Field.numeric("x"), [1.0, float("nan")], "row 1: .* fits float32, got nan: use null for a missing value"),
        (Field.numeric("x"), [1e300], "row 0: expected a finite number that fits float32, got 1e"),
        (Field.buckets("x"), ["a"], "expected numbers, got string"),
        (Field.keys("x"), [[1], [-2]], r"row 1: expected keys in \[0, 2\*\*63\), got -2"),
        (Field.keys("x"), [[1], None], "row 1: expected an array of keys, got null"),
        (Field.keys("x", width=2), [[1, 2], [1]], "row 1: expected 2 keys, got 1"),
        (Field.categorical("y"), [1], "there is no column 'y'; there are: x"),
    ],
)
def test_rows_when_column_is_wrong_then_error(field, column, message):
    with pytest.raises(InputError, match=message):
        FieldHasher((field,)).rows(pa.RecordBatch.from_pydict({"x": column}))


def test_dicts_when_pandas_made_them_then_nan_is_null():
    frame = pd.DataFrame(
        {"s": ["a", None], "n": [None, 2.0], "t": pd.array([1, None], "Int64"), "l": [["a", np.nan], []]}
    )
    hasher = FieldHasher((Field.categorical("s"), Field.numeric("n"), Field.cross("s", "t"), Field.categorical("l")))
    inputs = hasher.rows_of_dicts(frame.to_dict("records"))
    expected = hasher.rows_of_dicts(
        [{"s": "a", "n": None, "t": 1, "l": ["a", None]}, {"s": None, "n": 2.0, "t": None, "l": []}]
    )
    assert all(np.array_equal(getattr(inputs, name), getattr(expected, name)) for name in ("indptr", "keys", "values"))


@pytest.mark.parametrize(
    ("field", "row", "message"),
    [
        (Field.categorical("x"), {"x": 1.5}, "column 'x', row 0: expected a string, an integer or a boolean"),
        (Field.categorical("x"), {"x": date(2026, 1, 2)}, r"list of them \(cast other types to string\), got datetime"),
        (Field.numeric("x"), {"x": float("inf")}, "a finite number that fits float32, got inf"),
        (Field.numeric("x"), {"x": "a"}, "expected a number, got 'a'"),
        (Field.keys("x"), {"x": [-1]}, r"expected keys in \[0, 2\*\*63\), got -1"),
        (Field.categorical("x"), {"y": 1}, "row 0 has no column 'x'; it has: y"),
        (Field.categorical("x"), {"x": "a\ud800"}, "column 'x', row 0: expected a valid Unicode string"),
        (Field.numeric("x"), {"x": 10**400}, "column 'x', row 0: expected a finite number"),
        (Field.categorical("x"), {"x": np.array("a")}, "column 'x', row 0: expected a list, or an array of one dim"),
        (Field.categorical("x"), {"x": np.ma.array([1, 2], mask=[0, 1])}, "an array of one dimension without a mask"),
        (Field.keys("x"), {"x": np.array(3)}, "column 'x', row 0: expected a list, or an array of one dimension"),
        (Field.keys("x", width=2), {"x": np.ma.array([1, 2], mask=[0, 1])}, "one dimension without a mask"),
    ],
)
def test_dicts_when_value_is_wrong_then_error(field, row, message):
    with pytest.raises(InputError, match=message):
        FieldHasher((field,)).rows_of_dicts([row])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FieldHasher(()), "expected at least one"),
        (lambda: FieldHasher((Field.categorical("x"),) * 2), "got categorical 'x' twice"),
        (lambda: FieldHasher((Field.categorical("x"),), seed=-1), "seed: expected an integer"),
        (lambda: FieldHasher((Field.numeric("x"), Field.cross("x", "y"))), "'x' has numbers: give it buckets"),
        (lambda: Field.buckets("x", (2, 1)), "expected ascending finite bounds"),
        (lambda: Field.buckets("x", "12"), "buckets of 'x': expected a list of bounds, got '12'"),
        (lambda: Field.buckets("x", 12), "buckets of 'x': expected a list of bounds, got 12"),
        (lambda: FieldHasher("ab"), r"fields: expected Field.categorical\('a'\) or another Field, got 'a'"),
        (lambda: Field.buckets("x", base=1.0), "expected a base of at least 1.01"),
        (lambda: Field.cross("x"), "expected at least two different columns"),
        (lambda: FieldHasher.from_json({"seed": 0}), "expected seed and fields"),
    ],
)
def test_hasher_when_invalid_then_error(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_rows_when_one_of_many_columns_is_missing_then_short():
    batch = pa.RecordBatch.from_pydict({f"c{number}": [number] for number in range(2_000)})
    with pytest.raises(InputError, match=r"^there is no column 'x'; there are: c0, .*, c19, \.\.\. \(2,000 in all\)$"):
        FieldHasher((Field.numeric("x"),)).rows(batch)


def test_rows_when_a_column_comes_twice_then_error():
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    with pytest.raises(InputError, match="column 'x': expected one column with this name, got 2"):
        FieldHasher((Field.numeric("x"),)).rows(batch)
