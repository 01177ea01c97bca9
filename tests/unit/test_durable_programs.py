"""Durable programs: the fleet rolls back, other drivers resume, a program does something else when it is run again.

A dict stands for the servers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from ps2.algorithms.frame.journal import ReplayError
from ps2.algorithms.frame.program import NextClock, Program, ProgramDriver, Task
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.faults import Form
from ps2.algorithms.training.record import Record
from ps2.errors import ConfigError
from ps2.protocol.plain_data import decode
from ps2.run.message import STOP

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(autouse=True, params=[False, True], ids=["", "replayed"])
def replays(request, monkeypatch):
    monkeypatch.setattr(ProgramDriver, "always_replays", request.param)
    return request.param


@dataclass(frozen=True)
class Add(Task):
    number: int


@dataclass(frozen=True)
class Read(Task):
    pass


@dataclass(frozen=True)
class Options:
    iterations: int = 4
    rate: float = 0.5
    name: str = "sums"


class Sums(Program[Any]):
    """In a step, the workers add to a sum on the servers, and read it; then the driver adds it to a total."""

    def __init__(self, servers, options=None, steps=None):
        super().__init__(options or Options(), Form(0), Record([].append if steps is None else steps.append))
        self.servers = servers

    def drive(self, ask):
        ask(lambda: self.servers.update(started=self.servers.get("started", 0) + 1))
        ask.start_timer()
        totals = []
        while len(totals) < ask.setting(lambda: self.plan.iterations):
            yield from self.step(ask, len(totals))
            report = yield Read().then(lambda report: {"half": report.sum / 2})
            totals.append(ask(self.move) + report.half)
            ask.record_objective(totals[-1], rows=1)
        return totals

    def step(self, ask, number):
        report = yield Add(number)
        assert report.workers == 2

    def move(self):
        self.servers["total"] = self.servers.get("total", 0) + self.servers.pop("sum", 0)
        return self.servers["total"]

    def result(self, returned):
        return returned

    def worker(self): ...
    def free(self): ...


@dataclass(frozen=True)
class Rate(NextClock):
    rate: float


class Walk(Sums):
    """Workers have a loop of their own, from the run's first clock on, and a staleness of 1."""

    first_clock, staleness = 0, 1

    def drive(self, ask):
        ask(lambda: self.servers.update(started=self.servers.get("started", 0) + 1))
        ask.start_timer()
        positions, post = [0.0], NextClock()
        while len(positions) <= ask.setting(lambda: self.plan.iterations):
            report = yield post
            positions.append(positions[-1] + report.clock)
            ask.record_step(positions[-1], 1, 0)
            post = Rate(positions[-1]) if len(positions) % 2 else NextClock()
        return positions[1:]


class InParts(Sums):
    """Each step is a part, which counts how often it runs."""

    def step(self, ask, number):
        def steps():
            self.servers.setdefault("ran", []).append(number)
            yield from super(InParts, self).step(ask, number)
            inner = yield from ask.part(lambda: self.inner(ask, number))
            return {"number": inner}

        part = yield from ask.part(steps)
        assert part == {"number": number}

    def inner(self, ask, number):
        return ask(lambda: number)
        yield


