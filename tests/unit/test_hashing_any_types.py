"""Random columns of all types: batches, slices of them, and dicts give the same keys."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from ps2.data.hashing import Field, FieldHasher

TEXTS = st.text(max_size=300)
LONGS = st.integers(-(2**63), 2**63 - 1)
NUMBERS = st.floats(-(2.0**100), 2.0**100, width=32)
CATEGORIES = (
    (TEXTS, pa.string()),
    (TEXTS, pa.large_string()),
    (TEXTS, pa.dictionary(pa.int8(), pa.string())),
    (LONGS, pa.int64()),
    (st.integers(-128, 127), pa.int8()),
    (st.integers(0, 2**64 - 1), pa.uint64()),
    (st.booleans(), pa.bool_()),
    (st.binary(max_size=20), pa.binary()),
    (st.none(), pa.null()),
)
LISTED = (CATEGORIES[0], CATEGORIES[3])
LISTS = tuple((st.lists(values | st.none(), max_size=3), pa.list_(kind)) for values, kind in LISTED)
MEASURES = ((NUMBERS, pa.float32()), (NUMBERS, pa.float64()), (st.integers(-(2**53), 2**53), pa.int64()))
KEYS = st.lists(st.integers(0, 2**63 - 1), max_size=4)
HASHER = FieldHasher(
    (
        Field.categorical("a"),
        Field.categorical("lists"),
        Field.numeric("x"),
        Field.buckets("x"),
        Field.cross("b", "a", "x"),
        Field.keys("keys"),
    ),
    seed=3,
)


@st.composite
def _batches(draw):
    n = draw(st.integers(0, 6))

    def column(choices, nullable=True):
        values, kind = draw(st.sampled_from(choices))
        given = draw(st.lists(values | st.none() if nullable else values, min_size=n, max_size=n))
        return pa.array(given, kind)

    columns = [column(CATEGORIES), column(CATEGORIES), column(LISTS), column(MEASURES)]
    columns.append(column(((KEYS, pa.list_(pa.int64())), (KEYS, pa.large_list(pa.int64()))), nullable=False))
    return pa.RecordBatch.from_arrays(columns, names=["a", "b", "lists", "x", "keys"])


@given(_batches(), st.data())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_rows_when_any_types_then_those_of_dicts(batch, data):
    begin = data.draw(st.integers(0, batch.num_rows))
    part = batch.slice(begin, data.draw(st.integers(0, batch.num_rows - begin)))
    result, expected = HASHER.rows(part), HASHER.rows_of_dicts(part.to_pylist())
    for name in ("indptr", "keys", "values", "fields"):
        np.testing.assert_array_equal(getattr(result, name), getattr(expected, name))
    assert result.width == expected.width
