"""The parts of managed keys: an index that is rebuilt by steps, arrays whose pages move, counts of waiting keys."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ps2.matrix import matrix_time
from ps2.matrix.matrix_time import MatrixTime
from ps2.ops import managed_index, mapped, slots, touch_sketch
from ps2.ops.kernels import kernel
from ps2.ops.managed_index import ManagedIndex
from ps2.ops.mapped import MappedArray
from ps2.ops.slots import newer, older, oldest
from ps2.ops.waiting import WaitingKeys
from ps2.server.managed_keys import RemovedKeys

hash_bits = kernel(managed_index.hash_bits)

# -- the index ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 700)), max_size=60), st.integers(0, 2**32))
@settings(max_examples=60)
def test_index_when_keys_come_and_go_then_as_a_dict(steps, seed):
    rng, index, keys = np.random.default_rng(seed), ManagedIndex(), []
    with pytest.MonkeyPatch.context() as patched:
        # So few cells move at once that most calls find two tables.
        patched.setattr(managed_index, "MOVED_PER_KEY", 1)
        patched.setattr(managed_index, "MOVED_PER_CALL", 1)
        for is_insertion, count in steps:
            if is_insertion:
                new = np.setdiff1d(rng.integers(0, 2**63 - 1, count), keys)
                index.insert(new)
                keys += new.tolist()
            else:
                slots = np.sort(rng.choice(len(keys), min(count, len(keys)), replace=False))[::-1].copy()
                sources = index.remove(slots)
                for slot, source in zip(slots.tolist(), sources.tolist(), strict=True):
                    assert source == len(keys) - 1
                    keys[slot] = keys[-1]
                    keys.pop()
            assert np.array_equal(index.keys, np.array(keys, np.int64))
            asked = np.array([*keys, 2**63 - 1, 5], np.int64)
            assert np.array_equal(index.lookup(asked), [*range(len(keys)), -1, -1])


def test_index_when_keys_have_equal_hash_bits_then_told_apart(monkeypatch):
    expected = managed_index.HASH_MASK
    keys = np.arange(300_000)
    bits = np.array([hash_bits(key) for key in keys]) & 0xFFF
    index, same = ManagedIndex(), keys[bits == bits[0]]
    index.insert(same)
    assert expected == 2**32 - 1
    assert np.array_equal(index.lookup(same), np.arange(same.size))
    index.remove(np.arange(same.size)[::-2].copy())
    assert (index.lookup(same) >= 0).sum() == same.size // 2


def test_index_when_emptied_then_memory_goes_back():
    index = ManagedIndex()
    index.insert(np.arange(500_000))
    full = index.nbytes
    while len(index):
        index.remove(np.arange(len(index))[: -min(len(index), 8192) - 1 : -1].copy())
        index.settle(1 << 16)
    for _ in range(30):
        index.settle(1 << 16)
    assert index.nbytes < full // 100


def test_index_when_only_looked_up_then_rebuild_ends():
    index, keys = ManagedIndex(), np.arange(360_449)
    for some in (keys[:200_000], keys[200_000:-1], keys[-1:]):
        index.insert(some)  # the last one is one more than a table of 2**19 cells takes
    rebuilding = index.nbytes
    for _ in range(20):
        assert np.array_equal(index.lookup(keys), keys)
    assert index.nbytes <= rebuilding - 8 * 2**19


def test_index_when_keys_go_then_next_table_is_given_back():
    index, keys = ManagedIndex(), np.arange(2**16 * 9 // 16 + 1)
    index.insert(keys[:30_000])  # gets a table of 2**16 cells
    index.insert(keys[30_000:-1])
    before = index.nbytes
    index.insert(keys[-1:])
    assert index.nbytes >= before + 16 * 2**16
    index.remove(keys[-5000:][::-1].copy())
    assert index.nbytes <= before


def test_index_when_refilled_after_emptying_then_steps_are_short(monkeypatch):
    moved, move = [], managed_index._move
    monkeypatch.setattr(managed_index, "_move", lambda *a: moved.append(a[3] - a[2]) or move(*a))
    index = ManagedIndex()
    index.insert(np.arange(400_000))
    while len(index):
        index.remove(np.arange(len(index))[: -min(len(index), 8192) - 1 : -1].copy())
    moved.clear()
    for begin in range(0, 400_000, 100):
        index.insert(np.arange(begin, begin + 100))
    assert 0 < max(moved) < 16 * managed_index.MOVED_PER_CALL


# -- arrays ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moves", [True, False])
@pytest.mark.parametrize(("rows", "dtype"), [(1, "float32"), (3, "float64"), (1, "uint32"), (4, "int64")])
def test_array_when_resized_then_keeps_values_and_adds_zeros(monkeypatch, rows, dtype, moves):
    if not moves:
        monkeypatch.setattr(mapped, "_mremap", None)
    held, expected = MappedArray(rows, 10, dtype), np.zeros((rows, 0), dtype)
    for columns in (700, 5000, 3, 900_000, 899_999, 70_000, 1, 2000):
        held.resize(columns)
        kept = np.zeros((rows, held.columns), dtype)
        common = min(expected.shape[1], held.columns)
        kept[:, :common] = expected[:, :common]
        assert held.columns >= columns
        assert np.array_equal(held.array, kept)
        held.array[:] = expected = np.arange(1, held.array.size + 1).reshape(held.array.shape).astype(dtype)


@pytest.mark.parametrize("allowed", [0, 1, 4])
def test_array_when_a_move_fails_halfway_then_keeps_values(monkeypatch, allowed):
    """Linux unmaps the target of ``mremap`` before it looks at limits."""
    move, calls = mapped._mremap, []

    def refused(address, size, new_size, flags, target):
        calls.append(size)
        if len(calls) <= allowed:
            return move(address, size, new_size, flags, target)
        mapped._libc.munmap(target, size)
        return mapped.FAILED

    held = MappedArray(3, 2500, np.float64)
    held.array[:] = 1
    held.resize(5000)
    held.array[:] = expected = np.arange(held.array.size).reshape(held.array.shape)
    monkeypatch.setattr(mapped, "_mremap", refused)
    held.resize(900_000)
    assert len(calls) > allowed
    assert np.array_equal(held.array[:, : expected.shape[1]], expected)
    assert not held.array[:, expected.shape[1] :].any()


def test_array_when_resized_again_then_moves_each_mapping_alone(monkeypatch):
    move, moves = mapped._mremap, []
    monkeypatch.setattr(mapped, "_mremap", lambda *a: moves.append(a[:2]) or move(*a))
    held = MappedArray(1, 1 << 20, np.int64)
    for columns in (3 << 19, 3 << 20, 3 << 19, 5 << 20, 3 << 20):
        held.array[:] = 1
        ranges = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines()]
        borders = {int(end, 16) for _, end in ranges}
        moves.clear()
        held.resize(columns)
        assert not any(begin < border < begin + size for begin, size in moves for border in borders)
        assert held.array.sum() == sum(size for _, size in moves) // 8
    assert len(moves) > 1


def test_array_when_resized_then_old_views_are_safe():
    held = MappedArray(1, 100_000, np.int64)
    held.array[:] = 7
    view = held.array
    held.resize(200_000)
    assert view.sum() in (0, 700_000)
    assert (held.array[0, :100_000] == 7).all()


# -- choosing slots ----------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 50), max_size=80), st.integers(0, 51), st.integers(1, 30), st.integers(1, 30))
def test_slots_when_scanned_in_slices_then_all_found(ticks, tick, scan, most):
    for choose, expected in ((older, lambda t: t < tick), (newer, lambda t: t >= tick)):
        result, at = [], len(ticks)
        while at:
            slots, at = choose(np.array(ticks, np.uint32), tick, at, scan, most)
            result += slots.tolist()
        assert result == [slot for slot in reversed(range(len(ticks))) if expected(ticks[slot])]


@given(st.lists(st.integers(1, 2**32 - 2), max_size=80), st.integers(0, 90))
def test_oldest_when_ticks_are_far_apart_then_among_the_least(ticks, count):
    slots = oldest(np.array(ticks, np.uint32), count, 2**32 - 2).tolist()
    assert slots == sorted(set(slots), reverse=True)
    assert len(slots) == min(count, len(ticks))
    chosen = [ticks[slot] for slot in slots]
    # Exact to the buckets.
    bucket = max((max(ticks, default=0) - min(ticks, default=0)) >> 15, 1)
    rest = [tick for slot, tick in enumerate(ticks) if slot not in slots]
    assert max(chosen, default=0) <= min(rest, default=2**33) + 4 * bucket


def test_oldest_when_slots_are_many_then_of_the_oldest_part(monkeypatch):
    monkeypatch.setattr(slots, "MANY", 1000)
    ticks = np.random.default_rng(0).permutation(40_000).astype(np.uint32)
    for start in (0, 17, 39_999):
        chosen = oldest(ticks, 300, 50_000, start)
        assert np.array_equal(chosen, np.unique(chosen)[::-1])
        assert chosen.size == 300
        assert ticks[chosen].max() < 2 * 40_000 // slots.PART
    assert np.array_equal(oldest(ticks, 30_000, 50_000, 5), np.flatnonzero(ticks < 30_000)[::-1])


# -- waiting keys ------------------------------------------------------------------------------------------------------


def touched(keys, tick, fresh, of):
    return set(np.array(keys)[of.touch(np.array(keys), tick, fresh).admitted].tolist())


@given(st.lists(st.sets(st.integers(0, 60), min_size=1, max_size=20), max_size=50), st.integers(2, 5))
def test_waiting_when_counted_exactly_then_as_a_dict(program, admit_after):
    counts, model = WaitingKeys(admit_after), {}
    for tick, keys in enumerate(program, 1):
        fresh, expected = max(tick - 4, 0), set()
        for key in keys:
            at, count = model.get(key, (0, 0))
            model[key] = tick, (count if at >= fresh else 0) + 1
            if model[key][1] == admit_after:
                expected.add(key)
                del model[key]
        assert touched(sorted(keys), tick, fresh, counts) == expected
        if tick % 7 == 0:
            counts.expire(fresh)
            model = {key: held for key, held in model.items() if held[0] >= fresh}
        assert len(counts) == len(model)


def test_waiting_when_beyond_exact_then_never_late_seldom_early(monkeypatch):
    monkeypatch.setattr(touch_sketch, "FIRST_WIDTH", 1 << 14)
    counts, seen, active, early = WaitingKeys(3, exact_keys=100), {}, set(), 0
    rng = np.random.default_rng(0)
    for tick in range(1, 80):
        if tick % 20 == 0:
            counts.rotate(False, 1 << 20)
        keys = np.union1d(rng.integers(2**40, 2**62, 500), rng.choice(300, 100, replace=False))
        keys = np.array([key for key in keys.tolist() if key not in active])
        admitted = touched(keys, tick, 0, counts)
        for key in keys.tolist():
            seen[key] = seen.get(key, 0) + 1
            # None of these is untouched for a window.
            assert key in admitted or seen[key] < 3
            early += key in admitted and seen[key] < 3
        active |= admitted
    assert len(active) - early == 300
    assert early < 79 * 500 // 200
    assert 79 * 500 // 4 < len(counts) < 79 * 500


@given(st.integers(0, 2**32), st.sampled_from([3, 20]), st.integers(0, 30))
@settings(max_examples=30, deadline=None)
def test_waiting_when_touch_is_taken_back_then_as_before(seed, admit_after, exact_keys):
    rng = np.random.default_rng(seed)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(touch_sketch, "FIRST_WIDTH", 64)
        counts = WaitingKeys(admit_after, exact_keys)
        for tick in range(1, 2 * admit_after):
            counts.touch(np.unique(rng.integers(0, 60, 40)), tick, tick - 2)
            before, keys = counts.state(), np.unique(rng.integers(0, 60, 40))
            before = {name: array.copy() for name, array in before.items()}
            counts.take_back(counts.touch(keys, tick, tick - 2))
            after = counts.state()
            assert all(np.array_equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize("admit_after", [15, 100])
def test_sketch_when_lines_come_and_go_then_never_below_counts(monkeypatch, admit_after):
    for name, value in (("FIRST_WIDTH", 256), ("MIN_WIDTH", 64), ("LINES_PER_CALL", 1), ("KEYS_PER_LINE", 100)):
        monkeypatch.setattr(touch_sketch, name, value)
    counts, rng, widths = WaitingKeys(admit_after, exact_keys=0), np.random.default_rng(0), set()
    before, now = np.zeros(2000, int), np.zeros(2000, int)
    for window in range(30):
        for _ in range(12):
            keys = np.unique(rng.integers(0, 2000 if window % 10 < 5 else 20, 400 if window % 10 < 5 else 8))
            touch = counts.touch(keys, 1, 0)
            counts.settle(keys.size, 1 << 20)
            now[keys] = np.maximum(before, now)[keys] + 1
            assert touch.admitted[now[keys] >= admit_after].all()
            now[keys[touch.admitted]] = before[keys[touch.admitted]] = 0
            widths.add(counts._sketch.lines)
        counts.rotate(False, 1 << 20)
        before, now = now, np.zeros(2000, int)
    assert max(widths) > 2 * min(widths)
    assert any(width & (width - 1) for width in widths)


@pytest.mark.parametrize(("time_passes", "most_early"), [(True, 0.01), (False, 0.05)])
def test_waiting_when_more_come_than_expected_then_widens(monkeypatch, time_passes, most_early):
    monkeypatch.setattr(touch_sketch, "FIRST_WIDTH", 1 << 14)
    counts, rng, early = WaitingKeys(3, exact_keys=0), np.random.default_rng(0), 0
    for push in range(1, 101):
        keys = np.unique(rng.integers(0, 2**62, 1300))
        early += counts.touch(keys, push, 0).admitted.sum()
        counts.settle(keys.size, 1 << 19)
        if time_passes:
            counts.expect(push / 100, 1 << 19)
    assert counts._sketch.lines == (1 << 17) // touch_sketch.ROW_COUNTERS
    assert early < most_early * 130_000
    assert counts.nbytes < (1 << 19) + 2048


def test_waiting_when_sketch_is_not_touched_then_forgets(monkeypatch):
    monkeypatch.setattr(touch_sketch, "FIRST_WIDTH", 1 << 16)
    counts, keys = WaitingKeys(2, exact_keys=10), np.arange(1000)
    assert not counts.touch(keys, 1, 0).admitted.any()
    counts.rotate(False, 1 << 20)
    assert counts.touch(keys[:500], 2, 0).admitted[10:].all()
    counts.rotate(False, 1 << 20)
    counts.rotate(False, 1 << 20)
    assert not counts.touch(keys[500:], 3, 0).admitted.any()


@pytest.mark.parametrize("admit_after", [2, 15, 16])
def test_waiting_when_states_are_merged_then_counts_go_on(monkeypatch, admit_after):
    keys, merged = np.arange(2000), WaitingKeys(admit_after, exact_keys=10)
    for width, some in ((1 << 16, keys[:1000]), (1 << 17, keys[1000:])):
        monkeypatch.setattr(touch_sketch, "FIRST_WIDTH", width)
        counts = WaitingKeys(admit_after, exact_keys=10)
        for touch in range(1, admit_after):
            assert not counts.touch(some, touch, 0).admitted.any()
            if touch == admit_after // 2:
                counts.rotate(False, 1 << 20)
        state = counts.state()
        merged.adopt(state, np.ones(state["waiting"].size, np.bool_))
    assert merged.touch(keys, admit_after, 0).admitted.all()


# -- time and removals -------------------------------------------------------------------------------------------------


def test_time_when_many_ticks_then_ages_stay_close(monkeypatch):
    monkeypatch.setattr(matrix_time, "MAX_TIMES", 64)
    monkeypatch.setattr(matrix_time, "ACCURACY", 20)
    time = MatrixTime()
    for second in range(1, 2001):
        time.advance(float(second), 0)
    assert len(time.ticks) < 300
    for age in (1, 10, 100, 1000, 1900):
        # Tick n began at second n - 1.
        assert 0 <= time.first_after(2000.0 - age) - (2000 - age + 2) <= age // 15 + 1


def test_time_when_it_would_go_back_then_stays():
    time = MatrixTime()
    time.advance(5.0, 0)
    time.advance(4.0, 100)
    assert (time.now_s, time.tick) == (5.0, 2)
    time.mark(0)
    assert (time.first_after(4.9), time.first_after(5.0)) == (2, 4)


def test_removed_when_too_many_then_older_ones_are_unknown(monkeypatch):
    from ps2.errors import StaleMarkError
    from ps2.server import managed_keys

    monkeypatch.setattr(managed_keys, "MAX_KEYS", 100)
    removed = RemovedKeys()
    removed.add(np.arange(5), 1)
    removed.begin(2)
    for tick in range(2, 12):
        removed.add(np.arange(15) + 100 * tick, tick)
    with pytest.raises(StaleMarkError, match="read all keys"):
        removed.since(2)
    assert removed.since(11).tolist() == list(range(1100, 1115))
    assert removed.since(12).size == 0
