"""What a DCVMatrix does beside reading and writing rows; the fleet is in this process."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ps2 import DCV
from ps2.client import pairs
from ps2.client.batch import batch
from ps2.client.matrix import DCVMatrix
from ps2.errors import DTypeError, NotFoundError, OutOfRangeError, UsageError
from tests.fakes import DropsTheAck, FailsBeforeSending, FleetInProcess, installed, sent, session_over

K, DIM = 4, 13

rows = st.lists(st.integers(0, K - 1), min_size=1, max_size=5)
columns = st.lists(st.integers(0, DIM - 1), min_size=1, max_size=6)


@pytest.fixture(scope="module", params=[1, 3])
def fleet(request):
    return FleetInProcess(request.param)


@pytest.fixture
def session(fleet):
    with installed(session_over(fleet)) as session:
        yield session
        session.dispatch.flush()


@pytest.fixture
def matrix(session):
    return DCV.dense(DIM, K, "float64").matrix()


@st.composite
def changes(draw):
    """A change of a matrix: on the handle, and on an array."""
    kind, numbers = draw(st.sampled_from(["push", "add", "add at columns", "fill"])), draw(rows)
    at = draw(columns)
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    values = rng.integers(-9, 9, (len(numbers), len(at) if kind == "add at columns" else DIM)).astype(float)
    wait = draw(st.booleans())

    def here(array):
        if kind == "fill":
            array[numbers] = values[0, 0]
        elif kind == "push":
            for row, some in zip(numbers, values, strict=True):
                array[row] = some
        elif kind == "add":
            np.add.at(array, numbers, values)
        else:
            np.add.at(array, np.ix_(numbers, at), values)

    def there(m):
        if kind == "fill":
            return m.fill(values[0, 0], numbers)
        if kind == "push":
            return m.push(numbers, values, wait=wait)
        return m.add(numbers, values, *([at] if kind == "add at columns" else []), wait=wait)

    return here, there


def test_changes_when_some_are_not_awaited_then_reads_see_all(session):
    @settings(max_examples=40)
    @given(st.lists(changes(), max_size=8))
    def check(program):
        matrix, expected = DCV.dense(DIM, K, "float64").matrix(), np.zeros((K, DIM))
        for here, there in program:
            here(expected)
            assert there(matrix) is matrix
        assert np.array_equal(matrix.pull(range(K)), expected)

    check()


@pytest.mark.parametrize("fault", [DropsTheAck, FailsBeforeSending])
def test_unawaited_changes_when_connections_drop_then_count_once(session, matrix, monkeypatch, fault):
    monkeypatch.setattr(session.dispatch, "network", fault(session.network, times=5))
    expected, ones = np.zeros((K, DIM)), np.ones((3, DIM))
    for row in range(6):
        numbers = [row % K, 0, row % K]
        matrix.add(numbers, ones, wait=False).push([3], row * ones[:1], wait=False)
        np.add.at(expected, numbers, ones)
        expected[3] = row
    assert matrix.flush() is matrix
    assert np.array_equal(matrix.pull(range(K)), expected)


def test_values_when_caller_changes_them_then_adds_originals(session, matrix):
    with session.async_writer.hold_back([matrix._pull(None, None)]) as reading:  # nothing leaves
        numbers, values = np.array([1]), np.ones((1, DIM))
        matrix.add(numbers, values, wait=False)
        numbers[:], values[:] = 2, 9
    session.async_writer.forget(reading)
    assert matrix.flush().pull([0, 1, 2])[:, 0].tolist() == [0, 1, 0]


def test_unawaited_call_when_invalid_then_fails_at_once(matrix):
    with pytest.raises(OutOfRangeError, match="row 4"):
        matrix.add([K], np.ones((1, DIM)), wait=False)


def test_changes_when_in_a_batch_then_they_travel_with_it(fleet, matrix):
    before = len(fleet.sent)
    with batch():
        matrix.fill(2).add([1], np.ones((1, DIM)), wait=False).zero([3])
        answer = matrix.pull(range(K), [0])
    assert answer.result()[:, 0].tolist() == [2, 3, 2, 0]
    assert len(fleet.sent) - before == len(fleet.addresses)


def test_fill_when_sparse_then_active_keys_alone(session):
    matrix = DCV.sparse(2**40, K).matrix().add([0], [[1.0, 1.0]], [5, 2**39])
    assert matrix.fill(7).pull(range(K), [5, 6, 2**39]).tolist() == [[7, 0, 7]] * K
    matrix.zero([1, 2]).add([3], [[1.0]], [9])
    assert matrix.pull(range(K), [5, 9]).tolist() == [[7, 0], [0, 0], [0, 0], [7, 1]]


def test_fill_when_the_number_does_not_fit_then_dtype_error(session):
    with pytest.raises(DTypeError, match="expected a whole number"):
        DCV.dense(DIM, K, "int32").matrix().fill(0.5)


@pytest.mark.parametrize("fault", [None, DropsTheAck])
def test_pairs_when_over_one_request_then_still_atomic_and_once(session, monkeypatch, fault):
    """A second time, as what is added up comes into rows that are not empty any more."""
    monkeypatch.setattr(pairs, "MAX_ON_SERVERS", 5)
    rng = np.random.default_rng(0)
    values, matrix = rng.integers(-9, 9, (K, DIM)).astype(float), DCV.dense(DIM, K, "float64").matrix()
    matrix.push(range(K), values)
    if fault is not None:
        monkeypatch.setattr(session.dispatch, "network", fault(session.network, times=9))
    a, b, c = rng.integers(0, K, 20), rng.integers(0, K, 20), rng.integers(-2, 3, 20).astype(float)
    for _ in range(2):
        dots = matrix.pairUpdate(a, b, lambda dots: c, "servers")
        assert np.array_equal(dots, (values[a] * values[b]).sum(axis=1))
        old = values.copy()
        np.add.at(values, a, c[:, None] * old[b])
        np.add.at(values, b, c[:, None] * old[a])
        assert np.array_equal(matrix.pull(range(K)), values)
    assert matrix.shape == (K, DIM)


def test_pairs_when_matrix_is_gone_then_helper_rows_are_too(fleet, session, monkeypatch):
    monkeypatch.setattr(pairs, "MAX_ON_SERVERS", 1)
    vector = DCV.dense(DIM, K, "float64")
    matrix = vector.matrix()
    matrix.pairUpdate([0, 1], [2, 3], lambda dots: dots, "servers")
    sent = pickle.loads(pickle.dumps(matrix))  # as to a task, which adds up in rows of its own
    sent.pairUpdate([0, 1], [2, 3], lambda dots: dots, "servers")
    assert len(fleet.master._catalog.get(vector._matrix).used) == K + 4 + 4
    del matrix, sent
    assert DCV.dense(1).sum() == 0  # a call for rows tells the master who is gone
    assert fleet.master._catalog.get(vector._matrix).used == set(range(K))


def test_free_when_called_then_all_handles_fail(fleet, session):
    vector = DCV.dense(DIM, K)
    other, matrix = vector.derive(), vector.matrix()
    id = vector._matrix
    matrix.free()
    assert id not in fleet.master._catalog.ids()
    for use in (
        lambda: matrix.pull([0]),
        lambda: matrix.add([0], np.ones((1, DIM))),
        other.sum,
        vector.sum,
        matrix.free,
    ):
        with pytest.raises(NotFoundError):
            use()


@pytest.mark.parametrize("name", [None, "topics"])
def test_rows_when_handle_is_gone_then_stay_if_vector_is_named(fleet, session, name):
    vector = DCV.dense(DIM, K, name=name)
    matrix = vector.matrix().fill(3)
    del matrix
    assert DCV.dense(1).sum() == 0  # a call for rows tells the master who is gone
    entry = fleet.master._catalog.get(vector._matrix)
    assert len(entry.used) == (K if name else 1)
    vector.matrix().free()


def test_rows_when_of_named_vector_then_later_driver_knows_them(fleet, session, monkeypatch):
    messages = []
    monkeypatch.setattr(fleet.master, "publish", lambda: messages.append(fleet.master.saved_matrices()))
    matrix = DCV.dense(DIM, K, name="kept").matrix()
    (kept,) = (saved for saved in messages[-1] if "kept" in saved.names)
    assert sorted(kept.generations) == list(range(K))
    matrix.free()
    assert not any(saved.names for saved in messages[-1])


# -- reads ahead -------------------------------------------------------------------------------------------------------


def test_row_prefetch_when_own_add_comes_later_then_includes_it(fleet, prefetches, matrix):
    matrix.push(range(K), np.arange(K * DIM, dtype=float).reshape(K, DIM))
    whole = sent(prefetches.begin(matrix, [2, 0, 2], 1))
    some = sent(prefetches.begin(matrix, [3, 2], 1, [5, 1]))
    matrix.add([2, 1, 2], np.ones((3, DIM)), wait=False)
    matrix.add([3], [[10.0, 10.0]], [1, 1], wait=False)
    expected = matrix.pull(range(K))
    before = len(fleet.sent)
    assert np.array_equal(whole.result(), expected[[2, 0, 2]])
    assert np.array_equal(some.result(), expected[np.ix_([3, 2], [5, 1])])
    assert len(fleet.sent) == before


@pytest.mark.parametrize("make", [DCV.dense, DCV.sparse], ids=["dense", "sparse"])
def test_block_prefetch_when_own_add_comes_later_then_has_it(fleet, prefetches, make):
    matrix = make(DIM, K, "float64", layout="column").matrix()
    matrix.push(columns=range(DIM), values=np.arange(K * DIM, dtype=float).reshape(DIM, K))
    ahead = sent(prefetches.begin(matrix, None, 1, [5, 0, 12, 5]))
    matrix.add(columns=[5, 12, 5, 3], values=np.arange(4.0 * K).reshape(4, K), wait=False).flush()
    before = len(fleet.sent)
    result = ahead.result()
    assert len(fleet.sent) == before
    assert np.array_equal(result, matrix.pull(columns=[5, 0, 12, 5]))


def test_blocks_when_changed_unawaited_then_later_read_sees_all(session):
    matrix, expected = DCV.dense(DIM, K, "float64", layout="column").matrix(), np.zeros((DIM, K))
    rng = np.random.default_rng(0)
    for _ in range(20):
        at, values = rng.integers(0, DIM, 6), rng.integers(-9, 9, (6, K)).astype(float)
        matrix.push(columns=at[:2], values=values[:2], wait=False).add(columns=at, values=values, wait=False)
        for column, block in zip(at[:2], values[:2], strict=True):
            expected[column] = block
        np.add.at(expected, at, values)
    assert np.array_equal(matrix.pull(columns=range(DIM)), expected)


def test_row_prefetch_when_row_is_overwritten_then_pulls_again(fleet, prefetches, matrix):
    touched, untouched = (sent(prefetches.begin(matrix, some, 1)) for some in ([0, 1], [2]))
    matrix.push([1], np.full((1, DIM), 7.0), wait=False).flush()
    before = len(fleet.sent)
    assert not untouched.result().any()
    assert len(fleet.sent) == before
    assert touched.result()[:, 0].tolist() == [0, 7]


def test_prefetch_when_columns_go_with_a_vector_then_usage_error(prefetches, session):
    with pytest.raises(UsageError, match="prefetch: columns: expected a matrix, got"):
        prefetches.begin(DCV.dense(DIM), [1], 1, [2])


def test_known_when_number_is_given_then_handle_reads_and_writes(matrix):
    matrix.push([2], np.arange(DIM)[None])
    result = DCVMatrix.existing(matrix.number)
    assert result.shape == matrix.shape
    result.add([2], np.ones((1, 2)), [0, 5])
    del result
    assert matrix.pull([2], [0, 4, 5]).tolist() == [[1, 4, 6]]
