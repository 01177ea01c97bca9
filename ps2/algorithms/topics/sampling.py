"""Collapsed Gibbs sampling as a durable program: workers sample with shared counts, and the driver fits alpha.

Griffiths and Steyvers, "Finding scientific topics" (2004). Some workers may be ahead of others, so each runs a loop
(``SamplingLoop``), and reports the number of iterations that it has finished. With ``sync="rotation"`` an iteration
takes several clocks, else one. If the plan is local, the only worker has all documents and counts (``LocalLoop``).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from ps2.algorithms.frame.journal import Journal
from ps2.algorithms.frame.program import Ask, NextClock, Program, Steps
from ps2.algorithms.topics.alpha import AlphaSchedule, fit_alpha
from ps2.algorithms.topics.local_sampling import LocalLoop
from ps2.algorithms.topics.model import LDATopics
from ps2.algorithms.topics.plan import SamplingPlan
from ps2.algorithms.topics.sampling_worker import NO_CLOCK, NO_REQUEST, START, Notice, SamplingLoop, rebuild_after
from ps2.algorithms.topics.settings import resolved_inference
from ps2.algorithms.topics.shared_counts import SharedCounts
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.record import Record, Trained, Words
from ps2.algorithms.training.run import IncompleteRunError
from ps2.array_types import Float64s
from ps2.errors import PS2Error


class SamplingProgram(Program[Trained[LDATopics]]):
    """Collapsed Gibbs sampling.

    ``train`` raises IncompleteRunError if, with a staleness, servers were lost just before the end.
    """

    number = 2

    def __init__(self, plan: SamplingPlan, record: Record, names: CheckpointNames) -> None:
        super().__init__(plan, plan.form, record)
        record.words = Words("iteration", "-log p a token")
        self.staleness = plan.lateness
        self._fits = AlphaSchedule(plan.settings.optimizeDocConcentration, plan.lateness)
        Journal.of(
            names, self.settings(), self.number
        )  # raises ConfigError if settings differ, before vectors are made
        self._shared = SharedCounts.make(plan, names)
        if 0 < names.finished_clocks <= START:
            self._shared.clear()

    def settings(self) -> dict[str, Any]:
        # Another driver may use other threads: the order of the saved topics does not depend on them.
        return {name: value for name, value in super().settings().items() if name != "threads"}

    def drive(self, ask: Ask) -> Steps[tuple[Float64s, list[dict[str, float]]]]:
        plan, alpha = self.plan, self.plan.alphas
        yield NextClock()  # workers give all tokens random topics
        ask.start_timer()
        clock, rebuild_clock, message = START, NO_CLOCK, NextClock()
        metrics: list[dict[str, float]] = []  # for each finished iteration
        while len(metrics) < ask.setting(lambda: plan.settings.maxIter):
            clock, iteration = clock + 1, len(metrics) + 1
            report = yield message.then(partial(self._summarize, iteration, alpha, clock < rebuild_clock))
            notice: dict[str, Any] = {}
            if report.request != NO_REQUEST:  # after a failure, the counts do not match the workers' topics
                rebuild_clock = rebuild_after(clock, plan.lateness)
                notice = {"rebuild_clock": rebuild_clock, "epoch": report.request}
            if report.finished == iteration:
                objective, step = -report.likelihood / self.plan.tokens, {"log_likelihood": report.likelihood}
                metrics.append(ask.record_step(objective, 0, report.bytes, step, tokens=report.tokens))
                if (fit := self._fits.fit_after(iteration)) is not None:
                    alpha = report.alpha
                    notice |= {"fit": fit, "alpha": alpha}
            message = Notice(**notice) if notice else NextClock()
        return alpha, metrics

    def _summarize(self, iteration: int, alpha: Float64s, is_rebuilding: bool, report: Any) -> dict[str, Any]:
        """Return a clock's report; at the end of an iteration, add the likelihood of all tokens and the next alpha.

        The likelihood is NaN until the workers have rebuilt the counts (``is_rebuilding``).
        """
        plan, summary = self.plan, dict(vars(report))
        if not summary:  # a checkpoint that was made in ``on_step`` counts this clock, but lacks its report
            empty = {"finished": iteration, "request": NO_REQUEST, "likelihood": math.nan, "tokens": 0, "bytes": 0}
            return {**empty, "alpha": alpha}
        if report.finished != iteration:
            return summary
        likelihood, counts = report.likelihood, None
        if not plan.is_local:
            counts = self._shared.summarize(plan.beta)
            likelihood += counts.words_likelihood(plan)
        if is_rebuilding or report.request != NO_REQUEST:
            likelihood = math.nan
        elif not math.isfinite(likelihood):
            raise PS2Error(
                f"iteration {iteration}: the log-likelihood is {likelihood}: the training has diverged; other values "
                "of docConcentration and topicConcentration may help"
            )
        elif counts is not None and plan.check:
            counts.check(self.plan.tokens, iteration)
        summary["likelihood"] = likelihood
        if self._fits.fit_after(iteration) is not None:
            summary["alpha"] = fit_alpha(alpha, summary.pop("keys"), summary.pop("documents"))
        return summary

    def loop(self) -> SamplingLoop | LocalLoop:
        if self.plan.is_local:
            return LocalLoop(self.plan, self._shared)
        return SamplingLoop(self.plan, self._shared, len(self.record.seconds))

    def result(self, returned: tuple[Float64s, list[dict[str, float]]]) -> Trained[LDATopics]:
        plan, (alpha, metrics) = self.plan, returned
        summary = self._shared.summarize(plan.beta)
        if summary.negative or summary.totals.sum() != self.plan.tokens:
            raise IncompleteRunError(
                f"counts were being rebuilt when the last iteration ended, as servers were lost just before: "
                f"expected counts of {self.plan.tokens:,} tokens, none negative, got {summary.totals.sum():,} tokens, "
                f"and {summary.negative:,} negative counts; train again, or a few iterations more"
            )
        counts = self._shared.counts.pull(columns=np.arange(plan.vocabulary))
        self.record.metrics = {name: tuple(step[name] for step in metrics) for name in metrics[0]} if metrics else {}
        inference = resolved_inference(plan.settings.inference, plan.settings.optimizer)
        return Trained(LDATopics(counts, alpha, plan.beta, inference, plan.seed), self.record.history())

    def free(self) -> None:
        self._shared.free()
