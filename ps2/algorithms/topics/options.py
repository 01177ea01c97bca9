"""Options and results of topic models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from ps2.algorithms.frame.memory import check_driver
from ps2.algorithms.topics import blocks
from ps2.algorithms.training.faults import Form
from ps2.algorithms.training.placement import Via
from ps2.algorithms.training.record import TrainingHistory
from ps2.errors import ConfigError

MAX_TOPICS = 2**31 - 1
SLICE_BYTES = 64 << 20

SyncName = Literal["ssp", "rotation", "average"]
OnlineSyncName = Literal["gradient", "average"]
SamplerName = Literal["auto", "dense", "sparse"]


@dataclass(frozen=True)
class SamplingOptions:
    """Options of collapsed Gibbs sampling.

    Attributes:
        topics: number of topics.
        vocabulary: number of words.
        iterations: passes over all tokens.
        alpha: Dirichlet prior of a document's topics: one number for all topics, or one per topic.
        beta: Dirichlet prior of a topic's words.
        optimize_alpha: whether to fit alpha, one number per topic.
        sync: how workers share the counts: "ssp", "rotation" of blocks of words, or "average".
        staleness: number of clocks that a worker may be ahead of the slowest one ("ssp").
        budget_s: seconds of a turn ("rotation"); "auto": the run decides; None: a turn ends when its block is done.
        sampler: the exact draw of a topic uses a number for each topic of a document ("dense") or a list of the topics
            that occur in it ("sparse"); "auto" chooses by the number of topics and the lengths of documents.
        slice_words: maximum number of words whose counts a worker holds at a time; 0: as many as take 64 MiB.
        via: where counts are between clocks: on the "servers", or in the only worker's process ("local").
        threads: of the only worker, with "local".
        seed: of all draws.
        save_interval: iterations between saves of the tokens' topics; 0: never.
        check: whether to compare the counts with the number of tokens after each iteration.
        name: the name under which a restored context continues the training; "": it cannot.
    """

    topics: int
    vocabulary: int
    iterations: int = 100
    alpha: tuple[float, ...] = (0.1,)
    beta: float = 0.01
    optimize_alpha: bool = False
    sync: SyncName = "ssp"
    staleness: int = 1
    budget_s: float | Literal["auto"] | None = None
    sampler: SamplerName = "auto"
    slice_words: int = 0
    via: Via = "servers"
    threads: int = 1
    seed: int = 0
    save_interval: int = 10
    check: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        _check_topics(self.topics, self.alpha)
        if self.sync not in get_args(SyncName):
            raise ConfigError(
                f"sync: expected one of {', '.join(get_args(SyncName))} with optimizer 'cgs', got {self.sync!r}"
            )
        if self.via == "local" and self.budget_s is not None:
            raise ConfigError("budgetS: turns of one worker that has all counts do not end by time")

    @property
    def form(self) -> Form:
        """The form of documents: rows of word counts."""
        return Form(self.vocabulary, counts=True)

    @property
    def width(self) -> int:
        """Maximum number of words whose counts a worker holds at a time."""
        return self.slice_words or max(SLICE_BYTES // (np.dtype(np.int32).itemsize * self.topics), 1)

    @property
    def lateness(self) -> int:
        """The staleness of the run."""
        return {"ssp": self.staleness, "rotation": blocks.SLICES - 1, "average": 0}[self.sync]

    @property
    def alphas(self) -> npt.NDArray[np.float64]:
        """Alpha of each topic."""
        return np.broadcast_to(np.array(self.alpha, np.float64), self.topics).copy()


@dataclass(frozen=True)
class OnlineOptions:
    """Options of online variational Bayes.

    Attributes:
        topics: number of topics.
        vocabulary: number of words.
        iterations: number of batches.
        alpha: Dirichlet prior of a document's topics: one number, or one per topic; the initial value if it is fitted.
        beta: Dirichlet prior of a topic's words.
        optimize_alpha: whether to fit alpha, one number per topic.
        offset, decay: step t, from 1, has weight (offset + t) ** -decay.
        fraction: approximate share of the documents in a batch.
        seed: of all draws.
        sync: "gradient": a batch is of all workers' documents, and the servers take its step; "average": workers take
            steps of their own, and the servers average.
        local_batches: number of a worker's steps in an iteration ("average").
        name: the name under which a restored context continues the training; "": it cannot.
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
    sync: OnlineSyncName = "gradient"
    local_batches: int = 10
    seed: int = 0
    name: str = ""

    def __post_init__(self) -> None:
        _check_topics(self.topics, self.alpha)
        if not 0 < self.fraction <= 1:
            raise ConfigError(f"fraction: expected a number in (0, 1], got {self.fraction}")
        if self.sync not in get_args(OnlineSyncName):
            known = ", ".join(get_args(OnlineSyncName))
            raise ConfigError(f"sync: expected one of {known} with optimizer 'online', got {self.sync!r}")
        if self.local_batches < 1:
            raise ConfigError(f"localBatches: expected at least 1, got {self.local_batches}")

    @property
    def form(self) -> Form:
        """The form of documents: rows of word counts."""
        return Form(self.vocabulary, counts=True)

    @property
    def alphas(self) -> npt.NDArray[np.float64]:
        """Alpha of each topic."""
        return np.broadcast_to(np.array(self.alpha, np.float64), self.topics).copy()

    def weight(self, step: int) -> float:
        """Return the weight of a step, from 1 (Hoffman et al., section 2.3: rho)."""
        return float((self.offset + step) ** -self.decay)


@dataclass(frozen=True, eq=False)
class FittedTopics:
    """The result of a training, by either optimizer.

    Attributes:
        counts: shape (vocabulary, topics): tokens of each word in each topic; sampled int32 or expected float64. With
            beta added they are the Dirichlet parameters of the topics.
        alpha: float64, shape (topics,).
        beta: Dirichlet prior of a topic's words.
        history: its ``objective`` is minus the log-likelihood per token.
    """

    counts: npt.NDArray[Any]
    alpha: npt.NDArray[np.float64]
    beta: float
    history: TrainingHistory


def check_room(options: SamplingOptions | OnlineOptions, driver: int) -> None:
    """Raise LimitError if the driver has no memory for the counts, which it pulls at the end.

    Args:
        driver: bytes that its process may take.
    """
    # The driver converts the servers' float32 to float64.
    each = 4 if isinstance(options, SamplingOptions) else 12
    what = f"k={options.topics:,}: so many topics of {options.vocabulary:,} words take"
    check_driver(what, options.topics * (each * options.vocabulary + 8), driver)


def _check_topics(topics: int, alpha: tuple[float, ...]) -> None:
    if not 1 <= topics <= MAX_TOPICS:
        raise ConfigError(f"topics: expected a number in [1, {MAX_TOPICS}], got {topics}")
    if len(alpha) not in (1, topics):
        raise ConfigError(f"alpha: expected 1 or {topics} numbers, one a topic, got {len(alpha)}")
