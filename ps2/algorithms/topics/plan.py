"""The plans of both optimizers, and the result of a training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, get_args

import numpy as np
import numpy.typing as npt

from ps2.algorithms.frame.memory import check_driver
from ps2.algorithms.frame.settings import Plan
from ps2.algorithms.topics.settings import LDASettings, OnlineSyncName, SyncName
from ps2.algorithms.training.faults import Form
from ps2.algorithms.training.record import TrainingHistory
from ps2.array_types import Float64s
from ps2.errors import ConfigError
from ps2.run.rotation import RotationSchedule

# Blocks of "rotation" form this many groups: while a worker samples one block, its changes of another travel.
SLICES = 2
SLICE_BYTES = 64 << 20
CGS_ALPHA, CGS_BETA = 0.1, 0.01
# Defaults of "em": pyspark.ml's 50 / k + 1 and 1.1, minus 1.
EM_ALPHA, EM_BETA = 50.0, 0.1


@dataclass(frozen=True, kw_only=True)
class TopicsPlan(Plan[LDASettings]):
    """A topic model to train; the number of words (``vocabulary``) is 0 before the survey."""

    # Bytes of a count in the driver.
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
        """The number of topics."""
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
        """Raise LimitError if the driver has no memory for the counts, which it pulls at the end."""
        what = f"k={self.topics:,}: so many topics of {self.vocabulary:,} words take"
        check_driver(what, self.topics * (self.COUNT_BYTES * self.vocabulary + 8), free_bytes)


@dataclass(frozen=True, kw_only=True)
class SamplingPlan(TopicsPlan):
    """A topic model to train by collapsed Gibbs sampling.

    Attributes:
        slice_words: the maximum number of words whose counts a worker holds at a time; 0: as many as take 64 MiB.
        is_local: whether the only worker has all counts in its process; else they are on the servers.
        threads: the threads of the only worker.
        check: whether to compare the counts with the number of tokens after each iteration.
    """

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
        for name in ("docConcentration", "topicConcentration") if settings.optimizer == "em" else ():
            value = getattr(settings, name)
            if value is not None and not np.min(value) > 1:
                raise ConfigError(f"{name}: expected numbers above 1 with optimizer 'em', got {np.min(value):g}")

    @property
    def alphas(self) -> Float64s:
        """Alpha of each topic. A concentration of EM is larger by one than the prior of sampling."""
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
        """The maximum number of words whose counts a worker holds at a time."""
        return self.slice_words or max(SLICE_BYTES // (np.dtype(np.int32).itemsize * self.topics), 1)

    def ring(self, workers: int) -> RotationSchedule:
        """Return the rotation: the fewest blocks that keep all workers busy and have at most ``width`` words each."""
        block_count = SLICES * workers
        return RotationSchedule(workers, block_count * -(-self.vocabulary // (block_count * self.width)), SLICES)

    @property
    def lateness(self) -> int:
        """The staleness of the run."""
        return {"ssp": self.settings.staleness, "rotation": SLICES - 1, "average": 0}[self.settings.sync]

    @property
    def save_interval(self) -> int:
        """The number of iterations between saves of the tokens' topics; 0: they are never saved."""
        return max(self.settings.checkpointInterval, 0)


@dataclass(frozen=True, kw_only=True)
class OnlinePlan(TopicsPlan):
    """A topic model to train by online variational Bayes."""

    COUNT_BYTES = 12  # float32, converted to float64

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
        """The Dirichlet prior of a topic's words."""
        return self.settings.topicConcentration or 1 / self.topics

    def weight(self, step: int) -> float:
        """Return the weight of a step, from 1 (Hoffman et al., section 2.3: rho)."""
        return float((self.settings.learningOffset + step) ** -self.settings.learningDecay)


@dataclass(frozen=True, eq=False)
class FittedTopics:
    """The result of a training, by either optimizer.

    Attributes:
        counts: shape (vocabulary, topics): tokens of each word in each topic; sampled int32 or expected float64. With
            beta added they are the Dirichlet parameters of the topics.
        alpha: shape (topics,).
        beta: the Dirichlet prior of a topic's words.
        history: the training's history. The objective is minus the log-likelihood per token.
    """

    counts: npt.NDArray[Any]
    alpha: Float64s
    beta: float
    history: TrainingHistory
