"""Train groups (see ``training_kernels``) in two steps: compute all dot products of a batch, then apply all updates.

If each server has some columns of all vectors, a dot product is the sum of the servers' partial products. All dot
products of a batch are computed from the vectors before the batch. A frequent word has many updates in a batch, which
are all computed from the same vector. The sum of too many updates would overshoot the minimum of the word's loss. So
the sum of more than 1 / (rate * curvature) updates is scaled down to that many. A negative that equals the target is
not a pair, nor is a vertex with itself (``EDGES_ONE_TABLE``): their dot product is set to ``NO_PAIR`` for the target,
and to -``NO_PAIR`` for a negative, so the gradient is 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.embeddings.training_kernels import (
    CBOW,
    EDGES,
    EDGES_ONE_TABLE,
    ZERO,
    add_losses,
    add_to_inputs,
    add_to_outputs,
    add_to_rows,
    copy_outputs,
    list_inputs,
    products,
    take_mean,
)
from ps2.array_types import Float32s, Float64s, Int32s, Int64s
from ps2.ops.kernels import kernel, reduction

Array = npt.NDArray[Any]
# The inputs of all groups, the bounds of each group's inputs, and each group's outputs, shape (groups, 1 + negatives).
Groups = tuple[Int32s, Int64s, Int32s]

# The summed changes of vectors and of contexts, a row for each distinct word; the number of updates in each row.
Changes = tuple[Float32s, Float32s, Int64s, Int64s]

# A value so large that adding other servers' partial products does not matter.
NO_PAIR = np.float32(1e9)


@kernel
def list_groups(
    tokens: Int32s, offsets: Int64s, windows: Int32s, negatives: Int32s, kind: int, groups: Groups
) -> tuple[int, int]:
    """Fill ``groups`` with the groups of sentences; return the number of groups and the number of all inputs."""
    inputs, begins, outputs = groups
    count = num_inputs = 0
    for sentence in range(len(offsets) - 1):
        begin, end = offsets[sentence], offsets[sentence + 1]
        if kind >= EDGES:
            inputs[num_inputs] = tokens[begin]
            begins[count] = num_inputs
            outputs[count, 0] = tokens[begin + 1]
            outputs[count, 1:] = negatives[begin // 2]
            num_inputs += 1
            count += 1
            continue
        for token in range(begin, end):
            m = list_inputs(tokens, begin, end, token, windows[token], inputs[num_inputs:])
            if m:
                begins[count] = num_inputs
                outputs[count, 0] = tokens[token]
                outputs[count, 1:] = negatives[token]
                num_inputs += m
                count += 1
    begins[count] = num_inputs
    return count, num_inputs


@kernel
def find_products(
    group_indices: Int64s, vectors: Float32s, contexts: Float32s, groups: Groups, kind: int, dots: Float32s
) -> None:
    """Write the dot products of these groups to ``dots``: a row for each input; for CBOW, a row for each group."""
    inputs, begins, outputs = groups
    k = outputs.shape[1]
    old = np.empty((k, vectors.shape[1]), np.float32)
    mean, only_row = np.empty((1, vectors.shape[1]), np.float32), np.zeros(1, np.int32)
    for index in range(len(group_indices)):
        g = group_indices[index]
        copy_outputs(contexts, outputs[g], k, old)
        words = inputs[begins[g] : begins[g + 1]]
        if kind == CBOW:
            rows = dots[g : g + 1]
            take_mean(vectors, words, len(words), mean)
            products(mean, only_row, 1, old, k, rows)
        else:
            rows = dots[begins[g] : begins[g + 1]]
            products(vectors, words, len(words), old, k, rows)
        target, has_one_table = outputs[g, 0], kind == EDGES_ONE_TABLE
        is_loop = has_one_table and words[0] == target
        for i in range(len(rows)):
            for j in range(k):
                if is_loop or (j and outputs[g, j] == target) or (has_one_table and outputs[g, j] == words[0]):
                    rows[i, j] = -NO_PAIR if j else NO_PAIR


@kernel
def add_changes(
    vectors: Float32s,
    contexts: Float32s,
    groups: Groups,
    rows: Groups,
    count: int,
    kind: int,
    coefficients: Float32s,
    changes: Changes,
) -> None:
    """Add the updates of ``count`` groups to ``changes``.

    ``rows`` are the groups with rows of ``changes`` instead of words; ``coefficients``: g of each dot product.
    """
    inputs, begins, outputs = groups
    input_rows, _, output_rows = rows
    vector_changes, context_changes, vector_updates, context_updates = changes
    k = outputs.shape[1]
    old = np.empty((k, vectors.shape[1]), np.float32)
    mean, only_row = np.empty((1, vectors.shape[1]), np.float32), np.zeros(1, np.int32)
    for g in range(count):
        begin, end = begins[g], begins[g + 1]
        copy_outputs(contexts, outputs[g], k, old)
        words, word_rows = inputs[begin:end], input_rows[begin:end]
        if kind == CBOW:
            factors = coefficients[g : g + 1]
            take_mean(vectors, words, len(words), mean)
            add_to_outputs(context_changes, output_rows[g], k, mean, only_row, 1, factors)
            mean[:] = ZERO
            add_to_inputs(mean, only_row, 1, old, k, factors)
            add_to_rows(vector_changes, word_rows, len(words), mean[0])
        else:
            factors = coefficients[begin:end]
            add_to_outputs(context_changes, output_rows[g], k, vectors, words, len(words), factors)
            add_to_inputs(vector_changes, word_rows, len(words), old, k, factors)
        for i in range(len(words)):
            vector_updates[word_rows[i]] += k
        for j in range(k):
            context_updates[output_rows[g, j]] += len(factors)


@reduction
def apply_changes(table: Float32s, words: Int64s, changes: Float32s, updates: Int64s, scale: float) -> None:
    """Add changes to the vectors of words. An update moves a vector by about ``scale`` times its distance from the
    minimum. So a change that is the sum of more than 1 / ``scale`` updates is scaled down to that many."""
    for i in range(len(words)):
        factor = np.float32(1 / max(scale * updates[i], 1.0))
        row, change = table[words[i]], changes[i]
        for n in range(table.shape[1]):
            row[n] += factor * change[n]


@kernel
def add_batch_losses(dots: Float32s, statistics: Float64s) -> None:
    """Add the losses of dot products to the statistics (see ``training_kernels``)."""
    add_losses(dots, len(dots), dots.shape[1], statistics)
