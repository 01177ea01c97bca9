"""Kernels of sparse coding: the code of each row, sums of rows by code, and the descent of the dictionary.

A code depends on the row and the dictionary only: all loops have one order, and the descent begins at 0. So it does not
matter which worker has a row, or whether the worker has seen it before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.array_types import Float64s, Int32s, Int64s
from ps2.ops.kernels import inline, kernel

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

# Sweeps over all atoms, and over the atoms in use between two of these, at most.
SWEEPS, INNER_SWEEPS = 100, 200


@inline
def correlate(columns: Int32s, values: Float64s, atoms: Array, found: Float64s) -> float:
    """Write the inner product of a sparse row and each atom; return the row's squared length."""
    count = found.size
    found[:] = 0.0
    square, p, end = 0.0, 0, values.size
    while p + 3 < end:
        a, b, c, d = values[p], values[p + 1], values[p + 2], values[p + 3]
        of_a, of_b, of_c, of_d = atoms[columns[p]], atoms[columns[p + 1]], atoms[columns[p + 2]], atoms[columns[p + 3]]
        for k in range(count):
            found[k] += (a * of_a[k] + b * of_b[k]) + (c * of_c[k] + d * of_d[k])
        square += (a * a + b * b) + (c * c + d * d)
        p += 4
    while p < end:
        a, of_a = values[p], atoms[columns[p]]
        for k in range(count):
            found[k] += a * of_a[k]
        square += a * a
        p += 1
    return square


@inline
def _shrunk(value: float, penalty: float, positive: bool) -> float:
    """Return the value less the penalty, towards 0: the soft threshold."""
    if value > penalty:
        return value - penalty
    if value < -penalty and not positive:
        return value + penalty
    return 0.0


@inline
def _descend_used(
    used: Int64s, count: int, gram: Array, penalty: float, positive: bool, limit: float, code: Float64s, slope: Float64s
) -> None:
    """Descend along the atoms in use, until none moves further than the limit; ``slope`` is right at these alone."""
    some = np.empty((count, count))
    at, slopes = np.empty(count), np.empty(count)
    for i in range(count):
        at[i], slopes[i] = code[used[i]], slope[used[i]]
        for j in range(count):
            some[i, j] = gram[used[i], used[j]]
    for _ in range(INNER_SWEEPS):
        furthest = 0.0
        for i in range(count):
            square = some[i, i]
            new = _shrunk(slopes[i] + square * at[i], penalty, positive) / square
            change = new - at[i]
            if change != 0.0:
                at[i] = new
                for j in range(count):
                    slopes[j] -= some[i, j] * change
                furthest = max(furthest, abs(change) * np.sqrt(square))
        if furthest <= limit:
            break
    for i in range(count):
        change = at[i] - code[used[i]]
        if change != 0.0:
            code[used[i]] = at[i]
            of_atom = gram[used[i]]
            for k in range(slope.size):
                slope[k] -= of_atom[k] * change


@inline
def descend(
    gram: Array, penalty: float, positive: bool, limit: float, code: Float64s, slope: Float64s, used: Int64s
) -> None:
    """Find the code of a row by coordinate descent: it minimises 1/2 |x - code D|^2 + penalty |code|_1.

    Sweeps over all atoms alternate with a descent along those in use.

    Args:
        gram: inner products of atoms.
        limit: the descent ends when no coordinate, times its atom's length, moves further in a sweep.
        code: zeros; written.
        slope: inner products of the row and the atoms; afterwards those of the code's residual and the atoms.
    """
    for _ in range(SWEEPS):
        furthest, count = 0.0, 0
        for k in range(code.size):
            square = gram[k, k]
            if square > 0.0:
                new = _shrunk(slope[k] + square * code[k], penalty, positive) / square
                change = new - code[k]
                if change != 0.0:
                    code[k] = new
                    of_atom = gram[k]
                    for j in range(slope.size):
                        slope[j] -= of_atom[j] * change
                    furthest = max(furthest, abs(change) * np.sqrt(square))
                if new != 0.0:
                    used[count] = k
                    count += 1
        if furthest <= limit:
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
    """Find the code of each row, and its loss, 1/2 |x - code D|^2 + penalty |code|_1.

    Args:
        atoms: shape (columns, atoms).
        tolerance: the largest last move of a coordinate, as a share of the row's length.
        codes: zeros, shape (n, atoms); written.
    """
    count = codes.shape[1]
    slope, products, used = np.empty(count), np.empty(count), np.empty(count, np.int64)
    for i in range(len(indptr) - 1):
        begin, end = indptr[i], indptr[i + 1]
        square = correlate(indices[begin:end], data[begin:end], atoms, products)
        slope[:] = products
        descend(gram, penalty, positive, tolerance * np.sqrt(square), codes[i], slope, used)
        fit, size = 0.0, 0.0
        for k in range(count):
            fit += codes[i, k] * (products[k] + slope[k])
            size += abs(codes[i, k])
        losses[i] = 0.5 * max(square - fit, 0.0) + penalty * size


