"""Groups (``training_kernels``) whose products are computed in one place, or in several, and then learned from.

Where each of several servers has some columns of all vectors, an input's product with an output is the sum of theirs.
So a batch takes two steps: the products of all its groups, with what vectors were before; then all that is learned
from these, at once. A frequent word has many updates in a batch, all from one beginning, and their sum would go beyond
where its gradient is 0, and further each time. So a sum is cut to what is safe: that of 1 / (rate * curve) updates.
A negative that is the word itself has a product of ``NOTHING``: nothing is learned from it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.embeddings.training_kernels import (
    ZERO,
    add_losses,
    add_to_inputs,
    add_to_outputs,
    list_inputs,
    products,
)
from ps2.ops.kernels import Float64s, Int64s, kernel, reduction

Int32s = npt.NDArray[np.int32]
Float32s = npt.NDArray[np.float32]
Array = npt.NDArray[Any]
# Inputs of all groups, where those of each begin and the last one's end, and outputs: shape (groups, 1 + negatives).
Groups = tuple[Int32s, Int64s, Int32s]

# By what vectors and contexts change, and how many updates that is of.
Changes = tuple[Float32s, Float32s, Int64s, Int64s]

SKIPGRAM, CBOW, EDGES, EDGES_OF_ONE = range(4)
# Large enough for any sum with other servers' parts.
NOTHING = np.float32(1e9)


@kernel
def list_groups(
    tokens: Int32s, offsets: Int64s, windows: Int32s, negatives: Int32s, kind: int, groups: Groups
) -> tuple[int, int]:
    """List groups of sentences; return how many there are, and how many inputs they have."""
    inputs, begins, outputs = groups
    count = used = 0
    for sentence in range(len(offsets) - 1):
        begin, end = offsets[sentence], offsets[sentence + 1]
        if kind >= EDGES:
            inputs[used] = tokens[begin]
            begins[count] = used
            outputs[count, 0] = tokens[begin + 1]
            outputs[count, 1:] = negatives[begin // 2]
            used += 1
            count += 1
            continue
        for at in range(begin, end):
            m = list_inputs(tokens, begin, end, at, windows[at], inputs[used:])
            if m:
                begins[count] = used
                outputs[count, 0] = tokens[at]
                outputs[count, 1:] = negatives[at]
                used += m
                count += 1
    begins[count] = used
    return count, used


@kernel
def take_mean(vectors: Float32s, inputs: Int32s, mean: Float32s) -> None:
    """Set the only row of ``mean`` to that of some vectors."""
    mean[:] = ZERO
    for i in range(len(inputs)):
        row = vectors[inputs[i]]
        for n in range(mean.shape[1]):
            mean[0, n] += row[n]
    for n in range(mean.shape[1]):
        mean[0, n] /= np.float32(len(inputs))


@kernel
def find_products(
    numbers: Int64s, vectors: Float32s, contexts: Float32s, groups: Groups, kind: int, found: Float32s
) -> None:
    """Find the products of the groups with some numbers, which are in order, one after the other.

    Args:
        found: shape (rows, outputs of a group): a row for each input, with CBOW for each group.
    """
    inputs, begins, outputs = groups
    k = outputs.shape[1]
    old = np.empty((k, vectors.shape[1]), np.float32)
    mean, only = np.empty((1, vectors.shape[1]), np.float32), np.zeros(1, np.int32)
    for at in range(len(numbers)):
        g = numbers[at]
        for j in range(k):
            row, to = contexts[outputs[g, j]], old[j]
            for n in range(old.shape[1]):
                to[n] = row[n]
        some = inputs[begins[g] : begins[g + 1]]
        if kind == CBOW:
            rows = found[g : g + 1]
            take_mean(vectors, some, mean)
            products(mean, only, 1, old, k, rows)
        else:
            rows = found[begins[g] : begins[g + 1]]
            products(vectors, some, len(some), old, k, rows)
        target = outputs[g, 0]
        itself = kind == EDGES_OF_ONE and some[0] == target
        for i in range(len(rows)):
            for j in range(k):
                if itself or (j and outputs[g, j] == target) or (kind == EDGES_OF_ONE and outputs[g, j] == some[0]):
                    rows[i, j] = -NOTHING if j else NOTHING


@kernel
def add_changes(
    vectors: Float32s,
    contexts: Float32s,
    groups: Groups,
    rows: Groups,
    count: int,
    kind: int,
    by: Float32s,
    changes: Changes,
) -> None:
    """Add up by what vectors and contexts are to change, without changing them.

    Args:
        rows: of ``changes``, in the place of words.
        by: coefficients, in the form of products.
    """
    inputs, begins, outputs = groups
    input_rows, _, output_rows = rows
    of_vectors, of_contexts, vector_updates, context_updates = changes
    k = outputs.shape[1]
    old = np.empty((k, vectors.shape[1]), np.float32)
    mean, only = np.empty((1, vectors.shape[1]), np.float32), np.zeros(1, np.int32)
    for g in range(count):
        begin, end = begins[g], begins[g + 1]
        for j in range(k):
            row, to = contexts[outputs[g, j]], old[j]
            for n in range(old.shape[1]):
                to[n] = row[n]
        some, some_rows = inputs[begin:end], input_rows[begin:end]
        if kind == CBOW:
            coefficients_of = by[g : g + 1]
            take_mean(vectors, some, mean)
            add_to_outputs(of_contexts, output_rows[g], k, mean, only, 1, coefficients_of)
            mean[:] = ZERO
            add_to_inputs(mean, only, 1, old, k, coefficients_of)
            for i in range(len(some)):
                row = of_vectors[some_rows[i]]
                for n in range(old.shape[1]):
                    row[n] += mean[0, n]
        else:
            coefficients_of = by[begin:end]
            add_to_outputs(of_contexts, output_rows[g], k, vectors, some, len(some), coefficients_of)
            add_to_inputs(of_vectors, some_rows, len(some), old, k, coefficients_of)
        for i in range(len(some)):
            vector_updates[some_rows[i]] += k
        for j in range(k):
            context_updates[output_rows[g, j]] += len(coefficients_of)


@reduction
def apply_changes(table: Float32s, words: Int64s, changes: Float32s, updates: Int64s, scale: float) -> None:
    """Add changes to vectors of words, each damped by how many updates it is of.

    Args:
        scale: of an update, how far it goes of the way to where the gradient is 0.
    """
    for i in range(len(words)):
        h = scale * updates[i]
        factor = np.float32(1 / max(h, 1.0))
        row, change = table[words[i]], changes[i]
        for n in range(table.shape[1]):
            row[n] += factor * change[n]


@kernel
def losses_of(found: Float32s, told: Float64s) -> None:
    """Add -log p of products to what ``training_kernels`` tells."""
    add_losses(found, len(found), found.shape[1], told)
