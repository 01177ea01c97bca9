"""Coordinate descent for the codes of rows, given a dictionary, and for the dictionary, given codes. Pure.

A code depends only on the row and the dictionary, because all loops have a fixed order and the descent starts at 0. It
does not depend on which worker has the row, or on earlier codes of the row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ps2.array_types import Float64s, Int32s, Int64s
from ps2.ops.guards import readable
from ps2.ops.kernels import inline, kernel

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

# The maximum number of sweeps over all atoms, and after each of them, over the atoms with nonzero codes.
MAX_SWEEPS, MAX_INNER_SWEEPS = 100, 200
# Descent for a code ends when no coordinate, times its atom's norm, changes by more than this times the row's norm.
TOLERANCE = 1e-6
# The maximum number of values of dense codes in memory at a time.
MAX_DENSE_VALUES = 1 << 20
# The number of sweeps over all atoms in an update of the dictionary.
SWEEPS = 5
# This replaces larger penalties: infinity * 0 in a loss is NaN. With it, all codes of scaled rows are 0 already.
MAX_PENALTY = 1e100


@inline
def correlate(columns: Int32s, values: Float64s, atoms: Array, products: Float64s) -> float:
    """Set ``products`` to the inner products of a sparse row and the atoms; return the row's squared norm."""
    count = products.size
    products[:] = 0.0
    square, p, end = 0.0, 0, values.size
    while p + 3 < end:
        a, b, c, d = values[p], values[p + 1], values[p + 2], values[p + 3]
        row_a, row_b, row_c, row_d = (
            atoms[columns[p]],
            atoms[columns[p + 1]],
            atoms[columns[p + 2]],
            atoms[columns[p + 3]],
        )
        for k in range(count):
            products[k] += (a * row_a[k] + b * row_b[k]) + (c * row_c[k] + d * row_d[k])
        square += (a * a + b * b) + (c * c + d * d)
        p += 4
    while p < end:
        a, row_a = values[p], atoms[columns[p]]
        for k in range(count):
            products[k] += a * row_a[k]
        square += a * a
        p += 1
    return square


@inline
def _soft_threshold(value: float, penalty: float, positive: bool) -> float:
    """Return the value after a move towards 0 by the penalty, at most to 0; ``positive``: at least 0."""
    if value > penalty:
        return value - penalty
    if value < -penalty and not positive:
        return value + penalty
    return 0.0


@inline
def _descend_used(
    used: Int64s, count: int, gram: Array, penalty: float, positive: bool, limit: float, code: Float64s, slope: Float64s
) -> None:
    """Descend along the first ``count`` atoms in ``used``, until no coordinate changes by more than the limit."""
    used_gram = np.empty((count, count))
    used_code, used_slope = np.empty(count), np.empty(count)
    for i in range(count):
        used_code[i], used_slope[i] = code[used[i]], slope[used[i]]
        for j in range(count):
            used_gram[i, j] = gram[used[i], used[j]]
    for _ in range(MAX_INNER_SWEEPS):
        max_move = 0.0
        for i in range(count):
            square = used_gram[i, i]
            new_value = _soft_threshold(used_slope[i] + square * used_code[i], penalty, positive) / square
            change = new_value - used_code[i]
            if change != 0.0:
                used_code[i] = new_value
                for j in range(count):
                    used_slope[j] -= used_gram[i, j] * change
                max_move = max(max_move, abs(change) * np.sqrt(square))
        if max_move <= limit:
            break
    for i in range(count):
        change = used_code[i] - code[used[i]]
        if change != 0.0:
            code[used[i]] = used_code[i]
            gram_row = gram[used[i]]
            for k in range(slope.size):
                slope[k] -= gram_row[k] * change


