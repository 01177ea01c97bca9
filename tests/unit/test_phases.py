"""A driver that goes on with another number of iterations than the one before it had in mind."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest

from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.phases import END, Phases
from ps2.algorithms.training.record import Record
from ps2.algorithms.training.replay_journal import ReplayJournal
from ps2.protocol.plain_data import decode
from ps2.run.message import STOP

BEGIN, STEP, LAST = "begin", "step", "last"


@dataclass(frozen=True)
class Counting:
    """A training whose steps each add 1 on the servers; its last clock reads what they have come to."""

    do: str = BEGIN
    steps: int = 0
    found: int | None = None

    def message(self):
        return {"do": self.do}


class Driver:
    def __init__(self, iterations, names, total):
        self._iterations, self._total = iterations, total
        self.record = Record(lambda report: None)
        self.journal = ReplayJournal.of(names, {})
        self.phases = Phases(Counting(), self._follow, self.journal, self.record, keeps_end=True)

    def _follow(self, state, reports):
        heard = self.journal.hear(lambda: reports[0][state.do])
        if state.do == LAST and state.steps >= self._iterations:
            return Counting(END, state.steps, heard)
        steps = state.steps + (state.do == STEP)
        return Counting(STEP if steps < self._iterations else LAST, steps)


class Training:
    """What a checkpoint keeps of a training: the servers' sum, the clocks and the messages."""

    def __init__(self):
        self.total, self.clocks, self.messages = 0, 0, []

    def go_on(self, iterations, clocks=100):
        """Let another driver go on for some clocks; return its phases."""
        names = CheckpointNames("mine", clocks=(self.clocks + 1, self.clocks + 1), messages=self.messages)
        driver = Driver(iterations, names if self.messages else CheckpointNames("mine"), self)
        if not self.messages:
            self.messages.append(decode(driver.journal.message(opening=True).encoded))
        driver.phases.replay(self.clocks)
        for clock in itertools.count(self.clocks):
            if driver.phases.is_over or clock == self.clocks + clocks:
                break
            do = self.messages[-1].get("do", BEGIN)
            self.total += do == STEP
            message = driver.phases.on_clock(clock, [{do: self.total}])
            assert message is not STOP
            self.messages.append(decode(message.encoded))
        self.clocks = clock
        return driver.phases


@pytest.mark.parametrize("clocks", range(1, 6))
@pytest.mark.parametrize("iterations", [2, 3, 5])
def test_driver_when_another_one_wanted_three_then_makes_its_own(clocks, iterations):
    """The clocks are: begin, three steps, last. Steps that workers were told to make count, if fewer are wanted."""
    training = Training()
    training.go_on(3, clocks)
    made = max(iterations, min(clocks, 3))
    assert training.go_on(iterations).last == Counting(END, made, made)
    assert training.go_on(6).last == Counting(END, 6, 6)
    assert training.go_on(6).last == Counting(END, 6, 6)
