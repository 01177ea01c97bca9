"""Choose the strategy of a training by predicted costs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ps2.algorithms.embeddings.cost_model import STRATEGIES, FleetSize, UnitCosts, seconds_per_token, work_per_token
from ps2.algorithms.embeddings.cost_probes import measure
from ps2.algorithms.embeddings.damping import UpdateRates
from ps2.algorithms.embeddings.loops import batch_tokens, piece_tokens
from ps2.algorithms.embeddings.remembered_costs import remembered
from ps2.algorithms.embeddings.sampling import Sampler
from ps2.algorithms.embeddings.settings import EmbeddingPlan
from ps2.algorithms.embeddings.worker import clock_tokens
from ps2.ops.kernels import Float64s, Int64s
from ps2.run.timeline import rounded

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StrategyChoice:
    """A choice by predicted costs.

    Attributes:
        seconds: float64: the predicted seconds per token and worker, by ``cost_model.STRATEGIES``; empty: the settings
            name a strategy.
    """

    seconds: Float64s

    def of(self, plan: EmbeddingPlan) -> tuple[EmbeddingPlan, str]:
        """Return the plan with the chosen strategy, and the reason."""
        if not len(self.seconds):
            return plan, "as requested"
        seconds = dict(zip(STRATEGIES, self.seconds.tolist(), strict=True))
        strategy = min(STRATEGIES, key=lambda name: seconds[name])
        predicted = ", ".join(
            f"{name!r} {rounded(1e6 * s)}" if np.isfinite(s) else f"{name!r} does not fit"
            for name, s in seconds.items()
        )
        return plan.by(strategy), f"chosen by predicted microseconds per token: {predicted}"


def choose(
    plan: EmbeddingPlan,
    frequencies: Int64s,
    servers: int,
    workers: int,
    threads: int,
    hosts: Sequence[str] | None = None,
) -> StrategyChoice:
    """Predict the costs of each strategy from measurements, unless the settings name one.

    Args:
        threads: the number of threads of each worker.
        hosts: the hosts of the servers: measurements are cached by these; None: costs are measured again.

    Raises:
        LimitError: the servers lack the memory for the measurements.
    """
    if plan.settings.via != "auto":
        return StrategyChoice(np.empty(0))
    sampler = Sampler.of(plan, frequencies)
    parts = min(servers, plan.size)
    updates = UpdateRates.of(plan, frequencies, sampler.chances).max_per_token
    piece = piece_tokens(plan, updates * workers, parts)
    clock = clock_tokens(plan.by("local"), workers)
    work = work_per_token(plan, frequencies, sampler.chances, clock, batch_tokens(plan), piece)
    costs = _costs(plan, servers, piece, hosts)
    # The measurements are those of one thread.
    costs = replace(costs, here_s=costs.here_s / threads)
    seconds = seconds_per_token(work, costs, FleetSize(parts, workers), plan.tables * plan.table_bytes)
    log.info("costs %s, work %s: seconds a token %s", costs, work, seconds)
    return StrategyChoice(np.array([seconds[name] for name in STRATEGIES]))


def _costs(plan: EmbeddingPlan, servers: int, piece: int, hosts: Sequence[str] | None) -> UnitCosts:
    """Return the costs between this process and the servers, from an earlier training of about the same size if any."""
    if hosts is None:
        return measure(plan, servers, piece)
    key = {
        "servers": sorted(hosts),
        "size": plan.size,
        "negative": plan.settings.negative,
        "window": plan.window,
        "architecture": plan.architecture,
        "order": plan.order,
        "vocabulary": plan.vocabulary.bit_length(),
        "piece": piece.bit_length(),
    }
    return remembered(key, lambda: measure(plan, servers, piece))
