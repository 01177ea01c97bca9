"""What workers' messages mean to a run: decode, call one method of the run, encode."""

from __future__ import annotations

import logging
from dataclasses import asdict, fields
from typing import Protocol

from google.protobuf.message import DecodeError

from ps2.errors import OutOfRangeError, ProtocolError, PS2Error
from ps2.protocol.error_details import to_detail
from ps2.protocol.pb import run_pb2 as pb
from ps2.rpc.run_control import ClockTimes, Logged, Report
from ps2.run.state import Question, Run, Seat

log = logging.getLogger(__name__)

Answer = Question[pb.CoordinatorMessage]


class Asks(Protocol):
    """Who asks, on one connection.

    Attributes:
        seat: what it is given by its first message; whoever serves the connection leaves it when that ends.
    """

    seat: Seat | None

    def wake(self) -> None: ...


class Answers:
    """Answers the questions of a run's workers."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def to(self, asker: Asks, encoded: bytes) -> Question[bytes]:
        """Return the question that a message is; what it raises is the end of the connection."""
        try:
            message = pb.WorkerMessage.FromString(encoded)
        except DecodeError as error:
            raise ProtocolError(f"a message WorkerMessage cannot be read: {error}") from error
        if message.WhichOneof("ask") == "ahead":
            answer = yield from self._ahead(asker, message.ahead)
        elif asker.seat is not None:
            answer = yield from self._answer(asker.seat, message)
        else:
            answer = yield from self._join(asker, message)
        return answer.SerializeToString()

    def _join(self, asker: Asks, message: pb.WorkerMessage) -> Answer:
        if message.WhichOneof("ask") != "join":
            raise ProtocolError(f"a worker's first message is Join, not {message.WhichOneof('ask')}")
        join = message.join
        if join.rank >= self._run.workers:
            raise OutOfRangeError(f"rank {join.rank}: this run has {self._run.workers} workers")
        log.debug("rank %d: attempt %d has come, process %d on %s", join.rank, join.attempt, join.pid, join.host)
        asker.seat = self._run.seat(join.rank, join.attempt, asker.wake)
        seated = yield from self._run.sit(asker.seat)
        return pb.CoordinatorMessage(joined=pb.Joined(**asdict(seated)))

    def _ahead(self, asker: Asks, ask: pb.Ahead) -> Answer:
        horizon, epoch = yield from self._run.ahead(
            ask.rank, ask.attempt, ask.applied, ask.clock, ask.epoch, asker.wake
        )
        return pb.CoordinatorMessage(seen=pb.Seen(horizon=horizon, epoch=epoch))

    def _answer(self, seat: Seat, message: pb.WorkerMessage) -> Answer:
        run, ask, epoch = self._run, message.WhichOneof("ask"), message.epoch
        times = _times(message)
        if times is not None or message.metrics:
            metrics = [Logged(metric.name, metric.value, metric.clock) for metric in message.metrics]
            run.note(seat, message.number, metrics, times)
        if ask == "arrive":
            arrive = message.arrive
            reports = [Report(report.clock, report.merge, report.value) for report in arrive.reports]
            entry = yield from run.arrive(seat, arrive.clock, arrive.applied, epoch, reports)
            enter = pb.Enter(clock=entry.clock, horizon=entry.horizon, epoch=entry.epoch, on_clock=entry.on_clock)
            enter.messages = entry.messages
            if entry.end is not None:
                enter.end = entry.end
            if entry.epoch != epoch or entry.messages != arrive.messages:
                enter.message = entry.message
            return pb.CoordinatorMessage(enter=enter)
        if ask == "read_messages":
            read = message.read_messages
            messages = yield from run.messages(seat, read.begin, read.end, epoch)
            return pb.CoordinatorMessage(messages=pb.Messages(messages=messages))
        if ask == "once":
            known = yield from run.once(seat, (message.once.phase, message.once.number), epoch)
            return pb.CoordinatorMessage(once=pb.OnceAnswer(make=known is None, value=known or b""))
        if ask == "once_made":
            made = message.once_made
            value = yield from run.once_made(seat, (made.phase, made.number), made.value, epoch)
            yours = value == made.value
            return pb.CoordinatorMessage(once=pb.OnceAnswer(make=yours, value=b"" if yours else value))
        if ask == "leave" and not message.leave.error:
            stays = yield from run.leave(seat, message.leave.clock, message.leave.result, epoch)
            return pb.CoordinatorMessage(left=pb.Left(again=not stays))
        if ask == "leave":
            run.fail_attempt(seat, message.leave.clock, message.leave.error, message.leave.fatal)
        elif ask == "barrier":
            yield from run.barrier(seat, (message.barrier.phase, message.barrier.number), epoch)
        elif ask != "note":
            raise ProtocolError(f"a worker's message {ask} comes at the wrong place")
        return pb.CoordinatorMessage(go=pb.Go())


def refusal(error: PS2Error) -> bytes:
    """Return what a worker is told when its connection ends with an error."""
    return pb.CoordinatorMessage(error=to_detail(error)).SerializeToString()


def _times(message: pb.WorkerMessage) -> ClockTimes | None:
    """Return where the time went until this message, if it tells that."""
    part = message.leave if message.WhichOneof("ask") == "leave" else message.arrive
    if not part.HasField("times"):
        return None
    return ClockTimes(**{field.name: getattr(part.times, field.name) for field in fields(ClockTimes)})
