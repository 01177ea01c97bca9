"""A run whose questions are asked by threads that wait for their answers."""

from __future__ import annotations

import threading
import time


class BlockingRun:
    """A ``ps2.run.state.Run`` whose questions return when they are answered; all else is the run's."""

    def __init__(self, run):
        self._run = run
        self._woken = {}  # by seat

    def __getattr__(self, name):
        return getattr(self._run, name)

    def __setattr__(self, name, value):
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:
            setattr(self._run, name, value)

    def seat(self, rank, attempt):
        woken = threading.Event()
        seat = self._run.seat(rank, attempt, woken.set)
        self._woken[seat] = woken
        return seat

    def sit(self, seat):
        return self._answer(self._run.sit(seat), seat)

    def arrive(self, seat, *of):
        return self._answer(self._run.arrive(seat, *of), seat)

    def barrier(self, seat, *of):
        return self._answer(self._run.barrier(seat, *of), seat)

    def once(self, seat, *of):
        return self._answer(self._run.once(seat, *of), seat)

    def once_made(self, seat, *of):
        return self._answer(self._run.once_made(seat, *of), seat)

    def leave(self, seat, *of):
        return self._answer(self._run.leave(seat, *of), seat)

    def ahead(self, *of):
        woken = threading.Event()
        return _answered(self._run, self._run.ahead(*of, woken.set), woken)

    def _answer(self, question, seat):
        return _answered(self._run, question, self._woken[seat])


def _answered(run, question, woken):
    while True:
        woken.clear()
        try:
            with run.lock:
                look_s = next(question)
        except StopIteration as done:
            return done.value
        woken.wait(None if look_s is None else max(0.0, look_s - time.monotonic()))
