"""The memory and time of a training: whether it fits into memory, and which strategy is the fastest. Pure.

See docs/decisions/0007. The seconds per token of a worker, with S servers and W workers (``TokenWork``, ``UnitCosts``):

    local    madds * local_s       + exchanged * byte_s * max(1, W/S)
    rows     madds * local_s       + moved * byte_s * max(1, W/S)              + latencies
    servers  madds * server_s * W  + bytes of products * byte_s * max(S, W)    + latencies

"local" sends whole tables in both directions, "rows" sends the distinct rows of a batch in both directions, and
"servers" sends each dot product to and from each server. If one server has all columns, "servers" sends tokens only.
All workers share a server's network link and its processor.
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
# The maximum bytes of the tables for "local", in which each worker stores the tables twice.
LOCAL_BYTES = 512 << 20
# The number of times that a pair of input and output vectors is processed: a dot product and two updates.
PASSES = 3

# The bytes of a float32 or int32.
NUMBER_BYTES = 4
# The maximum bytes of the arrays of a worker's batch.
MAX_BATCH_BYTES = 4 << 30
# The bytes of a vertex in a walk, the maximum bytes of a walk, and the maximum number of steps of all walks.
VERTEX_BYTES, MAX_WALK_BYTES, MAX_STEPS = 8, 1 << 30, 1 << 60
# More multiplications for one word, or more steps of walks from one vertex, cause a warning.
USUAL_PRODUCTS, USUAL_STEPS = 10**7, 10**7


@dataclass(frozen=True)
class UnitCosts:
    """Measured costs of this process and the servers.

    Attributes:
        latency_s: the seconds of a minimal request to all servers at once.
        byte_s: the seconds to send a byte from this process to the servers or back, the mean of both directions.
        local_s: the seconds of a multiply-add in this process, with overhead.
        server_s: the seconds of a multiply-add if all servers compute at the same time.
    """

    latency_s: float
    byte_s: float
    local_s: float
    server_s: float


@dataclass(frozen=True)
class TokenWork:
    """The mean work per token.

    Attributes:
        products, madds: the numbers of dot products and of multiply-adds.
        exchanged: the bytes of tables that "local" sends per token, in both directions.
        moved: the bytes of rows that "rows" sends per token, in both directions.
        minibatch: the number of tokens in a request of "servers".
        batch: the number of tokens in a request of "rows".
        token_bytes: the bytes of a token that is sent to servers.
    """

    products: float
    madds: float
    exchanged: float
    moved: float
    minibatch: int
    batch: int
    token_bytes: int


def work_per_token(
    plan: EmbeddingPlan, frequencies: Int64s, negative_probabilities: Float64s, clock: int, batch: int, minibatch: int
) -> TokenWork:
    """Return the work per token; ``negative_probabilities``: see ``Sampler``.

    ``clock``, ``batch`` and ``minibatch``: the tokens in a clock of "local", a request of "rows", and one of "servers".
    """
    products = plan.inputs_per_token * (1 + plan.settings.negative)
    fractions = frequencies / max(frequencies.sum(), 1)
    draws = batch // plan.tokens_per_example
    inputs, negatives = _occurring(fractions, draws), _occurring(negative_probabilities, draws * plan.settings.negative)
    rows = float((1 - (1 - inputs) * (1 - negatives)).sum()) + (0 if plan.shares_table else float(inputs.sum()))
    return TokenWork(
        products,
        PASSES * products * plan.size,
        2 * plan.tables * plan.table_bytes / clock,
        2 * rows * plan.size * 4 / batch,
        minibatch,
        batch,
        2 if plan.vocabulary < 2**16 else 4,
    )


def seconds_per_token(
    work: TokenWork, costs: UnitCosts, num_slices: int, workers: int, table_bytes: int
) -> dict[Via, float]:
    """Return the predicted seconds per token of each strategy; infinity: the strategy is impossible.

    ``num_slices`` is the number of servers that have columns; ``table_bytes`` is the size of all tables together.
    """
    workers_per_link = max(1.0, workers / num_slices)
    local_s = work.madds * costs.local_s
    servers_s = work.madds * costs.server_s * workers
    if num_slices == 1:
        servers_s += costs.latency_s / work.minibatch + work.token_bytes * costs.byte_s * workers_per_link
    else:
        moved_bytes = 2 * (4 * work.products + work.token_bytes)
        servers_s += moved_bytes * costs.byte_s * max(num_slices, workers) + 2 * costs.latency_s / work.minibatch
    moved_s = work.moved * costs.byte_s * workers_per_link + 2 * costs.latency_s / work.batch
    exchanged_s = work.exchanged * costs.byte_s * workers_per_link if table_bytes <= LOCAL_BYTES else np.inf
    return {"local": local_s + exchanged_s, "rows": local_s + moved_s, "servers": servers_s}


def with_strategy(plan: EmbeddingPlan, seconds: Float64s) -> tuple[EmbeddingPlan, str]:
    """Return the plan with the fastest strategy, and the reason. ``seconds``: see ``predict_seconds``."""
    if not len(seconds):
        return plan, "as requested"
    via, reason = fastest(dict(zip(STRATEGIES, seconds.tolist(), strict=True)), " per token")
    return plan.with_via(via), reason


def _occurring(fractions: npt.NDArray[Any], draws: int) -> Float64s:
    """Return the approximate probability that a word occurs in this many draws; ``fractions``: that of one draw."""
    probabilities: Float64s = -np.expm1(-draws * fractions)
    return probabilities


def batch_bytes(plan: EmbeddingPlan, longest: int) -> int:
    """Return the bytes of a batch's negatives or, if larger, of a word's arrays; ``longest``: see ``check_memory``."""
    tokens = min(max(BATCH_TOKENS, longest), plan.total * plan.tokens_per_example)
    neighbours = 2 * plan.window if plan.architecture != "edges" else 1
    # For "auto", assume "local", which draws the most negatives.
    negatives = plan.num_negatives if plan.settings.via != "servers" else plan.settings.negative
    # For each neighbour, its index and its products with the outputs; and a copy of the outputs' vectors.
    values_per_word = neighbours * (2 + plan.settings.negative) + (1 + plan.settings.negative) * plan.size
    return NUMBER_BYTES * max(tokens * negatives, values_per_word if plan.settings.via != "servers" else 0)


def check_memory(plan: EmbeddingPlan, longest: int, driver_bytes: int) -> None:
    """Raise LimitError if a training does not fit into memory; warn if a word takes unusually many multiplications."""
    subject = f"vectorSize={plan.size:,}: vectors of {plan.vocabulary:,} words in {plan.tables} table"
    check_driver(f"{subject}{'s' * (plan.tables > 1)} take", plan.tables * plan.table_bytes, driver_bytes)
    if (needed := batch_bytes(plan, longest)) > MAX_BATCH_BYTES:
        window = f"windowSize={plan.window:,} and " if plan.architecture != "edges" else ""
        raise LimitError(
            f"{window}negative={plan.settings.negative:,}, of vectorSize={plan.size:,} and sentences of up to "
            f"{longest:,} words: a worker needs {needed:,} bytes for random draws, with a limit of {MAX_BATCH_BYTES:,}"
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
    """Raise LimitError if a walk does not fit a row of Spark, or there are too many steps; warn of many steps."""
    needed = VERTEX_BYTES * walks.walkLength
    if needed > MAX_WALK_BYTES:
        raise LimitError(
            f"walkLength={walks.walkLength:,}: a walk takes {needed:,} bytes, expected at most {MAX_WALK_BYTES:,}"
        )
    steps = walks.numWalks * walks.walkLength * vertices
    if steps > MAX_STEPS:
        raise LimitError(
            f"numWalks={walks.numWalks:,}: from {vertices:,} vertices they are {steps:,} steps, more than {MAX_STEPS:,}"
        )
    if walks.numWalks * walks.walkLength > USUAL_STEPS:
        warnings.warn(
            f"numWalks={walks.numWalks:,} and walkLength={walks.walkLength:,}: from {vertices:,} vertices they are "
            f"up to {steps:,} steps",
            stacklevel=1,
        )
