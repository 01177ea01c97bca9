"""Parts of deep models: a worker's rows, steps on servers, scores, and what is compiled ahead."""

from __future__ import annotations

import json

import numpy as np
import pytest
from compiled_kernels import compiled

from ps2.algorithms.deep import kernels, warm
from ps2.algorithms.deep.architecture import KINDS, Architecture
from ps2.algorithms.deep.batches import batch_of
from ps2.algorithms.deep.model import SharedLayers
from ps2.algorithms.deep.network import Pass
from ps2.algorithms.deep.ops import GRADIENT, SQUARE, STEPS, VELOCITY, WEIGHT, step_of_gradient, step_of_sum
from ps2.algorithms.deep.plan import DeepPlan
from ps2.algorithms.deep.scoring import score
from ps2.algorithms.deep.settings import DeepSettings
from ps2.algorithms.deep.worker import DeepRows, Learner
from ps2.algorithms.training.streams.labelled_rows import LabelledRows
from ps2.data.key_rows import KeyRows
from ps2.errors import InputError, OutOfRangeError, ShapeError
from ps2.serving.loading import scoring_function


def _rows(n: int = 30, fields: int = 3, seed: int = 0) -> KeyRows:
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, 2**62, 9)[rng.integers(0, 9, n * fields)]
    field = np.tile(np.arange(fields, dtype=np.int32), n)
    return KeyRows(np.arange(n + 1) * fields, keys, rng.normal(size=n * fields).astype(np.float32), field, fields)


def test_take_when_rows_repeat_then_keys_are_distinct():
    """A minibatch has its rows' keys once, sorted, and finds them by its inverse."""
    rows = _rows()
    held = DeepRows(rows, np.arange(30.0), np.arange(30.0) * 2)
    numbers = np.array([5, 0, 29, 5])
    for _ in range(2):  # the marks are as before
        part = held.take(numbers)
        np.testing.assert_array_equal(part.keys, np.unique(rows.keys.reshape(30, 3)[numbers]))
        np.testing.assert_array_equal(part.keys[part.batch.inverse].reshape(4, 3), rows.keys.reshape(30, 3)[numbers])
        np.testing.assert_array_equal(part.batch.x.reshape(4, 3), rows.values.reshape(30, 3)[numbers])
        np.testing.assert_array_equal(part.labels, numbers)
        np.testing.assert_array_equal(part.weights, numbers * 2)


def test_items_when_keys_are_equal_then_share_is_counted():
    """Rows with equal keys in the items' fields have one item, whose share is that of its rows."""
    rows = _rows()
    items, shares = DeepRows(rows, np.zeros(30)).items(1, 3)
    pairs = [tuple(row) for row in rows.keys.reshape(30, 3)[:, 1:]]
    for i, item in enumerate(items):
        same = [j for j, pair in enumerate(pairs) if pair == pairs[i]]
        assert [j for j, other in enumerate(items) if other == item] == same
        assert shares[i] == pytest.approx(len(same) / 30)


@pytest.mark.parametrize(("rows", "steps"), [(10, 3), (2, 5), (7, 7)])
def test_plan_when_rows_are_cut_then_each_is_in_one_step(rows, steps):
    """The steps of an epoch take each of a worker's rows once."""
    plan = DeepPlan(settings=DeepSettings(), steps=steps)
    assert [i for step in range(steps) for i in range(rows)[plan.rows_of(rows, step)]] == list(range(rows))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("travels", [False, True])
def test_steps_when_repeated_then_are_adams(dtype, travels):
    """Both operations take the steps of AdamW, and count them."""
    rng = np.random.default_rng(0)
    layer = np.zeros((5, 6), dtype)
    layer[WEIGHT] = w = rng.normal(size=6)
    v, s, tolerance = np.zeros(6), np.zeros(6), 1e-5 if dtype == np.float32 else 1e-12
    for t in range(1, 4):
        g = rng.normal(size=6)
        if travels:
            step_of_gradient(layer, g.astype(dtype), lr=0.1, decay=0.5)
        else:
            layer[GRADIENT] = g
            step_of_sum(layer, lr=0.1, decay=0.5)
        v, s = 0.9 * v + 0.1 * g, 0.999 * s + 0.001 * g * g
        w = 0.95 * w - 0.1 * (v / (1 - 0.9**t)) / (np.sqrt(s / (1 - 0.999**t)) + 1e-8)
        for row, expected in ((WEIGHT, w), (VELOCITY, v), (SQUARE, s), (GRADIENT, 0.0), (STEPS, t)):
            np.testing.assert_allclose(layer[row], np.broadcast_to(expected, 6), rtol=tolerance)


