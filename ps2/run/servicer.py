"""Decodes workers' messages, calls a method of ``WorkerRequests`` for each, and encodes the results."""

from __future__ import annotations

import logging
import math
from dataclasses import asdict
from typing import Protocol

from google.protobuf.message import DecodeError

from ps2.errors import OutOfRangeError, ProtocolError, PS2Error
from ps2.protocol.error_details import to_detail
from ps2.protocol.pb import run_pb2 as pb
from ps2.rpc.run_control import SENT_TIMES, ClockTimes, Logged, LogLine, LogLines, Report, StartTimes
from ps2.run.rank_leases import RankLease
from ps2.run.requests import WorkerRequests
from ps2.run.state import Coroutine, RunState

log = logging.getLogger(__name__)

Answer = Coroutine[pb.CoordinatorMessage]


class ClientConnection(Protocol):
    """The connection on which a message has arrived.

    Attributes:
        lease: the worker's lease, which the first message sets. The server releases it when the connection ends.
    """

    lease: RankLease | None

    def wake(self) -> None: ...


class WorkerServicer:
    """Serves the requests of a run's workers."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._requests = WorkerRequests(run)

    def handle(self, caller: ClientConnection, encoded: bytes) -> Coroutine[bytes]:
        """Return the coroutine that answers a message. An error ends the connection."""
        try:
            message = pb.WorkerMessage.FromString(encoded)
        except DecodeError as error:
            raise ProtocolError(f"a message cannot be decoded as WorkerMessage: {error}") from error
        if message.WhichOneof("ask") == "ahead":
            answer = yield from self._ahead(caller, message.ahead)
        elif caller.lease is not None:
            answer = yield from self._answer(caller.lease, message)
        else:
            answer = yield from self._join(caller, message)
        return answer.SerializeToString()

    def _join(self, caller: ClientConnection, message: pb.WorkerMessage) -> Answer:
        if message.WhichOneof("ask") != "join":
            raise ProtocolError(f"a worker's first message: expected Join, got {message.WhichOneof('ask')}")
        join = message.join
        if join.rank >= self._run.workers:
            raise OutOfRangeError(f"rank {join.rank}: this run has {self._run.workers} workers")
        log.debug("rank %d: attempt %d has connected, process %d on %s", join.rank, join.attempt, join.pid, join.host)
        caller.lease = self._run.leases.new(join.rank, join.attempt, caller.wake)
        start = StartTimes(join.python_s, join.daemon_s, join.connect_s)
        joined = yield from self._requests.acquire_rank(caller.lease, start)
        return pb.CoordinatorMessage(joined=pb.Joined(**asdict(joined)))

    def _ahead(self, caller: ClientConnection, ask: pb.Ahead) -> Answer:
        horizon, epoch = yield from self._requests.poll_progress(
            ask.rank, ask.attempt, ask.applied, ask.clock, ask.epoch, caller.wake
        )
        return pb.CoordinatorMessage(seen=pb.Seen(horizon=horizon, epoch=epoch))

    def _answer(self, lease: RankLease, message: pb.WorkerMessage) -> Answer:
        requests, ask, epoch = self._requests, message.WhichOneof("ask"), message.epoch
        times = _times(message)
        lines = _lines(message)
        if times is not None or message.metrics or lines:
            metrics = [Logged(metric.name, metric.value, metric.clock) for metric in message.metrics]
            self._run.record(lease, message.number, metrics, times, lines)
        if ask == "arrive":
            arrive = message.arrive
            reports = [Report(report.clock, report.merge, report.value) for report in arrive.reports]
            entry = yield from requests.arrive(lease, arrive.clock, arrive.applied, epoch, reports, arrive.until)
            enter = pb.Enter(clock=entry.clock, horizon=entry.horizon, epoch=entry.epoch, on_clock=entry.on_clock)
            enter.messages, enter.checkpoint, enter.others = entry.messages, entry.checkpoint, entry.others
            if entry.end is not None:
                enter.end = entry.end
            if math.isfinite(entry.budget_s):
                enter.budget = entry.budget_s
            if entry.epoch != epoch or entry.messages != arrive.messages:
                enter.message = entry.message
            return pb.CoordinatorMessage(enter=enter)
        if ask == "read_messages":
            read = message.read_messages
            messages = yield from requests.messages(lease, read.begin, read.end, epoch)
            return pb.CoordinatorMessage(messages=pb.Messages(messages=messages))
        if ask == "once":
            value = yield from requests.once(lease, (message.once.phase, message.once.number), epoch)
            return pb.CoordinatorMessage(once=pb.OnceAnswer(make=value is None, value=value or b""))
        if ask == "once_made":
            request = message.once_made
            value = yield from requests.publish_once(lease, (request.phase, request.number), request.value, epoch)
            is_own = value == request.value
            return pb.CoordinatorMessage(once=pb.OnceAnswer(make=is_own, value=b"" if is_own else value))
        if ask == "leave" and not message.leave.error:
            is_final = yield from requests.leave(lease, message.leave.clock, message.leave.result, epoch)
            return pb.CoordinatorMessage(left=pb.Left(again=not is_final))
        if ask == "leave":
            self._run.fail_attempt(lease, message.leave.clock, message.leave.error, message.leave.fatal)
        elif ask == "barrier":
            yield from requests.barrier(lease, (message.barrier.phase, message.barrier.number), epoch)
        elif ask != "note":
            raise ProtocolError(f"a worker's message after Join: expected a request, got {ask}")
        return pb.CoordinatorMessage(go=pb.Go())


def refusal(error: PS2Error) -> bytes:
    """Encode the error that ends a worker's connection."""
    return pb.CoordinatorMessage(error=to_detail(error)).SerializeToString()


def _lines(message: pb.WorkerMessage) -> LogLines:
    lines = tuple(LogLine(line.level, line.logger, line.text, line.clock) for line in message.log_lines)
    return LogLines(lines, message.left_out_lines)


def _times(message: pb.WorkerMessage) -> ClockTimes | None:
    """Return the times of a clock in the message, if any."""
    part = message.leave if message.WhichOneof("ask") == "leave" else message.arrive
    if not part.HasField("times"):
        return None
    return ClockTimes(**{name: getattr(part.times, name) for name in SENT_TIMES})
