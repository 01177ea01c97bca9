"""A worker of a dictionary's training: its tasks, and what it does for each.

The codes that it keeps from one clock to the next save time: it would find the same ones again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ps2.algorithms.dictionary import coding, kernels
from ps2.algorithms.dictionary.options import DictionaryOptions, check_worker
from ps2.algorithms.frame.program import DoTask, Task
from ps2.algorithms.training import row_draws
from ps2.algorithms.training.reading import Reading
from ps2.client.batch import batch
from ps2.client.dcv import DCV
from ps2.client.matrix import DCVMatrix
from ps2.data.rows import LocalRows
from ps2.ops.guards import readable
from ps2.ops.kernels import Float64s
from ps2.server.memory import free_bytes

# Rows that replace atoms: the atoms, and the hashes and workers of the rows.
NewAtoms = dict[str, npt.NDArray[Any]]
PLACES, IDS, RANKS = "places", "ids", "ranks"
# Binary digits of a sum of all rows.
DIGITS = 51
# Rows that may replace unused atoms after a pass, at most.
SPARE = 32


@dataclass(frozen=True, eq=False)
class Fleet:
    """What is on the servers; picklable.

    Attributes:
        atoms: layout "column": a column is a feature.
        sums: of rows by code, in the same form.
        products: inner products of atoms: k * k numbers.
        pairs: sums of products of codes, in the same form.
    """

    atoms: DCVMatrix
    sums: DCVMatrix
    products: DCV
    pairs: DCV


class Scale(NamedTuple):
    """Powers of two.

    Attributes:
        exponent: rows are divided by its power; 0 unless their squares would leave float64's range.
        values: all values, so divided, are below its power.
        rows: their number is below its power.
        losses: each loss is below its power.
    """

    exponent: int
    values: int
    rows: int
    losses: int

    @property
    def pair_digits(self) -> int:
        """Exponent of what products of two codes below 1 are multiplied by to be rounded."""
        return DIGITS - self.rows

    @property
    def sum_digits(self) -> int:
        """The same of products of a value and a code below 1."""
        return self.pair_digits - self.values


# -- tasks -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Survey(Task):
    """Report how large the rows are, and a draw of them."""


@dataclass(frozen=True, eq=False)
class Code(Task):
    """Find the codes of the rows: report the largest ones, the loss, and a draw of badly coded rows.

    Attributes:
        draw: the draw's number.
    """

    scale: Scale
    draw: int


@dataclass(frozen=True, eq=False)
class Sum(Task):
    """Add sums of rows by code to the servers'.

    Attributes:
        largest: float64, shape (atoms,): the largest absolute code of each atom.
        new_atoms: rows that replace atoms.
    """

    scale: Scale
    largest: Float64s
    new_atoms: NewAtoms


# -- work --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class DictionaryWork:
    """Makes a worker of its rows; picklable."""

    options: DictionaryOptions
    fleet: Fleet

    def __call__(self, reading: Reading) -> DoTask:
        check_worker(self.options, len(reading.training.keys), free_bytes())
        return _Work(self.options, self.fleet, reading.training).do


class _Work:
    def __init__(self, options: DictionaryOptions, fleet: Fleet, rows: LocalRows) -> None:
        self._options, self._fleet, self._rows = options, fleet, rows
        self._ids = row_draws.hashes(rows.x, rows.keys)
        self._x: sp.csr_array | None = None
        # Codes of all rows with their losses.
        self._coded: tuple[sp.csr_array, Float64s] | None = None

    def do(self, worker: Any, task: Any) -> None:
        match task:
            case Survey():
                self._survey(worker)
            case Code():
                self._coded = None
                self._code(worker, task.draw, Scale(*task.scale))
            case Sum():
                self._sum(worker, task, Scale(*task.scale))

    def _survey(self, worker: Any) -> None:
        x = self._rows.x
        longest = np.diff(x.indptr).max(initial=0)
        sizes = abs(x).max(axis=1).toarray().ravel() if x.nnz else np.zeros(0)
        largest, least = sizes.max(initial=0.0), sizes[sizes > 0.0].min(initial=np.inf)
        worker.report({"largest": float(largest), "longest": float(longest), "negative_least": float(-least)}, "max")
        worker.report({"rows": len(self._rows)})
        filled = np.zeros(len(self._rows))
        filled[np.unique(np.repeat(np.arange(len(self._rows)), np.diff(x.indptr))[x.data != 0.0])] = 1.0
        self._report_draw(worker, filled, 0, self._options.atoms)

    def _report_draw(self, worker: Any, weights: Float64s, draw: int, count: int) -> None:
        found = row_draws.priorities(self._ids, weights, self._options.seed, draw)
        first = row_draws.smallest(found, self._ids, count)
        mine = np.full(len(first), worker.rank)
        worker.report({"priorities": found[first], IDS: self._ids[first], RANKS: mine}, "concat")

    def _found(self, scale: Scale) -> tuple[sp.csr_array, Float64s, int]:
        """Return the codes of all rows, and their losses, by the dictionary on the servers; and what travelled."""
        if self._x is None:
            x = self._rows.x
            data = coding.shifted(x.data, -scale.exponent)
            self._x = sp.csr_array((data, x.indices, x.indptr), shape=x.shape)
        moved = 0
        if self._coded is None:
            with batch():
                asked = self._fleet.atoms.pull(columns=self._rows.keys), self._fleet.products.pull()
            atoms, products = (one.result() for one in asked)
            options = self._options
            penalty = float(coding.shifted(options.penalty, -scale.exponent))
            products = products.reshape(options.atoms, options.atoms)
            self._coded = coding.code(self._x, atoms, products, penalty, options.positive)
            moved = atoms.nbytes + products.nbytes
        return *self._coded, moved

    def _code(self, worker: Any, draw: int, scale: Scale) -> None:
        codes, losses, moved = self._found(scale)
        largest = np.zeros(self._options.atoms)
        np.maximum.at(largest, codes.indices, np.abs(codes.data))
        worker.report({"largest": largest}, "max")
        unit = math.ldexp(1.0, scale.losses + scale.rows - DIGITS)
        worker.report({"loss": float((np.rint(losses / unit) * unit).sum()), "rows": len(losses), "bytes": moved})
        self._report_draw(worker, losses, draw, min(SPARE, self._options.atoms))

    def _sum(self, worker: Any, task: Sum, scale: Scale) -> None:
        """Add sums of rows by code, and the rows that begin atoms anew, to the servers by one request."""
        fleet, count, keys = self._fleet, self._options.atoms, self._rows.keys
        pairs, sums = np.zeros((count, count)), np.zeros((len(keys), count))
        exponents = np.frexp(task.largest)[1]
        if task.largest.any():
            codes, _, _ = self._found(scale)
            x = self._x
            assert x is not None
            values = coding.shifted(codes.data, -exponents[codes.indices].astype(np.int64))
            entries = readable(x.indptr), readable(x.indices), readable(x.data)
            starts, atoms = (readable(part.astype(np.int64)) for part in (codes.indptr, codes.indices))
            factors = math.ldexp(1.0, scale.sum_digits), pairs, math.ldexp(1.0, scale.pair_digits)
            kernels.add_sums(*entries, starts, atoms, readable(values), *factors, sums)
        self._place(worker.rank, task.new_atoms, scale, sums)
        with batch():
            fleet.sums.add(columns=keys, values=sums)
            fleet.pairs.add(pairs.reshape(-1))
        worker.report({"bytes": sums.nbytes + pairs.nbytes})

    def _place(self, rank: int, new_atoms: NewAtoms, scale: Scale, sums: Float64s) -> None:
        """Add those of this worker's rows that replace atoms to the sums of the atoms."""
        x, mine = self._rows.x, new_atoms[RANKS] == rank
        for place, row_hash in zip(new_atoms[PLACES][mine], new_atoms[IDS][mine], strict=True):
            row = np.flatnonzero(self._ids == row_hash)[0]
            begin, end = x.indptr[row], x.indptr[row + 1]
            sums[x.indices[begin:end], place] += coding.shifted(x.data[begin:end], -scale.exponent)
