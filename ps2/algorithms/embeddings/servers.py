"""Strategy "servers": tokens go to the servers, and only dot products travel (paper, section 5.2.2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.embeddings.batch_kernels import CBOW, EDGES, EDGES_ONE_TABLE, SKIPGRAM, losses_of
from ps2.algorithms.embeddings.corpus import Batch, split
from ps2.algorithms.embeddings.settings import EmbeddingSettings
from ps2.algorithms.embeddings.sliced_table import SlicedTable
from ps2.algorithms.embeddings.training_kernels import LOSS_INTERVAL, PAIRS, STATISTICS
from ps2.algorithms.embeddings.worker_context import WorkerContext
from ps2.ops.guards import readable

KINDS = {"skipgram": SKIPGRAM, "cbow": CBOW}
# Limits of a pair of requests, whose dot products are all of the vectors before it: tokens; and updates of the most
# frequent word at a step size of 1. Beyond these, more tokens do not change it further.
PIECE_TOKENS, MAX_UPDATES, MIN_UPDATES = 1_000, 10.0, 1e-9
# Limit of a request's dot products.
MAX_BYTES = 8 << 20
# Difference between the keys of consecutive pieces.
NEXT_PIECE = np.uint64(0xD1342543DE82EF95)


def train_servers(context: WorkerContext) -> None:
    """Train all clocks: by one request a piece if one server has all columns, else by two."""
    vectors, contexts = context.tables.vectors, context.tables.contexts
    assert isinstance(vectors, SlicedTable)
    assert isinstance(contexts, SlicedTable)
    tokens = piece_tokens(context.settings, context.updates.most * context.workers, vectors.parts)
    train = _train_at_once if vectors.parts == 1 else _train_by_products
    for clock in context.clocks():
        for batch, key in context.sentences(clock):
            for tokens_of, offsets, piece_key in _pieces(batch, key, tokens):
                given = arguments_of(context.settings, tokens_of, offsets, piece_key)
                train(context, vectors, {"contexts": contexts.matrix, **given})


def piece_tokens(settings: EmbeddingSettings, updates: float, parts: int) -> int:
    """Return the tokens of a request (or pair of requests).

    Args:
        updates: of the most frequent word, for one token of each worker.
    """
    most = MAX_BYTES / (4 * settings.inputs_per_token * (1 + settings.negative))
    if parts > 1:
        most = min(most, PIECE_TOKENS, MAX_UPDATES / max(updates * settings.step_size, MIN_UPDATES))
    return max(int(most), 1)


def kind_of(settings: EmbeddingSettings) -> int:
    """Return the number of an architecture in ``batch_kernels``."""
    if settings.architecture == "edges":
        return EDGES_ONE_TABLE if settings.shares_table else EDGES
    return KINDS[settings.architecture]


def _pieces(batch: Batch, key: np.uint64, most: int) -> Iterator[tuple[Any, Any, np.uint64]]:
    tokens, offsets = batch
    for first, last in split(offsets, most):
        begin, end = offsets[first], offsets[last]
        yield tokens[begin:end], offsets[first : last + 1] - begin, key
        with np.errstate(over="ignore"):
            key = key + NEXT_PIECE


def arguments_of(settings: EmbeddingSettings, tokens: Any, offsets: Any, key: np.uint64) -> dict[str, Any]:
    """Return the arguments that all operations on a piece take."""
    return {
        "tokens": _narrow(tokens, settings.vocabulary),
        "offsets": _narrow(offsets, len(tokens)),
        "words": settings.vocabulary,
        "key": int(np.array(key).view(np.int64)),
        "window": settings.window,
        "negative": settings.negative,
        "kind": kind_of(settings),
    }


def _narrow(numbers: Any, most: int) -> npt.NDArray[Any]:
    return np.ascontiguousarray(numbers).astype(np.uint16 if most < 2**16 else np.uint32)


def _train_at_once(context: WorkerContext, vectors: SlicedTable, given: dict[str, Any]) -> None:
    statistics = vectors.matrix.apply("skipgrams.train_sentences", rate=context.rate, **given)
    context.report.add_statistics(statistics)
    context.report.bytes += given["tokens"].nbytes + given["offsets"].nbytes


def _train_by_products(context: WorkerContext, vectors: SlicedTable, given: dict[str, Any]) -> None:
    products = vectors.matrix.apply("skipgrams.find_products", **given)
    if not len(products):
        return
    vectors.matrix.apply(
        "skipgrams.learn_from_products",
        wait=False,
        products=products,
        rate=context.rate,
        workers=context.workers,
        **given,
    )
    statistics = np.zeros(STATISTICS)
    losses_of(readable(products[::LOSS_INTERVAL]), statistics)
    statistics[PAIRS] = len(products)
    each = 2 * products.nbytes + 2 * (given["tokens"].nbytes + given["offsets"].nbytes)
    context.report.add_statistics(statistics)
    context.report.bytes += each * vectors.parts
