"""What moving and computing cost here and now, for vectors of one size: measured on small tables of their own."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import numpy as np

from ps2.algorithms.embeddings.costs import PASSES, Costs
from ps2.algorithms.embeddings.drawing import Draws
from ps2.algorithms.embeddings.problem import Recipe
from ps2.algorithms.embeddings.servers import arguments_of
from ps2.algorithms.embeddings.slices import Slices, put_aliases, row_of
from ps2.algorithms.embeddings.tables import Table, columns_of

# Of the tables, at most; and multiply-adds to measure by.
MOST_BYTES = 4 << 20
MADDS = 1 << 24
SENTENCE = 40
LEAST_ROUNDS, MOST_ROUNDS, BUDGET_S = 3, 9, 0.15
# What has no time is not nothing: the choice between two ways must not hang on it.
LEAST_S = 1e-13


def measure(recipe: Recipe, servers: int) -> Costs:
    """Return what things cost between this process and the servers of the context, on one core.

    Raises:
        LimitError: there is no room for even these tables.
    """
    words = max(2, min(recipe.vocabulary, MOST_BYTES // (4 * recipe.size)))
    rng = np.random.default_rng(recipe.seed)
    small = replace(recipe, vocabulary=words, sample=0.0)
    each = PASSES * recipe.size * (1 + recipe.negative) * (recipe.window + 1)
    count = max(SENTENCE, MADDS // each // SENTENCE * SENTENCE)
    tokens = rng.integers(0, words, count).astype(np.int32)
    offsets = np.arange(0, count + 1, 2 if recipe.architecture == "edges" else SENTENCE)
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
        one_s, rows_s, products_s, here_s = _fastest(
            lambda: table.pull(np.zeros(1, np.int64)),
            table.pull,
            lambda: slices[0].matrix.apply("skipgrams.find_products", **given),
            lambda: drawn.train(here[0], here[-1 if recipe.tables == 2 else 0], 1e-9),
        )
        parts = slices[0].parts
    products = len(tokens) / recipe.units if recipe.architecture != "skipgram" else len(tokens) * (recipe.window + 1)
    madds = products * (1 + recipe.negative) * recipe.size
    byte_s = max(rows_s - one_s, 0.0) / (4 * words * recipe.size)
    moved = 4 * products * (1 + recipe.negative) * parts
    return Costs(
        latency_s=one_s,
        byte_s=byte_s,
        here_s=max(here_s / (PASSES * madds), LEAST_S),
        server_s=max((products_s - one_s - moved * byte_s) / madds, LEAST_S),
    )


def _fastest(*probes: Callable[[], object]) -> list[float]:
    """Return the least time of each of several rounds, in seconds."""
    for probe in probes:  # the first time, connections are made and kernels loaded
        probe()
    rounds: list[list[float]] = []
    end_s = time.perf_counter() + BUDGET_S
    while len(rounds) < LEAST_ROUNDS or (len(rounds) < MOST_ROUNDS and time.perf_counter() < end_s):
        rounds.append([_seconds(probe) for probe in probes])
    return [min(times) for times in zip(*rounds, strict=True)]


def _seconds(probe: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    probe()
    return time.perf_counter() - began_s
