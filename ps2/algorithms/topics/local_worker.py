"""A worker's loop where it has all documents: counts stay in its process, and go to the servers at the end.

Servers hold the topics of tokens, saved as by other workers (``SavedTopics``). All else follows from these, so after a
failure nothing is rebuilt together.
"""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from ps2.algorithms.topics import ops
from ps2.algorithms.topics.alpha import AlphaSchedule
from ps2.algorithms.topics.corpus import Prior
from ps2.algorithms.topics.local_sampling import LocalSampling
from ps2.algorithms.topics.plan import SamplingPlan
from ps2.algorithms.topics.sampling_worker import NO_REQUEST, START, new_notices, report_histogram
from ps2.algorithms.topics.saved_topics import corpus_hash
from ps2.algorithms.topics.shared_counts import CountsSummary, SharedCounts
from ps2.algorithms.training.reading import Reading

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class LocalLoop:
    """The loop of the only worker; picklable. An iteration is a clock, and there are as many parts as threads."""

    plan: SamplingPlan
    shared: SharedCounts

    def __call__(self, worker: Any, reading: Reading) -> None:
        plan, settings = self.plan, self.plan.settings
        with closing(LocalSampling(plan, reading.training, plan.threads)) as sampling:
            whole, saved, is_first = corpus_hash(sampling.whole), self.shared.saved, False
            fits = AlphaSchedule(settings.optimizeDocConcentration, plan.lateness)
            alphas = {fits.first - 1: plan.alphas}
            for _ in worker.clocks(START + 1):
                is_first = True
                if saved is not None:
                    saved.tell_size(worker.rank, sampling.size)
            if not is_first:  # an earlier attempt or another driver's worker has done the first clock
                self._resume(worker.rank, sampling, whole)
            for clock in worker.clocks(START + 1 + settings.maxIter):
                iteration = clock - START
                alphas.update({notice.fit: notice.alpha for notice in new_notices(worker)})
                alpha = alphas[fits.fit_used_in(iteration)] if settings.optimizeDocConcentration else plan.alphas
                prior = Prior(alpha, plan.beta, plan.vocabulary)
                sampling.sample(iteration, prior)
                worker.report({"finished": iteration, "request": NO_REQUEST}, "max")
                likelihood = sampling.likelihood(prior) + self._summarize(sampling, iteration).words_likelihood(plan)
                worker.report({"likelihood": likelihood, "tokens": sampling.size, "bytes": 0})
                if fits.fit_after(iteration) is not None:
                    report_histogram(worker, plan.topics, *sampling.histogram())
                if saved is not None and iteration % plan.save_interval == 0:
                    saved.save(worker.rank, whole, sampling.topics)
                if iteration == settings.maxIter:
                    self._push(sampling)

    def _resume(self, rank: int, sampling: LocalSampling, whole: int) -> None:
        """Continue with the last saved topics if there are any."""
        saved = self.shared.saved
        topics = None if saved is None else saved.load(rank, whole, sampling.size)
        if topics is None:
            log.warning("topics of tokens were not saved, and are drawn again")
        else:
            sampling.give(topics)

    def _summarize(self, sampling: LocalSampling, iteration: int) -> CountsSummary:
        likelihood, totals, negative = ops.look(sampling.counts, np.array([self.plan.beta]))
        summary = CountsSummary(float(likelihood[0]), totals, int(negative[0]))
        if self.plan.check:
            summary.check(sampling.size, iteration)
        return summary

    def _push(self, sampling: LocalSampling) -> None:
        """Bring the counts to the servers. An attempt that repeats this overwrites words, or finds them written."""
        width = self.plan.width
        for begin in range(0, len(sampling.words), width):
            words = sampling.words[begin : begin + width]
            self.shared.counts.push(columns=words, values=sampling.counts[begin : begin + width])
