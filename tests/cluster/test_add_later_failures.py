"""``add(..., wait=False)`` that fails: told at the next chance, once, and the other additions count."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest

from ps2 import DCV, PS2Context
from ps2.errors import LimitError, UnavailableError


def test_add_when_server_refuses_then_next_call_raises_once(leaves_nothing):
    with PS2Context.getOrCreate(servers=1, memoryLimit=8 << 20):
        u = DCV.sparse(2**40, 1)
        good = DCV.dense(10)
        u.add(np.ones(4_000_000), np.arange(4_000_000), wait=False)
        good.add(1, wait=False)
        with pytest.raises(LimitError):
            good.sum()
        assert good.sum() == 10


def test_addition_when_the_server_is_gone_then_flush_says_so(leaves_nothing):
    context = PS2Context.getOrCreate(servers=1)
    u = DCV.dense(10).fill(1)
    os.kill(context._coordinator.fleet.launcher.pids()[0], signal.SIGKILL)
    u.add(1, wait=False)
    started_s = time.monotonic()
    with pytest.raises(UnavailableError, match="ended by SIGKILL"):
        context.flush()
    assert time.monotonic() - started_s < 10
    context.stop()
