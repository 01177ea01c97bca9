"""Training where vectors are: tokens go to the servers, and products of vectors come and go (paper, section 5.2.2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.embeddings.corpus import Batch
from ps2.algorithms.embeddings.group_kernels import CBOW, EDGES, EDGES_OF_ONE, SKIPGRAM, losses_of
from ps2.algorithms.embeddings.part import Part
from ps2.algorithms.embeddings.problem import Recipe
from ps2.algorithms.embeddings.slices import Slices
from ps2.algorithms.embeddings.training_kernels import LOSS_EVERY, PAIRS, TOLD
from ps2.ops.guards import readable

KINDS = {"skipgram": SKIPGRAM, "cbow": CBOW}
# Of a pair of requests, where all products are of what vectors were before: tokens at most, and updates of the most
# frequent word, at a step size of 1: beyond that, more tokens change it no more.
PIECE_TOKENS, MOST_UPDATES, LEAST_UPDATES = 1_000, 10.0, 1e-9
# What the products of a request take at most.
MOST_BYTES = 8 << 20
# Between the keys of pieces of one batch.
NEXT_PIECE = np.uint64(0xD1342543DE82EF95)


def train_servers(part: Part) -> None:
    """Train all clocks: where one server has all columns by one request for a piece of a batch, else by two."""
    vectors, contexts = part.fleet.vectors, part.fleet.contexts
    assert isinstance(vectors, Slices)
    assert isinstance(contexts, Slices)
    tokens = piece_tokens(part.recipe, part.updates.most * part.workers, vectors.parts)
    train = _train_at_once if vectors.parts == 1 else _train_by_products
    for clock in part.clocks():
        for batch, key in part.sentences(clock):
            for tokens_of, offsets, piece_key in _pieces(batch, key, tokens):
                given = arguments_of(part.recipe, tokens_of, offsets, piece_key)
                train(part, vectors, {"contexts": contexts.matrix, **given})


def piece_tokens(recipe: Recipe, updates: float, parts: int) -> int:
    """Return on how many tokens a worker trains by one request, or pair of requests.

    Args:
        updates: of the most frequent word, for one token of each worker.
    """
    rows = {"skipgram": recipe.window + 1.0, "cbow": 1.0, "edges": 0.5}[recipe.architecture]
    most = MOST_BYTES / (4 * rows * (1 + recipe.negative))
    if parts > 1:
        most = min(most, PIECE_TOKENS, MOST_UPDATES / max(updates * recipe.step_size, LEAST_UPDATES))
    return max(int(most), 1)


def kind_of(recipe: Recipe) -> int:
    """Return the number of an architecture in ``group_kernels``."""
    if recipe.architecture == "edges":
        return EDGES_OF_ONE if recipe.shares_table else EDGES
    return KINDS[recipe.architecture]


def _pieces(batch: Batch, key: np.uint64, most: int) -> Iterator[tuple[Any, Any, np.uint64]]:
    tokens, offsets = batch
    first = 0
    while first < len(offsets) - 1:
        last = int(np.searchsorted(offsets, offsets[first] + most, side="right")) - 1
        last = max(last, first + 1)
        begin, end = int(offsets[first]), int(offsets[last])
        yield tokens[begin:end], offsets[first : last + 1] - begin, key
        first = last
        with np.errstate(over="ignore"):
            key = key + NEXT_PIECE


def arguments_of(recipe: Recipe, tokens: Any, offsets: Any, key: np.uint64) -> dict[str, Any]:
    """Return the arguments that all operations of a piece have."""
    return {
        "tokens": _narrow(tokens, recipe.vocabulary),
        "offsets": _narrow(offsets, len(tokens)),
        "words": recipe.vocabulary,
        "key": int(np.array(key).view(np.int64)),
        "window": recipe.window,
        "negative": recipe.negative,
        "kind": kind_of(recipe),
    }


def _narrow(numbers: Any, most: int) -> npt.NDArray[Any]:
    return np.ascontiguousarray(numbers).astype(np.uint16 if most < 2**16 else np.uint32)


def _train_at_once(part: Part, vectors: Slices, given: dict[str, Any]) -> None:
    told = vectors.matrix.apply("skipgrams.train_sentences", rate=part.rate, **given)
    part.tell(told, given["tokens"].nbytes + given["offsets"].nbytes)


def _train_by_products(part: Part, vectors: Slices, given: dict[str, Any]) -> None:
    products = vectors.matrix.apply("skipgrams.find_products", **given)
    if not len(products):
        return
    vectors.matrix.apply(
        "skipgrams.learn_from_products", wait=False, products=products, rate=part.rate, workers=part.workers, **given
    )
    told = np.zeros(TOLD)
    losses_of(readable(products[::LOSS_EVERY]), told)
    told[PAIRS] = len(products)
    each = 2 * products.nbytes + 2 * (given["tokens"].nbytes + given["offsets"].nbytes)
    part.tell(told, each * vectors.parts)
