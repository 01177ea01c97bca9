"""The requests of a run's workers, as coroutines. A coroutine yields while its request has to wait."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ps2.errors import StoppedError
from ps2.protocol.plain_data import LIMIT_BYTES
from ps2.rpc.run_control import UNKNOWN_START, ClockEntry, JoinReply, Report, StartTimes
from ps2.run.rank_leases import RankLease, Wake
from ps2.run.state import Coroutine, RunState
from ps2.run.sync_points import Point, describe_point

# The maximum time until ``poll_progress`` returns.
PROGRESS_TIMEOUT_S = 1.0


class WorkerRequests:
    """The requests of a run's workers. A worker repeats a request if its connection breaks before the answer."""

    def __init__(self, run: RunState) -> None:
        self._run = run

    def acquire_rank(self, lease: RankLease, start: StartTimes = UNKNOWN_START) -> Coroutine[JoinReply]:
        """Give an attempt its rank; wait while another attempt holds the rank.

        If the same attempt holds the rank on an older connection, the new connection gets the rank at once. If the
        rank has already returned a result, wait for the end of the run.
        """
        run = self._run
        rank = lease.rank
        run.leases.waiting.append(lease)
        try:
            yield from run.wait(lease, lambda: run.is_over if rank in run.results else run.leases.is_free(lease))
        finally:
            run.leases.waiting.remove(lease)
        if rank in run.results:
            return JoinReply(run.workers, 0, run.epoch, 0.0, done=True)
        if (previous := run.leases.holder(rank)) is not None:
            run.release_rank(previous)
        run.leases.grant(lease)
        run.failures.pop(rank, None)
        clock = run.clocks.applied[rank]
        now_s = time.monotonic() - run.began_s
        if (times := run.spans.joined(lease, clock, start, now_s)) is not None:
            run.timeline[rank].append(times)
        return JoinReply(run.workers, clock, run.epoch, now_s, done=False)

    def arrive(
        self,
        lease: RankLease,
        clock: int,
        applied: int,
        epoch: int,
        reports: Sequence[Report] = (),
        until: int = 0,
    ) -> Coroutine[ClockEntry]:
        """Let a worker enter a clock once the other workers allow it. The worker's loop ends before clock ``until``."""
        run = self._run
        yield from run.check(lease)
        rank = lease.rank
        run.until = max(run.until, until)
        if epoch != run.epoch:  # the fleet has rolled back: the servers have dropped the worker's changes
            clock = applied = run.clocks.applied[rank]
        else:
            run.report_log.add(rank, reports, run.clocks.called)
        run.entries.pop(rank, None)
        run.arrived_s[rank] = time.monotonic()
        run.apply(lambda: run.clocks.arrive(rank, clock, applied))
        yield from run.wait(lease, lambda: rank in run.entries)
        return run.entries.pop(rank)

    def poll_progress(
        self, rank: int, attempt: int, applied: int, clock: int, epoch: int, wake: Wake
    ) -> Coroutine[tuple[int, int]]:
        """Record that a worker's updates of clocks below ``applied`` are on the servers; return horizon and epoch.

        Waits up to ``PROGRESS_TIMEOUT_S`` until the worker may enter ``clock``. A leaving worker does not wait.
        """
        run = self._run
        lease = run.leases.holder(rank)
        if lease is None or lease.attempt != attempt:
            raise StoppedError(f"attempt {attempt} of rank {rank} does not hold that rank")
        if epoch == run.epoch:
            run.apply(lambda: run.clocks.progress(rank, applied))
        end_s = time.monotonic() + PROGRESS_TIMEOUT_S
        run.polling[wake] = rank
        try:
            while not (
                run.error is not None
                or lease.revoked
                or lease.leaving
                or epoch != run.epoch
                or (run.clocks.horizon(rank) >= clock and not run.is_paused)
                or time.monotonic() >= end_s
            ):
                yield end_s
        finally:
            del run.polling[wake]
        return run.clocks.horizon(rank), run.epoch

    def messages(self, lease: RankLease, begin: int, end: int, epoch: int) -> Coroutine[list[bytes]]:
        """Return the driver's messages begin, begin + 1, ... below ``end``, as many as fit into one answer."""
        run = self._run
        yield from run.check(lease)
        journal = run.journal if epoch == run.epoch else run.journal_before
        return journal.messages(begin, end, LIMIT_BYTES)

    def barrier(self, lease: RankLease, point: Point, epoch: int) -> Coroutine[None]:
        """Wait at a point until all workers have reached it."""
        run = self._run
        yield from run.check(lease)
        if epoch != run.epoch:
            return
        with run.failing():
            released_ranks = run.points.arrive(lease.rank, point)
        run.unblock(released_ranks)
        if lease.rank not in released_ranks:
            yield from run.block(lease, f"at a barrier {describe_point(point)}")

    def once(self, lease: RankLease, point: Point, epoch: int) -> Coroutine[bytes | None]:
        """Return the value of a point; None if this worker must compute the value."""
        run = self._run
        yield from run.check(lease)
        if epoch == run.epoch:
            with run.failing():
                has_value = run.points.request(lease.rank, point)
            if not has_value:
                yield from run.block(lease, f"for a value that another worker computes {describe_point(point)}")
        return run.points.value(point) if epoch == run.epoch else None

    def publish_once(self, lease: RankLease, point: Point, value: bytes, epoch: int) -> Coroutine[bytes]:
        """Store the value that a worker has computed, unless the point has a value; return the stored value."""
        run = self._run
        yield from run.check(lease)
        if epoch != run.epoch:
            return value
        run.unblock(run.points.publish(point, value))
        return run.points.value(point) or b""

    def leave(self, lease: RankLease, clock: int, result: bytes, epoch: int) -> Coroutine[bool]:
        """Store a worker's result; wait until all workers, ``onClock`` and ``onEnd`` have returned.

        The task must not end earlier, because the fleet can still roll back to a checkpoint. Returns False after a
        rollback: the worker's next attempt repeats the lost clocks.
        """
        run = self._run
        yield from run.check(lease)
        if epoch != run.epoch:
            return False
        if lease.rank not in run.results:
            run.results[lease.rank] = result
            run.spans.record_return(lease.rank, time.monotonic() - run.began_s)
        run.mark_leaving(lease)
        run.apply(lambda: run.clocks.leave(lease.rank, clock))
        yield from run.wait(lease, lambda: run.is_over or lease.rank not in run.results)
        return lease.rank in run.results
