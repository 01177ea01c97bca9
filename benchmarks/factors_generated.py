"""Generated ratings with power laws: ratings a second of a fit, against the same steps in one process."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from benchmarks.factors_part import WORKERS, Array, Asked, Ratings, fit, spark_and_servers
from benchmarks.frame import Part, answer, tell
from benchmarks.trees_part import Score
from ps2.algorithms.factors.dealing import Deal
from ps2.algorithms.factors.grid import ordered
from ps2.algorithms.factors.options import FactorOptions
from ps2.algorithms.factors.sgd import BlockDescent, SgdSettings
from ps2.algorithms.factors.sgd_kernels import draw_rows

# Users and items for each rating.
USERS, ITEMS = 1 / 40, 1 / 200
PLANTED, RANK, ITERATIONS = 8, 64, 5
# Shares of the first users and items fall with these powers of their number.
USER_POWER, ITEM_POWER = 2, 3
GOAL = 0.85
OPTIONS = FactorOptions(rank=RANK, reg=0.05, iterations=ITERATIONS, save_interval=0)


def generate(count: int) -> Ratings:
    """Generate ratings of planted vectors, with noise."""
    rng = np.random.default_rng(0)
    many, items = int(count * USERS), int(count * ITEMS)
    u = (many * rng.random(count) ** USER_POWER).astype(np.int64)
    i = (items * rng.random(count) ** ITEM_POWER).astype(np.int64)
    p, q = (rng.normal(size=(n, PLANTED)).astype(np.float32) for n in (many, items))
    values = np.empty(count)
    for begin in range(0, count, 1 << 20):
        some = slice(begin, begin + (1 << 20))
        values[some] = np.einsum("nk,nk->n", p[u[some]], q[i[some]])
    return Ratings(u, i, values + rng.normal(size=count), np.zeros(count, np.bool_))


def bare(ratings: Ratings) -> Array:
    """Return the seconds of each iteration in one process: a thread a worker, and arrays for servers."""
    count, settings = len(ratings.users), SgdSettings(OPTIONS, 1.0)
    deal = Deal.of_counts(np.bincount(ratings.users), np.bincount(ratings.items), WORKERS, 1, 4 * settings.width)
    layout = deal.layout
    users, items = (np.empty((n, settings.width), np.float32) for n in (layout.users, layout.items))
    for rows, seed in ((users, 1), (items, 2)):
        draw_rows(np.arange(len(rows)), np.uint64(seed), RANK, -0.05, 0.05, rows)
    places = deal.user_places[ratings.users], deal.item_places[ratings.items]
    descents = []
    for rank in range(WORKERS):
        begin, end = (int(bound) for bound in layout.users_of(rank)[[0, -1]])
        mine = (places[0] >= begin) & (places[0] < end)
        values = ratings.values[mine].astype(np.float32)
        given = (places[0][mine] - np.int32(begin), places[1][mine], values, np.empty(0, np.float32))
        descents.append(BlockDescent(ordered(layout, (begin, end - begin), given), settings, rank, users[begin:end]))
    seconds = []

    def take(rank: int, block: int, iteration: int) -> None:
        bounds = layout.items_of(block)
        for piece in descents[rank].ordered(block, iteration):
            descents[rank].take(block, piece, iteration, items[bounds[0] : bounds[-1]], None)

    with ThreadPoolExecutor(WORKERS) as threads:
        for iteration in range(1, ITERATIONS + 1):
            began_s = time.monotonic()
            turns = np.stack([layout.ring.turns_of(0, iteration, rank) for rank in range(WORKERS)], axis=1)
            for turn in turns.tolist():
                list(threads.map(take, range(WORKERS), turn, [iteration] * WORKERS))
            seconds.append(time.monotonic() - began_s)
    tell(f"bare: {count / seconds[-1] / 1e6:.1f} M ratings/s")
    return np.array(seconds)


def measure(asked: Asked) -> Part:
    ratings = generate(asked.ratings)
    alone: list[float] = []
    fits: list[float] = []
    whole: list[float] = []
    with spark_and_servers(asked, "generated") as (spark, ps):
        frame = ratings.frame(spark)
        for _ in range(asked.rounds):
            # The first iteration learns the first numbers only.
            alone.append(float(np.median(bare(ratings)[1:])))
            found, seconds = fit(ps, frame, OPTIONS)
            fits.append(float(np.median(found.history.seconds[1:-1])))
            whole.append(seconds)
            tell(f"fit: {asked.ratings / fits[-1] / 1e6:.1f} M ratings/s, {seconds:.1f} s in all")
    rates = [asked.ratings / float(np.median(seconds)) / 1e6 for seconds in (alone, fits)]
    line = Score(f"M ratings/s, rank {RANK}", "the bare kernel", "M/s", GOAL * rates[0], rates[0], rates[1])
    sizes = [{"s of fit": f"{float(np.median(whole)):.1f}", "iterations": ITERATIONS}]
    return Part([line], facts={"ratings": f"{asked.ratings:,}", "workers": WORKERS}, sizes=sizes)


if __name__ == "__main__":
    answer(Asked, measure)
