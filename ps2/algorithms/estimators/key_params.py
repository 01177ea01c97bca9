"""Params that say which columns of a DataFrame become keys, and how."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.ml.param import Param, TypeConverters
from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegralType,
    NumericType,
    StringType,
)

from ps2.algorithms.estimators.params import ByName, getter, own_param, setter
from ps2.data.columns import listed
from ps2.data.hashing import Field, FieldHasher
from ps2.data.key_fields import suggested_cross
from ps2.errors import ConfigError, InputError

# Separates the columns of a cross.
CROSS = ":"
KEYS = "keys"
COLUMNS = "categoricalCols, numericCols, bucketCols or crosses"
CATEGORIES = "strings, integers or booleans, or arrays of them"


def bucket_columns(value: Any) -> dict[str, list[float] | None]:
    """Convert names of columns, or a dict from name to bounds, to a dict; bounds None: buckets by logarithm."""
    if isinstance(value, Mapping):
        bounds = {name: None if given is None else TypeConverters.toListFloat(given) for name, given in value.items()}
        return {TypeConverters.toString(name): given for name, given in bounds.items()}
    return dict.fromkeys(TypeConverters.toListString(value))


def crossed_columns(value: Any) -> list[list[str]]:
    """Convert crosses, each "a:b" or a list of names, to lists of names."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f'crosses: expected a list such as ["user:ad"] or [["user", "ad"]], got {value!r}')
    for one in value:
        if isinstance(one, str) and CROSS not in one:
            raise TypeError(f"crosses: expected columns such as {suggested_cross(one)}, got {one!r}")
    return [TypeConverters.toListString(one.split(CROSS) if isinstance(one, str) else one) for one in value]


class HashedColumns(ByName):
    """Params that name the columns whose values become keys."""

    categoricalCols: Param[list[str]] = own_param(
        "categoricalCols",
        f"columns of categories: {CATEGORIES}; each value is a key, without a vocabulary",
        TypeConverters.toListString,
    )
    numericCols: Param[list[str]] = own_param(
        "numericCols",
        "columns of numbers: each column is a key, and its numbers are values",
        TypeConverters.toListString,
    )
    bucketCols: Param[Any] = own_param(
        "bucketCols",
        "columns of numbers whose intervals are keys: names (intervals by logarithm), or a dict from name to ascending "
        "bounds, None for intervals by logarithm",
        bucket_columns,
    )
    bucketBase: Param[float] = own_param(
        "bucketBase", "base of intervals by logarithm: their bounds are 0 and base^i - 1", TypeConverters.toFloat
    )
    crosses: Param[Any] = own_param(
        "crosses",
        'combinations of columns whose values together are keys: "user:ad", or a list of names; columns of bucketCols '
        "by interval",
        crossed_columns,
    )
    hashSeed: Param[int] = own_param("hashSeed", "seed of the keys' hash", TypeConverters.toInt)

    def _set_defaults(self) -> None:
        super()._set_defaults()
        self._setDefault(categoricalCols=[], numericCols=[], bucketCols={}, bucketBase=2.0, crosses=[], hashSeed=0)

    getCategoricalCols = getter(categoricalCols)
    getNumericCols = getter(numericCols)
    getBucketCols = getter(bucketCols)
    getBucketBase = getter(bucketBase)
    getCrosses = getter(crosses)
    getHashSeed = getter(hashSeed)

    setCategoricalCols = setter(categoricalCols)
    setNumericCols = setter(numericCols)
    setBucketCols = setter(bucketCols)
    setBucketBase = setter(bucketBase)
    setCrosses = setter(crosses)
    setHashSeed = setter(hashSeed)

    def _hashed_fields(self) -> list[Field]:
        """Return the fields that the params name, in this order: categories, numbers, buckets, crosses."""
        fields = [Field.categorical(name) for name in self.getCategoricalCols()]
        fields += [Field.numeric(name) for name in self.getNumericCols()]
        base = self.getBucketBase()
        fields += [Field.buckets(name, bounds, base) for name, bounds in self.getBucketCols().items()]
        return fields + [Field.cross(*names) for names in self.getCrosses()]

    def _hasher(self, dataset: DataFrame | None = None) -> FieldHasher:
        """Return the hasher; with a DataFrame, check that it has the columns, of usable types.

        Raises:
            ConfigError: the params name no columns, or contradict each other.
            InputError: the DataFrame lacks a column, or a column has another type.
        """
        fields = self._hashed_fields()
        if not fields:
            raise ConfigError(f"{type(self).__name__}: expected columns in {COLUMNS}, got none")
        return self._checked(fields, dataset)

    def _checked(self, fields: Sequence[Field], dataset: DataFrame | None) -> FieldHasher:
        seed = self.getHashSeed()
        hasher = FieldHasher(tuple(fields), seed % 2**64)
        if dataset is not None:
            check_key_columns(dataset, hasher)
        return hasher