@inline
def descend(
    gram: Array, penalty: float, positive: bool, limit: float, code: Float64s, slope: Float64s, used: Int64s
) -> None:
    """Find the code of a row by coordinate descent: it minimises 1/2 |x - code D|^2 + penalty |code|_1.

    Sweeps over all atoms alternate with descents along the atoms with nonzero codes.

    Args:
        gram: the inner products of the atoms, shape (atoms, atoms).
        positive: whether the code must not be negative.
        limit: stop after a sweep in which no coordinate, times its atom's norm, changes by more than this.
        code: zeros; output: the code.
        slope: the inner products of the row and the atoms; output: of the residual and the atoms.
        used: a buffer for the indices of the atoms with nonzero codes.
    """
    for _ in range(MAX_SWEEPS):
        max_move, count = 0.0, 0
        for k in range(code.size):
            square = gram[k, k]
            if square > 0.0:
                new_value = _soft_threshold(slope[k] + square * code[k], penalty, positive) / square
                change = new_value - code[k]
                if change != 0.0:
                    code[k] = new_value
                    gram_row = gram[k]
                    for j in range(slope.size):
                        slope[j] -= gram_row[j] * change
                    max_move = max(max_move, abs(change) * np.sqrt(square))
                if new_value != 0.0:
                    used[count] = k
                    count += 1
        if max_move <= limit:
            return
        if count:
            _descend_used(used, count, gram, penalty, positive, limit, code, slope)


@kernel
def code_rows(
    indptr: Int32s,
    indices: Int32s,
    data: Array,
    atoms: Array,
    gram: Array,
    penalty: float,
    positive: bool,
    tolerance: float,
    codes: Float64s,
    losses: Float64s,
) -> None:
    """Find the code of each row in CSR form, and its loss, 1/2 |x - code D|^2 + penalty |code|_1.

    Args:
        atoms, gram: the dictionary, shape (columns, atoms), and the atoms' inner products.
        tolerance: ``limit`` of ``descend``, as a fraction of the row's norm.
        codes: zeros, shape (n, atoms); output: the codes.
        losses: output, shape (n,).
    """
    count = codes.shape[1]
    slope, products, used = np.empty(count), np.empty(count), np.empty(count, np.int64)
    for i in range(len(indptr) - 1):
        begin, end = indptr[i], indptr[i + 1]
        square = correlate(indices[begin:end], data[begin:end], atoms, products)
        slope[:] = products
        descend(gram, penalty, positive, tolerance * np.sqrt(square), codes[i], slope, used)
        fit, absolute_sum = 0.0, 0.0
        for k in range(count):
            fit += codes[i, k] * (products[k] + slope[k])
            absolute_sum += abs(codes[i, k])
        losses[i] = 0.5 * max(square - fit, 0.0) + penalty * absolute_sum


@kernel
def add_sums(
    indptr: Int32s,
    indices: Int32s,
    data: Array,
    code_starts: Int64s,
    code_indices: Int64s,
    codes: Float64s,
    value_scale: float,
    pairs: Float64s,
    code_scale: float,
    sums: Float64s,
) -> None:
    """Add products of two codes of a row to ``pairs``, and products of values and codes to ``sums``.

    Products are scaled and rounded to integers, so their sums are exact in any order.

    Args:
        code_starts, code_indices, codes: the rows' codes in CSR form; their absolute values are below 1.
        value_scale, code_scale: the factors of the products in ``sums``, shape (columns, atoms), and in ``pairs``.
    """
    count = pairs.shape[0]
    code = np.zeros(count)
    for i in range(len(indptr) - 1):
        begin, end = code_starts[i], code_starts[i + 1]
        if begin == end:
            continue
        for p in range(begin, end):
            code[code_indices[p]] = codes[p]
            pair_row, value = pairs[code_indices[p]], codes[p] * code_scale
            for q in range(begin, end):
                pair_row[code_indices[q]] += np.rint(value * codes[q])
        # A loop over all atoms uses SIMD instructions; a loop over the atoms of a code does not.
        loops_over_all = 4 * (end - begin) > count
        for p in range(indptr[i], indptr[i + 1]):
            value, sum_row = data[p] * value_scale, sums[indices[p]]
            if loops_over_all:
                for k in range(count):
                    sum_row[k] += np.rint(value * code[k])
            else:
                for q in range(begin, end):
                    sum_row[code_indices[q]] += np.rint(value * codes[q])
        for p in range(begin, end):
            code[code_indices[p]] = 0.0


