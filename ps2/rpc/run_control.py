"""The calls of a run's worker to its driver: plain methods over one connection."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from ps2.config import WireConfig
from ps2.errors import LimitError, PS2Error, RolledBack, StoppedError, UnavailableError
from ps2.protocol.error_details import from_detail
from ps2.protocol.pb import run_pb2 as pb
from ps2.protocol.plain_data import LIMIT_BYTES
from ps2.transport.connection import unreachable
from ps2.transport.worker_channel import WorkerChannel

# After failures of this duration, an attempt concludes that the driver has ended.
GIVE_UP_S = 10.0
# The same before the first contact: the driver listens before any worker starts.
FIRST_CONTACT_S = 3.0
FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 0.5
# The driver's name in the handshake.
NAME = "run"


@dataclass(frozen=True)
class Joined:
    """The driver's answer when an attempt gets its rank: the first clock that it has not finished, or ``done``."""

    workers: int
    clock: int
    epoch: int
    run_s: float
    done: bool


@dataclass(frozen=True)
class Entered:
    """The clock that a worker has entered.

    Attributes:
        horizon: the highest clock that the other workers allow.
        on_clock: seconds of the wait for ``onClock``.
        messages: number of messages that ``onClock`` had returned.
        message: the newest message, encoded; empty if there is none, or if the worker has it.
        end: the run ends before this clock; None: the end is not known yet.
        budget_s: the time budget for this clock, a turn of a rotation, if the run decides it; else infinite.
        checkpoint: seconds of the wait for a checkpoint.
        others: seconds of the wait for other workers.
    """

    clock: int
    horizon: int
    epoch: int
    on_clock: float = 0.0
    messages: int = 0
    message: bytes = b""
    end: int | None = None
    budget_s: float = math.inf
    checkpoint: float = 0.0
    others: float = 0.0


@dataclass(frozen=True)
class Report:
    """A worker's small result of a clock: ``value``, encoded plain data, is merged by the rule ``merge``."""

    clock: int
    merge: str
    value: bytes


@dataclass(frozen=True)
class Logged:
    """A number that a worker logged in a clock."""

    name: str
    value: float
    clock: int


@dataclass(frozen=True)
class LogLine:
    """A line that a worker's Python logged in a clock; ``level`` is a number of ``logging``."""

    level: int
    logger: str
    text: str
    clock: int


@dataclass(frozen=True)
class LogLines:
    """The lines that one attempt has logged since its last message; ``left_out`` counts lines beyond the limit."""

    lines: tuple[LogLine, ...] = ()
    left_out: int = 0

    def __bool__(self) -> bool:
        return bool(self.lines or self.left_out)


@dataclass(frozen=True)
class ClockTimes:
    """How one worker's time was spent, in one clock or between clocks, in seconds.

    Attributes:
        clock: the clock; for time between clocks, the next one.
        began: when the worker arrived at the clock, in seconds since the run began. The parts below add up to the
            time until the start of the next entry.
        wait: time spent waiting for other workers, before the clock and at barriers in it.
        outside: True for time between clocks: reading rows, between two loops, or after the last loop.
        on_clock: time spent waiting before the clock for ``onClock`` alone, not for other workers.
        block: the block of the worker, if the clock was a turn of a rotation; -1 if there is none.
        left: the share of the block's work that remains for the next rotation.
        work: the part of ``compute`` spent on the block.
        transfer: time with background reads or writes.
        kernels: time of loading and compiling numba's functions.
        checkpoint: time spent waiting before the clock for a checkpoint alone.
        coordinator: time spent waiting before the clock for nobody: messages, and the coordinator's own work.
        connect, imports, spark: time before a worker joins and after it leaves: opening connections; starting Python
            and importing modules; work of Spark. Only the coordinator's own entries have these times.
    """

    clock: int
    began: float
    compute: float
    pull: float
    push: float
    wait: float
    outside: bool = False
    on_clock: float = 0.0
    block: int = -1
    left: float = 0.0
    work: float = 0.0
    transfer: float = 0.0
    kernels: float = 0.0
    checkpoint: float = 0.0
    coordinator: float = 0.0
    connect: float = 0.0
    imports: float = 0.0
    spark: float = 0.0


# The fields that a worker sends.
SENT_TIMES = tuple(field.name for field in pb.ClockTimes.DESCRIPTOR.fields)


@dataclass(frozen=True)
class StartTimes:
    """How a task began, in seconds.

    Attributes:
        python_s: the time from the start of the task's Python process until the task began.
        daemon_s: the time from the start of the daemon that forked this process; 0 if it was not forked.
        connect_s: the time from the beginning of the task until the worker was connected.
    """

    python_s: float = 0.0
    daemon_s: float = 0.0
    connect_s: float = 0.0


UNKNOWN_START = StartTimes()


