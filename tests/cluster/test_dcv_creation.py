"""Making vectors: shapes, partitions, rows derived past those reserved, rows given back, vectors not co-located."""

from __future__ import annotations

import gc
import pickle
import sys
import warnings

import numpy as np
import pytest

from ps2 import DCV, NotColocatedWarning
from ps2.errors import ConfigError, NotFoundError, StoppedError, UsageError

SERVERS = 3
pytestmark = pytest.mark.parametrize("ps", [SERVERS], indirect=True, scope="module")


@pytest.fixture
def shapes(statuses):
    """``shapes(u)``: (rows, widths of its partitions) of the vector's matrix, from the servers' own status."""

    def of(vector):
        result = [m for status in statuses() for m in status.matrices if m.matrix == vector._matrix]
        return {m.rows for m in result}, [p.width for m in result for p in m.partitions]

    return of


@pytest.mark.parametrize("dim", [1, 2, 3, 4, 1009])
def test_dense_when_made_then_spread_evenly_over_servers(ps, shapes, dim):
    rows, widths = shapes(u := DCV.dense(dim, 4))
    assert rows == {4}
    assert (sum(widths), len(widths)) == (dim, min(dim, SERVERS))
    assert max(widths) - min(widths) <= 1
    assert len(u) == u.dim == dim


def test_dense_when_three_partitions_each_then_all_have_three(ps, statuses, shapes):
    u = DCV.dense(1009, partitionsPerServer=3)
    held = [m.partitions for status in statuses() for m in status.matrices if m.matrix == u._matrix]
    assert [len(partitions) for partitions in held] == [3] * SERVERS
    values = np.arange(1009)
    assert np.array_equal(u.push(values).pull(values[::-1]), values[::-1])
    assert u.dot(u) == values @ values


@pytest.mark.parametrize(("dim", "align"), [(100, 10), (101, 10), (7, 10), (96, 32)])
def test_dense_when_aligned_then_blocks_stay_together(ps, dim, align):
    u = DCV.dense(dim, align=align).push(np.arange(dim))
    partitions = u.zip().mapPartitionsWithIndex(lambda p, a: (p.begin, p.end)).collect()
    assert all(begin % align == 0 for begin, _ in partitions)
    assert all(end % align == 0 for _, end in partitions[:-1])
    assert np.array_equal(u.pull(), np.arange(dim))


@pytest.mark.parametrize(
    "make", [DCV.derive, DCV.duplicate, lambda u: u.derive()], ids=["derive", "duplicate", "method"]
)
def test_derive_when_called_then_zeros_beside(ps, make):
    u = DCV.dense(10, dtype="float64").fill(3)
    v = make(u)
    assert v.isColocated(u)
    assert (v.dim, v.dtype, v.nnz()) == (10, np.float64, 0)


@pytest.mark.parametrize("make", [DCV.dense, DCV.sparse], ids=["dense", "sparse"])
def test_derive_when_reserved_rows_run_out_then_matrix_grows(ps, make):
    u = make(50, 2)
    keys = np.arange(0, 50, 5)
    vectors = [u, *(u.derive() for _ in range(12))]
    for number, vector in enumerate(vectors):
        vector.push(np.full(10, number), keys)
    vectors.append(u.derive())
    assert all(vector.isColocated(u) for vector in vectors)
    for number, vector in enumerate(vectors[:-1]):
        assert np.array_equal(vector.pull(keys), np.full(10, number))
    assert vectors[-1].nnz() == 0


def test_derive_when_a_dropped_row_is_reused_then_zeros(ps, shapes):
    u = DCV.dense(10, 2)
    v = u.derive().fill(5)
    row = v._row
    del v
    gc.collect()
    again = u.derive()
    assert again._row == row
    assert again.nnz() == 0
    assert shapes(u)[0] == {2}


