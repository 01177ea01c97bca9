"""Settings of a training, and its result."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from ps2.algorithms.training.record import TrainingHistory
from ps2.array_types import Float32s, Int64s
from ps2.errors import ConfigError

Architecture = Literal["skipgram", "cbow", "edges"]
Strategy = Literal["auto", "servers", "rows", "local"]

MAX_WORDS = 2**31 - 1
# The final step size, relative to the initial one.
MIN_STEP = 1e-4
# A training has diverged if its loss exceeds this multiple of the loss of zero vectors. Trainings that learned
# something stayed below it at any step size; diverging ones were at 16 times and far beyond.
DIVERGED_FACTOR = 10.0


@dataclass(frozen=True)
class EmbeddingSettings:
    """How to train embeddings by negative sampling (Mikolov et al. 2013, "Distributed Representations of Words").

    Attributes:
        vocabulary: number of words; word numbers are in [0, vocabulary), the most frequent first.
        size: dimension of the vectors.
        total: tokens (or edges) of an epoch, over all workers.
        window: maximum number of context words on either side; the actual number is random.
        negative: negative samples per positive pair.
        architecture: "skipgram": predict a word from each of its contexts; "cbow": from their mean; "edges" (LINE, Tang
            et al. 2015): a sentence is a pair, predict the second from the first.
        order: of "edges": 1 if contexts are the vectors themselves, 2 if they are separate.
        exponent: of the frequencies, for drawing negatives.
        sample: threshold of word2vec's subsampling, as a share of all tokens; 0: no subsampling.
        step_size: initial; falls linearly with the progress, to ``MIN_STEP`` times that.
        epochs: passes over all sentences.
        via: strategy: "local" (workers hold both tables), "rows" (workers pull the rows that they need), "servers"
            (only dot products travel), or "auto": the fastest by prediction.
        seed: of all draws.
        name: under which a restored context continues the training; "": it cannot.
        keyed: words are integers without numbering (``keyed``); requires "rows". ``vocabulary`` differs between
            workers.
    """

    vocabulary: int
    size: int
    total: int
    window: int = 5
    negative: int = 5
    architecture: Architecture = "skipgram"
    order: int = 2
    exponent: float = 0.75
    sample: float = 0.0
    step_size: float = 0.025
    epochs: int = 1
    via: Strategy = "auto"
    seed: int = 0
    name: str = ""
    keyed: bool = False

    def __post_init__(self) -> None:
        for name, most in (("vocabulary", MAX_WORDS), ("size", None), ("total", None), ("window", None)):
            value = getattr(self, name)
            if value < 1 or (most is not None and value > most):
                raise ConfigError(f"{name}: expected a number from 1{f' to {most:,}' if most else ''}, got {value}")
        for name, kind in (("architecture", Architecture), ("via", Strategy)):
            if getattr(self, name) not in get_args(kind):
                raise ConfigError(f"{name}: expected one of {', '.join(get_args(kind))}, got {getattr(self, name)!r}")
        if self.order not in (1, 2) or (self.order == 1 and self.architecture != "edges"):
            raise ConfigError(f"order: expected 2, or of edges 1, got {self.order}")
        if self.keyed and self.via != "rows":
            raise ConfigError(f"via: expected 'rows', as words are keys, got {self.via!r}")

    @property
    def shares_table(self) -> bool:
        """Whether contexts are the vectors themselves."""
        return self.order == 1

    @property
    def tables(self) -> int:
        return 1 if self.shares_table else 2

    @property
    def table_bytes(self) -> int:
        """Bytes of one table."""
        return self.vocabulary * self.size * np.dtype(np.float32).itemsize

    @property
    def zero_vectors_loss(self) -> float:
        """Loss of a prediction and its negatives if all vectors are 0."""
        return (1 + self.negative) * math.log(2)

    def has_diverged(self, loss: float) -> bool:
        """Return True if an epoch's mean loss is NaN, or too large for later epochs to recover."""
        return not loss <= DIVERGED_FACTOR * self.zero_vectors_loss

    @property
    def sharing(self) -> int:
        """How many contexts of a word share negatives: two; or all, where more negatives would cost more."""
        return 2 if self.via == "local" and self.architecture == "skipgram" else 2 * self.window

    @property
    def negatives_drawn(self) -> int:
        """Negatives drawn for each word (or edge), for all groups of contexts that share them."""
        return self.negative * (-(-2 * self.window // self.sharing))

    @property
    def tokens_per_example(self) -> int:
        """Tokens of what ``total`` counts: two for an edge."""
        return 2 if self.architecture == "edges" else 1

    @property
    def inputs_per_token(self) -> float:
        """Mean inputs of a token's group; of skip-gram its contexts, window + 1 in the mean."""
        return {"skipgram": self.window + 1.0, "cbow": 1.0, "edges": 0.5}[self.architecture]

    def rate(self, progress: float) -> float:
        """Return the step size.

        Args:
            progress: epochs, the finished share of the current one included.
        """
        return self.step_size * max(MIN_STEP, 1.0 - progress / self.epochs)


@dataclass(frozen=True, eq=False)
class FittedEmbeddings:
    """Result of a training.

    Attributes:
        vectors: float32, shape (vocabulary, size).
        contexts: float32, shape (vocabulary, size); None: the vectors themselves.
        keys, counts: int64: if words are keys, these and their occurrences, the most frequent first.
        history: ``objective`` is the mean of -log p of a prediction and its negatives, for each epoch.
        clocks: of the run so far, earlier trainings included.
    """

    vectors: Float32s
    contexts: Float32s | None
    history: TrainingHistory
    clocks: int
    keys: Int64s | None = None
    counts: Int64s | None = None
