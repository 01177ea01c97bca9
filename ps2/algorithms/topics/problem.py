"""What topics are found for, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from ps2.algorithms.topics import blocks
from ps2.algorithms.training.faults import Form
from ps2.algorithms.training.record import TrainingHistory
from ps2.errors import ConfigError, LimitError

MOST_TOPICS = 2**31 - 1
SLICE_BYTES = 64 << 20

SyncName = Literal["ssp", "rotation", "average"]
SamplerName = Literal["auto", "dense", "sparse"]


@dataclass(frozen=True)
class Recipe:
    """How to sample topics.

    Attributes:
        topics: how many there are.
        vocabulary: how many words there are.
        iterations: passes over all tokens.
        alpha: of topics in documents: one for all topics, or one each.
        beta: of words in topics.
        optimize_alpha: fit alpha, one each, to the documents.
        sync: how workers share the counts: "ssp", "rotation" of blocks of words, or "average".
        staleness: clocks that a worker may be ahead of the slowest one, with "ssp".
        budget_s: seconds of a turn, with "rotation"; None: each takes as long as it takes.
        sampler: how a topic is drawn, exactly so or so: with a number for each topic of a document ("dense"), or with a
            list of those that it has ("sparse"); "auto" chooses by topics and lengths of documents.
        slice_words: words whose counts a worker holds at a time, at most; 0: as many as take 64 MiB.
        seed: of all draws.
        save_interval: iterations between two times that workers save their tokens' topics; 0: they never do.
        check: see after each iteration that the counts are those of all tokens.
        name: by which a context that was restored goes on with the training; "": none does.
    """

    topics: int
    vocabulary: int
    iterations: int = 100
    alpha: tuple[float, ...] = (0.1,)
    beta: float = 0.01
    optimize_alpha: bool = False
    sync: SyncName = "ssp"
    staleness: int = 1
    budget_s: float | None = None
    sampler: SamplerName = "auto"
    slice_words: int = 0
    seed: int = 0
    save_interval: int = 10
    check: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        _check_topics(self.topics, self.alpha)
        if self.sync not in get_args(SyncName):
            raise ConfigError(f"sync: expected one of {', '.join(get_args(SyncName))}, got {self.sync!r}")

    @property
    def form(self) -> Form:
        """What documents have to be: rows that count words."""
        return Form(self.vocabulary, counts=True)

    @property
    def width(self) -> int:
        """Words whose counts a worker holds at a time, at most."""
        return self.slice_words or max(SLICE_BYTES // (np.dtype(np.int32).itemsize * self.topics), 1)

    @property
    def lateness(self) -> int:
        """The staleness of the run."""
        return {"ssp": self.staleness, "rotation": blocks.SLICES - 1, "average": 0}[self.sync]

    @property
    def alphas(self) -> npt.NDArray[np.float64]:
        """One a topic."""
        return np.broadcast_to(np.array(self.alpha, np.float64), self.topics).copy()


@dataclass(frozen=True)
class OnlineRecipe:
    """How to find topics by online variational Bayes.

    Attributes:
        topics: how many there are.
        vocabulary: how many words there are.
        iterations: batches.
        alpha: of topics in documents: one for all topics, or one each; to begin with, if it is fitted.
        beta: of words in topics.
        optimize_alpha: fit alpha, one each, to the documents.
        offset, decay: of the steps' weight: that of step t, from 1 on, is (offset + t) to the power of -decay.
        fraction: of the documents: what a batch has of them, about.
        seed: of all draws.
        name: by which a context that was restored goes on with the training; "": none does.
    """

    topics: int
    vocabulary: int
    iterations: int = 20
    alpha: tuple[float, ...] = (0.1,)
    beta: float = 0.01
    optimize_alpha: bool = True
    offset: float = 1024.0
    decay: float = 0.51
    fraction: float = 0.05
    seed: int = 0
    name: str = ""

    def __post_init__(self) -> None:
        _check_topics(self.topics, self.alpha)
        if not 0 < self.fraction <= 1:
            raise ConfigError(f"fraction: expected a number in (0, 1], got {self.fraction}")

    @property
    def form(self) -> Form:
        """What documents have to be: rows that count words."""
        return Form(self.vocabulary, counts=True)

    @property
    def alphas(self) -> npt.NDArray[np.float64]:
        """One a topic."""
        return np.broadcast_to(np.array(self.alpha, np.float64), self.topics).copy()

    def weight(self, step: int) -> float:
        """Return that of a step, from 1 on (Hoffman et al., section 2.3: rho)."""
        return float((self.offset + step) ** -self.decay)


@dataclass(frozen=True, eq=False)
class Fitted:
    """What came of a training, by either optimizer.

    Attributes:
        counts: shape (vocabulary, topics): tokens of each word in each topic; int32 if they were sampled, float64 if
            they are expected ones. With beta added they are Dirichlet's parameters of the topics.
        alpha: float64, shape (topics,).
        beta: of words in topics.
        history: of which ``objective`` is minus the log-likelihood a token.
    """

    counts: npt.NDArray[Any]
    alpha: npt.NDArray[np.float64]
    beta: float
    history: TrainingHistory


def check_room(recipe: Recipe | OnlineRecipe, driver: int) -> None:
    """Raise LimitError if the driver, which gets all counts in the end, has no room for them.

    Args:
        driver: bytes that its process may take.
    """
    # Of float64 they are made of the servers' float32.
    each = 4 if isinstance(recipe, Recipe) else 12
    needed = recipe.topics * (each * recipe.vocabulary + 8)
    if needed > driver:
        raise LimitError(
            f"k={recipe.topics:,}: so many topics of {recipe.vocabulary:,} words take {needed:,} bytes, and the "
            f"driver, which gets them in the end, may take {driver:,}"
        )


def _check_topics(topics: int, alpha: tuple[float, ...]) -> None:
    if not 1 <= topics <= MOST_TOPICS:
        raise ConfigError(f"topics: expected a number in [1, {MOST_TOPICS}], got {topics}")
    if len(alpha) not in (1, topics):
        raise ConfigError(f"alpha: expected 1 or {topics} numbers, one a topic, got {len(alpha)}")
