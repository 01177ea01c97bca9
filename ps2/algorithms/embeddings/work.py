"""The work of a training: whether it fits, and the work of a token (or edge) by each strategy, of which one is chosen.

Pure (docs/decisions/0007).

Cost for a worker, per token, with S servers and W workers; names are those of ``TokenWork`` and ``UnitCosts``:

    local    multiply-adds * local           + exchanged * byte * max(1, W/S) / tokens of a clock
    rows     multiply-adds * local           + moved     * byte * max(1, W/S) / tokens of a batch + latencies
    servers  multiply-adds * server * W      + products  * byte * max(S, W)                       + latencies

"local" moves whole tables both ways, "rows" the distinct rows of a batch both ways, and "servers" one number for each
dot product, to and from each server. If one server has all columns, "servers" moves tokens only. All workers share a
server's link and its processor.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.embeddings.plan import EmbeddingPlan
from ps2.algorithms.embeddings.sentences import BATCH_TOKENS
from ps2.algorithms.embeddings.settings import WalkSettings
from ps2.algorithms.frame.memory import check_driver
from ps2.algorithms.frame.placement import fastest
from ps2.algorithms.training.record import Via
from ps2.errors import LimitError
from ps2.ops.kernels import Float64s, Int64s

STRATEGIES: tuple[Via, ...] = ("local", "rows", "servers")
# Larger tables are not copied to workers, which would hold them twice.
LOCAL_BYTES = 512 << 20
# Each pair of input and output takes a dot product and two updates.
PASSES = 3

NUMBER_BYTES = 4
# The limit of the random numbers of a worker's batch, and of the work on one word and its contexts.
MAX_BATCH_BYTES = 4 << 30
# The bytes of a vertex in a walk; the limit of a walk.
VERTEX_BYTES, MAX_WALK_BYTES = 8, 1 << 30
MAX_TOKENS = 1 << 60
# A warning tells of more work: multiplications for one word; steps from one vertex.
USUAL_PRODUCTS, USUAL_STEPS = 10**7, 10**7


@dataclass(frozen=True)
class UnitCosts:
    """Measured costs between this process and the servers.

    Attributes:
        latency_s: the time of a minimal request to all servers at once.
        byte_s: the time to move a byte between this process and all servers together, mean of both directions.
        local_s: the time of a multiply-add in this process, overhead included.
        server_s: the time of a multiply-add on all servers together.
    """

    latency_s: float
    byte_s: float
    local_s: float
    server_s: float


@dataclass(frozen=True)
class TokenWork:
    """The mean work of one token.

    Attributes:
        pairs: the number of inputs.
        outputs: the number of outputs of each input.
        size: the size of a vector.
        exchanged: the bytes of tables that "local" moves.
        moved: the bytes of rows that "rows" moves.
        piece: the number of tokens in a request of "servers".
        batch: the number of tokens in a request of "rows".
        token_bytes: the encoded size of a token that is sent to servers.
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
        """The number of multiply-adds."""
        return PASSES * self.pairs * self.outputs * self.size


def work_per_token(
    plan: EmbeddingPlan, frequencies: Int64s, chances: Float64s, clock: int, batch: int, piece: int
) -> TokenWork:
    """Count the work of a token. A clock of "local", a request of "rows" (batch) and one of "servers" (piece) have so
    many tokens; ``chances``: the probability of each word to be drawn as a negative."""
    pairs = plan.inputs_per_token
    shares = frequencies / max(frequencies.sum(), 1)
    draws = batch // plan.tokens_per_example
    inputs, negatives = _distinct(shares, draws), _distinct(chances, draws * plan.settings.negative)
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


def seconds_per_token(
    work: TokenWork, costs: UnitCosts, parts: int, workers: int, table_bytes: int
) -> dict[Via, float]:
    """Return the predicted seconds per token of each strategy; infinity if it is impossible. ``parts``: the number of
    servers that hold columns; ``table_bytes``: the size of all tables together."""
    workers_per_link = max(1.0, workers / parts)
    local_s = work.madds * costs.local_s
    servers_s = work.madds * costs.server_s * workers
    if parts == 1:
        servers_s += costs.latency_s / work.piece + work.token_bytes * costs.byte_s * workers_per_link
    else:
        products = 2 * (4 * work.pairs * work.outputs + work.token_bytes)
        servers_s += products * costs.byte_s * max(parts, workers) + 2 * costs.latency_s / work.piece
    moved_s = work.moved * costs.byte_s * workers_per_link + 2 * costs.latency_s / work.batch
    exchanged_s = work.exchanged * costs.byte_s * workers_per_link if table_bytes <= LOCAL_BYTES else np.inf
    return {"local": local_s + exchanged_s, "rows": local_s + moved_s, "servers": servers_s}


