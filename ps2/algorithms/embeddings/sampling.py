"""Random sampling for batches of sentences, and training on a sampled batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ps2.algorithms.embeddings import sampling_kernels, training_kernels
from ps2.algorithms.embeddings.plan import EmbeddingPlan
from ps2.algorithms.embeddings.sentences import Batch, split
from ps2.array_types import Float32s, Float64s, Int32s, Int64s
from ps2.ops.guards import readable
from ps2.ops.parallel import over_blocks


@dataclass(frozen=True, eq=False)
class Sampler:
    """Samples windows and negatives for all batches of a training.

    Attributes:
        negative_probabilities: the probability that a negative is this word, float64, shape (vocabulary,).
        keep_probabilities: the probability that subsampling keeps an occurrence of this word, float32; None: no
            subsampling.
        thresholds, aliases: the alias table of ``negative_probabilities``.
    """

    plan: EmbeddingPlan
    negative_probabilities: Float64s
    keep_probabilities: Float32s | None
    thresholds: npt.NDArray[np.uint32]
    aliases: Int32s

    @staticmethod
    def from_frequencies(plan: EmbeddingPlan, frequencies: Int64s) -> Sampler:
        """Return the sampler for words with these counts; for edges, the counts of vertices as targets."""
        fractions = frequencies / max(frequencies.sum(), 1)
        probabilities = np.where(
            frequencies > 0, np.power(np.maximum(fractions, 1e-300), plan.settings.nsExponent), 0.0
        )
        # If no word occurs, all words are equally likely.
        probabilities = (
            probabilities / probabilities.sum()
            if probabilities.sum() > 0
            else np.full(len(fractions), 1 / len(fractions))
        )
        keep_probabilities = None
        if plan.sample:
            ratios = plan.sample / np.maximum(fractions, 1e-300)
            keep_probabilities = np.minimum(np.sqrt(ratios) + ratios, 1.0).astype(np.float32)
        thresholds, aliases = np.empty(len(probabilities), np.uint32), np.empty(len(probabilities), np.int32)
        sampling_kernels.fill_alias_table(probabilities * len(probabilities), thresholds, aliases)
        return Sampler(plan, probabilities, keep_probabilities, thresholds, aliases)

    def subsample(self, batch: Batch, key: np.uint64) -> Batch:
        """Drop occurrences of frequent words at random (word2vec's subsampling); ``key`` determines the result."""
        tokens, offsets = readable(batch[0].astype(np.int32, copy=False)), readable(batch[1])
        if self.keep_probabilities is None or self.plan.architecture == "edges":
            return tokens, offsets
        survivors, ends = np.empty(len(tokens), np.int32), np.empty(len(offsets), np.int64)
        count = sampling_kernels.subsample(key, tokens, offsets, self.keep_probabilities, survivors, ends)
        return readable(survivors[:count]), readable(ends)

    def sample(self, batch: Batch, key: np.uint64, threads: int = 1) -> SampledBatch:
        """Sample windows and negatives for a subsampled batch; ``key`` determines the result."""
        plan, tokens, offsets = self.plan, readable(batch[0]), readable(batch[1])
        windows = np.empty(0 if plan.architecture == "edges" else len(tokens), np.int32)
        sampling_kernels.draw_windows(key, plan.window, windows)
        shape = len(tokens) // plan.tokens_per_example, plan.num_negatives
        negatives = sampling_kernels.draw_negatives(shape, key, self.thresholds, self.aliases, threads)
        return SampledBatch(plan, tokens, tokens, offsets, readable(windows), readable(negatives))


def kind_of(plan: EmbeddingPlan) -> int:
    """Return the constant of ``training_kernels`` for a plan's architecture."""
    if plan.architecture == "edges":
        return training_kernels.EDGES_ONE_TABLE if plan.shares_table else training_kernels.EDGES
    return training_kernels.CBOW if plan.architecture == "cbow" else training_kernels.SKIPGRAM


@dataclass(frozen=True, eq=False)
class SampledBatch:
    """A batch of sentences: their bounds, ``offsets``, and the fields of ``training_kernels.Draws``."""

    plan: EmbeddingPlan
    tokens: Int32s
    targets: Int32s
    offsets: Int64s
    windows: Int32s
    negatives: Int32s

    def train(self, vectors: Float32s, contexts: Float32s, rate: float, threads: int = 1) -> Float64s:
        """Train the tables on the batch, in place; threads take no locks. Return ``training_kernels``' statistics.

        The tables are C-contiguous. For first-order edges, ``vectors`` and ``contexts`` are the same array.
        """
        kernel, options = training_kernels.kernel_of(kind_of(self.plan), self.plan.window, self.plan.group_size)
        draws = training_kernels.Draws(self.tokens, self.targets, self.windows, self.negatives)
        arguments = draws, vectors, contexts, np.float32(rate), *options
        bounds = readable(self.offsets[:-1]), readable(self.offsets[1:])
        if threads == 1:
            statistics: Float64s = kernel(*bounds, *arguments)
            return statistics
        block_statistics = over_blocks(kernel, bounds, *arguments, cost=self._cost, max_cores=threads)
        return np.sum(block_statistics, axis=0)

    def with_rows(self, tokens: Int32s, targets: Int32s, negatives: Int32s) -> SampledBatch:
        """Return the batch with other rows of the tables instead of words."""
        return replace(self, tokens=readable(tokens), targets=readable(targets), negatives=readable(negatives))

    def minibatches(self, groups: int) -> Iterator[SampledBatch]:
        """Yield minibatches of whole sentences, of at most ``groups`` words (or edges) each."""
        offsets, units = self.offsets, self.plan.tokens_per_example
        if len(self.tokens) <= groups * units:
            yield self
            return
        for first, last in split(offsets, groups * units):
            begin, end = int(offsets[first]), int(offsets[last])
            yield replace(
                self,
                tokens=self.tokens[begin:end],
                targets=self.targets[begin:end],
                offsets=readable(offsets[first : last + 1] - begin),
                windows=self.windows[begin:end],
                negatives=self.negatives[begin // units : end // units],
            )

    @property
    def _cost(self) -> int:
        """The approximate number of multiplications for a sentence."""
        plan = self.plan
        pairs = {"skipgram": plan.window, "cbow": 2, "edges": 1}[plan.architecture]
        groups = len(self.negatives) / max(len(self.offsets) - 1, 1)
        return int(3 * groups * pairs * (1 + plan.settings.negative) * plan.size) + 1
