"""What vectors are learned for, and how."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from ps2.algorithms.training.record import TrainingHistory
from ps2.errors import ConfigError
from ps2.ops.kernels import Int64s

Float32s = npt.NDArray[np.float32]

Architecture = Literal["skipgram", "cbow", "edges"]
Via = Literal["auto", "servers", "rows", "local"]

MOST_WORDS = 2**31 - 1
# Of the step size that a training begins with, what it ends with.
LEAST_STEP = 1e-4
# Of the loss of vectors of zeros. Trainings that learned something were measured to stay below it, whatever the step
# size; those that ran away were at 16 times and far beyond.
RUNAWAY = 10.0


@dataclass(frozen=True)
class Recipe:
    """How to learn vectors by negative sampling (Mikolov et al. 2013, "Distributed Representations of Words").

    Attributes:
        vocabulary: how many words there are: 0 to ``vocabulary - 1``, the most frequent first.
        size: of a vector.
        total: tokens, or edges, of an epoch over all workers.
        window: words on either side of one that are its contexts, at most; each time a random number of them is.
        negative: words drawn for each that is learned from.
        architecture: "skipgram": a word is predicted of each of its contexts; "cbow": of their mean; "edges" (LINE,
            Tang et al. 2015): a sentence is a pair, and the second is predicted of the first.
        order: of "edges": 1 if a word's context is its vector itself, 2 if it is another one.
        exponent: of frequencies: negatives are drawn in proportion to what comes of them.
        sample: words of a larger share of all tokens are left out at random (word2vec's subsampling); 0: none is.
        step_size: falls linearly with the progress, down to ``LEAST_STEP`` times that.
        epochs: passes over all sentences.
        via: where it is computed: "local" (workers have both tables), "rows" (workers pull the rows that they need),
            "servers" (only dots travel), or "auto": what should take the least time.
        seed: of all draws.
        name: by which a context that was restored goes on with the training; "": none does.
        keyed: words are integers that nobody has numbered (``keyed``), by "rows" alone; ``vocabulary`` is each worker's
            own, and means nothing elsewhere.
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
    via: Via = "auto"
    seed: int = 0
    name: str = ""
    keyed: bool = False

    def __post_init__(self) -> None:
        for name, most in (("vocabulary", MOST_WORDS), ("size", None), ("total", None), ("window", None)):
            value = getattr(self, name)
            if value < 1 or (most is not None and value > most):
                raise ConfigError(f"{name}: expected a number from 1{f' to {most:,}' if most else ''}, got {value}")
        for name, kind in (("architecture", Architecture), ("via", Via)):
            if getattr(self, name) not in get_args(kind):
                raise ConfigError(f"{name}: expected one of {', '.join(get_args(kind))}, got {getattr(self, name)!r}")
        if self.order not in (1, 2) or (self.order == 1 and self.architecture != "edges"):
            raise ConfigError(f"order: expected 2, or of edges 1, got {self.order}")
        if self.keyed and self.via != "rows":
            raise ConfigError(f"via: expected 'rows', by which alone words may be keys, got {self.via!r}")

    @property
    def shares_table(self) -> bool:
        """Whether a word's context is its vector."""
        return self.order == 1

    @property
    def tables(self) -> int:
        return 1 if self.shares_table else 2

    @property
    def table_bytes(self) -> int:
        """What one table takes, all of it."""
        return self.vocabulary * self.size * np.dtype(np.float32).itemsize

    @property
    def loss_of_zeros(self) -> float:
        """The loss of a prediction and its negatives where all vectors are 0: each is as likely as not."""
        return (1 + self.negative) * math.log(2)

    def has_diverged(self, loss: float) -> bool:
        """Tell whether an epoch's mean loss is NaN, or so large that no epoch after it can find its way back."""
        return not loss <= RUNAWAY * self.loss_of_zeros

    @property
    def sharing(self) -> int:
        """How many of a word's contexts have their negatives in common: two, or, where others cost more, all."""
        return 2 if self.via == "local" and self.architecture == "skipgram" else 2 * self.window

    @property
    def drawn(self) -> int:
        """Negatives that are drawn for each word, or edge: for all that share them."""
        return self.negative * (-(-2 * self.window // self.sharing))

    @property
    def units(self) -> int:
        """Tokens of what ``total`` counts: an edge is two."""
        return 2 if self.architecture == "edges" else 1

    def rate(self, progress: float) -> float:
        """Return the step size.

        Args:
            progress: epochs that are over, and the share of the one that is under way.
        """
        return self.step_size * max(LEAST_STEP, 1.0 - progress / self.epochs)


@dataclass(frozen=True, eq=False)
class Fitted:
    """What came of a training.

    Attributes:
        vectors: float32, shape (vocabulary, size).
        contexts: the same of contexts; None if these are the vectors.
        keys, counts: int64: of words that are keys, what they are and how often each comes, the most frequent first.
        history: of which ``objective`` is, of each epoch, the mean of -log p of what was predicted and its negatives.
        clocks: that are over with it, and with the trainings before it.
    """

    vectors: Float32s
    contexts: Float32s | None
    history: TrainingHistory
    clocks: int
    keys: Int64s | None = None
    counts: Int64s | None = None
