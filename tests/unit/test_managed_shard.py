"""A shard whose keys are managed, without a server: memory that runs out, and keys that go for others."""

from __future__ import annotations

import numpy as np
import pytest

from ps2.errors import LimitError
from ps2.matrix.key_policy import Initial, KeyPolicy
from ps2.matrix.partition import HASH_SPACE, MatrixSpec, Partition
from ps2.ops.waiting import EXACT_KEYS, WaitingKeys
from ps2.server import managed_keys
from ps2.server.managed_shard import ManagedShard
from ps2.server.memory import MemoryAccount


def shard_with(limit_bytes, width=4, **policy):
    spec = MatrixSpec(
        2**63, width, kind="sparse", layout="column", key_policy=KeyPolicy(initial=Initial("normal"), **policy)
    )
    return ManagedShard(spec, Partition(0, 0, HASH_SPACE), MemoryAccount(limit_bytes))


def held(shard):
    return {name: array.copy() for name, array in shard.managed.arrays().items()}, shard.array.copy()


def test_touch_when_memory_is_short_then_counts_nothing():
    shard = shard_with(16 << 20, width=512, admit_after=3)
    few, many = np.arange(100), np.arange(50, 20_000)
    for keys in (few, many, many):
        shard.slots(keys, create=True)
    before, values = held(shard)
    for _ in range(3):
        with pytest.raises(LimitError):
            shard.slots(many, create=True)
        after, values_now = held(shard)
        assert all(np.array_equal(after[name], before[name]) for name in before)
        assert np.array_equal(values_now, values)
    assert shard.live == 50


@pytest.mark.parametrize("keys", [10_000, EXACT_KEYS + 10_000])
def test_touch_when_keys_wait_then_their_memory_is_counted(keys):
    shard = shard_with(1 << 30, admit_after=3)
    before = shard.nbytes
    shard.slots(np.arange(keys), create=True)
    assert shard.nbytes - before == shard.managed.waiting.nbytes - WaitingKeys(3).nbytes > 16 * 10_000


def test_touch_when_over_the_limit_of_keys_then_nothing_changes():
    shard = shard_with(1 << 30, max_keys=1000)
    shard.slots(np.arange(900), create=True)
    before, _ = held(shard)
    with pytest.raises(LimitError, match="maxKeys"):
        shard.slots(np.arange(500, 1600), create=True)
    after, _ = held(shard)
    assert all(np.array_equal(after[name], before[name]) for name in before)


def test_eviction_when_keys_are_of_the_request_then_they_stay():
    shard = shard_with(1 << 30, max_keys=1000)
    shard.slots(np.arange(900), create=True)
    keys = np.append(np.arange(100), np.arange(5000, 5300))
    slots = shard.slots(keys, create=True)
    assert (slots >= 0).all()
    assert np.array_equal(shard.managed.index.keys[slots], keys)
    assert shard.live <= 1000
    assert shard.managed.ticks.max() <= shard.managed.time.tick


def after_a_long_time(**policy):
    """Return a shard that many requests have touched, with time that goes on."""
    shard, rng = shard_with(1 << 30, expire_after_s=50.0, **policy), np.random.default_rng(0)
    shard.managed.time.mark(900)
    for second in range(200):
        shard.slots(np.unique(rng.integers(0, 3000, 60)), create=True)
        shard.managed.advance(float(second), 0, 1 << 20)
        shard.remove(np.flatnonzero(shard.managed.ticks < shard.managed.first_fresh_tick(50.0))[::-1].copy())
        shard.managed.waiting.expire(shard.managed.first_fresh_tick(50.0))
    return shard


@pytest.mark.parametrize("policy", [{"max_keys": 500}, {"admit_after": 2}])
def test_keys_when_ticks_become_large_then_live_as_before(monkeypatch, policy):
    expected = after_a_long_time(**policy)
    monkeypatch.setattr(managed_keys, "MAX_TICK", 1000)
    monkeypatch.setattr(managed_keys, "TICK_SPAN", 900)
    shard = after_a_long_time(**policy)
    assert shard.managed.time.tick < 1000 < expected.managed.time.tick
    assert np.array_equal(shard.managed.index.keys, expected.managed.index.keys)
    assert len(shard.managed.waiting) == len(expected.managed.waiting)
    assert shard.managed.first_fresh_tick(30.0) > shard.managed.first_fresh_tick(40.0) > 1


def test_mark_when_ticks_were_lowered_then_is_stale(monkeypatch):
    monkeypatch.setattr(managed_keys, "MAX_TICK", 100)
    monkeypatch.setattr(managed_keys, "TICK_SPAN", 50)
    shard = shard_with(1 << 30)
    before, tick = shard.managed.lineage, shard.managed.mark(98)
    shard.managed.mark(100)
    assert (tick, shard.managed.time.tick) == (98, 50)
    assert shard.managed.lineage != before