class Fleet:
    """What a checkpoint keeps of a training, at any clock: the servers, the clocks and the messages."""

    def __init__(self):
        self.servers, self.clocks, self.called, self.messages, self.saved = {}, 0, 0, [], {}

    def copy(self):
        other = Fleet()
        other.restore((dict(self.servers), self.clocks, self.called, list(self.messages)))
        return other

    def restore(self, saved):
        self.servers.clear()
        self.servers.update(saved[0])
        _, self.clocks, self.called, messages = saved
        self.messages = list(messages)

    def run(self, program=Sums, clocks=100, rollbacks=(), options=None, steps=None):
        """Begin or resume a training for some clocks of the run, with rollbacks (clock, to, after the driver's work).

        Return its driver.
        """
        options, rollbacks = options or Options(), list(rollbacks)
        names = CheckpointNames(options.name, None, (self.clocks, self.called), self.messages if self.called else ())
        driver = ProgramDriver(program(self.servers, options, steps), names)
        driver.start()
        end, first_clock = self.clocks + clocks, program.first_clock
        while self.clocks < end and not (driver.is_over and self.called > first_clock):
            self.saved.setdefault(self.clocks, (dict(self.servers), self.clocks, self.called, list(self.messages)))
            clock = self.clocks - first_clock
            report = self.work(clock)
            due = [one for one in rollbacks if one[0] == clock]
            if due and not due[0][2]:
                message = None
            else:
                message = driver.on_run_clock(self.clocks, [report])
            if due:
                rollbacks.remove(due[0])
                self.restore(self.saved[due[0][1] + first_clock])
                continue
            self.clocks = self.called = self.clocks + 1
            if message is STOP:
                break
            if message is not None:
                self.messages.append(decode(message.encoded))
        return driver

    def work(self, clock):
        """Do what the workers do in a clock."""
        task = Task.of(self.messages[-1]) if self.messages else None
        if isinstance(task, Add):
            self.servers["sum"] = self.servers.get("sum", 0) + 1 + task.number
        return {"workers": 2, "clock": self.clocks, **({"sum": self.servers["sum"]} if isinstance(task, Read) else {})}


EXPECTED = [1.5, 4.0, 7.5, 12.0]


