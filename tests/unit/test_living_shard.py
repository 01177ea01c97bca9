"""A shard whose keys live, without a server: memory that runs out, and keys that go for others."""

from __future__ import annotations

import numpy as np
import pytest

from ps2.errors import LimitError
from ps2.matrix.key_life import Initial, KeyLife
from ps2.matrix.partition import HASH_SPACE, MatrixSpec, Partition
from ps2.server.living_shard import LivingShard
from ps2.server.memory import MemoryAccount


def shard_with(limit_bytes, width=4, **life):
    spec = MatrixSpec(2**63, width, kind="sparse", layout="column", life=KeyLife(initial=Initial("normal"), **life))
    return LivingShard(spec, Partition(0, 0, HASH_SPACE), MemoryAccount(limit_bytes))


def held(shard):
    return {name: array.copy() for name, array in shard.living.arrays().items()}, shard.array.copy()


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
    assert np.array_equal(shard.living.index.keys[slots], keys)
    assert shard.live <= 1000
    assert shard.living.ticks.max() <= shard.living.time.tick
