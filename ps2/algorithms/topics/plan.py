"""The plans of trainings by both optimizers: settings, facts about the documents, and work for the cost model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, get_args

import numpy as np

from ps2.algorithms.frame.memory import check_driver
from ps2.algorithms.frame.placement import Work
from ps2.algorithms.frame.settings import Plan
from ps2.algorithms.topics.settings import LDASettings, OnlineSyncName, SyncName
from ps2.algorithms.training.faults import Form
from ps2.array_types import Float64s
from ps2.errors import ConfigError
from ps2.run.rotation import RotationSchedule

# The number of groups of blocks with ``sync`` "rotation": while a worker samples a block of one group, its changes to a
# block of the other group are sent.
SLICES = 2
# The maximum bytes of the counts that a worker pulls at a time.
SLICE_BYTES = 64 << 20
# The default priors of "cgs".
CGS_ALPHA, CGS_BETA = 0.1, 0.01
# The default priors of "em", for alpha divided by k: pyspark.ml's 50 / k + 1 and 1.1, minus 1.
EM_ALPHA, EM_BETA = 50.0, 0.1
# The seconds of sampling a token, measured (docs/decisions, number 56): a fixed part, a part for each of the first
# MAX_DENSE topics, and a smaller part for each further topic: with more topics, documents have lists of their topics.
TOKEN_S, TOPIC_S, LISTED_S, MAX_DENSE = 45e-9, 0.35e-9, 0.12e-9, 256
# The seconds for each count: to compute its term of the likelihood; to send the count to a worker and its change back.
LOOK_S, EXCHANGE_S = 1e-9, 16e-9
# The seconds of an iteration: for the clock; for the requests for totals and for slices of words.
CLOCK_S, REQUESTS_S = 4e-3, 10e-3
# The bytes in one worker: of a count; of a token with its topic, its document and its document's counts.
COUNT_BYTES, TOKEN_BYTES = 4, 24
# With "auto", a training that would take more bytes in one worker runs on servers.
MAX_BYTES = 2 << 30


@dataclass(frozen=True, kw_only=True)
class TopicsPlan(Plan[LDASettings]):
    """A topic model to train; ``vocabulary``, the number of words, is 0 before the survey."""

    # The bytes of a count in the driver.
    COUNT_BYTES: ClassVar[int] = 4

    vocabulary: int = 0

    def __post_init__(self) -> None:
        """Raise ConfigError if settings contradict each other."""
        settings, alpha = self.settings, self.settings.docConcentration
        if alpha is not None and len(alpha) not in (1, settings.k):
            raise ConfigError(
                f"docConcentration: expected one number, or one for each of {settings.k} topics, got {len(alpha)}"
            )

    @property
    def topics(self) -> int:
        return self.settings.k

    @property
    def form(self) -> Form:
        """The form of documents: rows of word counts."""
        return Form(self.vocabulary, counts=True)

    def _alphas(self, default: float) -> Float64s:
        alpha = self.settings.docConcentration or [default]
        return np.broadcast_to(np.array(alpha, np.float64), self.topics).copy()

    def _check_sync(self, names: tuple[str, ...]) -> None:
        settings = self.settings
        if settings.sync not in names:
            raise ConfigError(
                f"sync: expected one of {', '.join(names)} with optimizer {settings.optimizer!r}, got {settings.sync!r}"
            )

    def check_memory(self, free_bytes: int) -> None:
        """Raise LimitError if the driver lacks the memory for the counts, which it pulls at the end."""
        content = f"k={self.topics:,}: so many topics of {self.vocabulary:,} words take"
        check_driver(content, self.topics * (self.COUNT_BYTES * self.vocabulary + 8), free_bytes)


@dataclass(frozen=True, kw_only=True)
class SamplingPlan(TopicsPlan):
    """A topic model to train by collapsed Gibbs sampling.

    Attributes:
        tokens: the number of tokens of all documents; 0 before the survey.
        slice_words: the maximum number of words whose counts a worker pulls at a time; 0: as many as fit SLICE_BYTES.
        is_local: True if the only worker has all counts in its process, False if the counts are on the servers.
        threads: the number of threads of the only worker.
        check: whether to compare the counts with the number of tokens after each iteration.
    """

    tokens: int = 0
    workers: int = 1
    slice_words: int = 0
    is_local: bool = False
    threads: int = 1
    check: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        settings = self.settings
        self._check_sync(get_args(SyncName))
        if (self.is_local or settings.via == "local") and settings.budgetS is not None:
            raise ConfigError("budgetS: turns of one worker that has all counts do not end by time")
        if self.is_local and self.workers != 1:
            raise ConfigError(f"via: expected one worker, which has all documents, with 'local', got {self.workers}")
        for name in ("docConcentration", "topicConcentration") if settings.optimizer == "em" else ():
            value = getattr(settings, name)
            if value is not None and not np.min(value) > 1:
                raise ConfigError(f"{name}: expected numbers above 1 with optimizer 'em', got {np.min(value):g}")

    @property
    def alphas(self) -> Float64s:
        """Alpha of each topic. EM's docConcentration is alpha + 1."""
        if self.settings.optimizer == "em":
            return self._alphas(1 + EM_ALPHA / self.topics) - 1
        return self._alphas(CGS_ALPHA)

    @property
    def beta(self) -> float:
        """The Dirichlet prior of a topic's words."""
        beta = self.settings.topicConcentration
        if self.settings.optimizer == "em":
            return (beta or 1 + EM_BETA) - 1
        return beta or CGS_BETA

    @property
    def width(self) -> int:
        """The maximum number of words whose counts a worker pulls at a time."""
        return self.slice_words or max(SLICE_BYTES // (np.dtype(np.int32).itemsize * self.topics), 1)

    def ring(self, workers: int) -> RotationSchedule:
        """Return the rotation with the smallest number of blocks of at most ``width`` words that keeps workers busy."""
        block_count = SLICES * workers
        return RotationSchedule(workers, block_count * -(-self.vocabulary // (block_count * self.width)), SLICES)

    @property
    def lateness(self) -> int:
        """The staleness of the run, which depends on ``sync``."""
        return {"ssp": self.settings.staleness, "rotation": SLICES - 1, "average": 0}[self.settings.sync]

    @property
    def save_interval(self) -> int:
        """The number of iterations between two times that tokens' topics are saved; 0: they are never saved."""
        return max(self.settings.checkpointInterval, 0)

    def work(self, rows: int, cost: float) -> Work:
        """Return the work of an iteration; the only worker divides its documents among threads."""
        token_s = TOKEN_S + min(self.topics, MAX_DENSE) * TOPIC_S + max(self.topics - MAX_DENSE, 0) * LISTED_S
        counts = self.vocabulary * self.topics
        needed_bytes = counts * COUNT_BYTES + self.tokens * TOKEN_BYTES
        return Work(
            read_s=0.0,
            steps=1,
            step_s=self.tokens * token_s,
            local_s=counts * LOOK_S + CLOCK_S,
            servers_s=counts * EXCHANGE_S + CLOCK_S + REQUESTS_S,
            local_threads=rows,
            why_servers="" if self.settings.budgetS is None else "budgetS is set",
            why_not_auto=f"one worker would take {needed_bytes >> 20:,} MiB" if needed_bytes > MAX_BYTES else "",
        )


@dataclass(frozen=True, kw_only=True)
class OnlinePlan(TopicsPlan):
    """A topic model to train by online variational Bayes."""

    COUNT_BYTES = 12  # the pulled float32, and its conversion to float64

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.settings.via == "local":
            raise ConfigError("via: optimizer 'online' steps on the servers, and 'local' is for optimizer 'cgs'")
        self._check_sync(get_args(OnlineSyncName))

    @property
    def alphas(self) -> Float64s:
        """Alpha of each topic; the initial value if it is fitted."""
        return self._alphas(1 / self.topics)

    @property
    def beta(self) -> float:
        return self.settings.topicConcentration or 1 / self.topics

    def weight(self, step: int) -> float:
        """Return rho, the weight of a step; the number of the first step is 1 (Hoffman et al., section 2.3)."""
        return float((self.settings.learningOffset + step) ** -self.settings.learningDecay)

    def work(self, rows: int, cost: float) -> Work:
        """Return the work, which only servers can do; its costs are not needed."""
        return Work(0.0, 0, 0.0, why_servers="optimizer 'online' steps on the servers")
