"""Batches of rows as deep models read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.array_types import Int64s
from ps2.data.key_rows import KeyRows

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Batch:
    """n rows of (key, value) pairs, in CSR form.

    Attributes:
        indptr: the bounds of the rows, int64 of shape (n + 1,): row i has the pairs ``indptr[i]:indptr[i + 1]``.
        inverse: the index of each pair's key among the distinct keys, int32 of shape (pairs,).
        field: the field of each pair, int32 of shape (pairs,).
        x: the value of each pair, shape (pairs,), in the dtype of the table.
    """

    indptr: Int64s
    inverse: npt.NDArray[np.int32]
    field: npt.NDArray[np.int32]
    x: Array

    def __len__(self) -> int:
        return len(self.indptr) - 1


def batch_of(rows: KeyRows) -> tuple[Batch, Int64s]:
    """Return rows as a batch, and their u distinct keys, int64, in order of first appearance."""
    keys, inverse = rows.numbered()
    return Batch(rows.indptr, inverse.astype(np.int32, copy=False), rows.fields, rows.values), keys


@dataclass(frozen=True, eq=False)
class EmbeddedRows:
    """A batch with its embeddings.

    Attributes:
        table: a row of weights for each distinct key: the linear weight, if there is one, and then the vector.
        vector_offset: the first column of the vectors in the table.
        inputs: the vectors of the fields, which are the inputs of the layers, shape (n, fields * k).
    """

    batch: Batch
    table: Array
    vector_offset: int
    inputs: Array

    @property
    def k(self) -> int:
        """The size of a vector."""
        return int(self.table.shape[1]) - self.vector_offset


@dataclass(frozen=True, eq=False)
class Slopes:
    """The derivatives of the loss with respect to margins (n,), inputs (n, fields * k) and table, in this order."""

    margins: Array
    inputs: Array
    table: Array
