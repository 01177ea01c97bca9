"""``model.summary`` of a factorization."""

from __future__ import annotations

from ps2.algorithms.estimators.summaries import HistorySummary


class FactorizationSummary(HistorySummary):
    """The history of a factorization: RMSE, or loss, by iteration."""

    @property
    def bestIteration(self) -> int:
        """The iteration, from 1, whose vectors the model has: the last one unless held-out rows chose an earlier
        one."""
        history = self._history
        return history.steps if history.best is None else history.best
