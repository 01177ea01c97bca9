"""Embeddings by negative sampling as a durable program: skip-gram, CBOW and LINE.

Mikolov et al., "Distributed Representations of Words and Phrases and their Compositionality" (2013); Tang et al.,
"LINE: Large-scale Information Network Embedding" (2015). The tables of vectors are on the servers. Each worker iterates
over its sentences, or random walks, clock by clock (``EpochSchedule``). Its step size falls with its progress, so it
needs no messages of the driver. The driver chooses the strategy and adds up the losses of each epoch.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from ps2.algorithms.embeddings.cost_probes import predict_seconds
from ps2.algorithms.embeddings.plan import EmbeddingPlan, FittedEmbeddings
from ps2.algorithms.embeddings.sampling import Sampler
from ps2.algorithms.embeddings.sentences import KeyedSentences, Sentences
from ps2.algorithms.embeddings.tables import ServerTables, SlicedTable, put_aliases
from ps2.algorithms.embeddings.work import check_memory, with_strategy
from ps2.algorithms.embeddings.worker import (
    ClockReport,
    EpochSchedule,
    WorkerContext,
    WorkerSetup,
    clock_tokens,
    train_local,
    train_rows,
    train_servers,
)
from ps2.algorithms.frame.program import Ask, NextClock, Program, Steps, run_program
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.record import Placement, Record, StepReport, Via, Words
from ps2.algorithms.training.table import OwnRows
from ps2.array_types import Float32s, Float64s, Int64s
from ps2.coordinator.training_host import training_host
from ps2.errors import PS2Error
from ps2.run.spark.backend_lookup import cores_each
from ps2.server.memory import available_bytes

log = logging.getLogger(__name__)

WORDS = Words("epoch", "loss")
# The function that trains in a worker, by strategy.
STRATEGIES: dict[str, Callable[[WorkerContext], None]] = {
    "local": train_local,
    "rows": train_rows,
    "servers": train_servers,
}


@dataclass(frozen=True, eq=False, kw_only=True)
class Corpus(OwnRows):
    """The sentences of all workers; ``read`` returns a worker's. For edges, ``frequencies`` are those of targets."""

    frequencies: Int64s
    longest: int = 1


@dataclass(frozen=True)
class OnlyWorker:
    """The only worker, if a training runs in its process, beside the servers; ``reason`` explains this placement."""

    threads: int
    reason: str


def train(
    ps: Any,
    corpus: Corpus,
    plan: EmbeddingPlan,
    on_step: Callable[[StepReport], None] = lambda step: None,
    only_worker: OnlyWorker | None = None,
    shared_cleanup: ExitStack | None = None,
) -> FittedEmbeddings:
    """Train with tables on the servers of a context; in a restored context, continue the training.

    Args:
        on_step: called in the driver after each epoch.
        only_worker: the worker whose process calls ``train``; None: the driver calls it.
        shared_cleanup: frees the tables of a named training when this stack is closed. A fit can have several
            trainings (LINE: one for each order). Until all are done, checkpoints include the tables of finished ones,
            so that another driver can resume the fit. None: free the tables at the end.

    Raises:
        LimitError: the tables, or a worker's batch, do not fit into memory.
        PS2Error: the training has diverged: the vectors or the loss are not finite, or the loss is too large.
    """
    check_memory(plan, corpus.longest, available_bytes())
    program = EmbeddingProgram(ps, corpus, plan, on_step, only_worker, shared_cleanup)
    return run_program(ps, program, corpus, program.names)


