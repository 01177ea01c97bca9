"""Rows of ids with labels for ``benchmarks.collisions``: MovieLens 1M, frappe, or generated."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ps2.data.key_rows import KeyRows

MOVIELENS = "ml-1m.ratings.txt.gz"
FRAPPE = ("frappe.validation.libfm", "frappe.test.libfm")
# A rating of so much is a click.
LIKED = 4
TESTED = 0.1
# Generated rows: fields of different sizes, whose ids have vectors as a factorization machine's.
SIZES, FACTORS, ROWS = (40_000, 20_000, 8_000, 1_000, 100), 4, 400_000


@dataclass(frozen=True)
class IdRows:
    """Rows of ids.

    Attributes:
        keys: int64, shape (n, fields): a field's ids differ from those of all other fields.
        labels: float32 of shape (n,), 0 or 1.
    """

    keys: npt.NDArray[np.int64]
    labels: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: npt.NDArray[np.int64]) -> tuple[KeyRows, npt.NDArray[np.float32]]:
        """Return some rows."""
        keys = self.keys[rows]
        n, fields = keys.shape
        numbers = np.tile(np.arange(fields, dtype=np.int32), n)
        indptr = np.arange(n + 1, dtype=np.int64) * fields
        return KeyRows(indptr, keys.reshape(-1), np.ones(n * fields, np.float32), numbers, fields), self.labels[rows]

    @staticmethod
    def of(ids: npt.NDArray[np.int64], labels: npt.NDArray[np.float32]) -> IdRows:
        """Make keys of ids: the field's number, and the id."""
        return IdRows(ids + (np.arange(ids.shape[1]) << 40), labels)


def movielens(folder: str) -> tuple[IdRows, IdRows]:
    """Return users and items of MovieLens 1M, and whether they were rated 4 or more; a tenth of the rows is to test."""
    with gzip.open(Path(folder) / MOVIELENS) as file:
        found = np.loadtxt(file, np.int64, usecols=(0, 1, 2))
    labels = (found[:, 2] >= LIKED).astype(np.float32)
    is_test = np.random.default_rng(0).random(len(found)) < TESTED
    return (
        IdRows.of(found[~is_test, :2], labels[~is_test]),
        IdRows.of(found[is_test, :2], labels[is_test]),
    )


def frappe(folder: str) -> tuple[IdRows, IdRows]:
    """Return the rows of frappe's validation file to train on, and those of its test file."""
    train, test = (_libfm(Path(folder) / name) for name in FRAPPE)
    return train, test


def _libfm(path: Path) -> IdRows:
    rows = [line.split() for line in path.read_text().splitlines()]
    ids = np.array([[int(pair.partition(":")[0]) for pair in row[1:]] for row in rows], np.int64)
    return IdRows.of(ids, np.array([row[0] == "1" for row in rows], np.float32))


def generated(folder: str) -> tuple[IdRows, IdRows]:
    """Return rows of a factorization machine's odds; nine tenths are to train on."""
    rng = np.random.default_rng(0)
    ids = np.stack([(size * rng.random(ROWS) ** 2.5).astype(np.int64) for size in SIZES], 1)
    vectors = [rng.standard_normal((size, FACTORS)) * 0.6 for size in SIZES]
    weights = [rng.standard_normal(size) * 0.6 for size in SIZES]
    chosen = np.stack([table[ids[:, field]] for field, table in enumerate(vectors)])
    pairs = 0.5 * ((chosen.sum(0) ** 2) - (chosen**2).sum(0)).sum(1)
    odds = pairs + sum(table[ids[:, field]] for field, table in enumerate(weights))
    labels = (rng.random(ROWS) < 1 / (1 + np.exp(-odds))).astype(np.float32)
    end = ROWS - ROWS // 10
    return IdRows.of(ids[:end], labels[:end]), IdRows.of(ids[end:], labels[end:])
