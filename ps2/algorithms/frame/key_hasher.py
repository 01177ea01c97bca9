"""Check columns and hash their values to keys; the transformer ``KeyHasher``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.ml import Transformer
from pyspark.ml.util import MLReadable, MLReader, MLWritable, MLWriter
from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    FloatType,
    IntegralType,
    LongType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from ps2.algorithms.frame.frames import check_frame
from ps2.algorithms.frame.key_settings import CATEGORIES, KEYS, HashedColumnSettings, KeySettings
from ps2.algorithms.frame.model_files import EstimatorReader, EstimatorWriter
from ps2.algorithms.frame.params import ByName
from ps2.algorithms.frame.settings import Setting, getter, param, setter
from ps2.algorithms.frame.tables import check_new_columns, column
from ps2.data.columns import join_names
from ps2.data.hashing import Field, FieldHasher
from ps2.errors import ConfigError, InputError
from ps2.run.spark.backend_lookup import active_session, with_python
from ps2.run.spark.frames import map_in_arrow

COLUMNS = "categoricalCols, numericCols, bucketCols or crosses"


class HashedColumns(HashedColumnSettings, ByName):
    """Base class of estimators, models and transformers that hash the values of columns to keys."""

    def _hashed_fields(self) -> list[Field]:
        """Return the fields that the params name, in this order: categories, numbers, buckets, crosses."""
        fields = [Field.categorical(name) for name in self.getCategoricalCols()]
        fields += [Field.numeric(name) for name in self.getNumericCols()]
        base = self.getBucketBase()
        fields += [Field.buckets(name, bounds, base) for name, bounds in self.getBucketCols().items()]
        return fields + [Field.cross(*names) for names in self.getCrosses()]

    def _hasher(self, dataset: DataFrame | None = None) -> FieldHasher:
        """Return the hasher of the params' columns. If ``dataset`` is a DataFrame, check that it has these columns.

        Raise ConfigError if the params name no columns or contradict each other, InputError for a wrong column.
        """
        fields = self._hashed_fields()
        if not fields:
            raise ConfigError(f"{type(self).__name__}: expected columns in {COLUMNS}, got none")
        return self._make_hasher(fields, dataset)

    def _make_hasher(self, fields: Sequence[Field], dataset: DataFrame | None) -> FieldHasher:
        hasher = FieldHasher(tuple(fields), self.getHashSeed() % 2**64)
        if hasher.time_parts:
            spark = active_session() if dataset is None else dataset.sparkSession
            zone = str(self._if_set("timeZone") or spark.conf.get("spark.sql.session.timeZone"))
            hasher = replace(hasher, time_zone=zone)
        if dataset is not None:
            check_key_columns(dataset, hasher)
        return hasher


class KeyParams(KeySettings, HashedColumns):
    """Base class of estimators and models whose rows are keys, from columns to hash or from a column of keys."""

    def _hasher(self, dataset: DataFrame | None = None) -> FieldHasher:
        fields = self._hashed_fields()
        if not fields or self.isSet(self.keysCol):
            keys = self._if_set("keysCol") or KEYS
            if not fields and not self.isSet(self.keysCol) and dataset is not None and KEYS not in dataset.columns:
                raise ConfigError(
                    f"{type(self).__name__}: expected columns in {COLUMNS}, or a column of keys (keysCol, by default "
                    f"{KEYS!r}), got none; there are: {join_names(dataset.columns)}"
                )
            values = self.getValuesCol() if self.isSet(self.valuesCol) else None
            fields.append(Field.keys(keys, values, self._if_set("keysPerRow")))
        else:
            unused = [param.name for param in (self.valuesCol, self.keysPerRow) if self.isSet(param)]
            if unused:
                raise ConfigError(f"{unused[0]}: expected keysCol, the column of the keys, to be set, too")
        return self._make_hasher(fields, dataset)


def check_key_columns(dataset: DataFrame, hasher: FieldHasher) -> None:
    """Raise InputError unless a DataFrame has the columns of a hasher, with usable types. This starts no Spark job."""
    types = {field.name: field.dataType for field in dataset.schema.fields}
    counts = Counter(dataset.columns)
    for name, part in hasher.time_parts.items():
        kinds = (TimestampType, TimestampNTZType, *([DateType] if part.takes_dates else []))
        for source in part.columns:
            if source not in types:
                raise InputError(f"{name}: there is no column {source!r}; there are: {join_names(dataset.columns)}")
            if not isinstance(types[source], kinds):
                expected, got = "timestamps" + " or dates" * part.takes_dates, types[source].simpleString()
                raise InputError(f"column {source!r}: expected {expected} for {name}, got {got}: cast it")
    for field in hasher.fields:
        for position, name in enumerate(field.columns):
            if name in hasher.time_parts:
                continue
            if name not in types:
                raise InputError(f"there is no column {name!r}; there are: {join_names(dataset.columns)}")
            if counts[name] > 1:
                raise InputError(f"column {name!r}: expected one column of that name, got {counts[name]}")
            kind = field.kind if field.kind != "cross" else hasher.parts[name].kind
            expected = _expected_type(types[name], kind, is_values=position == 1, in_cross=field.kind == "cross")
            if expected:
                can_be_cast = kind == "categorical" and not isinstance(types[name], (NumericType, ArrayType))
                hint = ": cast it to string" if can_be_cast else ""
                raise InputError(f"column {name!r}: expected {expected}, got {types[name].simpleString()}{hint}")


def _expected_type(kind: DataType, role: str, is_values: bool, in_cross: bool) -> str:
    """Return the types that a column in this role may have, in words; "" if its type is one of them."""
    element = kind.elementType if isinstance(kind, ArrayType) else None
    if role == "keys":
        fits = isinstance(element, NumericType if is_values else IntegralType)
        return "" if fits else "arrays of numbers" if is_values else "arrays of integers, the keys"
    if role in ("numeric", "buckets"):
        return "" if isinstance(kind, (NumericType, BooleanType)) else "numbers"
    if in_cross:
        return "" if _is_category(kind) else "strings, integers or booleans, one value a row"
    return "" if _is_category(kind) or (element is not None and _is_category(element)) else CATEGORIES


def _is_category(kind: DataType) -> bool:
    return isinstance(kind, (StringType, IntegralType, BooleanType, BinaryType))


# The schema of the result of ``KeyHasher.names``.
NAMES = "key bigint, field string, value string"
Batches = Iterator[pa.RecordBatch]


class KeyHasher(HashedColumns, Transformer, MLReadable[Any], MLWritable):
    """Turns columns of categories and numbers into arrays of keys and values, without a vocabulary.

    It resembles pyspark.ml's ``FeatureHasher``, but a key is a 63-bit XXH3 of the column's name and the value, so
    distinct values have distinct keys (docs/hashing.md). Online and deep estimators have the same params and hash
    columns themselves. ``KeyHasher`` is for other models, and for inspecting keys.

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
        """Return the meaning of each key of these rows: one row per key, with columns ``key``, ``field``, ``value``.

        The value is a string. It is null for the key of a numeric column.

        Raises:
            ConfigError, InputError: as ``transform`` does.
        """
        hasher = self._checked_hasher(dataset)
        rows = dataset.select(*(column(name) for name in hasher.columns))
        names: DataFrame = map_in_arrow(with_python(rows), partial(_name_keys, hasher), NAMES)
        return names.distinct()

    def _transform(self, dataset: DataFrame) -> DataFrame:
        """Add the columns of keys and values.

        Raises:
            ConfigError: params contradict each other.
            InputError: a column is missing or has another type, or a new column exists already. Wrong values in rows
                raise an error of Spark when the rows are read.
        """
        hasher = self._checked_hasher(dataset)
        new_fields = [
            StructField(self.getKeysCol(), ArrayType(LongType(), False), False),
            StructField(self.getValuesCol(), ArrayType(FloatType(), False), False),
        ]
        names = [field.name for field in new_fields]
        check_new_columns(dataset, names, "the new column")
        schema = StructType([*dataset.schema.fields, *new_fields])
        result: DataFrame = map_in_arrow(with_python(dataset), partial(_add_keys, hasher, names), schema)
        return result

    def _checked_hasher(self, dataset: DataFrame) -> FieldHasher:
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


def _add_keys(hasher: FieldHasher, names: list[str], batches: Batches) -> Batches:
    """Add keys and values to batches, in a task."""
    num_before = 0
    for batch in batches:
        rows = hasher.rows(batch, num_before)
        num_before += batch.num_rows
        offsets = pa.array(rows.indptr.astype("int32"))
        lists = [pa.ListArray.from_arrays(offsets, pa.array(values)) for values in (rows.keys, rows.values)]
        yield pa.RecordBatch.from_arrays([*batch.columns, *lists], names=[*batch.schema.names, *names])


def _name_keys(hasher: FieldHasher, batches: Batches) -> Batches:
    """Return the meaning of each key in batches, each key once, in a task."""
    seen_keys: set[int] = set()
    for batch in batches:
        meanings = {key: meaning for key, meaning in hasher.inverse(batch).items() if key not in seen_keys}
        seen_keys |= meanings.keys()
        columns = [list(meanings), *([meaning[part] for meaning in meanings.values()] for part in (0, 1))]
        types = (pa.int64(), pa.string(), pa.string())
        arrays = [pa.array(values, kind) for values, kind in zip(columns, types, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, names=["key", "field", "value"])