@kernel
def sweep(
    pairs: Float64s,
    is_new: Mask,
    atom_products: Float64s,
    cross: Float64s,
    sum_products: Float64s,
    from_atoms: Float64s,
    from_sums: Float64s,
) -> None:
    """Minimise over one atom after the other, as in ``update``, whose arguments and results have the same names.

    ``atom_products``, ``cross``, ``from_atoms`` and ``from_sums`` are updated in place.
    """
    count = len(pairs)
    u_atoms, u_sums, u_from_atoms, u_from_sums = np.empty(count), np.empty(count), np.empty(count), np.empty(count)
    for k in range(count):
        square = pairs[k, k]
        if square <= 0.0:
            continue
        # The inner products of u (``update``) with atoms and sums, and u's coefficients. -s_kk d_k / s_kk cancels d_k.
        for i in range(count):
            u_atoms[i], u_sums[i] = cross[i, k] / square, sum_products[k, i] / square
            u_from_atoms[i], u_from_sums[i] = 0.0, 0.0
        u_from_sums[k] = 1.0 / square
        for j in range(count):
            factor = -pairs[k, j] / square
            if j != k and factor != 0.0:
                for i in range(count):
                    u_atoms[i] += factor * atom_products[j, i]
                    u_sums[i] += factor * cross[j, i]
                    u_from_atoms[i] += factor * from_atoms[j, i]
                    u_from_sums[i] += factor * from_sums[j, i]
        norm = u_sums[k] / square
        for j in range(count):
            if j != k:
                norm -= pairs[k, j] / square * u_atoms[j]
        norm = np.sqrt(max(norm, 0.0))
        divisor = norm if is_new[k] and norm > 0.0 else max(norm, 1.0)
        for i in range(count):
            u_atoms[i] /= divisor
            from_atoms[k, i], from_sums[k, i] = u_from_atoms[i] / divisor, u_from_sums[i] / divisor
            cross[k, i] = u_sums[i] / divisor
        u_atoms[k] = (norm / divisor) ** 2
        for i in range(count):
            atom_products[k, i], atom_products[i, k] = u_atoms[i], u_atoms[i]


def encode(
    x: sp.csr_array, atoms: Float64s, gram: Float64s, penalty: float, positive: bool
) -> tuple[sp.csr_array, Float64s]:
    """Return the code of each row, and its loss, 1/2 |x - code D|^2 + penalty |code|_1.

    Args:
        x: the rows, float64, shape (n, columns), scaled so that squares of values do not overflow.
        atoms: the dictionary D, transposed, shape (columns, k).
        gram: the inner products of atoms, DD', shape (k, k).
        positive: whether codes must not be negative.
    """
    rows, count = x.shape[0], len(gram)
    losses, penalty = np.empty(rows), min(penalty, MAX_PENALTY)
    atoms, gram, indices, data = (readable(array) for array in (atoms, gram, x.indices, x.data))
    blocks, step = [], max(1, MAX_DENSE_VALUES // count)
    for begin in range(0, rows, step):
        end = min(begin + step, rows)
        block = np.zeros((end - begin, count))
        entries = readable(x.indptr[begin : end + 1]), indices, data
        code_rows(*entries, atoms, gram, penalty, positive, TOLERANCE, block, losses[begin:end])
        blocks.append(sp.csr_array(block))
    codes = sp.csr_array(sp.vstack(blocks, format="csr")) if blocks else sp.csr_array((0, count))
    return codes, losses


def update(
    pairs: Float64s, atom_products: Float64s, cross: Float64s, sum_products: Float64s, is_new: Mask
) -> tuple[Float64s, Float64s]:
    """Update a dictionary by block coordinate descent (Mairal et al., 2010, Algorithm 2), using only inner products.

    For codes A of rows X, with S = A'A and B = A'X, the dictionary D minimises 1/2 tr(D'SD) - tr(D'B). The step of atom
    k is u = d_k + (b_k - s_k D) / s_kk, d_k = u / max(1, |u|), where d_k, b_k and s_k are rows of D, B and S. Each
    new atom is a linear combination of old atoms and rows of B. So the driver needs only inner products, which
    are sums over features. The servers, which have the features, need only the coefficients of the linear combinations.

    Args:
        pairs, atom_products, cross, sum_products: S, DD', DB' and BB', float64, each of shape (k, k).
        is_new: a mask of the atoms that are replaced by their rows of B, scaled to norm 1.

    Returns:
        The coefficients of old atoms and of rows of B, each of shape (k, k); row i has those of the next atom i.
    """
    count, pairs = len(pairs), pairs.copy()
    pairs[is_new], pairs[:, is_new] = 0.0, 0.0
    pairs[is_new, is_new] = 1.0
    from_atoms, from_sums = np.eye(count), np.zeros((count, count))
    state = atom_products.copy(), cross.copy(), sum_products.copy()
    for _ in range(SWEEPS):
        sweep(pairs, is_new, *state, from_atoms, from_sums)
    return from_atoms, from_sums
