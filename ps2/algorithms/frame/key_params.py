"""The hasher that makes keys of columns, and checks of the columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

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

from ps2.algorithms.frame.key_settings import CATEGORIES, KEYS, HashedColumnSettings, KeySettings
from ps2.algorithms.frame.params import ByName
from ps2.data.columns import listed
from ps2.data.hashing import Field, FieldHasher
from ps2.errors import ConfigError, InputError

COLUMNS = "categoricalCols, numericCols, bucketCols or crosses"


class HashedColumns(HashedColumnSettings, ByName):
    """An estimator, model or transformer of columns whose values become keys."""

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


class KeyParams(KeySettings, HashedColumns):
    """An estimator or model of rows of keys: columns to hash, or a column of keys."""

    def _hasher(self, dataset: DataFrame | None = None) -> FieldHasher:
        """Return the hasher; see ``HashedColumns._hasher``."""
        fields = self._hashed_fields()
        if not fields or self.isSet(self.keysCol):
            keys = (self.getKeysCol() if self.isSet(self.keysCol) else None) or KEYS
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
