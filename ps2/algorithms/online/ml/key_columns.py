"""Rows of keys in array columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ps2.data.columns import lengths_of, named_column
from ps2.errors import InputError
from ps2.ops.distinct import find_distinct


@dataclass(frozen=True)
class Rows:
    indptr: npt.NDArray[np.int64]
    keys: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def distinct(self) -> Any:
        return find_distinct(self.keys)


@dataclass(frozen=True)
class KeyColumns:
    keys: str
    values: str | None = None

    def rows(self, batch: pa.RecordBatch) -> Rows:
        column = named_column(batch, self.keys)
        lengths = lengths_of(column)
        keys = column.flatten().to_numpy(zero_copy_only=False)
        if len(keys) and keys.min() < 0:
            raise InputError(f"column {self.keys!r}: expected keys from 0 to 2**63 - 2, got {keys.min()}")
        indptr = np.concatenate(([0], np.cumsum(lengths)))
        values = np.ones(len(keys), np.float32)
        if self.values is not None:
            values = named_column(batch, self.values).flatten().to_numpy(zero_copy_only=False).astype(np.float32)
        return Rows(indptr, keys, values)
