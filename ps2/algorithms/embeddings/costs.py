"""Where vectors are learned in the least time: a model of costs. Pure (docs/decisions/0007).

Of a worker, per token (or edge), with S servers and W workers; see ``Work`` and ``Costs`` for the names:

    local    multiply-adds * here            + exchanged * byte * max(1, W/S) / tokens of a clock
    rows     multiply-adds * here            + moved     * byte * max(1, W/S) / tokens of a batch + latencies
    servers  multiply-adds * server * W      + products  * byte * max(S, W)                       + latencies

"local" moves whole tables, there and back, "rows" the distinct rows of a batch, there and back, and "servers" a number
for each product of an input and an output, there and back to each server; where one server has all columns, tokens
alone.
A server's link is shared by all workers, as its processor is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.embeddings.problem import Recipe, Via
from ps2.ops.kernels import Float64s, Int64s

WAYS: tuple[Via, ...] = ("local", "rows", "servers")
# Tables that are larger are not copied to workers, which have them twice.
LOCAL_BYTES = 512 << 20
# Of an input and an output: the product, and what either is changed by.
PASSES = 3


@dataclass(frozen=True)
class Costs:
    """What things cost between this process and the servers.

    Attributes:
        latency_s: a request to all servers at once that asks for next to nothing.
        byte_s: moving a byte of rows between here and all servers together, in the mean of there and back.
        here_s: a multiply-add here, with all that goes with it.
        server_s: one with all servers working together.
    """

    latency_s: float
    byte_s: float
    here_s: float
    server_s: float


@dataclass(frozen=True)
class Work:
    """What one token takes, in the mean.

    Attributes:
        pairs: inputs.
        outputs: of a group.
        size: of a vector.
        exchanged: bytes of tables that "local" moves for it.
        moved: bytes of rows that "rows" moves.
        piece: tokens of a request of "servers".
        batch: tokens of a request of "rows".
        token_bytes: of a token on its way to servers.
    """

    pairs: float
    outputs: int
    size: int
    exchanged: float
    moved: float
    piece: int
    batch: int
    token_bytes: int

    @property
    def madds(self) -> float:
        return PASSES * self.pairs * self.outputs * self.size


@dataclass(frozen=True)
class Scale:
    """How many there are.

    Attributes:
        parts: servers that columns are cut among.
        workers: that train.
    """

    parts: int
    workers: int


def work_of(recipe: Recipe, frequencies: Int64s, chances: Float64s, clock: int, batch: int, piece: int) -> Work:
    """Args:
    chances: of each word to be a negative.
    clock: tokens of a clock of "local".
    batch: tokens of a request of "rows".
    piece: tokens of a request of "servers".
    """
    pairs = {"skipgram": recipe.window + 1.0, "cbow": 1.0, "edges": 0.5}[recipe.architecture]
    shares = frequencies / max(frequencies.sum(), 1)
    drawn = batch // recipe.units
    inputs, negatives = _distinct(shares, drawn), _distinct(chances, drawn * recipe.negative)
    rows = float((1 - (1 - inputs) * (1 - negatives)).sum()) + (0 if recipe.shares_table else float(inputs.sum()))
    return Work(
        pairs,
        1 + recipe.negative,
        recipe.size,
        2 * recipe.tables * recipe.table_bytes / clock,
        2 * rows * recipe.size * 4 / batch,
        piece,
        batch,
        2 if recipe.vocabulary < 2**16 else 4,
    )


def seconds_of(work: Work, costs: Costs, scale: Scale, table_bytes: int) -> dict[str, float]:
    """Return what a token takes, by way; infinity if it cannot be.

    Args:
        table_bytes: of all tables.
    """
    crowded = max(1.0, scale.workers / scale.parts)
    here = work.madds * costs.here_s
    there = work.madds * costs.server_s * scale.workers
    if scale.parts == 1:
        servers = there + costs.latency_s / work.piece + work.token_bytes * costs.byte_s * crowded
    else:
        products = 2 * (4 * work.pairs * work.outputs + work.token_bytes)
        servers = there + products * costs.byte_s * max(scale.parts, scale.workers) + 2 * costs.latency_s / work.piece
    return {
        "local": here + work.exchanged * costs.byte_s * crowded if table_bytes <= LOCAL_BYTES else np.inf,
        "rows": here + work.moved * costs.byte_s * crowded + 2 * costs.latency_s / work.batch,
        "servers": servers,
    }


def _distinct(shares: npt.NDArray[Any], draws: int) -> Float64s:
    """Return the chance of each word to come among so many."""
    chances: Float64s = -np.expm1(-draws * shares)
    return chances
