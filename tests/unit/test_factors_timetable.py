"""What each clock of a factorization is for, and what follows from the workers' reports."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from factors_training import plan_of

from ps2.algorithms.factors.program import (
    ASKS,
    HELD_LOSS,
    HELD_WEIGHT,
    LOSS,
    UNKNOWN_ROWS,
    WEIGHT,
    ZERO_SUMS,
    FactorsProgram,
)
from ps2.algorithms.factors.sgd_program import SgdProgram
from ps2.algorithms.factors.timetable import Begin, Iterate, IterationSchedule, Kind, Phase, Timetable
from ps2.algorithms.frame.program import ProgramDriver, Task
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.run import FIRST_CLOCK as START
from ps2.errors import PS2Error, UsageError
from ps2.protocol.plain_data import decode
from ps2.run.message import STOP

LENGTHS = IterationSchedule(turns=2, save_interval=2, evaluates=False)


def timetable_of(lengths=LENGTHS, last=5):
    timetable = Timetable(lengths)
    timetable.read(Iterate(last, free=1).encodable())
    return timetable


def phases(timetable, first, count):
    return [(phase.kind.name[0], phase.iteration) for phase in map(timetable.phase, range(first, first + count))]


class WithoutServers(SgdProgram):
    def __init__(self, lengths, max_rmse=math.inf, **settings):
        problem = SimpleNamespace(plan=plan_of(solver="sgd", **settings), keeps_best=lengths.keeps_best)
        FactorsProgram.__init__(self, problem, lambda step: None)
        self._schedule, self._max_rmse = lengths, max_rmse

    def settings(self):
        return {}

    def _write_first_vectors(self):
        pass


class Run:
    """The driver's program clock by clock, and the timetable of a worker that reads its messages.

    Attributes:
        begins: for each clock after which one was sent, the clock and the iteration that a ``Begin`` names.
    """

    def __init__(self, lengths=LENGTHS, maxIter=5, earlier=None, **more):
        sent, self.called = ([], 0) if earlier is None else (earlier.sent, earlier.called)
        names = CheckpointNames("factors", None, (self.called, self.called), sent)
        program = WithoutServers(lengths, maxIter=maxIter, **more)
        self.driver, self.timetable = ProgramDriver(program, names), Timetable(lengths)
        self.sent, self.begins = [], {}
        self.driver.start()
        for message in sent:
            self._read(message)
        self.record = program.record
        if earlier is None:
            self.report(0, {UNKNOWN_ROWS: 0})

    @property
    def copy(self):
        """The copy that is the result."""
        assert self.driver.is_over
        return self.driver._returned[0]

    def clocks(self, clocks, report=lambda clock: {}, asks=()):
        for clock in clocks:
            self.report(clock, {**ZERO_SUMS, ASKS: int(clock in asks), **report(clock)})

    def report(self, clock, report):
        message = self.driver.on_run_clock(clock, [report])
        self.called = clock + 1
        if message is not STOP:
            self._read(decode(message.encoded))

    def _read(self, message):
        self.timetable.read(message)
        if isinstance(task := Task.of(message), Begin):
            self.begins[len(self.sent)] = task.clock, task.iteration
        self.sent.append(message)


def test_timetable_when_nothing_fails_then_saves_have_intervals():
    expected = [("B", 0), ("T", 1), ("T", 1), ("T", 2), ("T", 2), ("C", 2), ("T", 3), ("T", 3), ("T", 4), ("T", 4)]
    expected += [("C", 4), ("T", 5), ("T", 5), ("C", 5), ("I", 5), ("I", 5)]
    assert phases(timetable_of(), START, len(expected)) == expected


def test_timetable_when_it_evaluates_then_each_iteration_closes():
    timetable = timetable_of(lengths := IterationSchedule(2, 0, evaluates=True), last=2)
    assert phases(timetable, START, 8) == [
        *[("B", 0), ("T", 1), ("T", 1), ("C", 1), ("T", 2), ("T", 2), ("C", 2), ("I", 2)]
    ]
    assert not lengths.saves(1, 2)
    assert lengths.saves(2, 2)


def test_timetable_when_restarted_then_saved_iteration_is_next():
    timetable = timetable_of()
    timetable.read(Begin(START + 8, 2, 1).encodable())
    timetable.read(Iterate(5, 0).encodable())
    assert phases(timetable, START + 6, 8) == [
        *[("T", 3), ("T", 3), ("B", 2), ("T", 3), ("T", 3), ("T", 4), ("T", 4), ("C", 4)]
    ]


def test_timetable_when_last_iteration_is_told_then_it_is_saved():
    timetable = timetable_of()
    timetable.read(Iterate(3, 0).encodable())
    assert phases(timetable, START + 6, 4) == [("T", 3), ("T", 3), ("C", 3), ("I", 3)]


def test_timetable_when_a_restart_is_due_then_clocks_before_stay():
    """Workers that have read the message and others meet at the same barriers."""
    timetable = timetable_of(last=2)
    expected = phases(timetable, START + 4, 4)
    timetable.read(Begin(START + 8, 2, 1).encodable())
    assert phases(timetable, START + 4, 4) == expected


@pytest.mark.parametrize("interval", [0, 1, 2, 3, 7])
def test_copies_when_saves_follow_then_they_alternate(interval):
    lengths = IterationSchedule(2, interval, False)
    run = Run(lengths, maxIter=6)
    run.clocks(range(START, START + 20))
    free = [message["fields"]["free"] for message in run.sent if "fields" in message]
    written = [copy for iteration, copy in enumerate(free, 1) if lengths.saves(iteration, 6)]
    assert written == [(number + 1) % 2 for number in range(len(written))]
    assert run.copy == written[-1]


def test_copies_when_extended_then_no_save_overwrites_the_last():
    lengths = IterationSchedule(2, 4, False)
    first = Run(lengths, maxIter=6)
    first.clocks(range(START, START + 15))
    more = Run(lengths, maxIter=9, earlier=first)
    more.clocks(range(START + 15, START + 18), asks={START + 15})
    assert more.timetable.begin(START + 17) == Begin(START + 17, 6, first.copy)
    assert more.timetable.free_copy == 1 - first.copy


def test_timetable_when_iteration_is_one_turn_then_is_refused():
    with pytest.raises(UsageError, match="at least 2, got 1"):
        IterationSchedule(1, 2, False)


def test_training_when_worker_asks_then_all_restart_from_save():
    run = Run()
    # Clock 8 is in iteration 3: the save after iteration 2 is complete.
    run.clocks(range(START, START + 9), lambda clock: {LOSS: 4.0, WEIGHT: 1.0}, asks={START + 6})
    assert run.begins == {START + 6: (START + 8, 2)}
    assert len(run.record.objective) == 2
    assert run.timetable.phase(START + 8) == Phase(Kind.BEGIN, 2)
    run.clocks(range(START + 9, START + 17), lambda clock: {LOSS: 4.0, WEIGHT: 1.0})
    assert run.driver.is_over
    assert run.record.objective == [2.0] * 5


def test_training_when_save_is_partial_then_earlier_one_counts():
    run = Run()
    closing = START + 10
    run.clocks(range(START, closing + 1), asks={closing})
    assert run.begins == {closing: (closing + 2, 2)}


def test_training_when_worker_asks_twice_then_restarts_once():
    run = Run()
    run.clocks(range(START, START + 6), asks={START + 2, START + 3})
    assert run.begins == {START + 2: (START + 4, 0)}


@pytest.mark.parametrize("asks", [set(), {START + 17}], ids=["", "restarted"])
@pytest.mark.parametrize(("tolerance", "end"), [(0.0, 6), (0.2, 5)])
def test_training_when_validation_is_stuck_then_next_is_last(tolerance, end, asks):
    run = Run(IterationSchedule(2, 0, True, keeps_best=True), 20, validationTol=tolerance, patience=2)
    errors = [3.0, 2.0, 1.9, 1.95, 1.96, 1.5, 1.4]

    def report(clock):
        phase = run.timetable.phase(clock)
        return {HELD_LOSS: errors[phase.iteration - 1] ** 2, HELD_WEIGHT: 1.0} if phase.kind is Kind.CLOSE else {}

    run.clocks(range(START, START + 3 * end + 1 + (9 if asks else 0)), report, asks)
    assert run.driver.is_over
    assert run.record.reason.startswith("no progress on the held-out rows for 2 iterations")
    assert len(run.record.objective) == end


def test_training_when_diverged_then_begins_anew_halved():
    run = Run(max_rmse=10.0)
    rmse = {1: 2.0, 2: 11.0}

    def report(clock):
        return {LOSS: rmse.get(run.timetable.phase(clock).iteration, 1.0) ** 2, WEIGHT: 1.0}

    run.clocks(range(START, START + 6), report)
    assert run.begins == {START + 5: (START + 7, 0)}
    assert run.timetable.begin(START + 7).halvings == 1
    assert run.record.objective == []
    assert phases(run.timetable, START + 7, 3) == [("B", 0), ("T", 1), ("T", 1)]


def test_training_when_half_step_diverges_too_then_fails():
    run = Run(IterationSchedule(2, 0, False), maxIter=1)
    with pytest.raises(
        PS2Error, match="iteration 1: the RMSE is nan: the training has diverged, also with a step of 1/1024"
    ):
        run.clocks(range(START, START + 60), lambda clock: {LOSS: math.nan, WEIGHT: 1.0})


def test_copies_when_best_is_kept_then_no_save_overwrites_it():
    run = Run(IterationSchedule(2, 0, True, keeps_best=True), 7, patience=3)
    errors, held = [3.0, 1.0, 2.0, 0.5, 0.7, 0.8, 0.9], {}
    for clock in range(START, START + 1 + 3 * 7):
        phase = run.timetable.phase(clock)
        if phase.kind is Kind.CLOSE:
            held[run.timetable.free_copy] = phase.iteration
            losses = run.record.validation
            assert not losses or 1 + losses.index(min(losses)) in held.values()
            assert phase.iteration == 1 or phase.iteration - 1 in held.values()
        error = errors[phase.iteration - 1] if phase.kind is Kind.CLOSE else 0.0
        run.clocks([clock], lambda _, error=error: {HELD_LOSS: error**2, HELD_WEIGHT: float(error > 0)})
    assert held[run.copy] == 4


@pytest.mark.parametrize(("iterations", "is_over"), [(5, True), (7, False), (4, True)])
@pytest.mark.parametrize("idle", [0, 1])
def test_training_when_next_driver_wants_more_then_goes_on(iterations, is_over, idle):
    first, end = Run(), START + 14 + idle
    first.clocks(range(START, end), lambda clock: {LOSS: 4.0, WEIGHT: 1.0})
    assert first.driver.is_over
    run = Run(maxIter=iterations, earlier=first)
    assert run.driver.is_over == is_over
    if is_over:
        return
    run.clocks(range(end, end + 10), lambda clock: {LOSS: 4.0, WEIGHT: 1.0}, asks={end})
    assert run.timetable.begin(end + 2) == Begin(end + 2, 5, 1)
    assert run.driver.is_over
    assert len(run.record.objective) == iterations


@pytest.mark.parametrize("iterations", [4, 5, 7])
@pytest.mark.parametrize("lost", range(START + 1, START + 17))
def test_training_when_a_page_is_lost_then_no_iteration_is(lost, iterations):
    """A checkpoint within a call of ``onClock`` counts the clock, and lacks the message with its report."""
    first = Run()
    first.clocks(range(START, lost + 1), lambda clock: {LOSS: 4.0, WEIGHT: 1.0}, asks={START + 6})
    first.sent.pop()
    run, has_vectors = Run(maxIter=iterations, earlier=first), False
    for clock in range(lost + 1, lost + 25):
        has_vectors |= run.timetable.phase(clock).kind is Kind.BEGIN
        run.clocks([clock], lambda clock: {LOSS: 4.0, WEIGHT: 1.0}, asks=set() if has_vectors else {clock})
    assert run.driver.is_over
    assert run.record.objective == [2.0] * iterations


def test_training_when_saved_ones_are_enough_then_ends():
    lengths, first = IterationSchedule(2, 3, False), Run(IterationSchedule(2, 3, False), maxIter=9)
    first.clocks(range(START, START + 10), lambda clock: {LOSS: 4.0, WEIGHT: 1.0})
    assert len(first.record.objective) == 4
    run = Run(lengths, maxIter=3, earlier=first)
    assert run.copy == 1
    assert run.record.objective == [2.0] * 3
