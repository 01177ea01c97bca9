"""The plan of a training of embeddings, and its result."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ps2.algorithms.embeddings.settings import (
    ORDERS,
    DeepWalkSettings,
    EmbeddingSettings,
    LINESettings,
    Word2VecSettings,
)
from ps2.algorithms.frame.settings import Plan, with_values
from ps2.algorithms.training.record import TrainingHistory
from ps2.array_types import Float32s, Int64s
from ps2.errors import ConfigError

Architecture = Literal["skipgram", "cbow", "edges"]

# Words have int32 indices.
MAX_WORDS = 2**31 - 1
# The final step size as a fraction of the initial step size.
MIN_STEP = 1e-4
# A training has diverged if its loss exceeds this multiple of the loss of zero vectors. In experiments with many step
# sizes, trainings that learned something stayed below 10 times, and diverging trainings reached at least 16 times.
DIVERGED_FACTOR = 10.0


@dataclass(frozen=True, kw_only=True)
class EmbeddingPlan(Plan[EmbeddingSettings]):
    """A training of embeddings by negative sampling (Mikolov et al. 2013, "Distributed Representations of Words").

    Attributes:
        vocabulary: the number of words. Words are numbered by descending frequency; if they are keys, each worker has
            its own numbers.
        total: the number of tokens (or edges) of an epoch, over all workers.
        order: 2: contexts have a separate table; 1 (edges only): the vectors are also the contexts.
    """

    vocabulary: int
    total: int
    order: int = 2

    def __post_init__(self) -> None:
        for name, limit in (("vocabulary", MAX_WORDS), ("total", math.inf)):
            if not 1 <= (value := getattr(self, name)) <= limit:
                raise ConfigError(f"{name}: expected a number from 1 to {limit:,}, got {value}")
        if self.order == 1 and self.architecture != "edges":
            raise ConfigError("order: expected 2, because the architecture is not 'edges', got 1")

    def with_via(self, strategy: str) -> EmbeddingPlan:
        """Return the plan with another strategy, which decides where vectors are updated (parameter ``via``)."""
        return replace(self, settings=with_values(self.settings, via=strategy))

    @property
    def architecture(self) -> Architecture:
        """ "skipgram": predict a word from each of its contexts; "cbow": predict a word from the mean of its contexts;
        "edges" (LINE, Tang et al. 2015): sentences are pairs; predict the second word from the first."""
        if isinstance(self.settings, LINESettings):
            return "edges"
        is_cbow = isinstance(self.settings, Word2VecSettings) and self.settings.architecture == "cbow"
        return "cbow" if is_cbow else "skipgram"

    @property
    def size(self) -> int:
        """The dimension of the vectors: with two orders of LINE, half of ``vectorSize`` for each order."""
        settings = self.settings
        orders = len(ORDERS[settings.order]) if isinstance(settings, LINESettings) else 1
        return settings.vectorSize // orders

    @property
    def window(self) -> int:
        """The maximum of the random number of context words on either side; 1 for edges."""
        settings = self.settings
        return settings.windowSize if isinstance(settings, (Word2VecSettings, DeepWalkSettings)) else 1

    @property
    def sample(self) -> float:
        """The threshold of word2vec's subsampling, as a fraction of all tokens; 0: no subsampling."""
        return self.settings.sample if isinstance(self.settings, Word2VecSettings) else 0.0

    @property
    def keyed(self) -> bool:
        """Whether words are keys of sparse tables instead of indices; only with the strategy "rows"."""
        return isinstance(self.settings, LINESettings) and self.settings.hashed

    @property
    def shares_table(self) -> bool:
        """Whether the vectors are also the contexts."""
        return self.order == 1

    @property
    def tables(self) -> int:
        """The number of tables."""
        return 1 if self.shares_table else 2

    @property
    def table_bytes(self) -> int:
        """The bytes of a table."""
        return self.vocabulary * self.size * np.dtype(np.float32).itemsize

    @property
    def zero_vectors_loss(self) -> float:
        """The loss of a pair and its negatives if all vectors are 0."""
        return (1 + self.settings.negative) * math.log(2)

    def has_diverged(self, loss: float) -> bool:
        """Return whether an epoch's mean loss is NaN, or so large that the training will not recover."""
        return not loss <= DIVERGED_FACTOR * self.zero_vectors_loss

    @property
    def group_size(self) -> int:
        """The number of a word's contexts that share negatives: all; 2 in "local" skip-gram, where drawing is cheap."""
        return 2 if self.settings.via == "local" and self.architecture == "skipgram" else 2 * self.window

    @property
    def num_negatives(self) -> int:
        """The number of negatives that are drawn for each word (or edge), for all groups of its contexts."""
        return self.settings.negative * (-(-2 * self.window // self.group_size))

    @property
    def tokens_per_example(self) -> int:
        """The number of tokens in each unit of ``total``: 2 for edges, else 1."""
        return 2 if self.architecture == "edges" else 1

    @property
    def inputs_per_token(self) -> float:
        """The mean number of inputs (see ``training_kernels``) per token; for skip-gram, its contexts."""
        return {"skipgram": self.window + 1.0, "cbow": 1.0, "edges": 0.5}[self.architecture]

    def rate(self, progress: float) -> float:
        """Return the step size after ``progress`` epochs, which can be a fraction."""
        return self.settings.stepSize * max(MIN_STEP, 1.0 - progress / self.settings.maxIter)


@dataclass(frozen=True, eq=False)
class FittedEmbeddings:
    """The result of a training.

    Attributes:
        vectors: float32, shape (vocabulary, size).
        contexts: float32, of the same shape; None: the vectors are also the contexts.
        history: the history; the objective is the mean loss of a pair and its negatives in each epoch.
        clocks: the number of clocks of the run, including those of earlier trainings in the same run.
        keys, counts: the keys and their occurrences, the most frequent first; None: words are not keys.
    """

    vectors: Float32s
    contexts: Float32s | None
    history: TrainingHistory
    clocks: int
    keys: Int64s | None = None
    counts: Int64s | None = None
