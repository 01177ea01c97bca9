"""What a server knows of touched columns changes how long an operation takes, and nothing else."""

from __future__ import annotations

import math
from itertools import count

import cloudpickle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ps2.errors import OpError, PS2Error
from ps2.matrix.partition import HASH_SPACE, MatrixSpec, Partition
from ps2.ops import touched
from ps2.protocol.messages import Operation, Request, RequestId
from ps2.server import touchedrows
from ps2.server.engine import Engine

DIM = 100
DENSE, SPARSE = 1, 2
WEIGHT, VELOCITY, SQUARE, GRADIENT, OTHER = range(5)
STATE = (WEIGHT, VELOCITY, SQUARE, GRADIENT)


def made(dim=DIM):
    engine = Engine(1 << 30, allow_udf=True)
    engine.create_matrix(DENSE, MatrixSpec(dim, 5), [Partition(0, 0, dim)])
    engine.create_matrix(SPARSE, MatrixSpec(2**40, 5, kind="sparse"), [Partition(0, 0, HASH_SPACE)])
    return engine


@pytest.fixture
def engine(monkeypatch):
    """An engine whose short rows have sets."""
    monkeypatch.setattr(touchedrows, "MIN_WIDTH", 1)
    monkeypatch.setattr(touched, "COLUMNS_PER_MEMBER", 1)
    return made()


_numbers = count()


def run(engine, *operations, number=None):
    id = RequestId("scope", next(_numbers) if number is None else number)
    return engine.execute(Request(operations, id))


def op(name, *rows, matrix=DENSE, arrays=(), **params):
    return Operation(name, matrix, 0, rows, params, tuple(arrays))


def scatter(keys, values, row=GRADIENT, matrix=DENSE, name="scatter_add"):
    return op(name, row, matrix=matrix, arrays=(np.array(keys, np.int64), np.array(values, np.float32)))


def lazy_adam(matrix=DENSE, rows=STATE):
    return op("adam", *rows, matrix=matrix, lr=0.1, step=2, lazy=1)


def zero(row=GRADIENT, matrix=DENSE, value=0.0):
    return op("fill", row, matrix=matrix, value=value)


def mapped(fn, *rows, matrix=DENSE):
    return op("map", *rows, matrix=matrix, arrays=[np.frombuffer(cloudpickle.dumps(fn), np.uint8)], with_index=0)


def shard(engine, matrix=DENSE):
    return engine._shards[matrix, 0]


def live(engine, matrix):
    held = shard(engine, matrix)
    return held.array[:, : held.live]


def watched(engine, matrix=DENSE):
    """Return the touched columns of the rows that have sets."""
    return {row: sorted(held.columns.tolist()) for row, held in shard(engine, matrix).touched._sets.items()}


# -- equal to the bit --------------------------------------------------------------------------------------------------


def _one_more(*rows):
    for row in rows:
        row += 1


def _one_more_then_fails(*rows):
    _one_more(*rows)
    raise ValueError("as it does")


matrices = st.sampled_from((DENSE, SPARSE))
rows = st.sampled_from((GRADIENT, GRADIENT, GRADIENT, WEIGHT, SQUARE, OTHER))
values = st.sampled_from((0.0, -0.0, 1.0, -2.5, 1e-30, math.inf, math.nan))
# Few, so that they meet again; or more than a sparse shard has room for at first.
keys = st.lists(st.integers(0, 9), min_size=1, max_size=4) | st.integers(0, 20).map(lambda start: [*range(start, 80)])
scatters = st.sampled_from([f"scatter{kind}" for kind in ("", "_add", "_add", "_sub", "_mul", "_div")])
states = st.just(STATE) | st.permutations(range(5)).map(lambda order: tuple(order[:4]))


@st.composite
def at_slots(draw):
    named = draw(keys)
    given = draw(st.lists(values, min_size=1, max_size=len(named)))
    return scatter(named, np.resize(given, len(named)), draw(rows), draw(matrices), draw(scatters))


@st.composite
def everywhere(draw):
    u, matrix = draw(rows), draw(matrices)
    v = draw(st.sampled_from([row for row in range(5) if row != u]))
    some = np.array(draw(st.lists(values, min_size=3, max_size=3)), np.float32)
    return draw(
        st.sampled_from(
            [
                op("push", u, matrix=matrix, arrays=[some], start=1),
                op("push_add", u, matrix=matrix, arrays=[some], start=0),
                op("axpy", u, v, matrix=matrix, alpha=-1.0),
                op("copy", u, v, matrix=matrix),
                op("mul", u, v, matrix=matrix),
                op("mul_scalar", u, matrix=matrix, value=-1.0),
                zero(u, matrix, draw(values)),
                mapped(_one_more, u, v, matrix=matrix),
                mapped(_one_more_then_fails, u, v, matrix=matrix),
                op("rows_scatter_add", matrix=matrix, arrays=[np.array([u]), np.arange(3), some]),
            ]
        )
    )


