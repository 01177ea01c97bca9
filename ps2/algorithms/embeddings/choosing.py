"""Which way a training goes that is to choose itself, and why."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np

from ps2.algorithms.embeddings.costs import WAYS, Scale, seconds_of, work_of
from ps2.algorithms.embeddings.damping import Updates
from ps2.algorithms.embeddings.drawing import Draws
from ps2.algorithms.embeddings.probing import measure
from ps2.algorithms.embeddings.problem import Recipe
from ps2.algorithms.embeddings.rows import batch_tokens
from ps2.algorithms.embeddings.schedule import clock_tokens
from ps2.algorithms.embeddings.servers import piece_tokens
from ps2.ops.kernels import Float64s, Int64s

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """A way, and what it was chosen by.

    Attributes:
        seconds: float64: of each of ``costs.WAYS``, what a token should take a worker; nothing if it was not asked.
    """

    seconds: Float64s

    def of(self, recipe: Recipe) -> tuple[Recipe, str]:
        """Return a recipe that says where it is computed, and why."""
        if not len(self.seconds):
            return recipe, f"by {recipe.via!r}, as was asked for"
        by_way = dict(zip(WAYS, self.seconds.tolist(), strict=True))
        way = min(WAYS, key=lambda name: by_way[name])
        told = ", ".join(
            f"{name!r} {1e6 * s:.3g}" if np.isfinite(s) else f"{name!r} has no room" for name, s in by_way.items()
        )
        return replace(
            recipe, via=way
        ), f"by {way!r}, which was chosen by microseconds that a token should take: {told}"


def choose(recipe: Recipe, frequencies: Int64s, servers: int, workers: int, threads: int) -> Choice:
    """Predict what each way takes, if the recipe leaves it open, by costs that are measured now.

    Args:
        threads: of each worker.

    Raises:
        LimitError: the servers have no room.
    """
    if recipe.via != "auto":
        return Choice(np.empty(0))
    draws = Draws.of(recipe, frequencies)
    parts = min(servers, recipe.size)
    updates = Updates.of(recipe, frequencies, draws.chances).most
    piece = piece_tokens(recipe, updates * workers, parts)
    clock = clock_tokens(replace(recipe, via="local"), workers)
    work = work_of(recipe, frequencies, draws.chances, clock, batch_tokens(recipe), piece)
    costs = measure(recipe, servers, piece)
    # Probed with one thread.
    costs = replace(costs, here_s=costs.here_s / threads)
    by_way = seconds_of(work, costs, Scale(parts, workers), recipe.tables * recipe.table_bytes)
    log.info("costs %s, work %s: seconds a token %s", costs, work, by_way)
    return Choice(np.array([by_way[name] for name in WAYS]))
