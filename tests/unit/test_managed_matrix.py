"""Keys that come and go, compared with a plain dict: admission, expiry, removal, limits, and changes since a mark."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ps2 import DCV
from ps2.client.managed_matrix import Mark
from ps2.coordinator.in_process import InProcessServers, in_process_session
from ps2.errors import (
    ConfigError,
    LimitError,
    NotColocatedError,
    NotColocatedWarning,
    OutOfRangeError,
    StaleMarkError,
    UsageError,
)

WIDTH = 3
KEYS = 40
SPREAD = 2**57 + 12_345


class Model:
    """What a matrix with ``admit_after`` and ``expire_s`` must hold: plain dicts."""

    def __init__(self, admit_after, expire_s, initial):
        self.admit_after, self.expire_s, self.initial = admit_after, expire_s, initial
        self.now = 0.0
        self.active, self.waiting = {}, {}
        self.changed, self.removed = set(), []

    def touch(self, keys, change):
        for key in dict.fromkeys(keys):
            if key not in self.active:
                count, at = self.waiting.pop(key, (0, self.now))
                count = 1 if self.now - at >= self.expire_s else count + 1
                if count < self.admit_after:
                    self.waiting[key] = (count, self.now)
                    continue
                self.active[key] = [self.initial[key].copy(), self.now]
            self.active[key][1] = self.now
            self.changed.add(key)
        for position, key in enumerate(keys):
            if key in self.active:
                self.active[key][0] = change(self.active[key][0], position)

    def remove(self, keys):
        gone = [key for key in dict.fromkeys(keys) if key in self.active]
        for key in gone:
            del self.active[key]
        self.removed += gone
        return len(gone)

    def expire(self, older_s):
        self.waiting = {key: (n, at) for key, (n, at) in self.waiting.items() if self.now - at < older_s}
        return self.remove([key for key, (_, at) in self.active.items() if self.now - at >= older_s])

    def pull(self, keys):
        return np.array([self.active[key][0] if key in self.active else self.initial[key] for key in keys])


some_keys = st.lists(st.integers(0, KEYS - 1), min_size=1, max_size=12)
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["add", "add", "add", "push", "pull", "remove"]), some_keys),
        st.tuples(st.just("advance"), st.sampled_from([0.5, 3.0, 11.0])),
        st.tuples(st.sampled_from(["expire", "older"]), st.just(None)),
        st.tuples(st.just("mark"), st.just(None)),
    ),
    min_size=5,
    max_size=60,
)


def check_changes(m, model, mark):
    """What has changed since the mark is what the model says, and each key has its value now."""
    result = {}
    for keys, values in m.changed(mark):
        result |= dict(zip((keys // SPREAD).tolist(), values, strict=True))
    assert set(result) == model.changed & set(model.active)
    assert all(np.allclose(value, model.active[key][0]) for key, value in result.items())
    assert sorted(m.removed(mark) // SPREAD) == sorted(model.removed)


@pytest.mark.parametrize("layout", ["row", "column"])
@given(program=steps, admit_after=st.integers(1, 3), servers=st.sampled_from([1, 3]))
@settings(max_examples=60)
def test_matrix_when_program_is_random_then_as_a_dict(layout, program, admit_after, servers):
    with in_process_session(InProcessServers(servers, 1 << 30)):
        policy = {"admitAfter": admit_after, "expireAfterS": 10, "clock": "event", "init": "normal", "seed": 1}
        m = DCV.sparse(2**63, WIDTH, "float64", layout=layout, initEnd=2, **policy).matrix()
        rows = np.arange(WIDTH)

        def by_keys(do, keys, values):
            do(values=values, columns=keys) if layout == "column" else do(rows, values.T, keys)

        def pull(keys):
            return m.pull(columns=keys) if layout == "column" else m.pull(rows, keys).T

        every = np.arange(KEYS) * SPREAD
        model, mark = Model(admit_after, 10.0, dict(enumerate(pull(every)))), m.mark()
        assert all(value.any() for value in model.initial.values())
        for number, (name, given) in enumerate(program):
            if name == "push" and layout == "row":
                name = "add"
            if name in ("add", "push"):
                values = np.arange(1.0, WIDTH * len(given) + 1).reshape(-1, WIDTH) + number
                by_keys(getattr(m, name), np.array(given) * SPREAD, values)
                model.touch(given, lambda old, i, v=values, n=name: old + v[i] if n == "add" else v[i])
            elif name == "pull":
                assert np.allclose(pull(np.array(given) * SPREAD), model.pull(given))
            elif name == "remove":
                assert m.remove(np.array(given) * SPREAD) == model.remove(given)
            elif name == "advance":
                model.now += given
                m.advance(model.now)
            elif name == "mark":
                check_changes(m, model, mark)
                mark, model.changed, model.removed = m.mark(), set(), []
            else:
                assert m.expire(None if name == "expire" else 2.0) == model.expire(10.0 if name == "expire" else 2.0)
        check_changes(m, model, mark)
        assert np.allclose(pull(every), model.pull(range(KEYS)))
        status = m.keyStatus()
        assert (status.active, status.nowS) == (len(model.active), model.now)


@pytest.fixture
def one_server():
    network = InProcessServers(1, 1 << 30)
    with in_process_session(network):
        yield network


def managed(**more):
    return DCV.sparse(2**63, 2, layout="column", **{"init": "normal", "clock": "event", **more}).matrix()


def touch(m, keys):
    m.add(columns=keys, values=np.ones((len(keys), 2)))


def active(m):
    return sorted(np.concatenate([np.empty(0, int), *(keys for keys, _ in m.changed())]).tolist())


@given(program=st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=6, unique=True), min_size=1, max_size=40))
@settings(max_examples=40)
def test_add_when_keys_are_limited_then_least_recent_go(program):
    with in_process_session(InProcessServers(1, 1 << 30)):
        m, recent = managed(maxKeys=10), {}
        for number, keys in enumerate(program):
            touch(m, np.array(keys))
            for key in keys:
                recent[key] = number
            held = set(active(m))
            assert set(keys) <= held
            gone = [at for key, at in recent.items() if key not in held]
            # Of keys that were touched by one request, any may go first.
            assert max(gone, default=-1) <= min(recent[key] for key in held)
            assert len(held) == min(10, len(recent))
            recent = {key: at for key, at in recent.items() if key in held}


def test_add_when_one_request_exceeds_the_limit_then_error(one_server):
    m = managed(maxKeys=10)
    touch(m, np.arange(8))
    with pytest.raises(LimitError, match=r"maxKeys: expected a limit of at least 11 keys"):
        touch(m, np.arange(11))
    assert active(m) == list(range(8))


def test_evict_when_called_then_most_recent_stay(one_server):
    m = managed()
    for key in range(20):
        m.advance(key)
        touch(m, np.array([key]))
    assert m.evict(keep=5) == 15
    assert active(m) == [15, 16, 17, 18, 19]
    assert m.keyStatus().evicted == 15


def test_expired_key_when_old_request_is_retried_then_stays_gone(one_server):
    m = managed(expireAfterS=10)
    sent = []
    engine = next(iter(one_server.engines.values()))
    run = engine.execute
    engine.execute = lambda request: (sent.append(request), run(request))[1]
    touch(m, np.array([1, 2]))
    m.advance(100)
    assert m.expire() == 2
    late = next(request for request in sent if request.operations[0].name == "columns_add")
    assert run(late).replayed
    assert active(m) == []
    assert m.keyStatus().admitted == 2


def test_memory_when_keys_expire_then_given_back(one_server):
    engine = next(iter(one_server.engines.values()))
    m = managed(expireAfterS=10, init="zeros")
    empty = engine.memory.used_bytes
    for begin in range(0, 200_000, 50_000):
        touch(m, np.arange(begin, begin + 50_000))
    full = engine.memory.used_bytes
    m.advance(20)
    touch(m, np.arange(1000))
    assert m.expire() == 199_000
    touch(m, np.arange(1000))
    assert engine.memory.used_bytes - empty < (full - empty) // 10
    values = m.pull(columns=np.arange(200_000))
    assert (values[:1000] == 3).all()
    assert not values[1000:].any()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: m.advance(4), OutOfRangeError, "never goes back: expected at least 5, got 4"),
        (lambda m: m.advance(float("nan")), ConfigError, "nowS: expected a number of seconds"),
        (lambda m: m.expire(), ConfigError, "no expireAfterS"),
        (lambda m: m.expire(-1), ConfigError, "olderThanS: expected a number of seconds"),
        (lambda m: m.evict(-1), ConfigError, "keep: expected a number of keys"),
        (lambda m: m.remove([-1]), OutOfRangeError, "index -1"),
        (lambda m: next(m.changed(rows=3)), OutOfRangeError, "rows: expected 0 to 2, got 3"),
        (lambda m: m.removed(Mark(1, 1)), StaleMarkError, "read all keys"),
        (lambda m: DCV.sparse(9).expire(1), UsageError, "expected a sparse matrix whose keys are managed"),
        (lambda m: DCV.dense(9).evict(1), UsageError, "expected a sparse matrix whose keys are managed"),
    ],
)
def test_call_when_argument_is_wrong_then_error(one_server, call, error, message):
    m = managed()
    m.advance(5)
    with pytest.raises(error, match=message):
        call(m)


def test_pull_when_all_keys_then_active_ones(one_server):
    u = DCV.sparse(2**63, expireAfterS=5, clock="event")
    u.add(np.ones(3), np.array([5, 2, 9]))
    u.advance(3)
    u.add(np.ones(1), np.array([2]))
    u.advance(6)
    assert u.expire() == 2
    assert [array.tolist() for array in u.pull()] == [[2], [2]]


def test_advance_when_a_batch_was_touched_then_as_new_as_it(one_server):
    m, now = managed(expireAfterS=10, admitAfter=2), 1.7e9
    for batch, gap in enumerate((0, 5, 1000)):
        now += gap
        for _ in range(2):
            touch(m, np.array([batch, 100 + batch]))
        m.advance(now, touched=True)
        assert m.expire() == (4 if gap == 1000 else 0)
        assert {batch, 100 + batch} <= set(active(m))
    touch(m, np.array([2, 7]))
    m.advance(now, touched=True)  # a batch without newer events
    touch(m, np.array([7, 8]))
    m.advance(now + 10, touched=True)
    assert m.expire() == 2
    assert active(m) == [7]


def test_operation_when_vector_is_of_another_matrix_then_error(one_server):
    u, v = DCV.sparse(2**63, admitAfter=2), DCV.sparse(2**63).add(np.ones(2), np.array([1, 2]))
    with pytest.raises(NotColocatedError, match="keys of the first vector are managed"):
        u.add(v)
    with pytest.warns(NotColocatedWarning):
        assert v.dot(u) == 0
