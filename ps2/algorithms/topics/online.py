"""Online variational Bayes as a durable program: one batch of documents per clock, with lambda on the servers.

Hoffman, Blei and Bach, "Online learning for latent Dirichlet allocation" (2010), Algorithm 2, with the params of
pyspark.ml's "online" optimizer. In a clock each worker draws its documents of the batch, reads lambda at their words,
and adds the documents' statistics. Then the servers take the step of lambda, and the driver that of alpha. A batch
depends only on seed, iteration and documents. So a worker that repeats a clock does the same again, and its additions
count once.
"""

from __future__ import annotations

import logging
import math
from functools import partial

import numpy as np

from ps2.algorithms.frame.program import Ask, Program, Steps
from ps2.algorithms.topics.model import LDATopics
from ps2.algorithms.topics.online_workers import (
    AveragingWork,
    CountDocuments,
    GradientWork,
    InferBatch,
    alpha_after,
)
from ps2.algorithms.topics.plan import OnlinePlan
from ps2.algorithms.topics.settings import resolved_inference
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.record import Record, Trained, Words
from ps2.client.dcv import DCV
from ps2.client.matrix import DCVMatrix
from ps2.errors import PS2Error
from ps2.ops.kernels import Float64s

log = logging.getLogger(__name__)

# The dtype of lambda on the servers. Its rounding errors are far below the noise of a batch.
DTYPE = "float32"
NO_DOCUMENT = (
    "no batch had a document, so the topics are the random ones that the training began with: use a subsamplingRate "
    "above %g, or more documents (equal documents are in the same batches)"
)


class OnlineProgram(Program[Trained[LDATopics]]):
    """Online variational Bayes.

    The batches are the same for any number of workers and servers, and so are the results, except for the order of
    sums. With ``sync`` "average" the results also depend on the distribution of documents among workers. The history's
    objective is minus the bound of a batch's log-likelihood per token, at the beginning of its iteration. A batch
    without documents has the value of the previous batch, or of the first batch with documents. NaN: no batch has any.
    """

    number = 2

    def __init__(self, plan: OnlinePlan, record: Record, names: CheckpointNames) -> None:
        super().__init__(plan, plan.form, record)
        record.words = Words("iteration", "-bound a token")

        def matrix() -> DCVMatrix:
            shape = plan.vocabulary, plan.topics
            return names.give(lambda name: DCV.dense(*shape, DTYPE, layout="column", name=name)).matrix()

        self._counts, self._stats = matrix(), matrix()

    # -- the algorithm -------------------------------------------------------------------------------------------------

    def drive(self, ask: Ask) -> Steps[Float64s]:
        plan, documents = self.plan, 0
        if plan.settings.sync == "average":
            report = yield CountDocuments()
            documents = report.documents
        alpha, totals = plan.alphas, ask(self._draw_lambda)
        ask.start_timer()
        iteration = 0
        while iteration < ask.setting(lambda: plan.settings.maxIter):
            report = yield InferBatch(iteration, documents, alpha, totals)  # the E-step
            iteration += 1
            if plan.settings.sync == "average" and documents:  # the workers took steps, and this is their average
                totals = ask(partial(self._update_lambda, report.decay / documents, 1 / documents))
                alpha = report.alphas / documents
            elif report.drawn:  # the M-step: lambda = (1 - rho) lambda + rho (beta + D / |batch| statistics)
                rho = plan.weight(iteration)
                totals = ask(partial(self._update_lambda, 1 - rho, rho * report.documents / report.drawn))
                if plan.settings.optimizeDocConcentration:
                    alpha = alpha_after(alpha, report.log_shares, report.drawn, rho)
            if not (math.isfinite(report.bound) and np.isfinite(report.log_shares).all() and np.isfinite(alpha).all()):
                raise PS2Error(
                    f"iteration {iteration}: the bound of the likelihood, or alpha, is not finite: the training has "
                    "diverged; a larger learningOffset, or another docConcentration or topicConcentration, may help"
                )
            objective = -report.bound / report.tokens if report.tokens else math.nan
            ask.record_step(self.record.known(objective), report.drawn, report.bytes, tokens=report.tokens)
        if iteration and not self.record.rows:
            ask(partial(log.warning, NO_DOCUMENT, plan.settings.subsamplingRate))
        return alpha

    def _draw_lambda(self) -> Float64s:
        """Draw lambda; return its sums over all words."""
        return self._totals(self._counts.apply("variational.begin", seed=self.plan.seed, beta=self.plan.beta))

    def _update_lambda(self, decay: float, scale: float) -> Float64s:
        """Add ``scale`` times the workers' statistics to ``decay`` times (lambda - beta); return lambda's sums."""
        return self._totals(self._counts.apply("variational.step", stats=self._stats, keep=decay, scale=scale))

    def _totals(self, sums: Float64s) -> Float64s:
        """Return the sums over all words of lambda, given those of lambda minus beta."""
        return sums + self.plan.beta * self.plan.vocabulary

    # -- the program's parts -------------------------------------------------------------------------------------------

    def worker(self) -> GradientWork | AveragingWork:
        work = AveragingWork if self.plan.settings.sync == "average" else GradientWork
        return work(self.plan, self._counts, self._stats)

    def result(self, alpha: Float64s) -> Trained[LDATopics]:
        plan, settings = self.plan, self.plan.settings
        counts = self._counts.pull(columns=np.arange(plan.vocabulary)).astype(np.float64)
        inference = resolved_inference(settings.inference, settings.optimizer)
        return Trained(LDATopics(counts, alpha, plan.beta, inference, plan.seed), self.record.history())

    def free(self) -> None:
        for matrix in (self._counts, self._stats):
            matrix.free()
