"""The calls of a run's worker to the driver, as plain methods over one connection."""

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
from ps2.transport.connection import unreachable_error
from ps2.transport.worker_channel import WorkerChannel

# A task's attempt whose calls fail for this long concludes that the driver has ended.
GIVE_UP_S = 10.0
# The limit before the first answer is shorter, because the driver listens before any worker starts.
FIRST_CONTACT_S = 3.0
# The first and the longest pause between retries; each pause is twice as long as the pause before it.
MIN_PAUSE_S = 0.02
MAX_PAUSE_S = 0.5
# The driver's name in the handshake.
NAME = "run"


@dataclass(frozen=True)
class JoinReply:
    """The driver's answer when an attempt gets its rank, ``run_s`` seconds after the run began.

    ``clock``: the first clock that the rank has not finished. ``done``: True if another attempt has returned a result.
    """

    workers: int
    clock: int
    epoch: int
    run_s: float
    done: bool


@dataclass(frozen=True)
class ClockEntry:
    """The driver's answer that lets a worker enter a clock.

    Attributes:
        horizon: the highest clock that the worker may enter without a wait for other workers.
        on_clock: seconds of the wait for the driver's function ``onClock``.
        messages: the number of messages that ``onClock`` has returned so far.
        message: the newest message, encoded; empty if there is none, or if the worker has the message already.
        end: the run ends before this clock; None: the driver does not know the end yet.
        budget_s: the time budget of this clock, if it is a turn of a rotation whose length the run decides; otherwise
            infinite.
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
    """A worker's small result of a clock. ``merge`` names the rule that combines the workers' encoded ``value``s."""

    clock: int
    merge: str
    value: bytes


@dataclass(frozen=True)
class Logged:
    """The value of a metric that a worker logged in a clock."""

    name: str
    value: float
    clock: int


@dataclass(frozen=True)
class LogLine:
    """A line that a worker's Python process logged in a clock; ``level`` is a level of ``logging``, such as 30."""

    level: int
    logger: str
    text: str
    clock: int


@dataclass(frozen=True)
class LogLines:
    """The lines that an attempt logged since its last message; ``left_out`` counts lines dropped above the limit."""

    lines: tuple[LogLine, ...] = ()
    left_out: int = 0

    def __bool__(self) -> bool:
        return bool(self.lines or self.left_out)


