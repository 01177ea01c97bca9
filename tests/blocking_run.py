"""A run whose requests are made by threads that wait for their answers."""

from __future__ import annotations

import threading
import time

from ps2.protocol.run_messages import Ahead, Arrive, Barrier, Join, Leave, Once, OnceMade
from ps2.run.requests import WorkerRequests


class BlockingRun:
    """A ``RunState`` whose requests return when they are answered; all else is the run's."""

    def __init__(self, run):
        self._run = run
        self._requests = WorkerRequests(run)
        self._woken = {}  # by lease

    def __getattr__(self, name):
        return getattr(self._run, name)

    def __setattr__(self, name, value):
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:
            setattr(self._run, name, value)

    def new_lease(self, rank, attempt):
        woken = threading.Event()
        lease = self._run.new_lease(rank, attempt, woken.set)
        self._woken[lease] = woken
        return lease

    def acquire_rank(self, lease):
        return self._answer(self._requests.acquire_rank(lease, Join(lease.rank, lease.attempt)), lease)

    def arrive(self, lease, clock, applied, epoch):
        return self._answer(self._requests.arrive(lease, Arrive(clock, applied), epoch), lease)

    def barrier(self, lease, point, epoch):
        self._answer(self._requests.barrier(lease, Barrier(*point), epoch), lease)

    def once(self, lease, point, epoch):
        answer = self._answer(self._requests.once(lease, Once(*point), epoch), lease)
        return None if answer.make else answer.value

    def once_made(self, lease, point, value, epoch):
        answer = self._answer(self._requests.once_made(lease, OnceMade(*point, value), epoch), lease)
        return value if answer.make else answer.value

    def leave(self, lease, clock, result, epoch):
        return not self._answer(self._requests.leave(lease, Leave(result, clock=clock), epoch), lease).again

    def poll_progress(self, *fields):
        woken = threading.Event()
        seen = _answered(self._run, self._requests.poll_progress(Ahead(*fields), woken.set), woken)
        return seen.horizon, seen.epoch

    def _answer(self, request, lease):
        return _answered(self._run, request, self._woken[lease])


def _answered(run, request, woken):
    while True:
        woken.clear()
        try:
            with run.lock:
                resume_s = next(request)
        except StopIteration as done:
            return done.value
        woken.wait(None if resume_s is None else max(0.0, resume_s - time.monotonic()))
