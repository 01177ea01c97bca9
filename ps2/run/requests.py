"""The requests of a run's workers, as coroutines: each yields until its answer is known."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Protocol

from ps2.errors import OutOfRangeError, ProtocolError, StoppedError
from ps2.protocol.plain_data import LIMIT_BYTES
from ps2.protocol.run_messages import (
    Ahead,
    Answer,
    Arrive,
    Barrier,
    Entered,
    Go,
    Join,
    Joined,
    Leave,
    Left,
    Messages,
    Note,
    Once,
    OnceAnswer,
    OnceMade,
    ReadMessages,
    Seen,
    WorkerMessage,
    read_request,
    write_answer,
)
from ps2.run.rank_leases import RankLease, Wake
from ps2.run.state import Coroutine, RunState
from ps2.run.sync_points import where

log = logging.getLogger(__name__)

# ``poll_progress`` answers after this time at the latest.
PROGRESS_TIMEOUT_S = 1.0


class ClientConnection(Protocol):
    """The connection that a message came on.

    Attributes:
        lease: set by the first message. The server releases it when the connection ends.
    """

    lease: RankLease | None

    def wake(self) -> None: ...


class WorkerRequests:
    """The requests of a run's workers. A worker repeats a request if its connection breaks before the answer."""

    def __init__(self, run: RunState) -> None:
        self._run = run

    def handle(self, caller: ClientConnection, encoded: bytes) -> Coroutine[bytes]:
        """Answer a message. An error ends the connection."""
        message = read_request(encoded)
        ask = message.ask
        answer: Answer
        if isinstance(ask, Ahead):
            answer = yield from self.poll_progress(ask, caller.wake)
        elif caller.lease is not None:
            answer = yield from self._answer(caller.lease, message)
        elif not isinstance(ask, Join):
            raise ProtocolError(f"a worker's first message is Join, not {message.name}")
        elif ask.rank >= self._run.workers:
            raise OutOfRangeError(f"rank {ask.rank}: this run has {self._run.workers} workers")
        else:
            log.debug("rank %d: attempt %d has come, process %d on %s", ask.rank, ask.attempt, ask.pid, ask.host)
            caller.lease = self._run.new_lease(ask.rank, ask.attempt, caller.wake)
            answer = yield from self.acquire_rank(caller.lease, ask)
        return write_answer(answer)

    def _answer(self, lease: RankLease, message: WorkerMessage) -> Coroutine[Answer]:
        ask, epoch = message.ask, message.epoch
        times = ask.times if isinstance(ask, (Arrive, Leave)) else None
        if times is not None or message.metrics or message.lines:
            self._run.note(lease, message.number, message.metrics, times, message.lines)
        match ask:
            case Arrive():
                return (yield from self.arrive(lease, ask, epoch))
            case ReadMessages():
                return (yield from self.messages(lease, ask, epoch))
            case Barrier():
                return (yield from self.barrier(lease, ask, epoch))
            case Once():
                return (yield from self.once(lease, ask, epoch))
            case OnceMade():
                return (yield from self.once_made(lease, ask, epoch))
            case Leave(error=""):
                return (yield from self.leave(lease, ask, epoch))
            case Leave():
                self._run.fail_attempt(lease, ask.clock, ask.error, ask.fatal)
                return Go()
            case Note():
                return Go()
        raise ProtocolError(f"a worker's message {message.name} comes at the wrong place")

    def acquire_rank(self, lease: RankLease, ask: Join) -> Coroutine[Joined]:
        """Give an attempt its rank; wait while another attempt holds it.

        The same attempt on a newer connection takes the rank over. If the rank has already returned a result, the
        attempt waits for the end of the run.
        """
        run = self._run
        rank = lease.rank
        run.leases.enqueue(lease)
        try:
            yield from run.wait(lease, lambda: run.is_over if rank in run.results else run.leases.is_free(lease))
        finally:
            run.leases.dequeue(lease)
        if rank in run.results:
            return Joined(run.workers, 0, run.epoch, 0.0, done=True)
        if (before := run.leases.holder(rank)) is not None:
            run.release_rank(before)
        run.leases.grant(lease)
        run.failures.pop(rank, None)  # it has another attempt
        clock = run.clocks.applied[rank]
        now_s = time.monotonic() - run.began_s
        if (times := run.spans.joined(ask, clock, now_s)) is not None:
            run.timeline[rank].append(times)
        return Joined(run.workers, clock, run.epoch, now_s, done=False)

    def arrive(self, lease: RankLease, ask: Arrive, epoch: int) -> Coroutine[Entered]:
        """Let a worker enter a clock once the other workers have come far enough."""
        run = self._run
        yield from run.check(lease)
        rank = lease.rank
        run.until = max(run.until, ask.until)
        clock, applied = ask.clock, ask.applied
        if epoch != run.epoch:  # the fleet rolled back: the worker's changes since then are gone
            clock = applied = run.clocks.applied[rank]
        else:
            run.report_log.note(rank, ask.reports, run.clocks.called)
        run.entries.pop(rank, None)
        run.arrived_s[rank] = time.monotonic()
        run.apply(lambda: run.clocks.arrive(rank, clock, applied))
        yield from run.wait(lease, lambda: rank in run.entries)
        entry = run.entries.pop(rank)
        has_newest = entry.epoch == epoch and entry.messages == ask.messages
        return replace(entry, message=b"") if entry.message and has_newest else entry

    def poll_progress(self, ask: Ahead, wake: Wake) -> Coroutine[Seen]:
        """Record what a worker has applied inside its clock; return the last clock that it may enter.

        Wait, for up to ``PROGRESS_TIMEOUT_S``, until it may enter its next clock. A leaving worker does not wait.

        Raises:
            StoppedError: the attempt does not hold its rank.
        """
        run = self._run
        rank = ask.rank
        lease = run.leases.holder(rank)
        if lease is None or lease.attempt != ask.attempt:
            raise StoppedError(f"attempt {ask.attempt} of rank {rank} does not hold that rank")
        if ask.epoch == run.epoch:
            run.apply(lambda: run.clocks.progress(rank, ask.applied))
        end_s = time.monotonic() + PROGRESS_TIMEOUT_S
        run.polling[wake] = rank
        try:
            while not (
                run.error is not None
                or lease.revoked
                or lease.leaving
                or ask.epoch != run.epoch
                or (run.clocks.horizon(rank) >= ask.clock and not run.is_paused)
                or time.monotonic() >= end_s
            ):
                yield end_s
        finally:
            del run.polling[wake]
        return Seen(run.clocks.horizon(rank), run.epoch)

    def messages(self, lease: RankLease, ask: ReadMessages, epoch: int) -> Coroutine[Messages]:
        """Return the driver's messages with these numbers: as many as fit one answer; none if they no longer exist."""
        run = self._run
        yield from run.check(lease)
        journal = run.journal if epoch == run.epoch else run.journal_before
        return Messages(journal.messages(ask.begin, ask.end, LIMIT_BYTES))

    def barrier(self, lease: RankLease, ask: Barrier, epoch: int) -> Coroutine[Go]:
        """Wait at a point until all workers have come there."""
        run, point = self._run, (ask.phase, ask.number)
        yield from run.check(lease)
        if epoch == run.epoch:
            with run.failing():
                passing = run.points.arrive(lease.rank, point)
            run.unblock(passing)
            if lease.rank not in passing:
                yield from run.block(lease, f"at a barrier {where(point)}")
        return Go()

    def once(self, lease: RankLease, ask: Once, epoch: int) -> Coroutine[OnceAnswer]:
        """Return the value of a point, or let this worker make it."""
        run, point = self._run, (ask.phase, ask.number)
        yield from run.check(lease)
        if epoch == run.epoch:
            with run.failing():
                known = run.points.request(lease.rank, point)
            if not known:
                yield from run.block(lease, f"for a value that another one makes {where(point)}")
        value = run.points.value(point) if epoch == run.epoch else None
        return OnceAnswer(make=value is None, value=value or b"")

    def once_made(self, lease: RankLease, ask: OnceMade, epoch: int) -> Coroutine[OnceAnswer]:
        """Store the value that a worker has made for a point; return the value that counts, the first one."""
        run, point = self._run, (ask.phase, ask.number)
        yield from run.check(lease)
        if epoch != run.epoch:
            return OnceAnswer(make=True)
        run.unblock(run.points.publish(point, ask.value))
        value = run.points.value(point) or b""
        return OnceAnswer(make=True) if value == ask.value else OnceAnswer(make=False, value=value)

    def leave(self, lease: RankLease, ask: Leave, epoch: int) -> Coroutine[Left]:
        """Store a worker's result; wait until all workers, ``onClock`` and ``onEnd`` have returned.

        Until then the fleet may roll back to a checkpoint, and a task that has ended could not continue from there.

        Returns:
            ``again`` if the fleet rolled back: the worker's next attempt repeats the lost clocks.
        """
        run = self._run
        yield from run.check(lease)
        if epoch != run.epoch:
            return Left(again=True)
        if lease.rank not in run.results:
            run.results[lease.rank] = ask.result
            run.spans.left(lease.rank, time.monotonic() - run.began_s)
        run.note_leaving(lease)
        run.apply(lambda: run.clocks.leave(lease.rank, ask.clock))
        yield from run.wait(lease, lambda: run.is_over or lease.rank not in run.results)
        return Left(again=lease.rank not in run.results)
