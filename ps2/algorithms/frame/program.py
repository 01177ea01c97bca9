"""A training as a durable program: the driver's side is a generator that can be run again.

Each ``yield`` passes a task to the workers for one clock, and returns their merged report. For everything else that
can change from run to run, the generator calls ``ask(question)``. A journal records reports and answers. After a
rollback of the fleet, and in another driver, the generator runs again from its start with the journal's answers, then
continues after the last of them. So it may depend only on its settings and these answers, but not on the time, random
numbers without a seed, or attributes that it sets.

If workers can be ahead of each other, they do not wait for tasks, but run a loop that the family defines
(``Program.loop``). The driver then yields ``NextClock()`` for each clock, or a subclass with a message for the workers.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, Generic, TypeVar

from ps2.algorithms.frame.journal import JOURNAL, Journal, ReplayError, journal_messages
from ps2.algorithms.frame.settings import Plan
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.faults import Form
from ps2.algorithms.training.record import Record, StepReport
from ps2.algorithms.training.run import FIRST_CLOCK, Training, clocks_until_rollback, run_training
from ps2.algorithms.training.table import OwnRows, Table
from ps2.coordinator.training_host import training_host
from ps2.data.spilling import Spill
from ps2.protocol.plain_data import encode
from ps2.run.message import STOP, Message, Stop

T = TypeVar("T")

# The fields of a message with a task: the name of the task's class, and the task's fields.
TASK, FIELDS = "task", "fields"
# The settings that another driver can change.
CHANGEABLE = {"iterations", "maxIter", "name", "numServers", "numWorkers", "steps"}


class Task:
    """The work of all workers in one clock. Tasks are frozen dataclasses whose fields are plain data."""

    classes: ClassVar[dict[str, type[Task]]] = {}

    def __init_subclass__(cls) -> None:
        Task.classes[f"{cls.__module__}:{cls.__qualname__}"] = cls

    def then(self, summarize: Callable[[Any], Any]) -> SummarizedTask:
        """Return this task with a function of its report, whose result, plain data, the journal records instead.

        The function is called once, in the driver. It can change vectors on the servers.
        """
        return SummarizedTask(self, summarize)

    def encodable(self) -> dict[str, Any]:
        return {TASK: f"{type(self).__module__}:{type(self).__qualname__}", FIELDS: vars(self)}

    @staticmethod
    def of(message: Mapping[str, Any] | None) -> Task | None:
        """Return the task in a message; None if it has no task."""
        return Task.classes[message[TASK]](**message[FIELDS]) if message and TASK in message else None


@dataclass(frozen=True)
class NextClock(Task):
    """The next clock of workers that run ``Program.loop``. The fields of a subclass are a message for them.

    With a staleness s, a worker in clock t has received the message after clock t - s - 1, and perhaps later messages.
    """

    def encodable(self) -> dict[str, Any]:
        return super().encodable() if vars(self) else {}


@dataclass(frozen=True)
class SummarizedTask:
    """A task, and a function of its report."""

    task: Task
    summarize: Callable[[Any], Any]


# The generator of a program's driver side, or of a part of it: it yields tasks, and returns a T.
Steps = Generator[Task | SummarizedTask, Any, T]
# A function that does a task in a worker; the first argument is the ``ps2.Worker``. After a restart of the worker, its
# method ``catch_up``, if it has one, is called with the worker and with the earlier tasks, whose results are already on
# the servers.
DoTask = Callable[[Any, Any], None]


class Ask:
    """A program's questions: ``ask(question)`` calls the question once, and records the answer in the journal.

    A question is a function that returns plain data. If it raises an error, this run of the program ends, so a failure
    that the program can handle must be an answer. An action that must happen once, such as a change on the servers or a
    warning, is also asked as a question.
    """

    def __init__(self, journal: Journal, record: Record, matrices: list[Any], first_clock: int) -> None:
        # ``matrices`` are the results of ``make`` in earlier runs of the program in this driver.
        self._journal, self._record, self._first_clock = journal, record, first_clock
        self._matrices, self._next = matrices, 0
        self.closed = ""  # the reason why no question may be asked; "": questions may be asked

    @property
    def clock(self) -> int:
        """The clock of the run in which the workers do the task of the next ``yield``."""
        return self._first_clock + self._journal.clocks[self._journal.page]

    def __call__(self, question: Callable[[], T], is_setting: bool = False) -> T:
        if self.closed:
            raise ReplayError(f"the program asks a question, but {self.closed}")
        self.closed = "an earlier question has failed"
        answer: T = self._journal.answer(question, is_setting)
        self.closed = ""
        return answer

    def setting(self, question: Callable[[], T]) -> T:
        """Ask for a setting that another driver can change. To resume a finished program, the last is asked again."""
        return self(question, is_setting=True)

    def part(self, steps: Callable[[], Steps[T]]) -> Steps[T]:
        """Run a part of the program, whose result is plain data. After the part has finished, replays skip it.

        The part must not record steps, or change anything that the program reads later.
        """
        self(lambda: None)  # an extra answer, so that no two parts begin at the same position of the journal
        begin = self._journal.page, self._journal.line
        if (finished := self._journal.parts.get(begin)) is not None:
            result: T = self._journal.jump(finished)
            return result
        result = self._journal.finish_part(begin, (yield from steps()))
        return result

    def make(self, make: Callable[[], T]) -> T:
        """Return the matrices that the argument makes, or finds in a restored context; it is called once in a driver.

        This is for matrices that depend on an answer. A program makes other matrices in ``__init__``.
        """
        if self._next == len(self._matrices):
            self._matrices.append(make())
        self._next += 1
        matrices: T = self._matrices[self._next - 1]
        return matrices

    def start_timer(self) -> None:
        """Start to measure the duration of the first step."""
        self._record.start_timer()

    # Each of the next three methods records one step. Only the driver that took the step calls ``on_step``.

    def record_step_and_check_stop(
        self, objective: float, metrics: Mapping[str, float], seconds: float | None = None
    ) -> bool:
        """Record the objective after a step; return whether ``on_step`` requests the end of the training.

        ``seconds`` is the step's duration; None: the time since the last step.
        """
        is_earlier, record = self._journal.is_replaying, self._record
        duration_s = self(lambda: record.lap_s if seconds is None else seconds)
        if is_earlier:
            record.add_earlier_step(objective, duration_s)
        return self(lambda: record.add_step(objective, metrics, duration_s))

    def record_objective(self, objective: float, rows: int = 0, bytes: int = 0) -> None:
        """Record the objective after a step; the first call is for the initial model. See ``Record.add``."""
        is_earlier = self._journal.is_replaying
        seconds = self(lambda: self._record.lap_s)
        self._record.add(rows, bytes)
        self._record.add_objective(objective, seconds if is_earlier else None)

    def record_step(
        self, objective: float, rows: int, bytes: int, metrics: Mapping[str, float] | None = None, /, **amounts: float
    ) -> dict[str, float]:
        """Record a step, and the objective of its rows before the step; return all metrics of the step.

        Args:
            objective: the objective; NaN: it is unknown.
            rows, bytes: see ``Record.add``.
            amounts: amounts of work by name. Divided by the step's seconds, they become the metrics ``<name>_per_s``.
        """
        is_earlier, record = self._journal.is_replaying, self._record
        seconds = self(lambda: record.lap_s)
        record.add(rows, bytes)
        step = {**{f"{name}_per_s": amount / seconds for name, amount in amounts.items()}, **(metrics or {})}
        if is_earlier:
            record.add_earlier_step(objective, seconds)
        else:
            record.add_step(objective, step)
        return step


class Program(ABC, Generic[T]):
    """One training.

    Attributes:
        number: the version of the program's questions. A journal of another version cannot be resumed.
        staleness: the number of clocks by which a worker may be ahead of the slowest worker; None: any number.
        first_clock: the run's clock of the first ``yield``.
        plan: a ``Plan``, or a dataclass of settings that JSON can hold, with a ``seed``.
        form: the form that the rows of a ``Table`` must have; None: the rows are ``OwnRows``.
        spill: the rule by which workers write the rows of a ``Table`` to files; None: rows stay in memory.
    """

    number: ClassVar[int] = 1
    staleness: int | None = 0
    first_clock: int = FIRST_CLOCK

    def __init__(self, plan: Any, form: Form | None, record: Record) -> None:
        self.plan, self.form, self.record = plan, form, record
        self.spill: Spill | None = plan.spilling if isinstance(plan, Plan) else None

    def settings(self) -> dict[str, Any]:
        """Return the settings that another driver must share, as values that JSON can hold."""
        values = self.plan.plain() if isinstance(self.plan, Plan) else asdict(self.plan)
        return {name: value for name, value in values.items() if name not in CHANGEABLE}

    @abstractmethod
    def drive(self, ask: Ask) -> Steps[Any]:
        """Run the algorithm, in the driver. Its return value is the argument of ``result``."""

    def worker(self) -> Callable[[Any], DoTask]:
        """Return a picklable function from a worker's rows to a ``DoTask``. A program overrides this or ``loop``."""
        raise NotImplementedError("a program has a worker() or a loop()")

    def loop(self) -> Any:
        """Return a picklable function of a worker and its rows, which takes part in all clocks from ``first_clock``."""
        return WorkerLoop(self.worker())

    @abstractmethod
    def result(self, returned: Any) -> T:
        """Read the result from the servers, given ``drive``'s result. This can be called again after a rollback."""

    @abstractmethod
    def free(self) -> None:
        """Free the training's vectors on the servers."""

    @classmethod
    def train(cls, ps: Any, table: Table, plan: Any, on_step: Callable[[StepReport], None] = lambda step: None) -> T:
        """Make a program of this class from a plan, a record and names; run it. Raises like ``run_program``."""
        make: Any = cls
        names = CheckpointNames.of(plan.name, ps)
        return run_program(ps, make(plan, Record(on_step), names), table, names)


