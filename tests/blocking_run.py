"""A run whose requests are made by threads that wait for their answers."""

from __future__ import annotations

import threading
import time

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
        lease = self._run.leases.new(rank, attempt, woken.set)
        self._woken[lease] = woken
        return lease

    def acquire_rank(self, lease):
        return self._answer(self._requests.acquire_rank(lease), lease)

    def arrive(self, lease, *of):
        return self._answer(self._requests.arrive(lease, *of), lease)

    def barrier(self, lease, *of):
        return self._answer(self._requests.barrier(lease, *of), lease)

    def once(self, lease, *of):
        return self._answer(self._requests.once(lease, *of), lease)

    def once_made(self, lease, *of):
        return self._answer(self._requests.publish_once(lease, *of), lease)

    def leave(self, lease, *of):
        return self._answer(self._requests.leave(lease, *of), lease)

    def poll_progress(self, *of):
        woken = threading.Event()
        return _answered(self._run, self._requests.poll_progress(*of, woken.set), woken)

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
