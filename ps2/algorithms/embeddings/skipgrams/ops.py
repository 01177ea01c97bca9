"""Operations of training where vectors are: each server has some columns of all of them, and draws negatives itself.

A table is the only row of its matrix. What a server has of it are the vectors' columns that are its own, word by word,
and then a number for each word that is no column: of the table of vectors and that of contexts together these are an
alias table, by which all servers draw the same negatives from the same key. So of a batch its tokens go to the servers,
the products of inputs and outputs come back, and their sums go there (paper, section 5.2.2); where one server has all
columns, its tokens alone.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ps2.algorithms.embeddings import drawing_kernels, training_kernels
from ps2.algorithms.embeddings import group_kernels as kernels
from ps2.errors import OutOfRangeError, ShapeError
from ps2.ops.guards import readable
from ps2.ops.kernels import Float64s, number_rows
from ps2.ops.operands import along
from ps2.ops.parallel import over_blocks
from ps2.ops.table import Array, Block, Range, Unsigned, Values, op

FLOAT = ("float32",)
# The curve of the loss of one pair, as ``damping`` has it, but so large that vectors cannot grow without bounds.
CURVE = 0.3
Some = Annotated[Unsigned, along("some")]
Count = Annotated[int, Range(at_least=1)]
Kind = Annotated[int, Range(at_least=0, below=4)]


class Local(NamedTuple):
    """What of two tables is here.

    Attributes:
        vectors, contexts: float32, shape (words, columns that are here).
        whole, others: of the alias table.
    """

    vectors: Array
    contexts: Array
    whole: npt.NDArray[np.uint32]
    others: npt.NDArray[np.int32]


class Batch(NamedTuple):
    """Sentences with all that is drawn for them: arguments of ``group_kernels.list_groups``."""

    tokens: Array
    offsets: Array
    windows: Array
    negatives: Array


@op(writes=("vectors", "contexts"), dtypes=FLOAT)
def put_aliases(vectors: Block, contexts: Block, whole: Some, others: Some, *, words: Count, begin: int) -> None:
    """Set a part of the alias table, of the words from one on.

    Raises:
        OutOfRangeError: there are not so many words.
    """
    here = _local(vectors, contexts, words)
    if not 0 <= begin <= begin + len(whole) <= words or (len(others) and others.max() >= words):
        raise OutOfRangeError(f"expected aliases of {words:,} words, got {len(whole):,} from {begin:,} on")
    here.whole[begin : begin + len(whole)] = whole
    here.others[begin : begin + len(whole)] = others


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
) -> Annotated[npt.NDArray[np.float32], along("", "")]:
    """Return what is here of the products of all inputs and outputs: a row for each input, with CBOW for each group.

    Args:
        tokens: of sentences, one after the other; offsets: where each begins, and the last one ends.
        words: how many there are.
        key: of all that is drawn.

    Raises:
        OutOfRangeError, ShapeError: a token is no word, or sentences are not as said.
    """
    here = _tables(vectors, contexts, words, kind)
    groups, count, used = _groups(_drawn(here, tokens, offsets, key, window, negative, kind), kind)
    found = np.empty((count if kind == kernels.CBOW else used, negative + 1), np.float32)
    numbers = readable(np.arange(count))
    cost = 2 * window * (1 + negative) * here.vectors.shape[1]
    over_blocks(kernels.find_products, (numbers,), here.vectors, here.contexts, groups, kind, found, cost=cost)
    return found


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
    """Learn from the sums of what all servers have found; arguments and errors as of ``find_products``.

    Args:
        workers: how many do so at once.
    """
    here = _tables(vectors, contexts, words, kind)
    groups, count, used = _groups(_drawn(here, tokens, offsets, key, window, negative, kind), kind)
    expected = (count if kind == kernels.CBOW else used, negative + 1)
    if products.shape != expected:
        raise ShapeError(f"products: expected shape {expected}, got {products.shape}")
    if not count:  # sentences of a word each have no pairs
        return
    by = np.array(products, np.float32)
    training_kernels.coefficients(by, len(by), by.shape[1], np.float32(rate))
    inputs, begins, outputs = groups
    words_in, input_rows = _distinct(inputs[:used])
    words_out, output_rows = _distinct(outputs[:count].reshape(-1))
    width = here.vectors.shape[1]
    tables = np.zeros((len(words_in), width), np.float32), np.zeros((len(words_out), width), np.float32)
    changes = *tables, np.zeros(len(words_in), np.int64), np.zeros(len(words_out), np.int64)
    rows = input_rows, begins, output_rows.reshape(count, -1)
    kernels.add_changes(here.vectors, here.contexts, groups, rows, count, kind, by, changes)
    # Of one table, either change is some of all that there is of a word.
    scale = CURVE * rate * workers * (2 if kind == kernels.EDGES_OF_ONE else 1)
    kernels.apply_changes(here.vectors, words_in, changes[0], changes[2], scale)
    kernels.apply_changes(here.contexts, words_out, changes[1], changes[3], scale)


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
) -> Annotated[Float64s, along(training_kernels.TOLD)]:
    """Train on sentences, where one server has all columns; arguments and errors as of ``find_products``.

    Returns:
        What ``training_kernels`` tells.
    """
    here = _tables(vectors, contexts, words, kind)
    batch = _drawn(here, tokens, offsets, key, window, negative, kind)
    begins, ends = readable(batch.offsets[:-1]), readable(batch.offsets[1:])
    tables, step = (here.vectors, here.contexts), np.float32(rate)
    told: Float64s
    if kind >= kernels.EDGES:
        is_one = kind == kernels.EDGES_OF_ONE
        told = training_kernels.train_edges(
            begins, ends, batch.tokens, batch.tokens, batch.negatives, *tables, step, is_one
        )
        return told
    train: Any = training_kernels.train_cbow if kind == kernels.CBOW else training_kernels.train_skipgram
    sharing = () if kind == kernels.CBOW else (2 * window,)
    given = begins, ends, batch.tokens, batch.tokens, batch.windows, batch.negatives, *tables, step, window
    told = train(*given, *sharing)
    return told


def _local(vectors: Array, contexts: Array, words: int) -> Local:
    """Return what of two tables is here."""
    width = vectors.shape[1] // words - 1
    if vectors.shape != contexts.shape or vectors.shape != (1, words * (width + 1)) or width < 1:
        raise ShapeError(f"expected two tables of {words:,} words, got shapes {vectors.shape} and {contexts.shape}")
    numbers = words * width
    own, others = vectors[0], contexts[0]
    return Local(
        own[:numbers].reshape(words, width),
        others[:numbers].reshape(words, width),
        own[numbers:].view(np.uint32),
        others[numbers:].view(np.int32),
    )


def _tables(vectors: Array, contexts: Array, words: int, kind: int) -> Local:
    """Return what of two tables is here; the contexts are the vectors, if the kind says so."""
    here = _local(vectors, contexts, words)
    return here._replace(contexts=here.vectors) if kind == kernels.EDGES_OF_ONE else here


def _drawn(here: Local, tokens: Array, offsets: Array, key: int, window: int, negative: int, kind: int) -> Batch:
    words, units = len(here.whole), 2 if kind >= kernels.EDGES else 1
    ends = offsets.astype(np.int64)
    if len(tokens) and tokens.max() >= words:
        raise OutOfRangeError(f"tokens: expected words below {words:,}, got {tokens.max():,}")
    if not len(ends) or ends[0] or ends[-1] != len(tokens) or (np.diff(ends) < 0).any():
        raise ShapeError(f"offsets: expected them to rise from 0 to {len(tokens):,}")
    if units == 2 and (np.diff(ends) != 2).any():
        raise ShapeError("offsets: expected sentences of two")
    drawn_by = np.uint64(key % 2**64)
    windows = np.empty(len(tokens) if units == 1 else 0, np.int32)
    drawing_kernels.draw_windows(drawn_by, window, windows)
    negatives = drawing_kernels.draw_negatives((len(tokens) // units, negative), drawn_by, here.whole, here.others)
    return Batch(readable(tokens.astype(np.int32)), readable(ends), readable(windows), readable(negatives))


def _distinct(words: Array) -> tuple[Array, Array]:
    """Return the distinct ones, and of each word which it is."""
    given = readable(words.astype(np.int64))
    distinct, numbers = np.empty_like(given, subok=False), np.empty(len(given), np.int64)
    cells = np.full(1 << (2 * len(given)).bit_length(), -1, np.int32)
    count = number_rows(given, distinct, numbers, cells)
    return distinct[:count], numbers.astype(np.int32)


def _groups(batch: Batch, kind: int) -> tuple[kernels.Groups, int, int]:
    """Return groups, how many there are, and how many inputs they have."""
    # A window may be larger than any sentence.
    lengths = np.diff(batch.offsets)
    pairs = min(2 * int(batch.windows.sum(dtype=np.int64)), int((lengths * (lengths - 1)).sum()))
    most = len(batch.tokens) // 2 if kind >= kernels.EDGES else pairs
    count = len(batch.negatives)
    groups = (
        np.empty(most, np.int32),
        np.empty(count + 1, np.int64),
        np.empty((count, batch.negatives.shape[1] + 1), np.int32),
    )
    count, used = kernels.list_groups(*batch, kind, groups)
    return groups, count, used
