"""Solvers with a fixed number of steps. In a step's clock, workers also evaluate the model before the step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ps2.algorithms.frame.program import Ask, Steps, Task
from ps2.algorithms.linear.parameters import Parameters
from ps2.algorithms.linear.program import LinearProgram
from ps2.algorithms.linear.solvers.objective_monitor import ObjectiveMonitor
from ps2.algorithms.linear.solvers.solver import SolverContext
from ps2.algorithms.linear.validation import Validation
from ps2.client.batch import batch
from ps2.client.dcv import DCV


@dataclass(frozen=True)
class Evaluate(Task):
    """Report the loss of all rows after a number of steps."""

    step: int


class SteppingProgram(LinearProgram):
    """A solver with a fixed number of steps."""

    def __init__(
        self,
        context: SolverContext,
        penalised: Callable[[Parameters], tuple[DCV, ...]] = lambda model: (model.weight,),
    ) -> None:
        """Args:
        penalised: returns the vectors of a model to which the L2 penalty applies.
        """
        super().__init__(context)
        self.validation = Validation.make(context.plan, context.space, self.model, context.record.validation)
        self.monitor = ObjectiveMonitor(context, penalised)

    def step_or_evaluate(self, ask: Ask, step: int, task: Task) -> Steps[tuple[Any, bool]]:
        """Let the workers do a step's task; or, after the last step, evaluate the model.

        Returns:
            Their report, and whether the model is the last one.
        """
        is_last = self._is_last(ask, step)
        report = yield from self.clock(Evaluate(step) if is_last else task)
        if is_last and not self._is_last(ask, step):  # another driver wants more steps
            report = yield from self.clock(task)
            is_last = False
        return report, is_last

    def _is_last(self, ask: Ask, step: int) -> bool:
        return step >= ask.setting(lambda: self.plan.settings.maxIter)

    def record_objective(self, ask: Ask, step: int, report: Any, penalty: float, is_last: bool) -> bool:
        """Record the objective before a step; return whether the training ends with this model."""
        ask.record_objective(self.monitor.objective(step, report.loss, report.weight, penalty))
        reason = self.validation.add_loss(ask, report, self.model) if self.plan.validate else ""
        if not (reason or is_last):
            return False
        ask(self.monitor.end)
        self.record.reason = reason
        return True

    def penalty(self) -> float:
        """Return the model's penalties, from the servers."""
        with batch():
            penalty = self.monitor.penalty(self.model)
        return penalty()