def test_rows_when_a_signal_comes_as_handles_go_then_freed(ps):
    u = DCV.dense(10, 4)
    v = u.derive()
    rows = u.matrix()
    taken = {v._row, *rows._owned}

    def handler(frame, event, _):
        if event == "call":  # where Python runs handlers; what they raise in a callback is ignored
            raise KeyboardInterrupt

    sys.setprofile(handler)
    del v, rows
    sys.setprofile(None)
    vectors = [u.derive() for _ in taken]
    assert {vector._row for vector in vectors} == taken


def test_row_when_handle_dropped_then_memory_does_not_grow(ps, shapes):
    u = DCV.dense(10, 4).fill(1)
    for _ in range(12):
        (2 * u + u - 1).sum()
    assert shapes(u)[0] == {4} or max(shapes(u)[0]) <= 8


def test_matrix_when_last_handle_dropped_then_gone_from_servers(ps, matrices):
    u = DCV.dense(10)
    v, id = u.derive(), u._matrix
    del u
    gc.collect()
    DCV.dense(1)
    assert id in matrices()
    del v
    gc.collect()
    DCV.dense(1)
    assert id not in matrices()


def test_row_when_handle_was_pickled_then_never_freed_by_itself(ps):
    u = DCV.dense(10)
    v = u.derive().fill(7)
    row, text = v._row, pickle.dumps(v)
    del v
    gc.collect()
    assert u.derive()._row != row
    assert pickle.loads(text).sum() == 70


def test_handle_when_unpickled_then_same_vector(ps):
    u = DCV.dense(10)
    copy = pickle.loads(pickle.dumps(u))
    copy.fill(2)
    assert u.sum() == 20
    assert copy.isColocated(u)
    del copy
    gc.collect()
    assert u.derive().add(u).sum() == 20


def test_handle_when_pickled_then_holds_no_secret(ps):
    assert ps._coordinator.token.encode() not in pickle.dumps(DCV.dense(3))


def test_free_when_used_again_then_not_found(ps):
    u = DCV.dense(10)
    v = u.derive()
    v.free()
    uses = [v.pull, v.sum, v.free, v.derive, v.matrix, lambda: v.fill(1), lambda: pickle.dumps(v)]
    uses += [lambda: u.add(v), lambda: u + v, lambda: u.zip(v).apply("add")]
    for use in uses:
        with pytest.raises(NotFoundError, match="was freed"):
            use()


def test_free_when_used_through_a_copy_then_not_found(ps):
    u = DCV.dense(10)
    v = u.derive()
    copy = pickle.loads(pickle.dumps(v))
    v.free()
    with pytest.raises(NotFoundError, match=rf"row {copy._row} was freed"):
        copy.pull()
    with pytest.raises(NotFoundError, match=rf"row {copy._row} was freed"):
        copy.add(1)


def test_free_when_last_row_then_matrix_is_gone_for_copies_too(ps, matrices):
    u = DCV.dense(10)
    copy = pickle.loads(pickle.dumps(u))
    u.free()
    assert u._matrix not in matrices()
    with pytest.raises(NotFoundError, match=rf"matrix {u._matrix:x} does not exist"):
        copy.pull()


def test_repr_when_printed_then_says_what_it_is(ps):
    u = DCV.dense(10, dtype="int64")
    assert repr(u) == f"DCV(dense, dim=10, int64, layout='row', matrix={u._matrix:x}, row=0)"


