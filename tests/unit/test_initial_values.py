"""Keys without a slot read as their initial values, and get their slots with them."""

from __future__ import annotations

import numpy as np
import pytest

from ps2 import DCV
from ps2.coordinator.in_process import InProcessServers, in_process_session
from ps2.errors import ConfigError, UsageError
from ps2.matrix.key_policy import Initial, KeyPolicy
from ps2.matrix.partition import MatrixSpec
from ps2.ops.draws import normal_pairs
from ps2.ops.initial import fill_initial
from ps2.rpc.convert import spec_from_pb, spec_to_pb

KEYS = np.array([7, 2**62, 0, 123_456_789_012])
WIDTH = 6


@pytest.fixture(params=[1, 3])
def fleet(request):
    with in_process_session(InProcessServers(request.param, 1 << 30)) as session:
        yield session


def drawn(keys, kind="normal", scale=0.5, seed=3, begin=0, end=WIDTH):
    out = np.zeros((len(keys), WIDTH), np.float32)
    rows = np.arange(WIDTH)
    initial = Initial(kind, scale, seed, begin, end)
    fill_initial(out.reshape(-1), initial, np.asarray(keys), np.arange(len(keys)) * WIDTH, rows, rows)
    return out


def blocks(**more):
    inputs = {"init": "normal", "initScale": 0.5, "seed": 3, "layout": "column", **more}
    return DCV.sparse(2**63, WIDTH, **inputs).matrix()


def test_pull_when_keys_are_absent_then_initial_values(fleet):
    m = blocks()
    assert np.array_equal(m.pull(columns=KEYS), drawn(KEYS))
    assert m.pull(columns=KEYS[::-1]).any(axis=1).all()


def test_pull_when_some_keys_are_active_then_each_has_its_own(fleet):
    m = blocks(initEnd=4).add(columns=KEYS[:2], values=np.ones((2, WIDTH)))
    expected = drawn(KEYS, end=4)
    expected[:2] += 1
    assert np.array_equal(m.pull(columns=KEYS), expected)


def test_add_when_key_is_new_then_added_to_initial_value(fleet):
    u = DCV.sparse(2**63, init="uniform", initScale=0.5, seed=3)
    state = u.derive()
    first = u.pull(KEYS)
    assert np.array_equal(first, drawn(KEYS, "uniform")[:, 0])
    u.add(np.ones(2), KEYS[:2])
    assert np.allclose(u.pull(KEYS), first + np.array([1, 1, 0, 0]))
    assert not state.pull(KEYS).any()


@pytest.mark.parametrize("more", [{"layout": "column"}, {"initEnd": 3}])
def test_derive_when_further_rows_are_random_then_refused(fleet, more):
    u = DCV.sparse(2**63, init="uniform", **more)
    for make in (u.derive, lambda: u + 1):
        with pytest.raises(UsageError, match="initEnd=1"):
            make()
    DCV.sparse(2**63, init="uniform", **{**more, "initEnd": 1}).derive()


def test_rows_pull_when_keys_are_absent_then_their_rows_values(fleet):
    m = DCV.sparse(2**63, WIDTH, init="normal", initScale=0.5, seed=3, initBegin=1, initEnd=5).matrix()
    rows = np.array([4, 0, 2, 5, 1, 2])
    assert np.array_equal(m.pull(rows, KEYS), drawn(KEYS, begin=1, end=5).T[rows])


def test_push_pull_when_keys_are_new_then_initial_plus_added(fleet):
    u = DCV.sparse(2**63, init="normal", initScale=0.5, seed=3)
    assert np.allclose(u.pushPull(np.full(4, 2.0), KEYS), drawn(KEYS)[:, 0] + 2)


@pytest.mark.parametrize(("kind", "spread"), [("normal", 0.5), ("uniform", 0.5 / 3**0.5)])
def test_draws_when_many_keys_then_of_their_distribution(kind, spread):
    values = drawn(np.arange(50_000), kind)
    assert abs(values.mean()) < 0.005
    assert np.allclose(values.std(axis=0), spread, atol=0.005)
    assert abs(np.corrcoef(values.T) - np.eye(WIDTH)).max() < 0.02


def test_normal_pairs_when_draws_are_any_then_box_mullers():
    first, second = np.random.default_rng(0).integers(0, 2**64, (2, 1000), np.uint64)
    first[:3], second[:3] = [0, 2**64 - 1, 2**64 - 2**12], [2**64 - 1, 0, 2**61]
    sine, cosine = np.empty((2, 1000))
    normal_pairs(first, second, 0.5, sine, cosine)
    unit = 2.0**-53
    radius = 0.5 * np.sqrt(-2 * np.log(((first >> np.uint64(11)) + 1.0) * unit))
    angle = 2 * np.pi * unit * (second >> np.uint64(11)).astype(float)
    assert np.allclose(np.stack((cosine, sine)), radius * np.stack((np.cos(angle), np.sin(angle))), atol=1e-14)


def test_values_when_seeds_differ_then_they_differ(fleet):
    assert not np.isclose(blocks().pull(columns=KEYS), blocks(seed=4).pull(columns=KEYS)).any()


def test_key_policy_when_sent_then_same():
    policy = KeyPolicy(3, 0.5, 100, Initial("uniform", 0.1, -(2**63), 1, 4), "event")
    for spec in (
        MatrixSpec(2**63, 4, kind="sparse", key_policy=policy),
        MatrixSpec(9, 1, kind="sparse", key_policy=KeyPolicy()),
    ):
        assert spec_from_pb(spec_to_pb(spec)) == spec


@pytest.mark.parametrize(
    "wrong",
    [
        {"admitAfter": 0},
        {"admitAfter": 256},
        {"admitAfter": 1.5},
        {"expireAfterS": 0},
        {"expireAfterS": -1},
        {"expireAfterS": float("nan")},
        {"maxKeys": 0},
        {"init": "ones"},
        {"init": "normal", "initScale": -1},
        {"init": "normal", "initScale": 1e38},
        {"init": "normal", "dtype": "int64"},
        {"init": "normal", "seed": 2**63},
        {"admitAfter": 2, "clock": "mine"},
        {"init": "normal", "initBegin": 2, "initEnd": 1},
        {"init": "normal", "initEnd": 5},
    ],
)
def test_sparse_when_key_policy_is_wrong_then_error(fleet, wrong):
    with pytest.raises(ConfigError, match=r"expected"):
        DCV.sparse(2**63, **wrong)
