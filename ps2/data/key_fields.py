"""The fields of ``KeyRows``: the columns from which keys and values are made, and the seed of each field's hash."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import xxhash

from ps2.data.time_parts import TimePart, time_part, time_zone
from ps2.errors import ConfigError
from ps2.number_checks import is_whole

Kind = Literal["categorical", "numeric", "buckets", "cross", "keys"]
KINDS = ("categorical", "numeric", "buckets", "cross", "keys")
# The separator of column names in a field's hashed name. Names of columns must not contain it.
SEPARATOR = "\x1f"
# Logarithmic buckets have no bounds above this number.
MAX_BOUND = 1e18


def suggested_cross(text: str) -> str:
    """Return the correct form of a malformed cross: "user:ad" for "user-ad"."""
    columns = re.findall(r"\w+", text)
    return ":".join(columns) if len(columns) > 1 else "user:ad"


@dataclass(frozen=True)
class Field:
    """One field of ``KeyRows``: a source of keys and values of each row. There is a static method for each kind.

    Attributes:
        kind: one of ``KINDS``.
        columns: the field's column; for a cross, all its columns; for keys, the column of keys and, optionally, the
            column of their values.
        bounds: the bounds of buckets: bucket i has the numbers in [bounds[i - 1], bounds[i]).
        base: the base of logarithmic buckets; None for other fields.
        width: for keys, the number of keys in each row; None: any number.
        shared: for categories, another column of categories with whose keys this one shares: equal values have equal
            keys. None: the keys are the column's own.
    """

    kind: Kind
    columns: tuple[str, ...]
    bounds: tuple[float, ...] = ()
    base: float | None = None
    width: int | None = None
    shared: str | None = None

    @staticmethod
    def categorical(column: str, shared: str | None = None) -> Field:
        """Make a key, with value 1, of each string, integer or boolean; of each element if the column has lists.

        ``shared`` names another column of categories, whose equal values have the same keys.
        """
        return Field("categorical", (column,), shared=shared)

    @staticmethod
    def numeric(column: str) -> Field:
        """Make one key of the column's name; the values of the key are the column's numbers."""
        return Field("numeric", (column,))

    @staticmethod
    def buckets(column: str, bounds: Sequence[float] | None = None, base: float = 2.0) -> Field:
        """Make a key, with value 1, of the interval that contains a number.

        Args:
            column: a column of numbers.
            bounds: ascending; bucket i has the numbers in [bounds[i - 1], bounds[i]). None: logarithmic buckets, with
                the bounds 0, and plus and minus ``base ** i - 1`` for i = 1, 2, ...
            base: the base of logarithmic buckets, at least 1.01.
        """
        if bounds is None:
            return Field("buckets", (column,), base=float(base))
        if isinstance(bounds, (str, bytes)) or not isinstance(bounds, Iterable):  # float() reads each letter of "12"
            raise ConfigError(f"buckets of {column!r}: expected a list of bounds, got {bounds!r:.100}")
        return Field("buckets", (column,), bounds=tuple(map(float, bounds)))

    @staticmethod
    def cross(*columns: str) -> Field:
        """Make a key, with value 1, of each combination of the columns' values (of their buckets, if they have any)."""
        return Field("cross", columns)

    @staticmethod
    def keys(column: str, values: str | None = None, width: int | None = None) -> Field:
        """Take keys, integers in [0, 2**63), from a column of arrays.

        Args:
            column: the column of keys.
            values: a column with arrays of the keys' values; None: each value is 1.
            width: the number of keys in each row; each position in the array then has its own field number. None: any
                number of keys, all with one field number.
        """
        return Field("keys", (column,) if values is None else (column, values), width=width)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"field: expected a kind of {', '.join(KINDS)}, got {self.kind!r}")
        if not self.columns or not all(isinstance(column, str) and column for column in self.columns):
            raise ConfigError(f"{self.kind} field: expected names of columns, got {self.columns!r}")
        if any(SEPARATOR in column for column in self.columns):
            raise ConfigError(f"{self.kind} field: expected names without character 31, got {self.columns!r}")
        if self.kind == "cross" and (len(self.columns) < 2 or len(set(self.columns)) < len(self.columns)):
            raise ConfigError(f"cross: expected at least two different columns, got {self.columns!r}")
        if self.width is not None and (not is_whole(self.width) or self.width < 1):
            raise ConfigError(f"keys {self.columns[0]!r}: expected a width of at least 1, got {self.width}")
        if self.width is not None:
            object.__setattr__(self, "width", int(self.width))  # JSON cannot represent NumPy's integers
        if self.kind == "buckets":
            self._check_buckets()

    def _check_buckets(self) -> None:
        if self.base is not None and not (math.isfinite(self.base) and self.base >= 1.01):
            raise ConfigError(f"buckets of {self.columns[0]!r}: expected a base of at least 1.01, got {self.base}")
        are_ascending = all(a < b for a, b in pairwise(self.bounds))
        if self.base is None and not (self.bounds and are_ascending and all(map(math.isfinite, self.bounds))):
            raise ConfigError(
                f"buckets of {self.columns[0]!r}: expected ascending finite bounds, at least one, got {self.bounds}"
            )

    @property
    def name(self) -> str:
        """The name of the field in errors and in ``KeyHasher.names``."""
        if self.kind == "cross":
            return " x ".join(self.columns)
        return f"{self.columns[0]} (buckets)" if self.kind == "buckets" else self.columns[0]

    @property
    def hashed_name(self) -> str:
        """The text whose hash is the seed of the field's keys; it differs between the kinds of a column."""
        suffixes = {"categorical": (), "keys": (), "numeric": ("value",), "buckets": ("buckets",), "cross": ("cross",)}
        return SEPARATOR.join((*self.columns, *suffixes[self.kind]))

    @property
    def edges(self) -> tuple[float, ...]:
        """The bounds of buckets; computed for logarithmic buckets."""
        if self.base is None:
            return self.bounds
        positive: list[float] = []
        power = self.base
        while power - 1 <= MAX_BOUND:
            positive.append(power - 1)
            power *= self.base
        return (*(-bound for bound in reversed(positive)), 0.0, *positive)

    def to_json(self) -> dict[str, Any]:
        """Return JSON data from which ``from_json`` makes an equal field."""
        optional = {"bounds": list(self.bounds), "base": self.base, "width": self.width, "shared": self.shared}
        return {"kind": self.kind, "columns": list(self.columns)} | {k: v for k, v in optional.items() if v}

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> Field:
        """Return the field that ``to_json`` described; raise ConfigError if the data are invalid."""
        try:
            bounds = tuple(map(float, content.get("bounds", ())))
            optional = (content.get(name) for name in ("base", "width", "shared"))
            return Field(content["kind"], tuple(content["columns"]), bounds, *optional)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"field: expected kind, columns, bounds, base and width, got {content!r}") from error


