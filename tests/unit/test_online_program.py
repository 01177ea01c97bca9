"""Programs of online and deep models on servers in this process: keys that come twice in a row, and keys' time."""

from __future__ import annotations

import numpy as np
import pytest

from ps2.algorithms.deep.architecture import Architecture
from ps2.algorithms.deep.plan import DeepPlan
from ps2.algorithms.deep.settings import DeepSettings
from ps2.algorithms.deep.worker import Learner
from ps2.algorithms.online.plan import INTERCEPT, OnlinePlan
from ps2.algorithms.online.program import OnlineProgram
from ps2.algorithms.online.scoring import BIAS, score
from ps2.algorithms.training.streams.labelled_rows import LabelledRows
from ps2.client.embedding_table import EmbeddingTable
from ps2.coordinator.in_process import InProcessServers, in_process_session
from ps2.data.key_rows import KeyRows

PROGRAMS = {
    "online": lambda table: OnlineProgram(OnlinePlan(), table),
    "deep": lambda table: Learner(Architecture("deepfm", 2, 2, 2, (3,)), DeepPlan(settings=DeepSettings()), (), table),
}


@pytest.mark.parametrize("family", PROGRAMS)
@pytest.mark.parametrize(("clock", "now_s"), [("event", 100.0), ("wall", 0.0)])
def test_advance_when_rows_are_older_then_time_stays(family, clock, now_s):
    """Keys that go by the driver's clock have no times of rows."""
    with in_process_session(InProcessServers(2, 1 << 30)):
        program = PROGRAMS[family](EmbeddingTable(3, expireAfterS=10.0, clock=clock))
        program.advance(100.0)
        program.advance(50.0)  # the newest row of a later training
        assert program.table.keyStatus().nowS == now_s


@pytest.mark.parametrize(("optimizer", "l2", "factor_l2"), [("ftrl", 0.3, 0.5), ("adagrad", 0.5, None)])
def test_params_when_settings_differ_in_name_then_user_s(optimizer, l2, factor_l2):
    of_keys = {"expireAfterS": 9.0, "clock": "event"}
    result = OnlinePlan(2, optimizer, l2=0.3, decay=0.5, key_arguments=of_keys).params()
    assert (result["l2"], result.get("factorL2")) == (l2, factor_l2)
    assert (result["factorSize"], result["localSteps"], result["fitIntercept"]) == (2, True, True)
    assert result["expireAfterS"] == 9.0
    assert not {"clock", "life", "factors", "decay"} & set(result)


# Rows of (key, value) pairs: with keys that come twice or three times in a row, and with the sums of their values.
REPEATED = [[(7, 1.0), (9, 0.5), (7, 1.0)], [(4, 1.0), (4, -3.0), (9, 2.0), (4, 0.5)], [(7, 2.0), (8, 1.0)]]
SUMMED = [[(7, 2.0), (9, 0.5)], [(4, -1.5), (9, 2.0)], [(7, 2.0), (8, 1.0)]]
LABELS = np.array([1, 0, 1], np.float32)


def rows_of(lists):
    keys, values = np.array([pair for row in lists for pair in row]).T
    bounds = np.cumsum([0, *map(len, lists)])
    return KeyRows(bounds, keys.astype(np.int64), values.astype(np.float32), np.zeros(len(keys), np.int32))


def learned(settings, rows, times=3):
    """Return margins before each row's step, those of the model then, and those of its export."""
    with in_process_session(InProcessServers(2, 1 << 30)):
        program = OnlineProgram(settings, settings.new_table())
        before = [program.learn(LabelledRows(rows, LABELS)) for _ in range(times)]
        weights, bias = program.table.pull(rows.keys), program.table.pull(np.array([INTERCEPT]))[0]
        return np.concatenate(before), program.margins(rows), score({}, rows, weights, {BIAS: bias})


@pytest.mark.parametrize("factors", [0, 3])
@pytest.mark.parametrize(
    ("optimizer", "local_steps"),
    [("ftrl", True), ("ftrl", False), ("adagrad", True), ("adagrad", False), ("adam", False)],
)
def test_learn_when_keys_come_twice_then_their_values_add_up(optimizer, local_steps, factors):
    """Also with a penalty, whose gradient counts once a row; a vector has no product with itself."""
    settings = OnlinePlan(factors, optimizer, decay=0.3, local_steps=local_steps, init_scale=0.5)
    for result, expected in zip(learned(settings, rows_of(REPEATED)), learned(settings, rows_of(SUMMED)), strict=True):
        np.testing.assert_allclose(result, expected, rtol=2e-5)


def test_ftrl_when_keys_come_twice_then_algorithm_1_of_the_paper():
    """x is a vector of features (McMahan et al., 2013), of which one may be named twice."""
    alpha, beta, l1, l2 = 0.3, 0.7, 0.05, 0.1
    x = np.zeros((3, 10))
    for row, pairs in enumerate(REPEATED):
        np.add.at(x[row], [key for key, _ in pairs], [value for _, value in pairs])
    x[:, 0] = 1  # the intercept
    z, n, expected = np.zeros(10), np.zeros(10), []
    for features, label in zip(np.tile(x, (2, 1)), np.tile(LABELS, 2), strict=True):
        w = np.where(np.abs(z) <= l1, 0, -(z - np.sign(z) * l1) / ((beta + np.sqrt(n)) / alpha + l2))
        expected.append(features @ w)
        g = (1 / (1 + np.exp(-expected[-1])) - label) * features
        z += g - (np.sqrt(n + g * g) - np.sqrt(n)) / alpha * w
        n += g * g
    result, *_ = learned(OnlinePlan(alpha=alpha, beta=beta, l1=l1, l2=l2), rows_of(REPEATED), times=2)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