@kernel
def add_sums(
    indptr: Int32s,
    indices: Int32s,
    data: Array,
    starts: Int64s,
    atoms: Int64s,
    codes: Float64s,
    unit: float,
    pairs: Float64s,
    of_codes: float,
    sums: Float64s,
) -> None:
    """Add products of codes, and of rows and codes, in whole numbers: sums of these are exact in any order.

    Args:
        starts, atoms, codes: the codes of the rows, row by row: below 1 in size.
        unit: the factor of a row's values before they are rounded.
        pairs: shape (atoms, atoms): products of codes times ``of_codes``; changed.
        sums: shape (columns, atoms): products of rows and codes; changed.
    """
    count = pairs.shape[0]
    code = np.zeros(count)
    for i in range(len(indptr) - 1):
        begin, end = starts[i], starts[i + 1]
        if begin == end:
            continue
        for p in range(begin, end):
            code[atoms[p]] = codes[p]
            of_atom, value = pairs[atoms[p]], codes[p] * of_codes
            for q in range(begin, end):
                of_atom[atoms[q]] += np.rint(value * codes[q])
        # A loop over all atoms runs in SIMD instructions, one over the code's own does not.
        is_dense = 4 * (end - begin) > count
        for p in range(indptr[i], indptr[i + 1]):
            value, of_feature = data[p] * unit, sums[indices[p]]
            if is_dense:
                for k in range(count):
                    of_feature[k] += np.rint(value * code[k])
            else:
                for q in range(begin, end):
                    of_feature[atoms[q]] += np.rint(value * codes[q])
        for p in range(begin, end):
            code[atoms[p]] = 0.0


@kernel
def sweep(
    pairs: Float64s,
    fresh: Mask,
    atoms: Float64s,
    cross: Float64s,
    sums: Float64s,
    of_atoms: Float64s,
    of_sums: Float64s,
) -> None:
    """Move each atom to its minimum by the others (``descent.update``), and products and coefficients with it.

    ``atoms``, ``cross``, and the atoms' coefficients ``of_atoms`` and ``of_sums`` are changed.
    """
    count = len(pairs)
    with_atoms, with_sums, one, other = np.empty(count), np.empty(count), np.empty(count), np.empty(count)
    for k in range(count):
        square = pairs[k, k]
        if square <= 0.0:
            continue
        # Inner products of u with atoms and sums, and its coefficients: d_k itself cancels out.
        for i in range(count):
            with_atoms[i], with_sums[i] = cross[i, k] / square, sums[k, i] / square
            one[i], other[i] = 0.0, 0.0
        other[k] = 1.0 / square
        for j in range(count):
            share = -pairs[k, j] / square
            if j != k and share != 0.0:
                for i in range(count):
                    with_atoms[i] += share * atoms[j, i]
                    with_sums[i] += share * cross[j, i]
                    one[i] += share * of_atoms[j, i]
                    other[i] += share * of_sums[j, i]
        length = with_sums[k] / square
        for j in range(count):
            if j != k:
                length -= pairs[k, j] / square * with_atoms[j]
        length = np.sqrt(max(length, 0.0))
        divisor = length if fresh[k] and length > 0.0 else max(length, 1.0)
        for i in range(count):
            with_atoms[i] /= divisor
            of_atoms[k, i], of_sums[k, i] = one[i] / divisor, other[i] / divisor
            cross[k, i] = with_sums[i] / divisor
        with_atoms[k] = (length / divisor) ** 2
        for i in range(count):
            atoms[k, i], atoms[i, k] = with_atoms[i], with_atoms[i]
