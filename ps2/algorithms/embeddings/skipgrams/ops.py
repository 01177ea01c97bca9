"""Operations of the strategy "servers": each server has some columns of all vectors, and draws the negatives.

A table is the only row of its matrix. A server's slice of the row has its columns of all vectors, word by word, and
then an entry of the alias table for each word: the matrix of vectors has the thresholds, that of contexts the aliases.
For the same key, all servers draw the same negatives. A client sends a batch's tokens, gets partial dot products from
all servers, and sends their sums (PS2 paper, section 5.2.2). If one server has all columns, a client sends only tokens.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt

from ps2.algorithms.embeddings import batch_kernels as kernels
from ps2.algorithms.embeddings import sampling_kernels, training_kernels
from ps2.algorithms.embeddings.training_kernels import CBOW, EDGES, EDGES_ONE_TABLE
from ps2.errors import OutOfRangeError, ShapeError
from ps2.ops.guards import readable
from ps2.ops.kernels import Float64s, index_rows
from ps2.ops.operands import along
from ps2.ops.parallel import over_blocks
from ps2.ops.table import Array, Block, Range, Unsigned, Values, op

FLOAT = ("float32",)
# An upper bound of the curvature of a pair's loss. It is larger than ``damping.CURVE``, so that vectors stay bounded.
CURVE = 0.3
Entries = Annotated[Unsigned, along("some")]  # arrays of one length
Count = Annotated[int, Range(at_least=1)]
Kind = Annotated[int, Range(at_least=0, below=4)]


class Slices(NamedTuple):
    """This server's slices of both tables, float32, shape (words, columns of this server), and the alias table."""

    vectors: Array
    contexts: Array
    thresholds: npt.NDArray[np.uint32]
    aliases: npt.NDArray[np.int32]


class Batch(NamedTuple):
    """Sentences with windows and negatives: the arguments of ``batch_kernels.list_groups``."""

    tokens: Array
    offsets: Array
    windows: Array
    negatives: Array


@op(writes=("vectors", "contexts"), dtypes=FLOAT)
def put_aliases(
    vectors: Block, contexts: Block, thresholds: Entries, aliases: Entries, *, words: Count, begin: int
) -> None:
    """Set entries of the alias table from word ``begin`` on; raise OutOfRangeError if a word is out of range."""
    slices = _tables(vectors, contexts, words)
    if not 0 <= begin <= begin + len(thresholds) <= words or (len(aliases) and aliases.max() >= words):
        raise OutOfRangeError(f"expected aliases of {words:,} words, got {len(thresholds):,} from {begin:,} on")
    slices.thresholds[begin : begin + len(thresholds)] = thresholds
    slices.aliases[begin : begin + len(thresholds)] = aliases


@op(reduce="sum", dtypes=FLOAT)
def find_products(
    vectors: Block,
    contexts: Block,
    tokens: Unsigned,
    offsets: Unsigned,
    *,
    words: Count,
    key: int,
    window: Count,
    negative: Annotated[int, Range(at_least=0)],
    kind: Kind,
) -> Annotated[npt.NDArray[np.float32], along("", "")]:  # two axes of unknown lengths
    """Return the dot products of this server's columns: a row for each input; for CBOW, a row for each group.

    ``offsets`` are the bounds of the sentences; ``words`` is the size of the vocabulary. Raise OutOfRangeError or
    ShapeError for invalid arrays.
    """
    slices = _tables(vectors, contexts, words, kind)
    groups, count, num_inputs = _groups(_sample(slices, tokens, offsets, key, window, negative, kind), kind)
    products = np.empty((count if kind == CBOW else num_inputs, negative + 1), np.float32)
    group_indices = readable(np.arange(count))
    cost = 2 * window * (1 + negative) * slices.vectors.shape[1]
    over_blocks(
        kernels.find_products, (group_indices,), slices.vectors, slices.contexts, groups, kind, products, cost=cost
    )
    return products


@op(writes=("vectors", "contexts"), dtypes=FLOAT)
def learn_from_products(
    vectors: Block,
    contexts: Block,
    tokens: Unsigned,
    offsets: Unsigned,
    products: Annotated[Values, along("rows", "outputs")],
    *,
    words: Count,
    key: int,
    window: Count,
    negative: Annotated[int, Range(at_least=0)],
    kind: Kind,
    rate: float,
    workers: Count,
) -> None:
    """Update vectors by ``products``, summed over all servers, while ``workers`` workers do the same."""
    slices = _tables(vectors, contexts, words, kind)
    groups, count, num_inputs = _groups(_sample(slices, tokens, offsets, key, window, negative, kind), kind)
    expected = (count if kind == CBOW else num_inputs, negative + 1)
    if products.shape != expected:
        raise ShapeError(f"products: expected shape {expected}, got {products.shape}")
    if not count:  # sentences of one word have no pairs
        return
    coefficients = np.array(products, np.float32)
    training_kernels.to_coefficients(coefficients, len(coefficients), np.float32(rate))
    inputs, begins, outputs = groups
    words_in, input_rows = _distinct(inputs[:num_inputs])
    words_out, output_rows = _distinct(outputs[:count].reshape(-1))
    width = slices.vectors.shape[1]
    tables = np.zeros((len(words_in), width), np.float32), np.zeros((len(words_out), width), np.float32)
    changes = *tables, np.zeros(len(words_in), np.int64), np.zeros(len(words_out), np.int64)
    rows = input_rows, begins, output_rows.reshape(count, -1)
    kernels.add_changes(slices.vectors, slices.contexts, groups, rows, count, kind, coefficients, changes)
    # With one table, a word is updated both as an input and as an output.
    scale = CURVE * rate * workers * (2 if kind == EDGES_ONE_TABLE else 1)
    kernels.apply_changes(slices.vectors, words_in, changes[0], changes[2], scale)
    kernels.apply_changes(slices.contexts, words_out, changes[1], changes[3], scale)