@pytest.mark.parametrize(
    ("verb", "kinds"),
    [
        (verb, kinds)
        for i, verb in enumerate(("add", "sub", "mul", "copy", "dot", "+"))
        for kinds in (("dd", "ss"), ("ds", "sd"))[i % 2]
    ],
)
def test_operation_when_not_colocated_then_correct_with_warning(ps, verb, kinds):
    dim, make = 101, {"d": DCV.dense, "s": DCV.sparse}
    rng = np.random.default_rng(0)
    keys_a, keys_b = (np.sort(rng.permutation(dim)[:40]) for _ in range(2))
    a, b = np.zeros(dim), np.zeros(dim)
    a[keys_a], b[keys_b] = rng.integers(1, 9, (2, 40))
    u = make[kinds[0]](dim, dtype="float64").push(a[keys_a], keys_a)
    v = make[kinds[1]](dim, partitionsPerServer=2).push(b[keys_b], keys_b)
    with pytest.warns(NotColocatedWarning, match=r"are not co-located \(.+\): [\d,]+ bytes") as caught:
        result = u + v if verb == "+" else getattr(u, verb)(v)
    assert caught[0].filename == __file__
    assert repr(u) in str(caught[0].message)
    assert repr(v) in str(caught[0].message)
    expected = {"add": a + b, "+": a + b, "sub": a - b, "mul": a * b, "copy": b, "dot": a @ b}[verb]
    assert np.array_equal(result if verb == "dot" else result.pull(np.arange(dim)), expected)
    assert np.array_equal(v.pull(np.arange(dim)), b)


def test_zip_when_not_colocated_then_what_it_writes_comes_back(ps):
    w = DCV.dense(101, dtype="float64").fill(1)
    v = DCV.dense(101, dtype="float64", partitionsPerServer=2).fill(2)
    g = w.derive().fill(3)
    with pytest.warns(NotColocatedWarning):
        w.zip(v, g).apply("momentum", lr=0.5, momentum=0.5)
    assert np.array_equal(v.pull(), np.full(101, 4))
    assert np.array_equal(w.pull(), np.full(101, -1))
    with pytest.warns(NotColocatedWarning):
        w.zip(v).mapPartitions(lambda a, b: b.__iadd__(a) is None)
    assert np.array_equal(v.pull(), np.full(101, 3))


def test_operation_when_not_colocated_then_no_row_is_left_behind(ps, shapes):
    u, v = DCV.dense(10, 2), DCV.dense(10, 2, partitionsPerServer=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotColocatedWarning)
        for _ in range(5):
            u.add(v).dot(v)
    assert max(shapes(u)[0]) <= 4


def test_batched_operation_when_not_colocated_then_usage_error(ps):
    u, v = DCV.dense(10), DCV.dense(10, partitionsPerServer=2)
    with pytest.raises(UsageError, match="is not co-located"), ps.batch():
        u.add(v)


def test_vector_when_fleet_was_restarted_then_stopped_error(ps):
    # A handle of a fleet that this process has no context of, as after stop() and getOrCreate().
    from ps2.client import sessions

    foreign = pickle.loads(pickle.dumps(DCV.dense(3)))
    object.__setattr__(foreign, "_fleet", type(foreign._fleet)("0" * 12, foreign._fleet.master))
    with pytest.raises(StoppedError, match="no PS2Context"):
        foreign.pull()
    assert foreign._fleet.id not in {fleet for _, fleet in sessions._sessions}
    with pytest.raises(UsageError, match="belongs to another PS2Context"):
        DCV.dense(3).add(foreign)


# -- names -----------------------------------------------------------------------------------------------------------


def test_name_when_taken_then_config_error_until_freed(ps):
    weight = DCV.dense(5, name="weight")
    for make in (DCV.dense, DCV.sparse):
        with pytest.raises(ConfigError, match="name 'weight' belongs to row 0"):
            make(5, name="weight")
    with pytest.raises(ConfigError, match="name 'weight'"):
        weight.derive("weight")
    weight.free()
    DCV.sparse(5, name="weight").derive(name="other").free()


@pytest.mark.parametrize("name", ["", 7, "a\0b", "a\nb", "\ud800", "x" * 256])
def test_name_when_length_or_character_is_bad_then_config_error(ps, name):
    with pytest.raises(ConfigError, match="name: expected a string of 1 to 255 printable characters, got "):
        DCV.dense(5, name=name)


def test_name_when_the_longest_then_it_is_found(ps):
    longest = "weight of \u00e9t\u00e9 " + "x" * 241
    DCV.dense(5, name=longest).fill(1)
    assert ps.vector(longest).sum() == 5
    ps.vector(longest).free()
