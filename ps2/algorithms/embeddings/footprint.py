"""Checks before a training that it fits memory, and that its work is not excessive."""

from __future__ import annotations

import warnings

from ps2.algorithms.embeddings.plan import EmbeddingPlan
from ps2.algorithms.embeddings.sentences import BATCH_TOKENS
from ps2.algorithms.embeddings.settings import WalkSettings
from ps2.algorithms.frame.memory import check_driver
from ps2.errors import LimitError

NUMBER_BYTES = 4
# The limit of the random numbers of a worker's batch, and of the work on one word and its contexts.
MAX_BATCH_BYTES = 4 << 30
# The bytes of a vertex in a walk; the limit of a walk.
VERTEX_BYTES, MAX_WALK_BYTES = 8, 1 << 30
MAX_TOKENS = 1 << 60
# A warning tells of more work: multiplications for one word; steps from one vertex.
USUAL_PRODUCTS, USUAL_STEPS = 10**7, 10**7


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
