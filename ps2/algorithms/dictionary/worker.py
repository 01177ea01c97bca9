"""A worker of dictionary learning: the tasks that the driver sends, and how a worker does them.

To save time, a worker caches its rows' codes from one clock to the next. A restarted worker computes the same codes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ps2.algorithms.dictionary.kernels import add_sums, encode
from ps2.algorithms.dictionary.plan import VALUE_BYTES, DictionaryPlan
from ps2.algorithms.frame.memory import check_worker
from ps2.algorithms.frame.powers_of_two import scaled_rows, shifted
from ps2.algorithms.frame.program import Task
from ps2.algorithms.training import row_draws
from ps2.algorithms.training.reading import Reading
from ps2.client.batch import batch
from ps2.client.dcv import DCV
from ps2.client.matrix import DCVMatrix
from ps2.ops.guards import readable
from ps2.ops.kernels import Float64s
from ps2.server.memory import free_bytes

# Rows that replace atoms: arrays with the atoms' indices, the rows' hashes, and the ranks of workers with the rows.
NewAtoms = dict[str, npt.NDArray[Any]]
ATOMS, IDS, RANKS = "atoms", "ids", "ranks"
# Products are rounded so that a sum over all rows needs at most this many of the 53 bits of a float64: sums are exact.
DIGITS = 51
# The maximum number of rows that replace unused atoms in one iteration.
MAX_SPARE_ROWS = 32


@dataclass(frozen=True, eq=False)
class ServerVectors:
    """The vectors and matrices on the servers; picklable.

    Attributes:
        atoms: the dictionary D, with layout "column": a column is a feature, its block has a value for each atom.
        sums: B = A'X, the sums of codes times rows, with the same layout.
        products: DD', the inner products of atoms, k * k values.
        pairs: S = A'A, the sums of products of two codes of a row, k * k values.
    """

    atoms: DCVMatrix
    sums: DCVMatrix
    products: DCV
    pairs: DCV


class Scale(NamedTuple):
    """Exponents of powers of two: scaling by powers of two is exact.

    Attributes:
        exponent: rows are divided by 2**exponent; 0 unless their squares would overflow or underflow.
        value_exponent: the absolute values of the divided rows are below 2**value_exponent.
        row_exponent: the number of rows is below 2**row_exponent.
        loss_exponent: each loss is below 2**loss_exponent.
    """

    exponent: int
    value_exponent: int
    row_exponent: int
    loss_exponent: int

    @property
    def pair_digits(self) -> int:
        """Products of two codes, both below 1, are multiplied by 2**pair_digits, then rounded to integers."""
        return DIGITS - self.row_exponent

    @property
    def sum_digits(self) -> int:
        """Products of a value and a code are multiplied by 2**sum_digits, then rounded to integers."""
        return self.pair_digits - self.value_exponent


@dataclass(frozen=True, eq=False)
class Survey(Task):
    """Report the number of rows, the range of their values, and a random draw of rows for the first atoms."""


@dataclass(frozen=True, eq=False)
class Code(Task):
    """Compute the rows' codes; report the largest codes, the loss, and a draw of rows with probabilities by loss.

    ``draw`` is the number of the draw, on which its random numbers depend.
    """

    scale: Scale
    draw: int


@dataclass(frozen=True, eq=False)
class Sum(Task):
    """Add products of rows and codes to the servers' sums; ``max_codes`` has the largest absolute code of each atom."""

    scale: Scale
    max_codes: Float64s
    new_atoms: NewAtoms


