"""Collapsed Gibbs sampling as a durable program: workers sample with shared counts, and the driver fits alpha.

Griffiths and Steyvers, "Finding scientific topics" (2004). Workers may be ahead of each other, so they have a loop of
their own (``SamplingLoop``) and report which iterations they have finished. With ``sync="rotation"`` an iteration takes
several clocks, else one. If the plan is local, the only worker has all documents and counts (``LocalLoop``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ps2.algorithms.frame.journal import Journal
from ps2.algorithms.frame.placement import Work
from ps2.algorithms.frame.program import Ask, NextClock, Program, Steps, run_program
from ps2.algorithms.topics.alpha import AlphaSchedule, fit_alpha
from ps2.algorithms.topics.local_sampling import LocalLoop
from ps2.algorithms.topics.plan import FittedTopics, SamplingPlan
from ps2.algorithms.topics.sampling_worker import NO_CLOCK, NO_REQUEST, START, Notice, rebuild_after
from ps2.algorithms.topics.shared_counts import SharedCounts, Sizes
from ps2.algorithms.topics.sharing import SamplingLoop
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.record import Record, StepReport, Words
from ps2.algorithms.training.run import NotWhole
from ps2.algorithms.training.table import Table
from ps2.array_types import Float64s
from ps2.errors import ConfigError, PS2Error

# Seconds of a token, measured (decision 56): a part of its own, and one for each topic, which is smaller where
# documents have lists of their topics.
TOKEN_S, TOPIC_S, LISTED_S, MAX_DENSE = 45e-9, 0.35e-9, 0.12e-9, 256
# Seconds of a count: to compute its part of the likelihood; to bring it from servers to a worker, and its change back.
LOOK_S, EXCHANGE_S = 1e-9, 16e-9
# Seconds of an iteration: the clock, and requests for topics' totals and slices of words.
CLOCK_S, REQUESTS_S = 4e-3, 10e-3
# Bytes of one worker: of a count, and of a token with its topic, its document and its part of the document's counts.
COUNT_BYTES, TOKEN_BYTES = 4, 24
# A worker with more than this may not fit its task.
MAX_BYTES = 2 << 30


def iteration_work(plan: SamplingPlan, documents: int, tokens: int) -> Work:
    """Count the work of an iteration: the only worker divides its documents among threads."""
    listed = max(plan.topics - MAX_DENSE, 0)
    token_s = TOKEN_S + min(plan.topics, MAX_DENSE) * TOPIC_S + listed * LISTED_S
    counts = plan.vocabulary * plan.topics
    needed = counts * COUNT_BYTES + tokens * TOKEN_BYTES
    return Work(
        read_s=0.0,
        steps=1,
        step_s=tokens * token_s,
        local_s=counts * LOOK_S + CLOCK_S,
        servers_s=counts * EXCHANGE_S + CLOCK_S + REQUESTS_S,
        local_threads=documents,
        why_servers="" if plan.settings.budgetS is None else "budgetS is set",
        why_not_auto=f"one worker would take {needed >> 20:,} MiB" if needed > MAX_BYTES else "",
    )


def train(
    ps: Any,
    table: Table,
    plan: SamplingPlan,
    tokens: int,
    on_step: Callable[[StepReport], None] = lambda step: None,
) -> FittedTopics:
    """Find topics by sampling, with the counts on the servers, of so many tokens; in a restored context, continue.

    Raise NotWhole if, with a staleness, servers were lost just before the end; else as ``run_program``.
    """
    if plan.is_local and table.workers != 1:
        raise ConfigError(f"via: expected one worker, which has all documents, with 'local', got {table.workers}")
    names = CheckpointNames.of(plan.name, ps)
    record = Record(on_step, Words("iteration", "-log p a token"))
    return run_program(ps, SamplingProgram(Sizes(plan, tokens, table.workers), record, names), table, names)


class SamplingProgram(Program[FittedTopics]):
    """Collapsed Gibbs sampling."""

    number = 2

    def __init__(self, sizes: Sizes, record: Record, names: CheckpointNames) -> None:
        plan = sizes.plan
        super().__init__(plan, plan.form, record)
        self.staleness, self._tokens, self._workers = plan.lateness, sizes.tokens, sizes.workers
        self._fits = AlphaSchedule(plan.settings.optimizeDocConcentration, plan.lateness)
        Journal.of(names, self.settings(), self.number)  # raises if settings differ, on which the vectors depend
        self._shared = SharedCounts.make(sizes, names)
        if 0 < names.begun <= START:
            self._shared.clear()

    def settings(self) -> dict[str, Any]:
        # Another driver may use other threads: the order of the saved topics does not depend on them.
        settings = {name: value for name, value in super().settings().items() if name != "threads"}
        return {**settings, "tokens": self._tokens, "workers": self._workers}

    # -- the algorithm -------------------------------------------------------------------------------------------------

    def drive(self, ask: Ask) -> Steps[tuple[Float64s, list[dict[str, float]]]]:
        plan, alpha = self.plan, self.plan.alphas
        yield NextClock()  # all tokens get random topics
        ask.start_timer()
        clock, rebuild_clock, message = START, NO_CLOCK, NextClock()
        metrics: list[dict[str, float]] = []  # of each finished iteration
        while len(metrics) < ask.setting(lambda: plan.settings.maxIter):
            clock, iteration = clock + 1, len(metrics) + 1
            report = yield message.then(partial(self._summarize, iteration, alpha, clock < rebuild_clock))
            notice: dict[str, Any] = {}
            if report.request != NO_REQUEST:  # after a failure, the counts are not those of the workers' topics
                rebuild_clock = rebuild_after(clock, plan.lateness)
                notice = {"rebuild_clock": rebuild_clock, "epoch": report.request}
            if report.finished == iteration:
                objective, step = -report.likelihood / self._tokens, {"log_likelihood": report.likelihood}
                metrics.append(ask.record_step(objective, 0, report.bytes, step, tokens=report.tokens))
                if (fit := self._fits.fit_after(iteration)) is not None:
                    alpha = report.alpha
                    notice |= {"fit": fit, "alpha": alpha}
            message = Notice(**notice) if notice else NextClock()
        return alpha, metrics

    def _summarize(self, iteration: int, alpha: Float64s, is_rebuilding: bool, report: Any) -> dict[str, Any]:
        """Return a clock's report; at the end of an iteration, with the likelihood of all tokens and the next alpha.

        While the workers are to rebuild all counts in a later clock (``is_rebuilding``), the likelihood is NaN.
        """
        plan, summary = self.plan, dict(vars(report))
        if not summary:  # A checkpoint within ``on_step`` counted this clock, but lacks its report.
            lost = {"finished": iteration, "request": NO_REQUEST, "likelihood": math.nan, "tokens": 0, "bytes": 0}
            return {**lost, "alpha": alpha}
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
            counts.check(self._tokens, iteration)
        summary["likelihood"] = likelihood
        if self._fits.fit_after(iteration) is not None:
            summary["alpha"] = fit_alpha(alpha, summary.pop("keys"), summary.pop("documents"))
        return summary

    # -- the program's parts -------------------------------------------------------------------------------------------

    def loop(self) -> SamplingLoop | LocalLoop:
        if self.plan.is_local:
            return LocalLoop(self.plan, self._shared)
        return SamplingLoop(self.plan, self._shared, len(self.record.seconds))

    def result(self, returned: tuple[Float64s, list[dict[str, float]]]) -> FittedTopics:
        plan, (alpha, metrics) = self.plan, returned
        summary = self._shared.summarize(plan.beta)
        if summary.negative or summary.totals.sum() != self._tokens:
            raise NotWhole(
                f"counts were being rebuilt when the last iteration ended, as servers were lost just before: "
                f"expected counts of {self._tokens:,} tokens, none negative, got {summary.totals.sum():,} tokens, "
                f"and {summary.negative:,} negative counts; train again, or a few iterations more"
            )
        counts = self._shared.counts.pull(columns=np.arange(plan.vocabulary))
        self.record.metrics = {name: tuple(step[name] for step in metrics) for name in metrics[0]} if metrics else {}
        return FittedTopics(counts, alpha, plan.beta, self.record.history())

    def free(self) -> None:
        self._shared.free()