@dataclass(frozen=True)
class KeyFields:
    """Different fields, the seed of their keys in [0, 2**64), and the values that hashing derives from them.

    ``time_zone`` is that of the parts of times among the fields' columns, such as hour(t).
    """

    fields: tuple[Field, ...]
    seed: int = 0
    time_zone: str = "UTC"

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", tuple(self.fields))
        for field in self.fields:
            if not isinstance(field, Field):
                raise ConfigError(
                    f"fields: expected Field.categorical({field!r:.100}) or another Field, got {field!r:.100}"
                )
        if not self.fields:
            raise ConfigError("fields: expected at least one field, got none")
        names = [field.hashed_name for field in self.fields]
        if len(set(names)) < len(names):
            repeated = next(field for field in self.fields if names.count(field.hashed_name) > 1)
            raise ConfigError(f"fields: expected different fields, got {repeated.kind} {repeated.name!r} twice")
        if not isinstance(self.seed, int) or isinstance(self.seed, bool) or not 0 <= self.seed < 2**64:
            raise ConfigError(f"seed: expected an integer in [0, 2**64), got {self.seed!r}")
        for field in self.fields:
            if field.kind == "cross":
                self._check_cross(field)
        if self.time_parts:
            time_zone(self.time_zone)

    def _check_cross(self, cross: Field) -> None:
        kinds = {(field.columns[0], field.kind) for field in self.fields if field.kind != "cross"}
        for column in cross.columns:
            is_category = {(column, "categorical"), (column, "buckets")} & kinds
            if not is_category and ((column, "numeric") in kinds or (column, "keys") in kinds):
                raise ConfigError(
                    f"cross {cross.name!r}: expected columns of categories, but {column!r} has numbers: give it buckets"
                )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that rows must have, without duplicates."""
        names = dict.fromkeys(column for field in self.fields for column in field.columns)
        parts = self.time_parts
        return tuple(dict.fromkeys(c for name in names for c in (parts[name].columns if name in parts else (name,))))

    @cached_property
    def time_parts(self) -> dict[str, TimePart]:
        """The parts of times among the fields' columns, by name; ``columns`` has the columns of the times instead."""
        names = dict.fromkeys(column for field in self.fields for column in field.columns)
        return {name: part for name in names if (part := time_part(name)) is not None}

    @property
    def field_count(self) -> int:
        """The number of field numbers: ``width`` for a field of keys with a width, and one for each other field."""
        return sum(field.width or 1 for field in self.fields)

    @property
    def first_numbers(self) -> tuple[int, ...]:
        """The field number of each field; for keys with a width, the field number of the first position."""
        ends = np.cumsum([0, *(field.width or 1 for field in self.fields)])
        return tuple(map(int, ends[:-1]))

    @cached_property
    def seeds(self) -> dict[str, int]:
        """The seed of each hashed name, including columns that only crosses use."""
        names = {column: column for field in self.fields for column in field.columns}  # as categories
        names |= {field.hashed_name: field.shared or field.hashed_name for field in self.fields}
        return {name: xxhash.xxh3_64_intdigest(text.encode(), self.seed) for name, text in names.items()}

    @cached_property
    def parts(self) -> dict[str, Field]:
        """The field that makes the keys of each column of a cross: buckets if the column has any, else categories."""
        buckets = {field.columns[0]: field for field in self.fields if field.kind == "buckets"}
        crossed = {column for field in self.fields if field.kind == "cross" for column in field.columns}
        return {column: buckets.get(column, Field.categorical(column)) for column in crossed}

    @cached_property
    def buckets(self) -> dict[str, Buckets]:
        """The buckets of each column that has buckets."""
        return {
            field.columns[0]: Buckets(field.edges, tuple(self.key(field, str(i)) for i in range(len(field.edges) + 1)))
            for field in self.fields
            if field.kind == "buckets"
        }

    @cached_property
    def numbered(self) -> list[tuple[Field, int, str, int | None]]:
        """Each field with its field number, its first column and, if it is categorical, its seed (else None)."""
        return [
            (field, number, field.columns[0], self.seeds[field.hashed_name] if field.kind == "categorical" else None)
            for field, number in zip(self.fields, self.first_numbers, strict=True)
        ]

    @cached_property
    def numeric_keys(self) -> dict[str, int]:
        """The key of each numeric field, by column."""
        return {field.columns[0]: self.key(field, "") for field in self.fields if field.kind == "numeric"}

    def key(self, field: Field, text: str) -> int:
        """Return the key of a text in a field; the text of a numeric field is empty."""
        return int(xxhash.xxh3_64_intdigest(text.encode(), self.seeds[field.hashed_name])) >> 1

    def __getstate__(self) -> dict[str, Any]:
        return {"fields": self.fields, "seed": self.seed, "time_zone": self.time_zone}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


@dataclass(frozen=True)
class Buckets:
    """The intervals of a column's numbers: n ascending bounds, and the keys of the n + 1 intervals."""

    edges: tuple[float, ...]
    keys: tuple[int, ...]

    def key(self, number: float) -> int:
        """Return the key of the number's bucket."""
        return self.keys[bisect_right(self.edges, number)]

    def text(self, index: int) -> str:
        """Return a bucket's interval as text, such as "[1, 3)"."""
        low = f"[{self.edges[index - 1]:g}" if index else "(-inf"
        return f"{low}, {self.edges[index]:g})" if index < len(self.edges) else f"{low}, inf)"
