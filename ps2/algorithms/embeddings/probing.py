"""What moving and computing cost here and now, for vectors of one size: measured on small tables of their own."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np

from ps2.algorithms.embeddings.costs import PASSES, Costs
from ps2.algorithms.embeddings.drawing import Draws
from ps2.algorithms.embeddings.problem import Recipe
from ps2.algorithms.embeddings.servers import arguments_of
from ps2.algorithms.embeddings.slices import Slices, put_aliases, row_of
from ps2.algorithms.embeddings.tables import Table, columns_of
from ps2.client.calibration import fastest

# Of the tables, at most; and multiply-adds to measure by.
MOST_BYTES = 4 << 20
MADDS = 1 << 27
SENTENCE = 40
BUDGET_S = 0.15
# What has no time is not nothing: the choice between two ways must not hang on it.
LEAST_S = 1e-13


def measure(recipe: Recipe, servers: int, piece: int) -> Costs:
    """Return what things cost between this process and the servers of the context, on one core.

    Args:
        piece: tokens of a request, or pair of requests, of "servers"; as many are measured, if they are not too many.

    Raises:
        LimitError: there is no room for even these tables.
    """
    words = max(2, min(recipe.vocabulary, MOST_BYTES // (4 * recipe.size)))
    rng = np.random.default_rng(recipe.seed)
    small = replace(recipe, vocabulary=words, sample=0.0)
    each = PASSES * recipe.size * (1 + recipe.negative) * (recipe.window + 1)
    # A word alone has no pairs: there would be nothing to measure.
    sentence = recipe.units if recipe.units > 1 else max(2, min(SENTENCE, piece))
    count = max(1, min(piece, MADDS // each) // sentence) * sentence
    tokens = rng.integers(0, words, count).astype(np.int32)
    offsets = np.arange(0, count + 1, sentence)
    draws = Draws.of(small, np.ones(words, np.int64))
    drawn = draws.draw((tokens, offsets), np.uint64(0))
    here = rng.random((2, words, recipe.size)).astype(np.float32) / recipe.size
    with ExitStack() as taken:
        table = Table(columns_of(small, None).matrix())
        taken.callback(table.free)
        slices: list[Slices] = []
        for _ in range(2):
            slices.append(Slices(small, row_of(small, servers, None).matrix()))
            taken.callback(slices[-1].free)
        put_aliases(slices[0], slices[1], draws.whole, draws.others)
        given = {"contexts": slices[1].matrix, **arguments_of(small, tokens, offsets, np.uint64(0))}
        learn = _learn_at_once if slices[0].parts == 1 else _learn_by_products
        products, moved = learn(slices[0], given)
        columns, none = np.arange(words), np.zeros((words, recipe.size), np.float32)
        probes = (
            lambda: table.pull(np.zeros(1, np.int64)),
            table.pull,
            lambda: table.matrix.add(columns=columns, values=none),
            lambda: learn(slices[0], given),
            lambda: drawn.train(here[0], here[-1 if recipe.tables == 2 else 0], 1e-9),
        )
        one_s, rows_s, added_s, there_s, here_s = fastest(probes, BUDGET_S)
        requests = 1 if slices[0].parts == 1 else 2
    madds = PASSES * (products or _expected_products(recipe, count)) * recipe.size
    byte_s = max(rows_s + added_s - 2 * one_s, 0.0) / (2 * none.nbytes)
    return Costs(
        latency_s=one_s,
        byte_s=byte_s,
        here_s=max(here_s / madds, LEAST_S),
        server_s=max((there_s - requests * one_s - moved * byte_s) / madds, LEAST_S),
    )


def _learn_at_once(slices: Slices, given: dict[str, Any]) -> tuple[int, int]:
    """Learn nothing by one request; return how many products it is of, or 0, and how many bytes have moved."""
    slices.matrix.apply("skipgrams.train_sentences", rate=0.0, **given)
    return 0, 0


def _learn_by_products(slices: Slices, given: dict[str, Any]) -> tuple[int, int]:
    """The same by two requests."""
    products = slices.matrix.apply("skipgrams.find_products", **given)
    slices.matrix.apply("skipgrams.learn_from_products", products=products, rate=0.0, workers=1, **given)
    return products.size, 2 * products.nbytes * slices.parts


def _expected_products(recipe: Recipe, tokens: int) -> float:
    inputs = {"skipgram": recipe.window + 1.0, "cbow": 1.0, "edges": 0.5}[recipe.architecture]
    return tokens * inputs * (1 + recipe.negative)
