"""``Bags``: the tensor of a column whose arrays have any lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ps2.errors import ShapeError


@dataclass(frozen=True, eq=False)
class Bags:
    """One array of numbers for each row, of any lengths; ``RemoteEmbedding`` takes ``Bags`` in place of a tensor.

    Attributes:
        values: tensor with the numbers of all rows, row after row.
        bounds: int64 tensor of shape (rows + 1,): row i has ``values[bounds[i]:bounds[i + 1]]``.

    Raises:
        ShapeError: the bounds do not end with the number of values.
    """

    values: Any
    bounds: Any

    def __post_init__(self) -> None:
        if self.bounds.dim() != 1 or not len(self.bounds) or int(self.bounds[-1]) != len(self.values):
            got = f"{tuple(self.bounds.shape)} that end with {int(self.bounds[-1]) if self.bounds.numel() else None}"
            raise ShapeError(f"bounds: expected shape (rows + 1,) that end with {len(self.values)}, got {got}")

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, rows: Any) -> Bags:
        """Return the rows with these numbers, a tensor of int64, in this order."""
        begins, lengths = self.bounds[:-1][rows], torch.diff(self.bounds)[rows]
        bounds = torch.zeros(len(lengths) + 1, dtype=torch.int64)
        torch.cumsum(lengths, 0, out=bounds[1:])
        moved = torch.repeat_interleave(begins - bounds[:-1], lengths)
        return Bags(self.values[moved + torch.arange(len(moved))], bounds)

    @property
    def offsets(self) -> Any:
        """Where each row begins in ``values``, as ``nn.EmbeddingBag`` takes it: int64 of shape (rows,)."""
        return self.bounds[:-1]