@dataclass(frozen=True, eq=False)
class WorkerLoop:
    """The loop of a worker that waits for tasks; picklable."""

    make: Callable[[Any], DoTask]

    def __call__(self, worker: Any, reading: Any) -> None:
        do_task = self.make(reading)
        catch_up = getattr(do_task, "catch_up", None)
        for _ in clocks_until_rollback(worker, sys.maxsize):
            if catch_up is not None and (missed := [Task.of(message) for message in worker.messages[:-1]]):
                catch_up(worker, [task for task in missed if task is not None])
            if (task := Task.of(worker.message)) is not None:
                do_task(worker, task)


class ProgramDriver(Generic[T]):
    """Runs a program's ``drive`` clock by clock, and again from its start after a rollback."""

    # For tests: run the program again before every clock.
    always_replays = False

    def __init__(self, program: Program[T], names: CheckpointNames) -> None:
        """Open the journal of an earlier driver, if any; raise ConfigError if it belongs to another training."""
        self._program, self._names = program, names
        self._settings = program.settings()
        self._journal = Journal.of(names, self._settings, program.number)
        if not program.first_clock:
            self._journal.unsent.add(0)
        self._matrices: list[Any] = []
        self._ask = Ask(self._journal, program.record, self._matrices, program.first_clock)
        self._steps: Steps[Any] | None = None
        self._task: Task | SummarizedTask | None = None  # the task of the next clock; None: the program has ended
        self._returned: Any = None

    def start(self) -> None:
        """Run the program up to its first task, or to the last position of an earlier driver."""
        self._restart()
        if self._names.handled_clocks:
            self._resume()

    @property
    def is_over(self) -> bool:
        return self._task is None

    def result(self) -> T:
        return self._program.result(self._returned)

    def on_clock(self, clock: int, reports: Sequence[dict[str, Any]] = ()) -> Message | Stop | None:
        """Run the program after a clock, counted from the program's first clock. A rollback repeats clocks."""
        page = bisect_left(self._journal.clocks, clock)
        # In an idle clock, after the program's end and before another driver resumed it, workers had no task.
        is_idle = page == len(self._journal.clocks) or self._journal.clocks[page] > clock
        self._go_to(min(page, len(self._journal.clocks) - 1))
        if self.is_over:
            return STOP
        if not is_idle:
            self._advance({name: value for report in reports for name, value in report.items()})
        return STOP if self._task is None and not self._names.prefix else self._message()

    def on_run_clock(self, clock: int, reports: Sequence[dict[str, Any]]) -> Message | Stop | None:
        """Run the program after a clock of the run, counted from 0. Clocks before ``first_clock`` are idle."""
        first_clock = self._program.first_clock
        return self.on_clock(clock - first_clock, reports) if clock >= first_clock else self.message()

    def message(self) -> Message | None:
        """Return the message with the task of the first clock; None: there is no message."""
        self._go_to(0)
        return self._message()

    def _go_to(self, page: int) -> None:
        """Bring the program to the end of a page, where it waits for a report; replay it if it is at another page."""
        if self._ask.closed or self._journal.page != page or self.always_replays:
            self._journal.rewind(page + 1)
            self._restart()
            self._replay(page)

    def _replay(self, page: int) -> None:
        while not self.is_over and self._journal.page < page:
            self._advance({})

    def _restart(self) -> None:
        self._ask.closed = "it is run again"
        if self._steps is not None:
            with suppress(ReplayError):  # raised by a question in a ``finally``
                self._steps.close()
        self._program.record.forget()
        program = self._program
        self._ask = Ask(self._journal, program.record, self._matrices, program.first_clock)
        self._steps = self._program.drive(self._ask)
        self._send(None)

    def _advance(self, report: dict[str, Any]) -> None:
        """Pass the report for which the program waits to the program; in a replay, pass the journal's report."""
        self._journal.turn_page()
        task = self._task
        if isinstance(task, SummarizedTask):
            summarize = task.summarize
            answer = self._ask(lambda: summarize(SimpleNamespace(**report)))
        else:
            answer = self._ask(lambda: report)
        self._send(SimpleNamespace(**answer) if isinstance(answer, dict) else answer)

    def _send(self, value: Any) -> None:
        """Let the program continue with a value, up to its next task or its end."""
        assert self._steps is not None
        try:
            self._task, self._returned = self._steps.send(value), None
        except StopIteration as end:
            self._task, self._returned = None, end.value
        except BaseException:
            self._ask.closed = "it has failed"
            raise

    def _resume(self) -> None:
        """Replay an earlier driver's journal. If no task depends on the last setting yet, ask for it again."""
        newest_message, last_page = journal_messages(self._names)[0][-1], len(self._journal.pages) - 1
        self._replay(last_page)
        decides_no_task = isinstance(self._inner_task(), NextClock) and self._journal.ends_with_setting
        has_ended = self.is_over and TASK not in newest_message
        task = self._task_message()
        has_same_task = all(
            encode(name, newest_message.get(name)) == encode(name, task.get(name)) for name in (TASK, FIELDS)
        )
        clock = self._names.handled_clocks - self._program.first_clock if has_ended else self._journal.clocks[-1]
        if (decides_no_task or has_ended) and self._journal.reopen(clock):
            self._restart()
            self._replay(last_page)
            if decides_no_task:
                self._replace_lost_pages()
            elif not isinstance(self._inner_task(), NextClock):
                # The workers had no task in the clocks after the end. They receive the new task in the next clock.
                self._journal.clocks[-1] += 1
        elif self._journal.page < last_page or not has_same_task:
            raise ReplayError(
                "the program yields a task that differs from the task of the earlier driver's workers: "
                "ask for settings that another driver may change, do not read them"
            )
        else:
            self._replace_lost_pages()

    def _replace_lost_pages(self) -> None:
        """If workers do not wait for tasks, pass empty reports to the program for the clocks that have no page.

        A checkpoint that was made during a call of ``on_clock`` lacks the call's page, but counts the clock.
        """
        journal, handled_clocks = self._journal, self._names.handled_clocks - self._program.first_clock
        while isinstance(self._inner_task(), NextClock) and journal.clocks[-1] < handled_clocks:
            journal.unsent.add(len(journal.pages))
            self._advance({})

    def _task_message(self) -> dict[str, Any]:
        task = self._inner_task()
        return {} if task is None else task.encodable()

    def _inner_task(self) -> Task | None:
        return self._task.task if isinstance(self._task, SummarizedTask) else self._task

    def _message(self) -> Message | None:
        data = self._task_message()
        if self._names.prefix:
            data[JOURNAL] = self._journal.entry(self._names.prefix, self._settings, self._program.number)
        return Message(data) if data else None


def run_program(ps: Any, program: Program[T], rows: Table | OwnRows, names: CheckpointNames) -> T:
    """Run or resume a program on the workers and servers of a context; free its memory on the servers at the end."""
    driver = ProgramDriver(program, names)  # outside of ``try``: an error must not free the vectors of another training
    try:
        driver.start()
        if driver.is_over:
            return driver.result()
        if names.finished_clocks:
            training_host(ps).forget_stop()
        loop, staleness, seed = program.loop(), program.staleness, program.plan.seed
        if isinstance(rows, Table):
            assert program.form is not None
            training = Training(
                *(rows, program.form, loop, driver.on_clock, staleness, seed, names.finished_clocks, driver.message),
                spill=program.spill,
                on_spilled=program.record.add_spilled,
            )
            return run_training(ps, training, driver.result)
        results: list[T] = []
        ps.run(
            *(rows.frame, loop, rows.workers, staleness),
            read=rows.read,
            onClock=lambda clock, reports: driver.on_run_clock(clock - rows.first_clock, reports),
            onEnd=lambda: results.append(driver.result()),
            firstClock=rows.first_clock + names.finished_clocks,
            seed=seed,
        )
        return results[-1]
    finally:
        program.free()