class DictionaryWorker:
    """Does the driver's tasks with the rows of one worker."""

    def __init__(self, plan: DictionaryPlan, vectors: ServerVectors, reading: Reading) -> None:
        self._plan, self._vectors, self._rows = plan, vectors, reading.training
        atoms, features = plan.settings.k, len(self._rows.keys)
        content = f"k={atoms:,}: the rows of one worker use {features:,} features; their atoms and sums take"
        check_worker(content, VALUE_BYTES * atoms * features, free_bytes())
        self._ids = row_draws.hashes(self._rows.x, self._rows.keys)
        self._x: sp.csr_array | None = None
        # The codes of all rows, shape (n, k), and their losses, shape (n,).
        self._code_cache: tuple[sp.csr_array, Float64s] | None = None

    def __call__(self, worker: Any, task: Any) -> None:
        match task:
            case Survey():
                self._survey(worker)
            case Code():
                self._code_cache = None
                self._report_codes(worker, task.draw, Scale(*task.scale))
            case Sum():
                self._add_to_sums(worker, task, Scale(*task.scale))

    def _survey(self, worker: Any) -> None:
        x = self._rows.x
        max_size = np.diff(x.indptr).max(initial=0)
        row_values = abs(x).max(axis=1).toarray().ravel() if x.nnz else np.zeros(0)
        max_value, min_value = row_values.max(initial=0.0), row_values[row_values > 0.0].min(initial=np.inf)
        worker.report(
            {"max_value": float(max_value), "max_size": float(max_size), "negated_min": float(-min_value)}, "max"
        )
        worker.report({"rows": len(self._rows)})
        is_nonzero = np.zeros(len(self._rows))
        is_nonzero[np.unique(np.repeat(np.arange(len(self._rows)), np.diff(x.indptr))[x.data != 0.0])] = 1.0
        self._report_draw(worker, is_nonzero, 0, self._plan.settings.k)

    def _report_draw(self, worker: Any, weights: Float64s, draw: int, count: int) -> None:
        priorities = row_draws.priorities(self._ids, weights, self._plan.seed, draw)
        drawn = row_draws.smallest(priorities, self._ids, count)
        ranks = np.full(len(drawn), worker.rank)
        worker.report({"priorities": priorities[drawn], IDS: self._ids[drawn], RANKS: ranks}, "concat")

    def _compute_codes(self, scale: Scale) -> tuple[sp.csr_array, Float64s, int]:
        """Return the codes of all rows, given the dictionary on the servers, their losses, and the received bytes."""
        if self._x is None:
            self._x = scaled_rows(self._rows.x, scale.exponent)
        received_bytes = 0
        if self._code_cache is None:
            with batch():
                pulled = self._vectors.atoms.pull(columns=self._rows.keys), self._vectors.products.pull()
            atoms, products = (future.result() for future in pulled)
            plan = self._plan
            penalty = float(shifted(plan.settings.regParam, -scale.exponent))
            products = products.reshape(plan.settings.k, plan.settings.k)
            self._code_cache = encode(self._x, atoms, products, penalty, plan.settings.nonnegative)
            received_bytes = atoms.nbytes + products.nbytes
        return *self._code_cache, received_bytes

    def _report_codes(self, worker: Any, draw: int, scale: Scale) -> None:
        codes, losses, received_bytes = self._compute_codes(scale)
        max_codes = np.zeros(self._plan.settings.k)
        np.maximum.at(max_codes, codes.indices, np.abs(codes.data))
        worker.report({"max_codes": max_codes}, "max")
        unit = math.ldexp(1.0, scale.loss_exponent + scale.row_exponent - DIGITS)
        worker.report(
            {"loss": float((np.rint(losses / unit) * unit).sum()), "rows": len(losses), "bytes": received_bytes}
        )
        self._report_draw(worker, losses, draw, min(MAX_SPARE_ROWS, self._plan.settings.k))

    def _add_to_sums(self, worker: Any, task: Sum, scale: Scale) -> None:
        """Add products of rows and codes, and the rows that replace atoms, to the servers' sums in one batch."""
        vectors, count, keys = self._vectors, self._plan.settings.k, self._rows.keys
        pairs, sums = np.zeros((count, count)), np.zeros((len(keys), count))
        exponents = np.frexp(task.max_codes)[1]
        if task.max_codes.any():
            codes, _, _ = self._compute_codes(scale)
            x = self._x
            assert x is not None
            values = shifted(codes.data, -exponents[codes.indices].astype(np.int64))
            entries = readable(x.indptr), readable(x.indices), readable(x.data)
            code_starts, code_indices = (readable(array.astype(np.int64)) for array in (codes.indptr, codes.indices))
            sum_factor, pair_factor = math.ldexp(1.0, scale.sum_digits), math.ldexp(1.0, scale.pair_digits)
            add_sums(*entries, code_starts, code_indices, readable(values), sum_factor, pairs, pair_factor, sums)
        self._add_new_atoms(worker.rank, task.new_atoms, scale, sums)
        with batch():
            vectors.sums.add(columns=keys, values=sums)
            vectors.pairs.add(pairs.reshape(-1))
        worker.report({"bytes": sums.nbytes + pairs.nbytes})

    def _add_new_atoms(self, rank: int, new_atoms: NewAtoms, scale: Scale, sums: Float64s) -> None:
        """Add this worker's rows that replace atoms to the sums of these atoms."""
        x, is_own = self._rows.x, new_atoms[RANKS] == rank
        for atom, row_hash in zip(new_atoms[ATOMS][is_own], new_atoms[IDS][is_own], strict=True):
            row = np.flatnonzero(self._ids == row_hash)[0]
            begin, end = x.indptr[row], x.indptr[row + 1]
            sums[x.indices[begin:end], atom] += shifted(x.data[begin:end], -scale.exponent)