class KeyParams(HashedColumns):
    """Params of estimators and models of rows of keys: columns to hash, or a column of keys."""

    keysCol: Param[str] = own_param(
        "keysCol",
        f"column of arrays of keys, integers in [0, 2^63), beside the hashed columns; without any of these: {KEYS!r}",
        TypeConverters.toString,
    )
    valuesCol: Param[str] = own_param(
        "valuesCol", "column of arrays of the keys' values; not set: all are 1", TypeConverters.toString
    )
    keysPerRow: Param[int] = own_param(
        "keysPerRow",
        "keys in each array, each place a field of its own; not set: any number, in one field",
        TypeConverters.toInt,
    )

    getKeysCol = getter(keysCol)
    getValuesCol = getter(valuesCol)
    getKeysPerRow = getter(keysPerRow)

    setKeysCol = setter(keysCol)
    setValuesCol = setter(valuesCol)
    setKeysPerRow = setter(keysPerRow)

    def _hasher(self, dataset: DataFrame | None = None) -> FieldHasher:
        """Return the hasher; see ``HashedColumns._hasher``."""
        fields = self._hashed_fields()
        if not fields or self.isSet(self.keysCol):
            keys = self.getKeysCol() if self.isSet(self.keysCol) else KEYS
            if not fields and not self.isSet(self.keysCol) and dataset is not None and KEYS not in dataset.columns:
                raise ConfigError(
                    f"{type(self).__name__}: expected columns in {COLUMNS}, or a column of keys (keysCol, by default "
                    f"{KEYS!r}), got none; there are: {listed(dataset.columns)}"
                )
            values = self.getValuesCol() if self.isSet(self.valuesCol) else None
            width = self.getKeysPerRow() if self.isSet(self.keysPerRow) else None
            fields.append(Field.keys(keys, values, width))
        else:
            unused = [param.name for param in (self.valuesCol, self.keysPerRow) if self.isSet(param)]
            if unused:
                raise ConfigError(f"{unused[0]}: expected keysCol with it, the column of the keys")
        return self._checked(fields, dataset)


def check_key_columns(dataset: DataFrame, hasher: FieldHasher) -> None:
    """Raise InputError unless a DataFrame has the columns of a hasher, of types that it reads. No job is started."""
    types = {field.name: field.dataType for field in dataset.schema.fields}
    counts = Counter(dataset.columns)
    for field in hasher.fields:
        for place, name in enumerate(field.columns):
            if name not in types:
                raise InputError(f"there is no column {name!r}; there are: {listed(dataset.columns)}")
            if counts[name] > 1:
                raise InputError(f"column {name!r}: expected one column of that name, got {counts[name]}")
            kind = field.kind if field.kind != "cross" else hasher.parts[name].kind
            expected = _wrong(types[name], kind, is_values=place == 1, in_cross=field.kind == "cross")
            if expected:
                is_other = kind == "categorical" and not isinstance(types[name], (NumericType, ArrayType))
                hint = ": cast it to string" if is_other else ""
                raise InputError(f"column {name!r}: expected {expected}, got {types[name].simpleString()}{hint}")


def _wrong(kind: DataType, role: str, is_values: bool, in_cross: bool) -> str:
    """Return what was expected of a column in this role; "" if its type fits."""
    of_array = kind.elementType if isinstance(kind, ArrayType) else None
    if role == "keys":
        fits = isinstance(of_array, NumericType if is_values else IntegralType)
        return "" if fits else "arrays of numbers" if is_values else "arrays of integers, the keys"
    if role in ("numeric", "buckets"):
        return "" if isinstance(kind, (NumericType, BooleanType)) else "numbers"
    if in_cross:
        return "" if _is_category(kind) else "strings, integers or booleans, one value a row"
    return "" if _is_category(kind) or (of_array is not None and _is_category(of_array)) else CATEGORIES


def _is_category(kind: DataType) -> bool:
    return isinstance(kind, (StringType, IntegralType, BooleanType, BinaryType))
