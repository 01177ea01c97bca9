"""A run's gRPC face: decode, call one method of the run, encode."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import asdict, fields

from ps2.certificates import Tls
from ps2.config import WireConfig
from ps2.errors import OutOfRangeError, ProtocolError
from ps2.run.state import Run, Seat
from ps2.wire.pb import run_pb2 as pb
from ps2.wire.run_control import ClockTimes, Logged
from ps2.wire.serving import OnGone, RpcServer

log = logging.getLogger(__name__)

# An attempt may wait while another one has its place, and beside its stream it may ask how far it may go.
STREAMS_PER_WORKER = 3
SPARE_THREADS = 8


class RunServicer:
    """Each attempt of a worker has a stream, and so a thread; one more while it asks how far it may go."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def Work(self, messages: Iterator[pb.WorkerMessage], on_gone: OnGone) -> Iterator[pb.CoordinatorMessage]:
        first = next(messages, None)
        if first is None:
            return
        if first.WhichOneof("ask") != "join":
            raise ProtocolError(f"a worker's first message is Join, not {first.WhichOneof('ask')}")
        join = first.join
        if join.rank >= self._run.workers:
            raise OutOfRangeError(f"rank {join.rank}: this run has {self._run.workers} workers")
        log.debug("rank %d: attempt %d has come, process %d on %s", join.rank, join.attempt, join.pid, join.host)
        seat = self._run.seat(join.rank, join.attempt)
        if not on_gone(lambda: self._run.leave_seat(seat)):
            return
        try:
            yield pb.CoordinatorMessage(joined=pb.Joined(**asdict(self._run.sit(seat))))
            for message in messages:
                yield self._answer(seat, message)
        finally:
            self._run.leave_seat(seat)

    def Ahead(self, request: pb.AheadRequest) -> pb.AheadReply:
        horizon, epoch = self._run.ahead(request.rank, request.attempt, request.applied, request.clock, request.epoch)
        return pb.AheadReply(horizon=horizon, epoch=epoch)

    def _answer(self, seat: Seat, message: pb.WorkerMessage) -> pb.CoordinatorMessage:
        run, ask, epoch = self._run, message.WhichOneof("ask"), message.epoch
        times = _times(message)
        if times is not None or message.metrics:
            metrics = [Logged(metric.name, metric.value, metric.clock) for metric in message.metrics]
            run.note(seat, message.number, metrics, times)
        if ask == "arrive":
            entry = run.arrive(seat, message.arrive.clock, message.arrive.applied, epoch)
            return pb.CoordinatorMessage(enter=pb.Enter(**asdict(entry)))
        if ask == "once":
            value = run.once(seat, (message.once.phase, message.once.number), epoch)
            return pb.CoordinatorMessage(once=pb.OnceAnswer(make=value is None, value=value or b""))
        if ask == "once_made":
            made = message.once_made
            value = run.once_made(seat, (made.phase, made.number), made.value, epoch)
            yours = value == made.value
            return pb.CoordinatorMessage(once=pb.OnceAnswer(make=yours, value=b"" if yours else value))
        if ask == "leave" and not message.leave.error:
            stays = run.leave(seat, message.leave.clock, message.leave.result, epoch)
            return pb.CoordinatorMessage(left=pb.Left(again=not stays))
        if ask == "leave":
            run.fail_attempt(seat, message.leave.clock, message.leave.error, message.leave.fatal)
        elif ask == "barrier":
            run.barrier(seat, (message.barrier.phase, message.barrier.number), epoch)
        elif ask != "note":
            raise ProtocolError(f"a worker's message {ask} comes at the wrong place")
        return pb.CoordinatorMessage(go=pb.Go())


def listen(run: Run, bind: str, token: str, tls: Tls | None = None) -> RpcServer:
    """Start the run's gRPC face."""
    service = pb.DESCRIPTOR.services_by_name["Run"]
    threads = STREAMS_PER_WORKER * run.workers + SPARE_THREADS
    return RpcServer(service, RunServicer(run), bind, token, threads, WireConfig(tls=tls))


def _times(message: pb.WorkerMessage) -> ClockTimes | None:
    """Return where the time went until this message, if it tells that."""
    part = message.leave if message.WhichOneof("ask") == "leave" else message.arrive
    if not part.HasField("times"):
        return None
    return ClockTimes(**{field.name: getattr(part.times, field.name) for field in fields(ClockTimes)})