def with_strategy(plan: EmbeddingPlan, seconds: Float64s) -> tuple[EmbeddingPlan, str]:
    """Return the plan with the fastest strategy by predicted seconds per token, and the reason in words. Without
    predictions the settings name a strategy."""
    if not len(seconds):
        return plan, "as requested"
    via, reason = fastest(dict(zip(STRATEGIES, seconds.tolist(), strict=True)), " per token")
    return plan.with_via(via), reason


def _distinct(shares: npt.NDArray[Any], draws: int) -> Float64s:
    """Return the probability of each word to occur at least once in some draws."""
    chances: Float64s = -np.expm1(-draws * shares)
    return chances


def batch_bytes(plan: EmbeddingPlan, longest: int) -> int:
    """Return the bytes that a worker needs for a batch's negatives, or for one word of it if that is more. ``longest``:
    the maximum number of words of a sentence, of which a batch has at least one."""
    tokens = min(max(BATCH_TOKENS, longest), plan.total * plan.tokens_per_example)
    neighbours = 2 * plan.window if plan.architecture != "edges" else 1
    # "auto" has not chosen yet: "local" draws most negatives.
    negatives = plan.num_negatives if plan.settings.via != "servers" else plan.settings.negative
    word = neighbours * (2 + plan.settings.negative) + (1 + plan.settings.negative) * plan.size
    return NUMBER_BYTES * max(tokens * negatives, word if plan.settings.via != "servers" else 0)


def products_of_word(plan: EmbeddingPlan, longest: int) -> int:
    """Return the multiplications of the dot products for one word (or edge), negatives included."""
    pairs = 1 + plan.settings.negative
    if plan.architecture == "skipgram":
        pairs *= max(1, min(2 * plan.window, longest - 1))
    return pairs * plan.size


def check_memory(plan: EmbeddingPlan, longest: int, driver: int) -> None:
    """Raise LimitError if a training cannot fit; warn if one word takes excessive work. ``longest``: the maximum number
    of words of a sentence; ``driver``: the bytes that the driver may use."""
    what = f"vectorSize={plan.size:,}: vectors of {plan.vocabulary:,} words in {plan.tables} table"
    check_driver(f"{what}{'s' * (plan.tables > 1)} take", plan.tables * plan.table_bytes, driver)
    if (needed := batch_bytes(plan, longest)) > MAX_BATCH_BYTES:
        window = f"windowSize={plan.window:,} and " if plan.architecture != "edges" else ""
        raise LimitError(
            f"{window}negative={plan.settings.negative:,}, of vectorSize={plan.size:,} and sentences of up to "
            f"{longest:,} words: a worker needs {needed:,} bytes for its random draws, of {MAX_BATCH_BYTES:,}"
        )
    if (products := products_of_word(plan, longest)) > USUAL_PRODUCTS:
        window = f"windowSize={plan.window:,} and " if plan.architecture == "skipgram" else ""
        unit = "an edge" if plan.architecture == "edges" else "a word"
        warnings.warn(
            f"{window}negative={plan.settings.negative:,}, of vectorSize={plan.size:,}: {unit} takes about "
            f"{products:,} multiplications, and the training about {products * plan.total * plan.settings.maxIter:.0e}",
            stacklevel=1,
        )


def check_walks(walks: WalkSettings, vertices: int) -> None:
    """Raise LimitError if walks cannot fit: one in a row of Spark, all in a counter. Warn of excessive work."""
    needed = VERTEX_BYTES * walks.walkLength
    if needed > MAX_WALK_BYTES:
        raise LimitError(
            f"walkLength={walks.walkLength:,}: a walk takes {needed:,} bytes, of {MAX_WALK_BYTES:,} at most"
        )
    steps = walks.numWalks * walks.walkLength * vertices
    if steps > MAX_TOKENS:
        raise LimitError(
            f"numWalks={walks.numWalks:,}: from {vertices:,} vertices they are {steps:,} steps, of {MAX_TOKENS:,}"
        )
    if walks.numWalks * walks.walkLength > USUAL_STEPS:
        warnings.warn(
            f"numWalks={walks.numWalks:,} and walkLength={walks.walkLength:,}: from {vertices:,} vertices they are "
            f"up to {steps:,} steps",
            stacklevel=1,
        )