@st.composite
def steps(draw):
    lazy, matrix, state = draw(st.sampled_from((1, 1, 1, 0))), draw(matrices), draw(st.just(STATE) | states)
    name = draw(st.sampled_from(("adam", "adagrad", "ftrl")))
    scalars = {"adam": {"lr": 0.1, "step": 2}, "adagrad": {"lr": 0.1}, "ftrl": {"alpha": 0.5, "l1": 0.1}}[name]
    return op(name, *(state[1:] if name == "adagrad" else state), matrix=matrix, lazy=lazy, **scalars)


@st.composite
def row_updates(draw):
    """Free a row, then use it again; or add rows."""
    matrix, row = draw(matrices), draw(rows)
    updates = [(0, [row], []), (0, [], [row])] if draw(st.booleans()) else [(draw(st.integers(5, 7)), [], [])]
    return [lambda engine, update=update: engine.update_rows(matrix, *update) for update in updates]


@st.composite
def requests(draw):
    """Send some operations, one of which may fail; then maybe the same again, under the same id."""
    zeroed = st.builds(zero, row=st.just(GRADIENT), matrix=matrices)
    operations = draw(st.lists(at_slots() | at_slots() | zeroed | steps() | everywhere(), min_size=1, max_size=6))
    number = next(_numbers)
    return [lambda engine: run(engine, *operations, number=number)] * draw(st.integers(1, 2))


def _begin(engine):
    """Take a step, so that the state is not 0 and the gradient has a set."""
    for matrix in (DENSE, SPARSE):
        run(engine, scatter(range(9), range(9), matrix=matrix), lazy_adam(matrix), zero(matrix=matrix))


def outcome(call, engine):
    try:
        call(engine)
    except PS2Error as error:
        return type(error)
    return None


@settings(max_examples=150, deadline=None)
@given(st.lists(requests() | requests() | requests() | row_updates(), max_size=12), st.sampled_from((1, 30)))
def test_rows_when_touched_columns_are_known_then_bits_are_equal(programs, share):
    ours, plain = made(), made()
    for call in (_begin, *(call for program in programs for call in program)):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(touchedrows, "MIN_WIDTH", 1)
            patched.setattr(touched, "COLUMNS_PER_MEMBER", share)
            ours_came_to = outcome(call, ours)
            taken = sum(status.bytes for status in ours.matrices())
        assert ours_came_to == outcome(call, plain)
        assert ours.memory.used_bytes == taken
        for matrix in (DENSE, SPARSE):
            assert live(ours, matrix).tobytes() == live(plain, matrix).tobytes()
            for row, columns in watched(ours, matrix).items():
                assert not np.delete(live(ours, matrix)[row], columns).view(np.int32).any()
        assert not watched(plain)


# -- what a step costs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("matrix", [DENSE, SPARSE])
def test_step_when_gradient_has_set_then_visits_only_its_columns(engine, matrix):
    """Of what nobody told the server, it knows nothing."""
    run(engine, scatter(range(50), [1.0] * 50, matrix=matrix), lazy_adam(matrix), zero(matrix=matrix))
    before = live(engine, matrix).copy()
    live(engine, matrix)[GRADIENT, 7] = 5
    run(engine, scatter([3, 9, 3], [1.0] * 3, matrix=matrix), lazy_adam(matrix), zero(matrix=matrix))
    after = live(engine, matrix)
    assert np.flatnonzero(after[WEIGHT] != before[WEIGHT]).tolist() == [3, 9]
    assert np.flatnonzero(after[GRADIENT]).tolist() == [7]


def test_rows_when_no_lazy_step_has_used_them_then_have_no_sets(engine):
    taken = engine.memory.used_bytes
    run(engine, *(zero(row) for row in range(5)), scatter([1], [1.0]))
    run(engine, op("adam", *STATE, lr=0.1, step=1), zero())
    assert (watched(engine), engine.memory.used_bytes) == ({}, taken)


def test_rows_when_short_then_have_no_sets():
    engine = made()
    run(engine, lazy_adam(), zero())
    assert watched(engine) == {}


def test_set_when_memory_is_short_then_is_absent_and_row_is_zero(engine):
    run(engine, scatter([1], [1.0]), lazy_adam())
    engine.memory.limit_bytes = engine.memory.used_bytes
    run(engine, zero())
    assert watched(engine) == {}
    assert not live(engine, DENSE)[GRADIENT].any()


def test_set_when_present_then_bytes_count_until_matrix_is_freed(engine):
    taken = engine.memory.used_bytes
    for _ in range(2):
        run(engine, lazy_adam(), zero())
    assert engine.memory.used_bytes == taken + touched.Touched.bytes_for(DIM)
    engine.free_matrix(DENSE)
    engine.free_matrix(SPARSE)
    assert engine.memory.used_bytes == 0


