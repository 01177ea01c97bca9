"""What a training of vectors takes at least, in bytes and in work, told before it begins."""

from __future__ import annotations

import warnings

from ps2.algorithms.embeddings.corpus import BATCH_TOKENS
from ps2.algorithms.embeddings.problem import Recipe
from ps2.algorithms.embeddings.walks import Recipe as Walks
from ps2.errors import LimitError

NUMBER_BYTES = 4
# What is drawn for a worker's batch, and what it computes of one word and its neighbours, may take at most.
MOST_BATCH_BYTES = 4 << 30
# Of a walk.
VERTEX_BYTES, MOST_WALK_BYTES = 8, 1 << 30
MOST_TOKENS = 1 << 60
# Above these the work is warned of: multiplications for one word, and steps from one vertex.
USUAL_PRODUCTS, USUAL_STEPS = 10**7, 10**7


def driver_bytes(recipe: Recipe) -> int:
    """Return what the driver has in the end: all vectors, and contexts if there are some."""
    return recipe.tables * recipe.table_bytes


def batch_bytes(recipe: Recipe, longest: int) -> int:
    """Return what a worker draws for a batch, or needs for one word of it if that is more.

    Args:
        longest: words of a sentence at most; a batch has one at least.
    """
    tokens = min(max(BATCH_TOKENS, longest), recipe.total * recipe.units)
    neighbours = 2 * recipe.window if recipe.architecture != "edges" else 1
    # Where it is computed is not known yet, if recipes leave it open: "local" draws most.
    drawn = recipe.drawn if recipe.via != "servers" else recipe.negative
    word = neighbours * (2 + recipe.negative) + (1 + recipe.negative) * recipe.size
    return NUMBER_BYTES * max(tokens * drawn, word if recipe.via != "servers" else 0)


def products_of_word(recipe: Recipe, longest: int) -> int:
    """Return the multiplications of the dots of all pairs, made up ones too, that a word, or edge, is trained on."""
    pairs = 1 + recipe.negative
    if recipe.architecture == "skipgram":
        pairs *= max(1, min(2 * recipe.window, longest - 1))
    return pairs * recipe.size


def check_room(recipe: Recipe, longest: int, driver: int) -> None:
    """Raise LimitError if a training cannot fit, and warn if one word takes very much work.

    Args:
        longest: as of ``batch_bytes``.
        driver: bytes that its process may take.
    """
    if (needed := driver_bytes(recipe)) > driver:
        raise LimitError(
            f"vectorSize={recipe.size:,}: vectors of {recipe.vocabulary:,} words take {needed:,} bytes in "
            f"{recipe.tables} table{'s' if recipe.tables > 1 else ''}, and the driver, which gets them in the end, may "
            f"take {driver:,}"
        )
    if (needed := batch_bytes(recipe, longest)) > MOST_BATCH_BYTES:
        window = f"windowSize={recipe.window:,} and " if recipe.architecture != "edges" else ""
        raise LimitError(
            f"{window}negative={recipe.negative:,}, of vectorSize={recipe.size:,} and sentences of up to {longest:,} "
            f"words: a worker needs {needed:,} bytes for what is drawn at once, of {MOST_BATCH_BYTES:,} at most"
        )
    if (products := products_of_word(recipe, longest)) > USUAL_PRODUCTS:
        window = f"windowSize={recipe.window:,} and " if recipe.architecture == "skipgram" else ""
        unit = "an edge" if recipe.architecture == "edges" else "a word"
        warnings.warn(
            f"{window}negative={recipe.negative:,}, of vectorSize={recipe.size:,}: {unit} takes about {products:,} "
            f"multiplications, and the training about {products * recipe.total * recipe.epochs:.0e}",
            stacklevel=1,
        )


def check_walks(walks: Walks, vertices: int) -> None:
    """Raise LimitError if walks from so many vertices cannot be: one has to fit a row of Spark, and all a count.

    Very many steps are warned of.
    """
    needed = VERTEX_BYTES * walks.length
    if needed > MOST_WALK_BYTES:
        raise LimitError(f"walkLength={walks.length:,}: a walk takes {needed:,} bytes, of {MOST_WALK_BYTES:,} at most")
    steps = walks.epochs * walks.length * vertices
    if steps > MOST_TOKENS:
        raise LimitError(
            f"numWalks={walks.epochs:,}: from {vertices:,} vertices they are {steps:,} steps, of {MOST_TOKENS:,}"
        )
    if walks.epochs * walks.length > USUAL_STEPS:
        warnings.warn(
            f"numWalks={walks.epochs:,} and walkLength={walks.length:,}: from {vertices:,} vertices they are up to "
            f"{steps:,} steps",
            stacklevel=1,
        )