@pytest.mark.parametrize("is_late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("name", ["", "sums"])
def test_program_when_fleet_rolls_back_anywhere_then_is_the_same(name, is_late):
    for clock in range(8):
        for back in range(clock + 1):
            fleet, steps = Fleet(), []
            driver = fleet.run(rollbacks=[(clock, back, is_late)], options=Options(name=name), steps=steps)
            assert driver.result() == driver._program.record.objective == EXPECTED
            assert fleet.servers["started"] == 1
            assert [step.objective for step in steps][-1] == EXPECTED[-1]
            assert driver._program.record.rows == 4


@pytest.mark.parametrize("clocks", range(2, 10))
def test_program_when_another_driver_resumes_then_is_the_same(clocks):
    fleet = Fleet()
    fleet.run(clocks=clocks)
    steps = []
    driver = fleet.copy().run(steps=steps)
    assert driver.result() == driver._program.record.objective == EXPECTED
    assert [step.objective for step in steps] == EXPECTED[max(1, (clocks - Sums.first_clock) // 2) :]
    assert driver._program.servers["started"] == 1


@pytest.mark.parametrize("clocks", range(2, 12))
@pytest.mark.parametrize("iterations", [2, 3, 4, 6])
def test_program_when_iterations_differ_then_makes_those(clocks, iterations):
    """Tasks that the earlier driver's workers have been given count, if fewer are wanted now."""
    fleet = Fleet()
    fleet.run(clocks=clocks)
    taken = min(4, (clocks - Sums.first_clock) // 2 + 1)
    one = fleet.copy()
    assert len(one.run(options=Options(iterations)).result()) == max(iterations, taken)
    more = one.run(options=Options(8))
    assert len(more.result()) == 8
    assert more.result()[:4] == EXPECTED
    assert len(one.run(options=Options(8)).result()) == 8


def test_program_when_extended_and_rolled_back_then_is_the_same():
    whole = Fleet().run(options=Options(9)).result()
    fleet = Fleet()
    for iterations in (2, 5, 9):
        rollbacks = [(fleet.clocks + 2, fleet.clocks, True)]
        driver = fleet.run(options=Options(iterations), rollbacks=rollbacks)
    assert driver.result() == whole


@pytest.mark.parametrize("name", ["", "walk"])
def test_free_program_when_rolled_back_then_is_the_same(name):
    for clock in range(4):
        for back in range(clock + 1):
            fleet = Fleet()
            driver = fleet.run(Walk, rollbacks=[(clock, back, True)], options=Options(name=name))
            assert driver.result() == driver._program.record.objective == [0, 1, 3, 6]
            assert fleet.servers["started"] == 1


@pytest.mark.parametrize("clocks", range(1, 5))
@pytest.mark.parametrize("iterations", [2, 4, 6])
def test_free_program_when_another_driver_resumes_then_same(clocks, iterations):
    fleet, steps = Fleet(), []
    fleet.run(Walk, clocks=clocks)
    driver = fleet.copy().run(Walk, steps=steps, options=Options(iterations))
    expected = [0, 1, 3, 6, 10, 15][: max(iterations, clocks)]
    assert driver.result() == driver._program.record.objective == expected
    assert [step.objective for step in steps] == driver.result()[clocks:]
    assert driver._program.servers["started"] == 1


@pytest.mark.parametrize("clocks", range(1, 5))
def test_free_program_when_extended_twice_then_is_the_same(clocks):
    fleet = Fleet()
    for iterations in (2, 4):
        fleet.run(Walk, options=Options(iterations))
    fleet.run(Walk, clocks=clocks, options=Options(9))
    driver = fleet.run(Walk, options=Options(9))
    assert driver.result() == driver._program.record.objective
    assert len(driver.result()) == 9
    assert driver.result()[:2] == [0, 1]


def test_program_when_run_again_then_each_driver_makes_once():
    calls = []

    class Making(Sums):
        def drive(self, ask):
            assert ask.make(lambda: calls.append(0) or [0]) == [0]
            assert ask.make(lambda: calls.append(1) or [1]) == [1]
            return (yield from super().drive(ask))

    fleet = Fleet()
    fleet.run(Making, clocks=6, rollbacks=[(4, 1, True)])
    assert calls == [0, 1]
    assert fleet.run(Making).result() == EXPECTED
    assert calls == [0, 1] * 2


def test_step_when_it_has_metrics_then_they_are_of_every_driver():
    class Measured(Sums):
        def drive(self, ask):
            ask.start_timer()
            yield Add(0)
            first = ask.record_step(1.0, 1, 0, {"rate": 0.5}, pairs=6)
            yield Add(0)
            return [first, ask.record_step(1.0, 1, 0, {"rate": 0.2})]

    fleet, steps = Fleet(), []
    fleet.run(Measured, clocks=2, steps=steps)
    driver = fleet.run(Measured, steps=steps)
    assert [step.metrics for step in steps] == driver.result()
    assert list(steps[0].metrics) == ["pairs_per_s", "rate"]


@pytest.mark.parametrize("clocks", range(2, 5))
def test_free_program_when_pages_are_lost_then_has_no_reports(clocks):
    """Two drivers, one after the other, make their last checkpoint in a call, and lack the call's page."""

    class Lenient(Walk):
        def drive(self, ask):
            counts = []
            while len(counts) < 6:
                counts.append(len(vars((yield NextClock()))))
            return counts

    fleet = Fleet()
    for length in (clocks, 1):
        fleet.run(Lenient, clocks=length)
        fleet.messages.pop()
        fleet.saved.clear()
    begun = fleet.clocks
    result = fleet.run(Lenient, rollbacks=[(begun, begun, True)] if begun < 5 else ()).result()
    assert result == fleet.run(Lenient).result() == [2] * (clocks - 1) + [0, 0] + [2] * (5 - clocks)


def test_free_program_when_it_has_no_message_then_sends_nothing():
    fleet = Fleet()
    fleet.run(Walk, options=Options(name=""))
    assert [message["fields"] for message in fleet.messages] == [{"rate": 1.0}]


def test_program_when_parts_have_ended_then_replays_skip_them(replays):
    for clock in range(8):
        for back in range(clock + 1):
            fleet = Fleet()
            driver = fleet.run(InParts, rollbacks=[(clock, back, True)])
            assert driver.result() == driver._program.record.objective == EXPECTED
    fleet = Fleet()
    fleet.run(InParts)
    ran = fleet.servers["ran"]
    # Until a part has ended, each replay runs it.
    assert max(ran.count(number) for number in range(4)) == (3 if replays else 1)
    resumed = fleet.copy()
    resumed.servers["ran"] = []
    assert resumed.run(InParts).result() == EXPECTED
    assert resumed.servers["ran"] == []


def test_program_when_its_end_is_restored_then_is_over_at_once():
    fleet = Fleet()
    expected = fleet.run().result()
    clocks = fleet.clocks
    assert fleet.run().result() == expected
    assert fleet.clocks == clocks


@pytest.mark.parametrize("back", [3, 5])
def test_program_when_it_changes_itself_then_it_says_so(back):
    class Changing(Sums):
        asked = 0

        def step(self, ask, number):
            yield from super().step(ask, number)
            self.asked += number == 1
            if self.asked < 2:
                ask(lambda: 0)

    with pytest.raises(ReplayError, match="asks less than before"):
        Fleet().run(Changing, rollbacks=[(6, back, False)])


def test_resumed_program_when_task_differs_then_says_so():
    class Counting(Sums):
        def step(self, ask, number):
            yield Add(number + self.plan.iterations)

    fleet = Fleet()
    fleet.run(Counting, clocks=3)
    with pytest.raises(ReplayError, match="ask for settings that another driver may change"):
        fleet.run(Counting, options=Options(9))


def test_program_when_a_question_fails_then_no_except_continues():
    class Catching(Sums):
        def step(self, ask, number):
            yield Add(number)
            try:
                ask(lambda: 1 / 0)
            except ZeroDivisionError:
                ask(lambda: 5)

    with pytest.raises(ReplayError, match="an earlier question has failed"):
        Fleet().run(Catching)


def test_program_when_a_question_failed_then_rollback_asks_again():
    failures = [True]

    class Failing(Sums):
        def move(self):
            if self.servers.get("total", 0) > 3 and failures:
                failures.clear()
                raise OSError("a server is lost")
            return super().move()

    fleet = Fleet()
    driver = ProgramDriver(Failing(fleet.servers), CheckpointNames("sums"))
    driver.start()
    fleet.messages.append(decode(driver.message().encoded))
    clock, saved = 0, {}
    while not driver.is_over:
        saved[clock] = dict(fleet.servers), list(fleet.messages)
        try:
            message = driver.on_clock(clock, [fleet.work(clock)])
        except OSError:
            clock -= 1
            fleet.servers.clear()
            fleet.servers.update(saved[clock][0])
            fleet.messages = saved[clock][1]
            continue
        clock += 1
        fleet.messages.append(decode(message.encoded))
    assert not failures
    assert driver.result() == EXPECTED


def test_program_when_it_is_closed_then_finally_asks_nothing():
    class Cleaning(Sums):
        def step(self, ask, number):
            try:
                yield from super().step(ask, number)
            finally:
                ask(lambda: 0)

    assert Fleet().run(Cleaning, rollbacks=[(5, 3, True)]).result() == EXPECTED


def test_resumed_program_when_settings_differ_then_names_them():
    fleet = Fleet()
    fleet.run(clocks=4)
    with pytest.raises(ConfigError, match=r"'sums'.*is another one: rate was 0.5, and is 0.7"):
        fleet.run(options=Options(rate=0.7))


def test_resumed_program_when_of_another_training_then_refused():
    fleet = Fleet()
    fleet.run(clocks=4)
    with pytest.raises(ConfigError, match="'topics' in the checkpoint is of another algorithm"):
        fleet.run(options=Options(name="topics"))


def test_resumed_program_when_it_has_another_number_then_refused(monkeypatch):
    fleet = Fleet()
    fleet.run(clocks=4)
    monkeypatch.setattr(Sums, "number", 2)
    with pytest.raises(ConfigError, match="another version of ps2"):
        fleet.run()


def test_message_when_training_has_no_name_then_has_task_alone():
    driver = ProgramDriver(Sums({}, Options(name="")), CheckpointNames())
    driver.start()
    assert decode(driver.message().encoded) == {"task": f"{__name__}:Add", "fields": {"number": 0}}
