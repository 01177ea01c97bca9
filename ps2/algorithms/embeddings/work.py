"""The memory and work of a training: whether it fits, and which strategy takes the least time. Pure.

See docs/decisions/0007. The time of a worker per token, with S servers and W workers, in terms of ``TokenWork`` and
``UnitCosts``:

    local    multiply-adds * local           + exchanged * byte * max(1, W/S) / tokens of a clock
    rows     multiply-adds * local           + moved     * byte * max(1, W/S) / tokens of a batch + latencies
    servers  multiply-adds * server * W      + products  * byte * max(S, W)                       + latencies

"local" moves whole tables both ways, "rows" moves the distinct rows of a batch both ways, and "servers" moves a number
for each dot product to and from each server. If one server has all columns, "servers" moves tokens only. All workers
share a server's network link and its processor.
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
# The largest size of the tables for "local", whose workers store them twice.
LOCAL_BYTES = 512 << 20
# The number of passes over a pair of input and output: a dot product and two updates.
PASSES = 3

# The bytes of a float32 or int32.
NUMBER_BYTES = 4
# The largest size of the arrays of a worker's batch.
MAX_BATCH_BYTES = 4 << 30
# The bytes of a vertex in a walk, the largest size of a walk, and the largest number of steps of all walks.
VERTEX_BYTES, MAX_WALK_BYTES, MAX_STEPS = 8, 1 << 30, 1 << 60
# Above these, there is a warning of excessive work: multiplications for one word, and steps from one vertex.
USUAL_PRODUCTS, USUAL_STEPS = 10**7, 10**7


@dataclass(frozen=True)
class UnitCosts:
    """Measured costs of this process and the servers.

    Attributes:
        latency_s: the time of a minimal request to all servers at once.
        byte_s: the time to move a byte between this process and all servers; the mean of both directions.
        local_s: the time of a multiply-add in this process, with overhead.
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
        products: the number of dot products.
        madds: the number of multiply-adds.
        exchanged: the bytes of tables that "local" moves per token.
        moved: the bytes of rows that "rows" moves per token.
        piece: the number of tokens in a request of "servers".
        batch: the number of tokens in a request of "rows".
        token_bytes: the encoded size of a token that is sent to servers.
    """

    products: float
    madds: float
    exchanged: float
    moved: float
    piece: int
    batch: int
    token_bytes: int


def work_per_token(
    plan: EmbeddingPlan, frequencies: Int64s, chances: Float64s, clock: int, batch: int, piece: int
) -> TokenWork:
    """Return the work of a token. ``clock``, ``batch`` and ``piece`` are the numbers of tokens in a clock of "local",
    in a request of "rows" and in a request of "servers"; ``chances`` are the words' probabilities as negatives."""
    products = plan.inputs_per_token * (1 + plan.settings.negative)
    shares = frequencies / max(frequencies.sum(), 1)
    draws = batch // plan.tokens_per_example
    inputs, negatives = _distinct(shares, draws), _distinct(chances, draws * plan.settings.negative)
    rows = float((1 - (1 - inputs) * (1 - negatives)).sum()) + (0 if plan.shares_table else float(inputs.sum()))
    return TokenWork(
        products,
        PASSES * products * plan.size,
        2 * plan.tables * plan.table_bytes / clock,
        2 * rows * plan.size * 4 / batch,
        piece,
        batch,
        2 if plan.vocabulary < 2**16 else 4,
    )


def seconds_per_token(
    work: TokenWork, costs: UnitCosts, parts: int, workers: int, table_bytes: int
) -> dict[Via, float]:
    """Return the predicted seconds per token of each strategy; infinity: it is impossible. ``parts`` is the number of
    servers that have columns, and ``table_bytes`` the size of all tables together."""
    workers_per_link = max(1.0, workers / parts)
    local_s = work.madds * costs.local_s
    servers_s = work.madds * costs.server_s * workers
    if parts == 1:
        servers_s += costs.latency_s / work.piece + work.token_bytes * costs.byte_s * workers_per_link
    else:
        moved_bytes = 2 * (4 * work.products + work.token_bytes)
        servers_s += moved_bytes * costs.byte_s * max(parts, workers) + 2 * costs.latency_s / work.piece
    moved_s = work.moved * costs.byte_s * workers_per_link + 2 * costs.latency_s / work.batch
    exchanged_s = work.exchanged * costs.byte_s * workers_per_link if table_bytes <= LOCAL_BYTES else np.inf
    return {"local": local_s + exchanged_s, "rows": local_s + moved_s, "servers": servers_s}