@pytest.mark.parametrize(
    "write",
    [
        op("add_scalar", GRADIENT, value=1.0),
        zero(value=-0.0),
        mapped(_one_more, OTHER, GRADIENT),
        op("rows_add", arrays=[np.array([OTHER]), np.ones(DIM, np.float32)]),
        lazy_adam(rows=(GRADIENT, VELOCITY, SQUARE, WEIGHT)),
        scatter(range(DIM), [1.0] * DIM),
    ],
    ids=lambda write: write.name,
)
def test_set_when_row_is_overwritten_then_is_gone_until_zeroed(engine, monkeypatch, write):
    monkeypatch.setattr(touched, "COLUMNS_PER_MEMBER", 2)
    run(engine, lazy_adam(), zero())
    run(engine, write)
    assert GRADIENT not in watched(engine)
    run(engine, zero())
    assert watched(engine)[GRADIENT] == []


def test_set_when_a_function_fails_then_is_gone(engine):
    run(engine, lazy_adam(), zero())
    with pytest.raises(OpError):
        run(engine, mapped(_one_more_then_fails, GRADIENT))
    assert watched(engine) == {}


def test_set_when_its_row_is_zeroed_then_is_empty(engine):
    run(engine, lazy_adam(), zero(), scatter([3], [1.0]), zero())
    assert watched(engine) == {GRADIENT: []}


def test_set_when_its_row_is_only_read_then_stays(engine):
    run(engine, lazy_adam(), zero(), scatter([3, 5], [1.0, 0.0]))
    run(engine, op("sum", GRADIENT), op("pull", GRADIENT), op("axpy", WEIGHT, GRADIENT, alpha=1.0), lazy_adam())
    assert watched(engine) == {GRADIENT: [3, 5]}


def test_set_when_sparse_shard_grows_then_is_replaced_on_zero(engine):
    run(engine, lazy_adam(SPARSE), zero(matrix=SPARSE))
    run(engine, scatter(range(1000), [1.0] * 1000, matrix=SPARSE))
    assert watched(engine, SPARSE) == {}
    run(engine, zero(matrix=SPARSE), scatter(range(1000, 1010), [1.0] * 10, matrix=SPARSE))
    assert watched(engine, SPARSE) == {GRADIENT: list(range(1000, 1010))}


def test_set_when_row_is_freed_and_reused_then_is_not_tracked(engine):
    run(engine, lazy_adam(), zero())
    engine.update_rows(DENSE, 0, freed=[GRADIENT], reused=[])
    engine.update_rows(DENSE, 0, freed=[], reused=[GRADIENT])
    run(engine, zero())
    assert watched(engine) == {}


def test_set_when_rows_are_added_then_stays(engine):
    run(engine, lazy_adam(), zero(), scatter([3], [1.0]))
    engine.update_rows(DENSE, 9, freed=[], reused=[])
    assert watched(engine) == {GRADIENT: [3]}


def test_set_when_factors_are_added_then_has_their_columns(engine):
    run(engine, lazy_adam())
    run(engine, zero())
    x, b = np.ones((2, 1), np.float32), np.ones((1, 3), np.float32)
    run(engine, op("add_dense_factors", GRADIENT, arrays=(np.array([6, 90]), x, b), width=3))
    assert watched(engine) == {GRADIENT: [6, 7, 8, 90, 91, 92]}
    run(engine, lazy_adam())
    assert np.flatnonzero(live(engine, DENSE)[WEIGHT]).tolist() == [6, 7, 8, 90, 91, 92]


def test_set_when_other_rows_are_combined_then_stays(engine):
    run(engine, lazy_adam())
    run(engine, zero())
    run(engine, scatter([3], [1.0]))
    run(engine, op("combine", WEIGHT, arrays=(np.array([WEIGHT, GRADIENT]), np.ones(2))))
    assert watched(engine) == {GRADIENT: [3]}


def test_set_when_the_gradient_is_combined_then_is_dropped(engine):
    run(engine, lazy_adam())
    run(engine, zero())
    run(engine, op("combine", GRADIENT, arrays=(np.array([WEIGHT]), np.ones(1))))
    assert watched(engine) == {}


def test_set_when_weights_are_computed_anew_then_stays(engine):
    run(engine, lazy_adam())
    run(engine, zero())
    run(engine, scatter([3], [1.0]))
    keys = np.array([5, 6])
    run(engine, op("ftrl_weights_at", WEIGHT, VELOCITY, SQUARE, arrays=(keys,), alpha=0.1, l1=0.5, l2=0.0))
    assert watched(engine) == {GRADIENT: [3]}