@dataclass(frozen=True)
class ClockTimes:
    """How one worker's time was spent, in one clock or between clocks, in seconds.

    Attributes:
        clock: the clock; for time between clocks, the next clock.
        began: the time of the worker's arrival at the clock, in seconds since the run began. The durations below add
            up to the time until ``began`` of the next entry.
        wait: time spent waiting for other workers, before the clock and at barriers in it.
        outside: True if this entry is for time between clocks: before, between or after the loops over clocks.
        on_clock: time spent waiting before the clock for ``onClock`` alone, not for other workers.
        block: the worker's block of the model, if the clock was a turn of a rotation; -1 if it was not.
        left: the fraction of the block's work that remains for the next rotation, in [0, 1].
        work: the part of ``compute`` spent on the block.
        transfer: time during which background reads or writes ran.
        kernels: time spent loading and compiling numba functions.
        checkpoint: time spent waiting before the clock for a checkpoint alone.
        coordinator: the rest of the time before the clock: messages, and the coordinator's own work.
        connect, imports, spark: time before a worker joins and after it leaves: opening connections; starting Python
            and importing modules; work of Spark. Workers do not send these times; the coordinator computes them.
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


# The fields of ClockTimes that a worker sends.
SENT_TIMES = tuple(field.name for field in pb.ClockTimes.DESCRIPTOR.fields)


@dataclass(frozen=True)
class StartTimes:
    """The duration of each phase of a task's start, in seconds.

    Attributes:
        python_s: the time from the start of the task's Python process until the task began.
        daemon_s: the time since the start of Spark's Python daemon that forked the process; 0 if none did.
        connect_s: the time from the start of the task until the worker was connected.
    """

    python_s: float = 0.0
    daemon_s: float = 0.0
    connect_s: float = 0.0


UNKNOWN_START = StartTimes()


class RunControl:
    """The calls of one attempt. One thread calls at a time; ``poll_progress`` may run concurrently.

    Attributes:
        take_lines: a function that returns the lines logged since its last call, for the next message.
        is_asking: True while a call waits for its answer.

    When the connection breaks, a call reconnects, joins and asks again. All methods raise:
        UnreachableError: the driver was never reached.
        UnavailableError: the driver could not be reached for ``GIVE_UP_S``.
        RunEndedError, StoppedError, WorkerError: the run has ended, or another attempt has the rank.
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
        self._join_message = pb.WorkerMessage()
        self._number = 0  # the number of the last message
        self._epoch = 0  # the newest epoch that the driver has sent
        self._clock = 0  # the clock that the worker has entered, or waits for
        self._failing_since_s: float | None = None
        self._reached = False
        self._final_error: PS2Error | None = None

    def join(self, rank: int, attempt: int, host: str, pid: int, start: StartTimes = UNKNOWN_START) -> JoinReply:
        """Get a rank; wait while another attempt has it."""
        join = pb.Join(rank=rank, attempt=attempt, host=host, pid=pid, **asdict(start))
        self._join_message = pb.WorkerMessage(join=join)
        return self._acquire_rank()

    def join_again(self) -> JoinReply:
        """Get the rank again, as a new attempt would; wait while the fleet rolls back to a checkpoint."""
        self._hang_up()
        return self._acquire_rank()

    def _acquire_rank(self) -> JoinReply:
        reply = self._ask(self._join_message).joined
        self._epoch, self._clock = reply.epoch, reply.clock
        return JoinReply(reply.workers, reply.clock, reply.epoch, reply.run_s, reply.done)

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
    ) -> ClockEntry:
        """Wait until the worker may enter a clock; return the entry.

        ``applied``: the servers have applied the mutations of all clocks below this one. ``messages``: the number of
        driver's messages that the worker has. ``until``: the worker's loop ends before this clock.
        """
        self._epoch = epoch
        request = pb.Arrive(clock=clock, applied=applied, times=_times_to_pb(times), messages=messages, until=until)
        request.reports.extend(pb.Report(**asdict(report)) for report in reports)
        reply = self._ask(pb.WorkerMessage(arrive=request), metrics).enter
        self._epoch, self._clock = reply.epoch, reply.clock
        end = reply.end if reply.HasField("end") else None
        budget_s = reply.budget if reply.HasField("budget") else math.inf
        return ClockEntry(
            *(reply.clock, reply.horizon, reply.epoch, reply.on_clock, reply.messages, reply.message, end, budget_s),
            *(reply.checkpoint, reply.others),
        )

    def messages(self, begin: int, end: int) -> list[bytes]:
        """Return the messages ``begin`` to ``end - 1``, encoded. Raise RolledBack if a rollback has removed them."""
        messages: list[bytes] = []
        while len(messages) < end - begin:
            request = pb.ReadMessages(begin=begin + len(messages), end=end)
            batch = self._ask(pb.WorkerMessage(read_messages=request)).messages.messages
            if not batch:
                raise RolledBack("the fleet rolled back to a checkpoint while the driver's messages were read")
            messages += batch
        return messages

    def poll_progress(self, applied: int, clock: int, epoch: int) -> ClockEntry:
        """Report the applied clocks; wait up to a second until the other workers allow a further clock.

        Any thread may call this method. A failure has no effect, because ``arrive`` reports the same clocks again.
        """
        join = self._join_message.join
        request = pb.Ahead(rank=join.rank, attempt=join.attempt, applied=applied, clock=clock, epoch=epoch)
        with self._lock:
            channel = self._progress_channel = self._progress_channel or self._new_channel()
            try:
                progress = _checked(channel.ask(pb.WorkerMessage(ahead=request))).seen
            except PS2Error:
                channel.close()
                self._progress_channel = None
                raise
        return ClockEntry(clock, progress.horizon, progress.epoch)

    def barrier(self, phase: int, number: int, metrics: Sequence[Logged] = ()) -> None:
        self._ask(pb.WorkerMessage(barrier=pb.Barrier(phase=phase, number=number)), metrics)

    def once(self, phase: int, number: int, metrics: Sequence[Logged] = ()) -> bytes | None:
        """Return the value of a ``once`` call, named by phase and number; None if this worker must compute it."""
        reply = self._ask(pb.WorkerMessage(once=pb.Once(phase=phase, number=number)), metrics).once
        return None if reply.make else reply.value

    def send_once(self, phase: int, number: int, value: bytes) -> bytes:
        """Send the value of a ``once`` call; return the value to use, which another attempt may have sent before."""
        _check_size("the result of once()", value)
        reply = self._ask(pb.WorkerMessage(once_made=pb.OnceMade(phase=phase, number=number, value=value))).once
        return value if reply.make else reply.value

    def send_metrics(self, metrics: Sequence[Logged]) -> None:
        self._ask(pb.WorkerMessage(note=pb.Note()), metrics)

    def leave(self, result: bytes, times: ClockTimes | None = None, metrics: Sequence[Logged] = ()) -> None:
        """Send the worker's result; wait until all workers have returned.

        Raises RolledBack if the fleet rolled back to a checkpoint, from which the next attempt continues.
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
        """Close the connections. Another thread's call in flight fails."""
        self._hang_up()
        if (channel := self._progress_channel) is not None:
            channel.close()

    def _ask(self, message: pb.WorkerMessage, metrics: Sequence[Logged] = ()) -> pb.CoordinatorMessage:
        """Send a message until there is an answer. After a final error, every call raises that error again."""
        if self._final_error is not None:
            raise self._final_error
        if metrics:
            message.metrics.extend(pb.Metric(**asdict(metric)) for metric in metrics)
        if message is not self._join_message and (logged := self.take_lines()):
            message.log_lines.extend(pb.LogLine(**asdict(line)) for line in logged.lines)
            message.left_out_lines = logged.left_out
        if not self._reached:
            self._failing_since_s = self._failing_since_s or time.monotonic()
        self._number += 1
        message.number, message.epoch = self._number, self._epoch
        self.is_asking = True
        try:
            return self._ask_with_retries(message)
        finally:
            self.is_asking = False

    def _ask_with_retries(self, message: pb.WorkerMessage) -> pb.CoordinatorMessage:
        pause_s = MIN_PAUSE_S
        while True:
            try:
                return self._ask_once(message)
            except UnavailableError as error:
                self._hang_up()
                self._check_time_limit(error)
            except PS2Error as error:
                self._final_error = error
                raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    def _ask_once(self, message: pb.WorkerMessage) -> pb.CoordinatorMessage:
        if self._channel is None:
            self._channel = self._new_channel()
            if message is not self._join_message:
                joined = _checked(self._channel.ask(self._join_message)).joined
                self._reached, self._failing_since_s = True, None
                if joined.done and message.WhichOneof("ask") == "leave":
                    return pb.CoordinatorMessage(left=pb.Left())
                if joined.done:
                    raise StoppedError(f"another attempt of rank {self._join_message.join.rank} has returned a result")
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
            # After a timeout, wait longer: its cause may be a busy driver. Other failures are hardly temporary.
            limit_s = 1.5 * GIVE_UP_S if isinstance(error.__cause__, TimeoutError) else FIRST_CONTACT_S
        if now_s - self._failing_since_s <= limit_s:
            return
        if self._reached:
            self._final_error = UnavailableError(
                f"the driver of this run cannot be reached at {self._address}, tried for {GIVE_UP_S:.0f} s: {error}"
            )
        else:
            self._final_error = unreachable_error("the driver's run", self._address, error.__cause__ or error)
        raise self._final_error from error


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