class RunControl:
    """The calls of one attempt. One thread calls at a time; ``poll_progress`` may run concurrently.

    Attributes:
        take_lines: returns the lines that the attempt has logged since the last call, for the next message.
        is_asking: True while a call waits for its answer.

    When the connection breaks, a call reconnects, joins and asks again. All methods raise:
        UnreachableError: the driver was never reached.
        UnavailableError: the driver could not be reached for ``GIVE_UP_S``.
        RunEndedError, StoppedError, WorkerError: the run has ended, or another attempt holds the rank.
    """

    def __init__(self, address: str, token: str | None, wire: WireConfig | None = None) -> None:
        self.take_lines: Callable[[], LogLines] = LogLines
        self.is_asking = False
        self._address = address
        self._token = token
        self._wire = wire or WireConfig()
        self._channel: WorkerChannel[pb.CoordinatorMessage] | None = None
        self._progress_channel: WorkerChannel[pb.CoordinatorMessage] | None = None
        self._lock = threading.Lock()  # guards the progress channel
        self._join = pb.WorkerMessage()
        self._number = 0  # the number of the last message
        self._epoch = 0  # the newest epoch that the driver has sent
        self._clock = 0  # the clock that the worker is in, or waits for
        self._failing_since_s: float | None = None
        self._reached = False
        self._final: PS2Error | None = None

    def join(self, rank: int, attempt: int, host: str, pid: int, start: StartTimes = UNKNOWN_START) -> Joined:
        """Get a rank; wait while another attempt holds it."""
        self._join = pb.WorkerMessage(join=pb.Join(rank=rank, attempt=attempt, host=host, pid=pid, **asdict(start)))
        return self._acquire_rank()

    def join_again(self) -> Joined:
        """Get the rank again, as the next attempt would; wait while the fleet rolls back to a checkpoint."""
        self._hang_up()
        return self._acquire_rank()

    def _acquire_rank(self) -> Joined:
        reply = self._ask(self._join).joined
        self._epoch, self._clock = reply.epoch, reply.clock
        return Joined(reply.workers, reply.clock, reply.epoch, reply.run_s, reply.done)

    def arrive(  # noqa: PLR0913 - the fields of one message
        self,
        clock: int,
        applied: int,
        epoch: int,
        times: ClockTimes | None,
        metrics: Sequence[Logged] = (),
        messages: int = 0,
        reports: Sequence[Report] = (),
        until: int = 0,
    ) -> Entered:
        """Wait until a clock may be entered; return the clock that was entered.

        ``messages``: number of the driver's messages that the worker has. The worker's loop ends before the
        clock ``until``.
        """
        self._epoch = epoch
        request = pb.Arrive(clock=clock, applied=applied, times=_times_to_pb(times), messages=messages, until=until)
        request.reports.extend(pb.Report(**asdict(report)) for report in reports)
        reply = self._ask(pb.WorkerMessage(arrive=request), metrics).enter
        self._epoch, self._clock = reply.epoch, reply.clock
        end = reply.end if reply.HasField("end") else None
        budget_s = reply.budget if reply.HasField("budget") else math.inf
        return Entered(
            *(reply.clock, reply.horizon, reply.epoch, reply.on_clock, reply.messages, reply.message, end, budget_s),
            *(reply.checkpoint, reply.others),
        )

    def messages(self, begin: int, end: int) -> list[bytes]:
        """Return messages by their numbers, encoded. Raise RolledBack if some are gone with a rollback of the fleet."""
        read: list[bytes] = []
        while len(read) < end - begin:
            request = pb.ReadMessages(begin=begin + len(read), end=end)
            messages = self._ask(pb.WorkerMessage(read_messages=request)).messages.messages
            if not messages:
                raise RolledBack("the fleet rolled back to a checkpoint while the driver's messages were read")
            read += messages
        return read

    def poll_progress(self, applied: int, clock: int, epoch: int) -> Entered:
        """Report which clocks are applied; wait up to a second until the other workers allow a further clock.

        Any thread may call this. A failure has no effect, because ``arrive`` reports the same again.
        """
        join = self._join.join
        request = pb.Ahead(rank=join.rank, attempt=join.attempt, applied=applied, clock=clock, epoch=epoch)
        with self._lock:
            channel = self._progress_channel = self._progress_channel or self._new_channel()
            try:
                progress = _checked(channel.ask(pb.WorkerMessage(ahead=request))).seen
            except PS2Error:
                channel.close()
                self._progress_channel = None
                raise
        return Entered(clock, progress.horizon, progress.epoch)

    def barrier(self, phase: int, number: int, metrics: Sequence[Logged] = ()) -> None:
        self._ask(pb.WorkerMessage(barrier=pb.Barrier(phase=phase, number=number)), metrics)

    def once(self, phase: int, number: int, metrics: Sequence[Logged] = ()) -> bytes | None:
        """Return the value of a ``once`` point; None if this worker must compute it."""
        reply = self._ask(pb.WorkerMessage(once=pb.Once(phase=phase, number=number)), metrics).once
        return None if reply.make else reply.value

    def send_once(self, phase: int, number: int, value: bytes) -> bytes:
        """Send the value of a ``once`` point; return the valid one: another attempt may have sent a value before."""
        _check_size("the result of once()", value)
        reply = self._ask(pb.WorkerMessage(once_made=pb.OnceMade(phase=phase, number=number, value=value))).once
        return value if reply.make else reply.value

    def send_metrics(self, metrics: Sequence[Logged]) -> None:
        self._ask(pb.WorkerMessage(note=pb.Note()), metrics)

    def leave(self, result: bytes, times: ClockTimes | None = None, metrics: Sequence[Logged] = ()) -> None:
        """Send the result; wait until all workers have returned.

        Raises RolledBack if the fleet rolled back to a checkpoint; the next attempt continues from there.
        """
        _check_size("the worker's result", result)
        leave = pb.Leave(result=result, clock=self._clock, times=_times_to_pb(times))
        reply = self._ask(pb.WorkerMessage(leave=leave), metrics).left
        if reply.again:
            raise RolledBack(
                "the fleet rolled back to a checkpoint after this worker returned but before others did: its next "
                "attempt continues from there"
            )

    def fail(self, error: str, times: ClockTimes, fatal: bool, metrics: Sequence[Logged] = ()) -> None:
        leave = pb.Leave(error=error, clock=times.clock, fatal=fatal, times=_times_to_pb(times))
        self._ask(pb.WorkerMessage(leave=leave), metrics)

    def close(self) -> None:
        """Close the connections. A call of another thread fails."""
        self._hang_up()
        if (channel := self._progress_channel) is not None:
            channel.close()

    def _ask(self, message: pb.WorkerMessage, metrics: Sequence[Logged] = ()) -> pb.CoordinatorMessage:
        """Ask until there is an answer. After a final error every call raises it again."""
        if self._final is not None:
            raise self._final
        if metrics:
            message.metrics.extend(pb.Metric(**asdict(metric)) for metric in metrics)
        if message is not self._join and (logged := self.take_lines()):
            message.log_lines.extend(pb.LogLine(**asdict(line)) for line in logged.lines)
            message.left_out_lines = logged.left_out
        if not self._reached:
            self._failing_since_s = self._failing_since_s or time.monotonic()
        self._number += 1
        message.number, message.epoch = self._number, self._epoch
        self.is_asking = True
        try:
            return self._retried(message)
        finally:
            self.is_asking = False

    def _retried(self, message: pb.WorkerMessage) -> pb.CoordinatorMessage:
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                return self._try(message)
            except UnavailableError as error:
                self._hang_up()
                self._check_time_limit(error)
            except PS2Error as error:
                self._final = error
                raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _try(self, message: pb.WorkerMessage) -> pb.CoordinatorMessage:
        if self._channel is None:
            self._channel = self._new_channel()
            if message is not self._join:
                joined = _checked(self._channel.ask(self._join)).joined
                self._reached, self._failing_since_s = True, None
                if joined.done and message.WhichOneof("ask") == "leave":
                    return pb.CoordinatorMessage(left=pb.Left())
                if joined.done:
                    raise StoppedError(f"another attempt of rank {self._join.join.rank} has returned a result")
        answer = _checked(self._channel.ask(message))
        self._reached, self._failing_since_s = True, None
        return answer

    def _new_channel(self) -> WorkerChannel[pb.CoordinatorMessage]:
        return WorkerChannel(self._address, self._token, NAME, pb.CoordinatorMessage, self._wire)

    def _hang_up(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _check_time_limit(self, error: UnavailableError) -> None:
        now_s = time.monotonic()
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        limit_s = GIVE_UP_S
        if not self._reached:
            # The cause of a timeout can be a firewall, or a busy driver.
            limit_s = 1.5 * GIVE_UP_S if isinstance(error.__cause__, TimeoutError) else FIRST_CONTACT_S
        if now_s - self._failing_since_s <= limit_s:
            return
        if self._reached:
            self._final = UnavailableError(
                f"the driver of this run cannot be reached at {self._address}, tried for {GIVE_UP_S:.0f} s: {error}"
            )
        else:
            self._final = unreachable("the driver's run", self._address, error.__cause__ or error)
        raise self._final from error


def _checked(answer: pb.CoordinatorMessage) -> pb.CoordinatorMessage:
    """Return an answer; raise the error in it, if any."""
    if answer.HasField("error"):
        raise from_detail(answer.error)
    return answer


def _times_to_pb(times: ClockTimes | None) -> pb.ClockTimes | None:
    return None if times is None else pb.ClockTimes(**{name: getattr(times, name) for name in SENT_TIMES})


def _check_size(name: str, value: bytes) -> None:
    if len(value) > LIMIT_BYTES:
        raise LimitError(
            f"{name} takes {len(value)} bytes, pickled, but at most {LIMIT_BYTES} may be sent to the driver: put "
            "large data into vectors on the servers"
        )