def with_strategy(plan: EmbeddingPlan, seconds: Float64s) -> tuple[EmbeddingPlan, str]:
    """Return the plan with the fastest strategy, and why; without predictions, the settings name the strategy."""
    if not len(seconds):
        return plan, "as requested"
    via, reason = fastest(dict(zip(STRATEGIES, seconds.tolist(), strict=True)), " per token")
    return plan.with_via(via), reason


def _distinct(shares: npt.NDArray[Any], draws: int) -> Float64s:
    """Return the probability of each word to occur at least once in some draws."""
    chances: Float64s = -np.expm1(-draws * shares)
    return chances


def batch_bytes(plan: EmbeddingPlan, longest: int) -> int:
    """Return the bytes of a batch's negatives, or of the arrays for one word if larger; see ``check_memory``."""
    tokens = min(max(BATCH_TOKENS, longest), plan.total * plan.tokens_per_example)
    neighbours = 2 * plan.window if plan.architecture != "edges" else 1
    # For "auto", the negatives are those of "local", which draws the most.
    negatives = plan.num_negatives if plan.settings.via != "servers" else plan.settings.negative
    word = neighbours * (2 + plan.settings.negative) + (1 + plan.settings.negative) * plan.size
    return NUMBER_BYTES * max(tokens * negatives, word if plan.settings.via != "servers" else 0)


def check_memory(plan: EmbeddingPlan, longest: int, driver: int) -> None:
    """Raise LimitError if a training does not fit; warn if one word takes excessive work. ``longest`` is the largest
    number of words of a sentence, and ``driver`` the number of bytes that the driver may use."""
    what = f"vectorSize={plan.size:,}: vectors of {plan.vocabulary:,} words in {plan.tables} table"
    check_driver(f"{what}{'s' * (plan.tables > 1)} take", plan.tables * plan.table_bytes, driver)
    if (needed := batch_bytes(plan, longest)) > MAX_BATCH_BYTES:
        window = f"windowSize={plan.window:,} and " if plan.architecture != "edges" else ""
        raise LimitError(
            f"{window}negative={plan.settings.negative:,}, of vectorSize={plan.size:,} and sentences of up to "
            f"{longest:,} words: a worker needs {needed:,} bytes for its random draws, of {MAX_BATCH_BYTES:,}"
        )
    inputs = max(1, min(2 * plan.window, longest - 1)) if plan.architecture == "skipgram" else 1
    if (products := inputs * (1 + plan.settings.negative) * plan.size) > USUAL_PRODUCTS:
        window = f"windowSize={plan.window:,} and " if plan.architecture == "skipgram" else ""
        unit = "an edge" if plan.architecture == "edges" else "a word"
        warnings.warn(
            f"{window}negative={plan.settings.negative:,}, of vectorSize={plan.size:,}: {unit} takes about "
            f"{products:,} multiplications, and the training about {products * plan.total * plan.settings.maxIter:.0e}",
            stacklevel=1,
        )


def check_walks(walks: WalkSettings, vertices: int) -> None:
    """Raise LimitError if a walk does not fit a row of Spark, or all steps exceed ``MAX_STEPS``; warn of much work."""
    needed = VERTEX_BYTES * walks.walkLength
    if needed > MAX_WALK_BYTES:
        raise LimitError(
            f"walkLength={walks.walkLength:,}: a walk takes {needed:,} bytes, of at most {MAX_WALK_BYTES:,}"
        )
    steps = walks.numWalks * walks.walkLength * vertices
    if steps > MAX_STEPS:
        raise LimitError(
            f"numWalks={walks.numWalks:,}: from {vertices:,} vertices they are {steps:,} steps, at most {MAX_STEPS:,}"
        )
    if walks.numWalks * walks.walkLength > USUAL_STEPS:
        warnings.warn(
            f"numWalks={walks.numWalks:,} and walkLength={walks.walkLength:,}: from {vertices:,} vertices they are "
            f"up to {steps:,} steps",
            stacklevel=1,
        )
