"""Which worker has which block when: each has every block once a rotation, and alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ps2.errors import UsageError
from ps2.run.clocks import Clocks
from ps2.run.rotation import IDLE, RotationSchedule, schedule


@st.composite
def rings(draw):
    slices = draw(st.integers(1, 4))
    return RotationSchedule(draw(st.integers(1, 7)), draw(st.integers(slices, 24)), slices)


def drawn(ring, seed, rotation):
    return schedule(seed, rotation, ring.workers, ring.blocks, ring.slices)


@given(rings(), st.integers(0, 2**32), st.integers(0, 50))
def test_schedule_when_drawn_then_worker_has_every_block_once(ring, seed, rotation):
    for column in drawn(ring, seed, rotation).T:
        assert sorted(column[column != IDLE]) == list(range(ring.blocks))


@given(rings(), st.integers(0, 2**32), st.integers(0, 50))
def test_schedule_when_drawn_then_block_has_one_worker_at_a_time(ring, seed, rotation):
    for row in drawn(ring, seed, rotation):
        mine = row[row != IDLE]
        assert len(set(mine)) == len(mine)


@given(rings(), st.integers(0, 2**32))
def test_schedule_when_repeated_then_owners_are_slices_apart(ring, seed):
    turns = np.concatenate([drawn(ring, seed, rotation) for rotation in range(3)])
    for block in range(ring.blocks):
        when, _ = np.nonzero(turns == block)
        assert (np.diff(np.sort(when)) >= ring.slices).all()


@given(rings(), st.integers(0, 2**32), st.integers(0, 5))
def test_schedule_when_one_worker_asks_then_it_has_its_column(ring, seed, rotation):
    turns = drawn(ring, seed, rotation)
    for rank in range(ring.workers):
        assert ring.worker_blocks(seed, rotation, rank).tolist() == turns[:, rank].tolist()


@given(rings(), st.integers(0, 2**32))
def test_schedule_when_drawn_then_a_turn_has_blocks_of_its_slice(ring, seed):
    for turn, row in enumerate(drawn(ring, seed, 0)):
        assert set(row[row != IDLE] % ring.slices) <= {turn % ring.slices}


@pytest.mark.parametrize(
    ("workers", "blocks", "slices", "turns"), [(4, 8, 2, 8), (4, 4, 1, 4), (4, 3, 2, 8), (2, 7, 2, 8), (1, 1, 1, 1)]
)
def test_turns_when_blocks_do_not_fit_workers_then_some_idle(workers, blocks, slices, turns):
    result = schedule(0, 0, workers, blocks, slices)
    assert result.shape == (turns, workers)
    assert ((result == IDLE).sum(axis=0) == turns - blocks).all()


@settings(max_examples=60)
@given(st.data())
def test_owner_when_admitted_then_is_alone_and_sees_all_writes(data):
    """With any staleness below the number of slices, whoever is slow, and however late additions come."""
    ring = data.draw(rings())
    staleness = data.draw(st.integers(0, ring.slices - 1))
    turns = np.concatenate([drawn(ring, 5, rotation) for rotation in range(2)])[: 8 * ring.slices]
    clocks = Clocks(ring.workers, staleness)
    inside, late = dict.fromkeys(range(ring.workers), 0), [0] * ring.workers
    while inside:
        rank = data.draw(st.sampled_from(sorted(inside)))
        clock = inside.pop(rank) + 1
        if clock == len(turns):
            late[rank], releases = 0, clocks.leave(rank, clock)
        else:
            late[rank] = data.draw(st.integers(0, min(late[rank] + 1, staleness)))
            releases = clocks.arrive(rank, clock, clock - late[rank])
        if late[rank] and data.draw(st.booleans()):
            releases = [*releases, *clocks.progress(rank, clocks.entered[rank])]
        for release in releases:
            block = turns[release.clock, release.rank]
            before, owners = np.nonzero(turns[: release.clock] == block)
            others = owners != release.rank
            assert block == IDLE or all(
                clocks.applied[owner] > turn for turn, owner in zip(before[others], owners[others], strict=True)
            )
            assert block == IDLE or block not in [turns[other, which] for which, other in inside.items()]
            inside[release.rank] = release.clock


def test_schedule_when_rotations_differ_then_orders_do():
    assert not np.array_equal(schedule(1, 0, 4, 16), schedule(1, 1, 4, 16))
    assert not np.array_equal(schedule(1, 0, 4, 16), schedule(2, 0, 4, 16))


def test_schedule_when_drawn_anywhere_then_it_is_this_one():
    assert schedule(7, 3, 2, 4).tolist() == PINNED


PINNED = [[2, 0], [1, 3], [0, 2], [3, 1]]


@pytest.mark.parametrize(
    ("workers", "blocks", "slices", "message"),
    [
        (2, 0, 2, "blocks: expected a positive integer, got 0"),
        (2, 4.0, 2, "blocks: expected a positive integer, got 4.0"),
        (2, 4, 0, "slices: expected a positive integer"),
        (2, True, 1, "blocks: expected a positive integer, got True"),
        (2, 1, 2, "at least one for each of 2 slices, got 1"),
        (2, 2**24 + 1, 2, "at most 16777216"),
    ],
)
def test_ring_when_blocks_are_invalid_then_usage_error_says_why(workers, blocks, slices, message):
    with pytest.raises(UsageError, match=message):
        RotationSchedule(workers, blocks, slices)
