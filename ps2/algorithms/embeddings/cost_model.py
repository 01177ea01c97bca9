"""A cost model of the training strategies: where to compute updates. Pure (docs/decisions/0007).

Cost for a worker, per token (or edge), with S servers and W workers; names are those of ``TokenWork`` and
``UnitCosts``:

    local    multiply-adds * here            + exchanged * byte * max(1, W/S) / tokens of a clock
    rows     multiply-adds * here            + moved     * byte * max(1, W/S) / tokens of a batch + latencies
    servers  multiply-adds * server * W      + products  * byte * max(S, W)                       + latencies

"local" moves whole tables both ways, "rows" the distinct rows of a batch both ways, and "servers" one number for each
dot product, to and from each server. If one server has all columns, "servers" moves tokens only. All workers share a
server's link and its processor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.embeddings.settings import EmbeddingPlan, Strategy
from ps2.ops.kernels import Float64s, Int64s

STRATEGIES: tuple[Strategy, ...] = ("local", "rows", "servers")
# Larger tables are not copied to workers, which would hold them twice.
LOCAL_BYTES = 512 << 20
# Each pair of input and output takes a dot product and two updates.
PASSES = 3


@dataclass(frozen=True)
class UnitCosts:
    """Measured costs between this process and the servers.

    Attributes:
        latency_s: a minimal request to all servers at once.
        byte_s: moving a byte between here and all servers together, mean of both directions.
        here_s: a multiply-add in this process, overhead included.
        server_s: a multiply-add on all servers together.
    """

    latency_s: float
    byte_s: float
    here_s: float
    server_s: float


@dataclass(frozen=True)
class TokenWork:
    """Mean work for one token.

    Attributes:
        pairs: inputs.
        outputs: of a group.
        size: of a vector.
        exchanged: bytes of tables that "local" moves.
        moved: bytes of rows that "rows" moves.
        piece: tokens of a request of "servers".
        batch: tokens of a request of "rows".
        token_bytes: encoded size of a token sent to servers.
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
class FleetSize:
    """Number of servers and workers.

    Attributes:
        parts: servers that hold columns.
        workers: that train.
    """

    parts: int
    workers: int


def work_per_token(
    plan: EmbeddingPlan, frequencies: Int64s, chances: Float64s, clock: int, batch: int, piece: int
) -> TokenWork:
    """Args:
    chances: probability of each word to be drawn as a negative.
    clock: tokens of a clock of "local".
    batch: tokens of a request of "rows".
    piece: tokens of a request of "servers".
    """
    pairs = plan.inputs_per_token
    shares = frequencies / max(frequencies.sum(), 1)
    drawn = batch // plan.tokens_per_example
    inputs, negatives = _distinct(shares, drawn), _distinct(chances, drawn * plan.settings.negative)
    rows = float((1 - (1 - inputs) * (1 - negatives)).sum()) + (0 if plan.shares_table else float(inputs.sum()))
    return TokenWork(
        pairs,
        1 + plan.settings.negative,
        plan.size,
        2 * plan.tables * plan.table_bytes / clock,
        2 * rows * plan.size * 4 / batch,
        piece,
        batch,
        2 if plan.vocabulary < 2**16 else 4,
    )


def seconds_per_token(work: TokenWork, costs: UnitCosts, scale: FleetSize, table_bytes: int) -> dict[str, float]:
    """Return the predicted seconds per token of each strategy; infinity if it is impossible.

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
    """Return the probability of each word to occur at least once in some draws."""
    chances: Float64s = -np.expm1(-draws * shares)
    return chances
