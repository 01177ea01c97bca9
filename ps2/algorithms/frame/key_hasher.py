"""``KeyHasher``: a transformer from columns to arrays of keys and values; users import ``ps2.algorithms.feature``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.ml import Transformer
from pyspark.ml.util import MLReadable, MLReader, MLWritable, MLWriter
from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, FloatType, LongType, StructField, StructType

from ps2.algorithms.frame.frames import check_frame
from ps2.algorithms.frame.key_params import HashedColumns
from ps2.algorithms.frame.model_files import EstimatorReader, EstimatorWriter
from ps2.algorithms.frame.settings import Setting, getter, param, setter
from ps2.algorithms.frame.tables import column
from ps2.data.hashing import FieldHasher
from ps2.errors import InputError
from ps2.run.spark.backend_lookup import with_python
from ps2.run.spark.frames import map_in_arrow

NAMES = "key bigint, field string, value string"
Batches = Iterator[pa.RecordBatch]


class KeyHasher(HashedColumns, Transformer, MLReadable[Any], MLWritable):
    """Turns columns of categories and numbers into arrays of keys and values, without a vocabulary.

    It resembles pyspark.ml's ``FeatureHasher``, but a key is a 63-bit XXH3 of the column's name and the value, so
    distinct values have distinct keys (docs/hashing.md). Online and deep estimators have the same params and hash by
    themselves; ``KeyHasher`` is for other models, and for looking at keys.

    Example::

        hasher = KeyHasher(categoricalCols=["site", "ad"], bucketCols=["price"], crosses=["site:ad"])
        hasher.transform(df).select("keys", "values")
    """

    __module__ = "ps2.algorithms.feature"

    keysCol: Setting[str] = param("keys", "the new column of the keys: arrays of bigint")
    valuesCol: Setting[str] = param("values", "the new column of the values: arrays of float")

    getKeysCol, setKeysCol = getter(keysCol), setter(keysCol)
    getValuesCol, setValuesCol = getter(valuesCol), setter(valuesCol)

    def names(self, dataset: DataFrame) -> DataFrame:
        """Return what each key of these rows stands for: one row per key, with columns ``key``, ``field``, ``value``.

        The value is a text; it is null for the key of a numeric column.

        Raises:
            ConfigError, InputError: as ``transform`` does.
        """
        hasher = self._prepared(dataset)
        rows = dataset.select(*(column(name) for name in hasher.columns))
        named: DataFrame = map_in_arrow(with_python(rows), _namer(hasher), NAMES)
        return named.distinct()

    def _transform(self, dataset: DataFrame) -> DataFrame:
        """Add the columns of keys and values.

        Raises:
            ConfigError: params contradict each other.
            InputError: a column is missing or has another type, or a new column exists already. Wrong values in rows
                raise an error of Spark when the rows are read.
        """
        hasher = self._prepared(dataset)
        new = [
            StructField(self.getKeysCol(), ArrayType(LongType(), False), False),
            StructField(self.getValuesCol(), ArrayType(FloatType(), False), False),
        ]
        for field in new:
            if field.name in dataset.columns:
                raise InputError(f"column {field.name!r}: it is there already; choose another name for the new column")
        names = [field.name for field in new]
        added: DataFrame = map_in_arrow(
            with_python(dataset), _adder(hasher, names), StructType([*dataset.schema.fields, *new])
        )
        return added

    def _prepared(self, dataset: DataFrame) -> FieldHasher:
        check_frame(dataset)
        self._check_values()
        return self._hasher(dataset)

    def write(self) -> MLWriter:
        """Return a writer: ``write().overwrite().save(path)``."""
        return EstimatorWriter(self)

    @classmethod
    def read(cls) -> MLReader[Any]:
        """Return a reader: ``read().load(path)``."""
        return EstimatorReader(cls)


def _adder(hasher: FieldHasher, names: list[str]) -> Callable[[Batches], Batches]:
    """Return the function that adds keys and values in a task."""

    def add(batches: Batches) -> Batches:
        before = 0
        for batch in batches:
            rows = hasher.rows(batch, before)
            before += batch.num_rows
            ends = pa.array(rows.indptr.astype("int32"))
            new = [pa.ListArray.from_arrays(ends, pa.array(given)) for given in (rows.keys, rows.values)]
            yield pa.RecordBatch.from_arrays([*batch.columns, *new], names=[*batch.schema.names, *names])

    return add


def _namer(hasher: FieldHasher) -> Callable[[Batches], Batches]:
    """Return the function that names keys in a task."""

    def name(batches: Batches) -> Batches:
        seen: set[int] = set()
        for batch in batches:
            found = {key: said for key, said in hasher.inverse(batch).items() if key not in seen}
            seen |= found.keys()
            columns = [list(found), [field for field, _ in found.values()], [value for _, value in found.values()]]
            types = (pa.int64(), pa.string(), pa.string())
            arrays = [pa.array(values, kind) for values, kind in zip(columns, types, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, names=["key", "field", "value"])

    return name
