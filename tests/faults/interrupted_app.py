"""A driver that is interrupted at any moment, again and again, and then checks that all still works.

    python interrupted_app.py WORK INTERRUPTS

It catches what its signals' handlers raise, as a notebook does; then it prints "sums" if each addition counts once, and
"done" when a last set of calls and the end of the context have gone well.
"""

import os
import random
import signal
import sys
import threading

import numpy as np

from ps2 import DCV, PS2Context

DIM = 2000
SEED = 7
# The signal of Ctrl-C, and that of a time limit of the user's own.
SIGNALS = (signal.SIGINT, signal.SIGALRM)


class Interrupted(BaseException):
    """What the handlers raise, as an IPython kernel's raises KeyboardInterrupt."""


class Interrupts:
    """Signals to the main thread at random moments, while it is about its work.

    Attributes:
        armed: whether the handlers raise; never while the program itself does its counting.
        last: what a handler raised last.
    """

    def __init__(self, count, longest_s):
        self.armed = False
        self.left = count
        self.raised = 0
        self.last = None
        self._longest_s = longest_s
        self._thread = threading.Thread(target=self._send, daemon=True)
        for number in SIGNALS:
            signal.signal(number, self._handle)

    def start(self):
        self._thread.start()

    def _send(self):
        choice = random.Random(SEED)
        pause = threading.Event()
        while self.left > 0:
            pause.wait(choice.uniform(0.0001, self._longest_s))
            if self.armed:
                self.left -= 1
                os.kill(os.getpid(), choice.choice(SIGNALS))

    def _handle(self, number, frame):
        if self.armed:
            self.armed = False
            self.raised += 1
            raise Interrupted

    def within(self, call):
        """Make a call that may be interrupted; tell whether it was not."""
        try:
            self.armed = True
            call()
            self.armed = False
        except Interrupted as error:
            self.last = error  # with its traceback, as a notebook keeps it
            return False
        return True


class Calls:
    """Every kind of call on vectors."""

    def __init__(self, ps):
        self._ps = ps
        self.vector = DCV.dense(DIM, 3)
        self._sparse = DCV.sparse(10**12)
        self._keys = np.arange(0, DIM, 3)
        self.begun = self.done = 0
        self._ones = np.ones(DIM)
        self._constant = DCV.dense(DIM).push(np.arange(DIM))
        self._choice = np.random.default_rng(SEED)

    def steps(self):
        return [self._add, self._add_later, self._batch, self._small, self._derive, self._make, self._zip, self._read]

    def additions(self, call):
        """Make a call that adds one everywhere; count it."""

        def counted():
            self.begun += 1
            call()
            self.done += 1

        return counted

    def _add(self):
        self.additions(lambda: self.vector.add(self._ones))()

    def _add_later(self):
        def add():
            self.vector.add(self._ones, wait=False)
            self._ps.flush()

        self.additions(add)()

    def _batch(self):
        def add():
            with self._ps.batch():
                self.vector.add(self._ones)
                self.vector.sum()

        self.additions(add)()

    def _small(self):
        self._sparse.add(np.ones(self._keys.size), self._keys)
        self._sparse.pull(self._keys)

    def _derive(self):
        other = self.vector.derive().fill(1)
        assert other.sum() == DIM
        other.free()

    def _make(self):
        DCV.dense(10, dtype="int64").fill(2).sum()

    def _zip(self):
        other = self.vector.derive()
        self.vector.zip(other).mapPartitions(lambda mine, theirs: len(mine)).sum()

    def _read(self):
        index = int(self._choice.integers(DIM))
        assert self._constant.pull([index]).tolist() == [index], "a reply belonged to another request"
        assert self._constant.sum() == DIM * (DIM - 1) / 2, "a reply belonged to another request"


def calls(interrupts):
    with PS2Context.getOrCreate(servers=2) as ps:
        work = Calls(ps)
        steps = work.steps()
        interrupts.start()
        choice = random.Random(SEED)
        while interrupts.left > 0:
            interrupts.within(choice.choice(steps))
        values = np.unique(work.vector.pull())  # what was interrupted may have reached one server alone
        assert work.done <= values.min() <= values.max() <= work.begun, (work.done, values, work.begun)
        print(f"sums: {work.done} <= {values} <= {work.begun}, {interrupts.raised} interrupts", flush=True)
        for step in steps:
            step()
        assert DCV.dense(DIM).fill(1).sum() == DIM


def contexts(interrupts):
    interrupts.start()

    def whole():
        with PS2Context.getOrCreate(servers=2):
            assert DCV.dense(DIM).fill(1).sum() == DIM

    while interrupts.left > 0:
        interrupts.within(whole)
        if (active := PS2Context.getActive()) is not None:
            active.stop()
    print(f"sums: {interrupts.raised} interrupts", flush=True)
    whole()


if __name__ == "__main__":
    work, count = {"calls": (calls, 0.006), "contexts": (contexts, 1.5)}[sys.argv[1]], int(sys.argv[2])
    work[0](Interrupts(count, work[1]))
    print("done", flush=True)