@op(writes=("vectors", "contexts"), reduce="sum", dtypes=FLOAT)
def train_sentences(
    vectors: Block,
    contexts: Block,
    tokens: Unsigned,
    offsets: Unsigned,
    *,
    words: Count,
    key: int,
    window: Count,
    negative: Annotated[int, Range(at_least=0)],
    kind: Kind,
    rate: float,
) -> Annotated[Float64s, along(training_kernels.STATISTICS)]:
    """Train on sentences, on the only server with columns; return the statistics of ``training_kernels``."""
    slices = _tables(vectors, contexts, words, kind)
    batch = _sample(slices, tokens, offsets, key, window, negative, kind)
    begins, ends = readable(batch.offsets[:-1]), readable(batch.offsets[1:])
    kernel, options = training_kernels.kernel_of(kind, window, 2 * window)
    draws = training_kernels.Draws(batch.tokens, targets=batch.tokens, windows=batch.windows, negatives=batch.negatives)
    statistics: Float64s = kernel(begins, ends, draws, slices.vectors, slices.contexts, np.float32(rate), *options)
    return statistics


def _tables(vectors: Array, contexts: Array, words: int, kind: int = EDGES) -> Slices:
    """Return this server's slices; for edges with one table, contexts are the vectors."""
    width = vectors.shape[1] // words - 1
    if vectors.shape != contexts.shape or vectors.shape != (1, words * (width + 1)) or width < 1:
        raise ShapeError(f"expected two tables of {words:,} words, got shapes {vectors.shape} and {contexts.shape}")
    size = words * width
    first, second = (table[0, :size].reshape(words, width) for table in (vectors, contexts))
    thresholds, aliases = vectors[0, size:].view(np.uint32), contexts[0, size:].view(np.int32)
    return Slices(first, first if kind == EDGES_ONE_TABLE else second, thresholds, aliases)


def _sample(slices: Slices, tokens: Array, offsets: Array, key: int, window: int, negative: int, kind: int) -> Batch:
    """Check sentences, and draw their windows and negatives; ``key`` determines the draws."""
    words, tokens_per_draw = len(slices.thresholds), 2 if kind >= EDGES else 1
    ends = offsets.astype(np.int64)
    if len(tokens) and tokens.max() >= words:
        raise OutOfRangeError(f"tokens: expected words below {words:,}, got {tokens.max():,}")
    if not len(ends) or ends[0] or ends[-1] != len(tokens) or (np.diff(ends) < 0).any():
        raise ShapeError(f"offsets: expected ascending bounds from 0 to {len(tokens):,}")
    if tokens_per_draw == 2 and (np.diff(ends) != 2).any():
        raise ShapeError("offsets: expected edges: sentences of two tokens")
    batch_key = np.uint64(key % 2**64)
    windows = np.empty(len(tokens) if tokens_per_draw == 1 else 0, np.int32)
    sampling_kernels.draw_windows(batch_key, window, windows)
    negatives = sampling_kernels.draw_negatives(
        (len(tokens) // tokens_per_draw, negative), batch_key, slices.thresholds, slices.aliases
    )
    return Batch(readable(tokens.astype(np.int32)), readable(ends), readable(windows), readable(negatives))


def _distinct(words: Array) -> tuple[Array, Array]:
    """Return the distinct words, and the index of each word among them."""
    keys = readable(words.astype(np.int64))
    distinct, indices = np.empty_like(keys, subok=False), np.empty(len(keys), np.int64)
    cells = np.full(1 << (2 * len(keys)).bit_length(), -1, np.int32)
    count = index_rows(keys, distinct, indices, cells)
    return distinct[:count], indices.astype(np.int32)


def _groups(batch: Batch, kind: int) -> tuple[kernels.Groups, int, int]:
    """Return the groups (an output, its negatives and their inputs), their number, and the number of all inputs."""
    # An upper bound of the number of inputs. The windows can be larger than the sentences.
    lengths = np.diff(batch.offsets)
    pairs = min(2 * int(batch.windows.sum(dtype=np.int64)), int((lengths * (lengths - 1)).sum()))
    max_inputs = len(batch.tokens) // 2 if kind >= EDGES else pairs
    count = len(batch.negatives)
    groups = (
        np.empty(max_inputs, np.int32),
        np.empty(count + 1, np.int64),
        np.empty((count, batch.negatives.shape[1] + 1), np.int32),
    )
    count, num_inputs = kernels.list_groups(*batch, kind, groups)
    return groups, count, num_inputs
