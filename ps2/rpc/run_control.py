"""The calls of a run's worker to its driver: plain methods over one connection."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from ps2.config import WireConfig
from ps2.errors import LimitError, ProtocolError, PS2Error, RolledBack, StoppedError, UnavailableError
from ps2.protocol.plain_data import LIMIT_BYTES
from ps2.protocol.run_messages import (
    Ahead,
    Answer,
    Arrive,
    Ask,
    Barrier,
    ClockTimes,
    Entered,
    Go,
    Join,
    Joined,
    Leave,
    Left,
    Logged,
    LogLines,
    Messages,
    Note,
    Once,
    OnceAnswer,
    OnceMade,
    ReadMessages,
    Seen,
    WorkerMessage,
    read_answer,
    write_request,
)
from ps2.transport.reach import unreachable
from ps2.transport.worker_channel import WorkerChannel

# How long failures must last before an attempt concludes that the driver has ended.
GIVE_UP_S = 10.0
# The same before the first contact: the driver listens before any worker starts.
FIRST_CONTACT_S = 3.0
FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 0.5
# Name of the other side in the handshake.
NAME = "run"

A = TypeVar("A", bound=Answer)


class RunControl:
    """The calls of one attempt. One thread calls at a time; ``poll_progress`` may run concurrently.

    Attributes:
        take_lines: returns what the attempt has logged since the last call; it goes with the next message.
        is_asking: a call is under way.

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
        self._channel: WorkerChannel | None = None
        self._progress_channel: WorkerChannel | None = None
        self._lock = threading.Lock()  # guards the progress channel
        self._join = Join(0, 0)
        self._number = 0  # of the last message
        self._epoch = 0  # the newest epoch that the worker was told
        self._clock = 0  # the clock that the worker is in, or waits for
        self._failing_s: float | None = None  # since when calls fail
        self._reached = False
        self._final: PS2Error | None = None

    def join(self, ask: Join) -> Joined:
        """Get a rank; wait while another attempt holds it."""
        self._join = ask
        return self._acquire_rank()

    def join_again(self) -> Joined:
        """Get the rank again, as the next attempt would; wait while the fleet rolls back to a checkpoint."""
        self._hang_up()
        return self._acquire_rank()

    def _acquire_rank(self) -> Joined:
        joined = self._ask(self._join, Joined)
        self._epoch, self._clock = joined.epoch, joined.clock
        return joined

    def arrive(self, ask: Arrive, metrics: Sequence[Logged] = ()) -> Entered:
        """Wait until a clock may be entered; return the clock that was entered."""
        entered = self._ask(ask, Entered, metrics)
        self._epoch, self._clock = entered.epoch, entered.clock
        return entered

    def messages(self, begin: int, end: int) -> list[bytes]:
        """Return messages by their numbers, encoded.

        Raises:
            RolledBack: the fleet rolled back to a checkpoint, and some of these messages are gone.
        """
        read: list[bytes] = []
        while len(read) < end - begin:
            answered = self._ask(ReadMessages(begin + len(read), end), Messages).messages
            if not answered:
                raise RolledBack("the fleet rolled back to a checkpoint while the driver's messages were read")
            read += answered
        return read

    def poll_progress(self, applied: int, clock: int, epoch: int) -> Seen:
        """Report what has been applied within a clock; wait up to a second until the other workers allow another clock.

        Any thread may call this. A failure loses nothing: ``arrive`` reports all of it again.
        """
        ask = Ahead(self._join.rank, self._join.attempt, applied, clock, epoch)
        with self._lock:
            channel = self._progress_channel = self._progress_channel or self._new_channel()
            try:
                return _checked(_exchange(channel, WorkerMessage(ask)), Seen)
            except PS2Error:
                channel.close()
                self._progress_channel = None
                raise

    def barrier(self, phase: int, number: int, metrics: Sequence[Logged] = ()) -> None:
        self._ask(Barrier(phase, number), Go, metrics)

    def once(self, phase: int, number: int, metrics: Sequence[Logged] = ()) -> bytes | None:
        """Return the value of a ``once`` point; None if this worker must compute it."""
        answer = self._ask(Once(phase, number), OnceAnswer, metrics)
        return None if answer.make else answer.value

    def once_made(self, phase: int, number: int, value: bytes) -> bytes:
        """Send the value of a ``once`` point; return the value that counts: another attempt may have been first.

        Raises:
            LimitError: the value takes more than ``LIMIT_BYTES``.
        """
        _check_size("the result of once()", value)
        answer = self._ask(OnceMade(phase, number, value), OnceAnswer)
        return value if answer.make else answer.value

    def note(self, metrics: Sequence[Logged]) -> None:
        self._ask(Note(), Go, metrics)

    def leave(self, result: bytes, times: ClockTimes | None = None, metrics: Sequence[Logged] = ()) -> None:
        """Send the result; wait until all workers have returned.

        Raises:
            LimitError: the result takes more than ``LIMIT_BYTES``.
            RolledBack: the fleet rolled back to a checkpoint; the next attempt continues from there.
        """
        _check_size("the worker's result", result)
        if self._ask(Leave(result, clock=self._clock, times=times), Left, metrics).again:
            raise RolledBack(
                "the fleet rolled back to a checkpoint after this worker returned but before others did: its next "
                "attempt continues from there"
            )

    def fail(self, error: str, times: ClockTimes, fatal: bool, metrics: Sequence[Logged] = ()) -> None:
        self._ask(Leave(error=error, clock=times.clock, fatal=fatal, times=times), Go, metrics)

    def close(self) -> None:
        """Close the connections. A call of another thread fails."""
        self._hang_up()
        if (channel := self._progress_channel) is not None:
            channel.close()

    def _ask(self, ask: Ask, expected: type[A], metrics: Sequence[Logged] = ()) -> A:
        """Ask until there is an answer. After a final error every call raises it again."""
        if self._final is not None:
            raise self._final
        lines = LogLines() if isinstance(ask, Join) else self.take_lines()
        if not self._reached:
            self._failing_s = self._failing_s or time.monotonic()
        self._number += 1
        self.is_asking = True
        try:
            return _checked(self._retried(WorkerMessage(ask, metrics, self._number, self._epoch, lines)), expected)
        finally:
            self.is_asking = False

    def _retried(self, message: WorkerMessage) -> Answer:
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

    def _try(self, message: WorkerMessage) -> Answer:
        if self._channel is None:
            self._channel = self._new_channel()
            if not isinstance(message.ask, Join):
                joined = _checked(_exchange(self._channel, WorkerMessage(self._join)), Joined)
                self._reached, self._failing_s = True, None
                if joined.done and isinstance(message.ask, Leave):
                    return Go() if message.ask.error else Left()
                if joined.done:
                    raise StoppedError(f"another attempt of rank {self._join.rank} has returned a result")
        answer = _exchange(self._channel, message)
        self._reached, self._failing_s = True, None
        return answer

    def _new_channel(self) -> WorkerChannel:
        return WorkerChannel(self._address, self._token, NAME, self._wire)

    def _hang_up(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _check_time_limit(self, error: UnavailableError) -> None:
        now_s = time.monotonic()
        if self._failing_s is None:
            self._failing_s = now_s
        if self._reached:
            wait_s = GIVE_UP_S
        else:
            # A timeout may mean a firewall, or a busy driver.
            wait_s = 1.5 * GIVE_UP_S if isinstance(error.__cause__, TimeoutError) else FIRST_CONTACT_S
        if now_s - self._failing_s <= wait_s:
            return
        if self._reached:
            self._final = UnavailableError(
                f"the driver of this run cannot be reached at {self._address}, tried for {GIVE_UP_S:.0f} s: {error}"
            )
        else:
            self._final = unreachable("the driver's run", self._address, error.__cause__ or error)
        raise self._final from error


def _exchange(channel: WorkerChannel, message: WorkerMessage) -> Answer:
    return read_answer(channel.ask(write_request(message)))


def _checked(answer: Answer, expected: type[A]) -> A:
    if not isinstance(answer, expected):
        raise ProtocolError(f"the driver's answer: expected {expected.__name__}, got {type(answer).__name__}")
    return answer


def _check_size(what: str, value: bytes) -> None:
    if len(value) > LIMIT_BYTES:
        raise LimitError(
            f"{what} takes {len(value)} bytes, pickled, but at most {LIMIT_BYTES} may be sent to the driver: put "
            "large data into vectors on the servers"
        )
