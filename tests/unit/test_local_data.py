"""Data of the driver's memory, cut for workers."""

from __future__ import annotations

import decimal

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.ml.linalg import Vectors

from ps2.run.job import local_data
from ps2.run.pandas_rows import VECTOR_TYPE


def test_parts_when_a_range_is_long_then_none_is_large():
    result = local_data(range(10**9))
    assert max(map(len, result.parts(3))) < 100
    assert [len(result.read(part)) for part in result.parts(3)] == [333333333, 333333333, 333333334]


def test_parts_when_pandas_has_many_types_then_arrow_has_them():
    frame = pd.DataFrame(
        {
            "money": [decimal.Decimal("1.2"), None],
            "count": pd.array([1, None], dtype="Int64"),
            "kind": pd.Categorical(["a", "b"]),
            "vector": [Vectors.sparse(2, [0], [1.0]), None],
            "list": [[1.0, 2.0], np.array([3.0])],
        },
        index=[7, 7],
    ).set_axis([*"abcd", "a"], axis=1)
    result = local_data(frame)
    table = pa.concat_tables(pa.Table.from_batches(result.read(part)) for part in result.parts(2))
    assert table.schema.names == [*"abcd", "a"]
    assert table.schema.types == [pa.decimal128(2, 1), pa.int64(), pa.string(), VECTOR_TYPE, pa.list_(pa.float64())]
    assert [column.null_count for column in table.columns] == [1, 1, 0, 1, 0]
    assert table["d"][0].as_py() == {"type": 0, "size": 2, "indices": [0], "values": [1.0]}