def test_step_when_matrix_has_other_rows_then_error_says_so():
    with pytest.raises(ShapeError, match="expected a matrix of 5 rows or more, got 4"):
        step_of_sum(np.zeros((4, 2), np.float32), lr=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_score_when_given_pairs_then_is_the_models(kind):
    """Scores from an export's arrays, with blocks by pair, are those of the model with blocks by distinct key."""
    rows, architecture = _rows(), Architecture(kind, 4, 3, 2, (5, 3))
    batch, keys = batch_of(rows)
    table = np.random.default_rng(1).normal(size=(len(keys), architecture.width)).astype(np.float32)
    layers = architecture.initial(2)
    dense = {layer.name: weight for layer, weight in zip(architecture.layers(), layers, strict=True)}
    config = json.loads(json.dumps({"architecture": architecture.to_json()}))
    result = score(config, rows, table[batch.inverse], dense)
    margins = Pass(architecture, layers, batch, table).margins().astype(np.float64)
    expected = margins * 0.1 if kind == "two-tower" else 1 / (1 + np.exp(-margins))
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    assert scoring_function(kind) is score
    assert result.dtype == np.float64


def test_score_when_arrays_are_wrong_then_names_them():
    """A missing layer, a block of another width, and a field too many are named."""
    rows, architecture = _rows(), Architecture("deepfm", 4, 3, 3, (5,))
    dense = {layer.name: weight for layer, weight in zip(architecture.layers(), architecture.initial(0), strict=True)}
    config, blocks = {"architecture": architecture.to_json()}, np.zeros((90, 5), np.float32)
    with pytest.raises(ShapeError, match=r"layer 'deep1': expected shape \(6, 1\), got deep0"):
        score(config, rows, blocks, {"deep0": dense["deep0"]})
    with pytest.raises(ShapeError, match=r"embeddings: expected shape \(90, 5\), got \(90, 4\)"):
        score(config, rows, blocks[:, :4], dense)
    with pytest.raises(ShapeError, match="fields: expected numbers below 3, got 0 to 3"):
        score(config, _rows(30, 4), np.zeros((120, 5), np.float32), dense)


class RefusesSteps:
    """Layers and a table of ones; a step would fail the test."""

    def __init__(self, architecture):
        self.architecture = architecture

    def pull(self):
        return [np.ones(layer.shape, np.float32) for layer in self.architecture.layers()]

    def pullDistinct(self, keys):
        return np.ones((len(keys), self.architecture.width), np.float32)


HUGE = KeyRows(np.array([0, 2]), np.array([1, 2]), np.array([1, 1e30], np.float32), np.array([0, 1], np.int32), 2)
OF_HUGE = Architecture("deepfm", 2, 2, 2, (3,))


def test_learn_when_a_value_is_huge_then_nothing_is_sent():
    """The loss is no number; the driver hears of it, and the model stays as it was."""
    model = RefusesSteps(OF_HUGE)
    learner = Learner(OF_HUGE, DeepPlan(settings=DeepSettings()), model, model)
    assert np.isnan(learner.take_step(DeepRows(HUGE, np.ones(1)).take(np.arange(1)), None, 1.0, 0))


def test_stream_when_a_value_is_huge_then_nothing_is_sent():
    model = RefusesSteps(OF_HUGE)
    program = Learner(OF_HUGE, DeepPlan(settings=DeepSettings()), model, model)
    with pytest.raises(InputError, match=r"expected numbers whose products .* got a margin of nan"):
        program.learn(LabelledRows(HUGE, np.ones(1, np.float32)))


def test_score_when_a_value_is_huge_then_says_so():
    """Its probability would be no number, and its prediction 0."""
    dense = {layer.name: np.ones(layer.shape, np.float32) for layer in OF_HUGE.layers()}
    with pytest.raises(InputError, match="got a margin of nan: scale them"):
        score({"architecture": OF_HUGE.to_json()}, HUGE, np.ones((2, 3), np.float32), dense)


@pytest.mark.parametrize("number", [np.nan, np.inf, -1e16])
@pytest.mark.parametrize("way", ["add", "step"])
def test_layers_when_a_gradient_is_huge_then_it_is_refused(number, way):
    layers = SharedLayers(OF_HUGE.layers(), ())
    gradient = np.zeros(OF_HUGE.layers()[1].shape, np.float32)
    gradient[1] = number
    with pytest.raises(OutOfRangeError, match=r"layer 'deep1': expected gradients of at most 1e\+15"):
        layers.add(1, gradient) if way == "add" else layers.step_with(1, gradient, 0.1, 0.0)


def test_pass_when_warm_then_compiles_nothing():
    """What is compiled ahead is all that trainings and scores take."""
    warm.warm()
    before = compiled((kernels,))
    held = DeepRows(_rows(), np.zeros(30))
    part = held.take(np.arange(4))
    for kind in KINDS:
        architecture = Architecture(kind, 4, 3, 2, (5, 3), 0.5)
        blocks = np.zeros((len(part.keys), architecture.width), np.float32)
        one = Pass(architecture, architecture.initial(0), part.batch, blocks, 1)
        one.backward(one.margins(), lambda number, gradient: None)
    held.items(0, 1)
    assert compiled((kernels,)) == before
