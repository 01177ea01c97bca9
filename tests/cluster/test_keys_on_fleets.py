"""Managed keys on real servers: the driver's clock, and what servers tell of their keys."""

from __future__ import annotations

import numpy as np

from ps2 import DCV

KEYS = np.arange(300) * 10**15


def touch(m, keys):
    m.add(columns=keys, values=np.ones((len(keys), m.rows)))


def test_keys_when_driver_clock_passes_then_expire(ps, until):
    m = DCV.sparse(2**62, 2, layout="column", expireAfterS=0.5).matrix()
    touch(m, KEYS)
    until(lambda: m.keyStatus().active == 0, "the keys expire")
    assert m.keyStatus().expired == 300
    assert m.keyStatus().nowS > 0.5


def test_status_when_keys_live_then_tells_of_them(ps, statuses):
    m = DCV.sparse(2**62, 2, layout="column", admitAfter=2, clock="event").matrix()
    touch(m, KEYS)
    touch(m, KEYS[:200])
    m.evict(keep=50)
    held = [matrix for status in statuses() for matrix in status.matrices if matrix.matrix == m.number]
    sums = {name: sum(getattr(matrix, name) for matrix in held) for name in held[0].key_counts}
    assert sums.pop("slots") >= 50
    assert sums == {
        "active_keys": 50,
        "waiting_keys": 100,
        "admitted_keys": 200,
        "expired_keys": 0,
        "evicted_keys": 150,
    }