class EmbeddingProgram(Program[FittedEmbeddings]):
    """The driver's side of a training of embeddings."""

    number, staleness, first_clock = 2, 1, 0  # see ``Program``

    def __init__(
        self,
        ps: Any,
        corpus: Corpus,
        plan: EmbeddingPlan,
        on_step: Callable[[StepReport], None],
        only_worker: OnlyWorker | None,
        shared_cleanup: ExitStack | None,
    ) -> None:
        super().__init__(plan, None, Record(on_step, WORDS))
        self.names = CheckpointNames.of(plan.name, ps, corpus.first_clock)
        self._ps, self._corpus, self._only_worker = ps, corpus, only_worker
        self._cleanup, self._shared_cleanup = ExitStack(), shared_cleanup
        self._threads = only_worker.threads if only_worker else cores_each(training_host(ps).spark(), corpus.workers)

    def settings(self) -> dict[str, Any]:
        # The step sizes of all epochs depend on the number of epochs.
        return {**super().settings(), "epochs": self.plan.settings.maxIter, "workers": self._corpus.workers}

    def drive(self, ask: Ask) -> Steps[Placement]:
        plan, reason = with_strategy(self.plan, ask(self._predict_costs))
        reason = self._only_worker.reason if self._only_worker else reason
        placement = Placement(self._corpus.workers, self._threads, cast(Via, plan.settings.via), reason)
        self._setup = ask.make(partial(self._set_up, plan, placement))
        self.record.completed = f"all epochs were trained by {placement.via!r}, {placement.reason}"
        ask.start_timer()
        metrics: list[dict[str, float]] = []
        for epoch in range(1, plan.settings.maxIter + 1):
            total = ClockReport()
            for _ in range(self._setup.schedule.clocks_per_epoch):
                report = yield NextClock()
                total.add(report)
            if total.losses and plan.has_diverged(total.mean_loss):
                raise self._diverged(
                    f"epoch {epoch}: the loss is {total.mean_loss:g}, and zero vectors would have a loss of "
                    f"{plan.zero_vectors_loss:.3g}"
                )
            step_size = {"step_size": plan.rate(epoch)}
            # An epoch without losses, of a resumed training, has the previous loss.
            loss, num_bytes = self.record.fill_missing(total.mean_loss), int(total.bytes)
            metrics.append(ask.record_step(loss, 0, num_bytes, step_size, pairs=total.pairs, words=total.tokens))
        self.record.metrics = {name: tuple(step[name] for step in metrics) for name in metrics[0]}
        return placement

    def _predict_costs(self) -> Float64s:
        hosts = [address.rpartition(":")[0] for address in self._ps.servers]
        corpus = self._corpus
        return predict_seconds(self.plan, corpus.frequencies, len(hosts), corpus.workers, self._threads, hosts)

    def _set_up(self, plan: EmbeddingPlan, placement: Placement) -> WorkerSetup:
        """Allocate the tables with initial vectors, or find an earlier driver's tables."""
        corpus = self._corpus
        log.info("training %s", placement)
        tables = ServerTables.make(plan, len(self._ps.servers), self.names)
        self._cleanup.callback(tables.free)
        if not self.names.finished_clocks:
            tables.initialize(plan)
        if isinstance(tables.vectors, SlicedTable) and isinstance(tables.contexts, SlicedTable):
            # Also in a restored context, because ``repartition`` drops the alias table.
            sampler = Sampler.from_frequencies(plan, corpus.frequencies)
            put_aliases(tables.vectors, tables.contexts, sampler.thresholds, sampler.aliases)
        tokens = clock_tokens(plan, corpus.workers)
        schedule = EpochSchedule.from_plan(plan, corpus.workers, tokens, corpus.first_clock)
        return WorkerSetup(plan, schedule, tables, self._threads)

    def loop(self) -> EmbeddingLoop:
        frequencies = self._corpus.frequencies
        if self._only_worker is not None:
            return EmbeddingLoop(self._setup, lambda: frequencies)
        broadcast = training_host(self._ps).spark().broadcast(frequencies)
        return EmbeddingLoop(self._setup, lambda: broadcast.value)

    def result(self, placement: Placement) -> FittedEmbeddings:
        tables, keys, counts, contexts = self._setup.tables, None, None, None
        if self.plan.keyed:
            keys, counts = tables.keys_and_counts()
            tables = tables.for_keys(keys)
        if tables.contexts is not None and not self.plan.shares_table:
            contexts = self._finite(tables.contexts.pull())
        history = replace(self.record.history(), placement=placement)
        clocks = self._corpus.first_clock + self._setup.schedule.count
        fitted = FittedEmbeddings(self._finite(tables.vectors.pull()), contexts, history, clocks, keys, counts)
        if self._shared_cleanup is not None and self.plan.name:
            self._shared_cleanup.push(self._cleanup.pop_all())
        return fitted

    def free(self) -> None:
        self._cleanup.close()

    def _finite(self, table: Float32s) -> Float32s:
        """Return the table; raise PS2Error if a value is not finite."""
        if not (math.isfinite(table.min()) and math.isfinite(table.max())):
            raise self._diverged("after the last epoch some vectors are not finite")
        return table

    def _diverged(self, symptom: str) -> PS2Error:
        return PS2Error(
            f"{symptom}: the training has diverged; a smaller stepSize than {self.plan.settings.stepSize:g} may help"
        )


@dataclass(frozen=True, eq=False)
class EmbeddingLoop:
    """The loop of each worker; picklable. ``get_frequencies`` returns ``Corpus.frequencies`` in a worker."""

    setup: WorkerSetup
    get_frequencies: Callable[[], Int64s]

    def __call__(self, worker: Any, sentences: Sentences | KeyedSentences) -> None:
        if isinstance(sentences, KeyedSentences):
            setup, frequencies = self.setup.for_keys(sentences.keys), sentences.frequencies
            sentences = sentences.sentences
        else:
            setup, frequencies = self.setup, self.get_frequencies()
        STRATEGIES[setup.plan.settings.via](WorkerContext(worker, setup, sentences, frequencies))
