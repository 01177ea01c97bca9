"""Check before a training that it fits memory, and that its work is not excessive."""

from __future__ import annotations

import warnings

from ps2.algorithms.embeddings.corpus import BATCH_TOKENS
from ps2.algorithms.embeddings.settings import EmbeddingSettings
from ps2.algorithms.embeddings.walks import WalkSettings
from ps2.errors import LimitError

NUMBER_BYTES = 4
# Limit of the random numbers of a worker's batch, and of the work on one word and its contexts.
MAX_BATCH_BYTES = 4 << 30
# Bytes of a vertex in a walk; limit of a walk.
VERTEX_BYTES, MAX_WALK_BYTES = 8, 1 << 30
MAX_TOKENS = 1 << 60
# More work is warned of: multiplications for one word; steps from one vertex.
USUAL_PRODUCTS, USUAL_STEPS = 10**7, 10**7


def driver_bytes(settings: EmbeddingSettings) -> int:
    """Return the bytes that the driver holds at the end: vectors and contexts."""
    return settings.tables * settings.table_bytes


def batch_bytes(settings: EmbeddingSettings, longest: int) -> int:
    """Return the bytes that a worker needs for a batch's negatives, or for one word of it if that is more.

    Args:
        longest: maximum words of a sentence; a batch has at least one sentence.
    """
    tokens = min(max(BATCH_TOKENS, longest), settings.total * settings.tokens_per_example)
    neighbours = 2 * settings.window if settings.architecture != "edges" else 1
    # "auto" has not chosen yet: "local" draws most negatives.
    drawn = settings.negatives_drawn if settings.via != "servers" else settings.negative
    word = neighbours * (2 + settings.negative) + (1 + settings.negative) * settings.size
    return NUMBER_BYTES * max(tokens * drawn, word if settings.via != "servers" else 0)


def products_of_word(settings: EmbeddingSettings, longest: int) -> int:
    """Return the multiplications of the dot products for one word (or edge), negatives included."""
    pairs = 1 + settings.negative
    if settings.architecture == "skipgram":
        pairs *= max(1, min(2 * settings.window, longest - 1))
    return pairs * settings.size


def check_memory(settings: EmbeddingSettings, longest: int, driver: int) -> None:
    """Raise LimitError if a training cannot fit; warn if one word takes excessive work.

    Args:
        longest: as for ``batch_bytes``.
        driver: bytes that the driver may use.
    """
    if (needed := driver_bytes(settings)) > driver:
        raise LimitError(
            f"vectorSize={settings.size:,}: vectors of {settings.vocabulary:,} words take {needed:,} bytes in "
            f"{settings.tables} table{'s' if settings.tables > 1 else ''}, and the driver, which gets them in the end, "
            f"may take {driver:,}"
        )
    if (needed := batch_bytes(settings, longest)) > MAX_BATCH_BYTES:
        window = f"windowSize={settings.window:,} and " if settings.architecture != "edges" else ""
        raise LimitError(
            f"{window}negative={settings.negative:,}, of vectorSize={settings.size:,} and sentences of up to "
            f"{longest:,} words: a worker needs {needed:,} bytes for what is drawn at once, of {MAX_BATCH_BYTES:,} at "
            "most"
        )
    if (products := products_of_word(settings, longest)) > USUAL_PRODUCTS:
        window = f"windowSize={settings.window:,} and " if settings.architecture == "skipgram" else ""
        unit = "an edge" if settings.architecture == "edges" else "a word"
        warnings.warn(
            f"{window}negative={settings.negative:,}, of vectorSize={settings.size:,}: {unit} takes about {products:,} "
            f"multiplications, and the training about {products * settings.total * settings.epochs:.0e}",
            stacklevel=1,
        )


def check_walks(walks: WalkSettings, vertices: int) -> None:
    """Raise LimitError if walks cannot fit: one in a row of Spark, all in a counter. Warn of excessive work."""
    needed = VERTEX_BYTES * walks.length
    if needed > MAX_WALK_BYTES:
        raise LimitError(f"walkLength={walks.length:,}: a walk takes {needed:,} bytes, of {MAX_WALK_BYTES:,} at most")
    steps = walks.epochs * walks.length * vertices
    if steps > MAX_TOKENS:
        raise LimitError(
            f"numWalks={walks.epochs:,}: from {vertices:,} vertices they are {steps:,} steps, of {MAX_TOKENS:,}"
        )
    if walks.epochs * walks.length > USUAL_STEPS:
        warnings.warn(
            f"numWalks={walks.epochs:,} and walkLength={walks.length:,}: from {vertices:,} vertices they are up to "
            f"{steps:,} steps",
            stacklevel=1,
        )
