"""Gradients of deep models against finite differences, and parts of the models against their definitions."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ps2.algorithms.deep.architecture import Architecture
from ps2.algorithms.deep.batches import Batch
from ps2.algorithms.deep.interactions import CompressedInteraction, CrossNetwork, HistoryAttention, SelfAttention
from ps2.algorithms.deep.kernels import activate
from ps2.algorithms.deep.network import Pass, PositivePairs, logistic_loss, softmax_loss
from ps2.errors import ConfigError

# Small interactions, because finite differences are computed for each weight.
INTERACTIONS = {
    "dcn": CrossNetwork(2),
    "xdeepfm": CompressedInteraction((3, 2)),
    "autoint": SelfAttention(2, 2, 2),
    "din": HistoryAttention(((2, 0), (1, 0)), (3,)),
}
KINDS = ["deepfm", "wide-deep", *INTERACTIONS, "two-tower"]


def _made(kind: str, dropout: float = 0.0, seed: int = 0):
    """Return an architecture, its layers, a batch with a field of several keys and one without, and a table."""
    rng = np.random.default_rng(seed)
    interaction = INTERACTIONS.get(kind)
    deep = 2 if kind == "two-tower" else 3
    architecture = Architecture(kind, 3, 4, deep, (5, 4), dropout, interaction=interaction)
    counts = np.array([4, 5, 3, 4, 6, 4])
    field = np.concatenate([np.sort(rng.integers(0, 4, c)) for c in counts]).astype(np.int32)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    batch = Batch(indptr, rng.integers(0, 7, indptr[-1]), field, rng.normal(size=indptr[-1]))
    layers = [layer + 0.1 * rng.normal(size=layer.shape) for layer in architecture.initial(seed)]
    return architecture, layers, batch, rng.normal(size=(7, architecture.width))


def _logistic(architecture, layers, batch, table, seed=None):
    labels, weights = np.arange(len(batch)) % 2, np.linspace(0.5, 1.5, len(batch))
    one = Pass(architecture, layers, batch, table, seed)
    loss, slopes = logistic_loss(one.margins(), labels, weights)
    gradients = [np.empty(0)] * len(layers)
    table_gradient = one.backward(slopes, gradients.__setitem__)
    return loss, gradients, table_gradient


def _softmax(architecture, layers, batch, table, seed=None):
    one = Pass(architecture, layers, batch, table, seed)
    shares, items = np.log(np.linspace(0.1, 0.3, len(batch))), np.array([0, 1, 0, 2, 3, 4])
    pairs = PositivePairs(items, shares, np.linspace(0.5, 1.5, len(batch)))
    loss, left, right = softmax_loss(*one.towers(), pairs, architecture.temperature)
    gradients = [np.empty(0)] * len(layers)
    table_gradient = one.backward_towers(left, right, gradients.__setitem__)
    return loss, gradients, table_gradient


def _check(loss_of, architecture, layers, batch, table, seed=None):
    _, gradients, table_gradient = loss_of(architecture, layers, batch, table, seed)
    for array, gradient in (*zip(layers, gradients, strict=True), (table, table_gradient)):
        for at in np.ndindex(array.shape):
            kept, step, values = array[at], 1e-6, []
            for moved in (kept + step, kept - step):
                array[at] = moved
                values.append(loss_of(architecture, layers, batch, table, seed)[0])
            array[at] = kept
            assert gradient[at] == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_when_logistic_then_finite_differences(kind):
    """The gradient of the logistic loss is that of central differences."""
    _check(_logistic, *_made(kind))


def test_gradients_when_softmax_then_finite_differences():
    """The gradient of the sampled softmax loss is that of central differences."""
    _check(_softmax, *_made("two-tower"))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_when_dropped_then_finite_differences(kind):
    """With the same seed, dropout is a fixed function, whose gradient is that of central differences."""
    _check(_logistic, *_made(kind, dropout=0.4), 5)


def test_margins_when_deepfm_then_the_definition():
    """A DeepFM's margin is linear weights, inner products of pairs of keys, and layers of the fields' vectors."""
    architecture, layers, batch, table = _made("deepfm")
    margins = Pass(architecture, layers, batch, table).margins()
    for i, margin in enumerate(margins):
        part = slice(batch.indptr[i], batch.indptr[i + 1])
        blocks, x, fields = table[batch.inverse[part]], batch.x[part], batch.field[part]
        vectors = x[:, None] * blocks[:, 1:]
        keys = batch.inverse[part]
        pairs = (vectors @ vectors.T)[keys[:, None] != keys]
        expected = x @ blocks[:, 0] + pairs.sum() / 2
        h = np.concatenate([vectors[fields == f].sum(axis=0) for f in range(3)])
        for layer in layers[:-1]:
            h = np.maximum(h @ layer[:-1] + layer[-1], 0)
        expected += (h @ layers[-1][:-1] + layers[-1][-1])[0]
        assert margin == pytest.approx(expected)


def _term(kind: str):
    """Return the weights of an interaction, each row's field vectors, and each row's term of the margin.

    The rows are the first of a batch; the output of the layers and the linear weights are 0.
    """
    architecture, layers, batch, table = _made(kind)
    table[:, 0] = 0
    layers[2][:] = 0
    margins = Pass(architecture, layers, batch, table).margins()
    vectors = np.zeros((len(batch), 3, 3))
    for i in range(len(batch)):
        for p in range(batch.indptr[i], batch.indptr[i + 1]):
            if batch.field[p] < 3:
                vectors[i, batch.field[p]] += batch.x[p] * table[batch.inverse[p], 1:]
    return layers[3:], vectors, margins


def test_margins_when_dcn_then_the_definition():
    """Equation 1 of DCN V2, and a linear map of the last cross layer."""
    (*crosses, output), vectors, margins = _term("dcn")
    for x0, margin in zip(vectors.reshape(len(vectors), -1), margins, strict=True):
        x = x0
        for layer in crosses:
            x = x0 * (layer[:-1].T @ x + layer[-1]) + x
        assert margin == pytest.approx(x @ output[:, 0])


def test_margins_when_xdeepfm_then_the_definition():
    """Equations 6 and 7 of xDeepFM, and a linear map of all maps' sums."""
    (*filters, output), vectors, margins = _term("xdeepfm")
    for x0, margin in zip(vectors, margins, strict=True):
        x, sums = x0, []
        for w in filters:
            maps = range(w.shape[1])
            pairs = [(i, j) for i in range(len(x)) for j in range(3)]
            x = np.array([sum(w[3 * i + j, h] * x[i] * x0[j] for i, j in pairs) for h in maps])
            sums += [row.sum() for row in x]
        assert margin == pytest.approx(np.array(sums) @ output[:, 0])


def test_cin_when_rows_come_in_blocks_then_the_same(monkeypatch):
    """Outer products of few rows at a time give the same margins and gradients."""
    results = []
    for block in (1 << 22, 20):
        monkeypatch.setattr(CompressedInteraction, "MAX_BLOCK", block)
        results.append(_logistic(*_made("xdeepfm")))
    (loss, gradients, table_gradient), (other_loss, other_gradients, other_table_gradient) = results
    assert loss == pytest.approx(other_loss)
    for mine, other in zip((*gradients, table_gradient), (*other_gradients, other_table_gradient), strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-12)


def test_margins_when_autoint_then_the_definition():
    """Equations 5 to 8 and 10 of AutoInt, by head."""
    (*projections, output), vectors, margins = _term("autoint")
    for x0, margin in zip(vectors, margins, strict=True):
        x = x0
        for projection in projections:
            q, k, v, residual = np.split(x @ projection, 4, axis=1)
            heads = []
            for head in (slice(0, 2), slice(2, 4)):
                shares = np.exp(q[:, head] @ k[:, head].T)
                heads.append(shares / shares.sum(axis=1, keepdims=True) @ v[:, head])
            x = np.maximum(np.concatenate(heads, axis=1) + residual, 0)
        assert margin == pytest.approx(x.reshape(-1) @ output[:, 0])


def test_margins_when_din_then_the_definition():
    """Equation 3 of DIN for two histories of a candidate, and layers over the sums and the candidate's vector."""
    architecture, layers, batch, table = _made("din")
    margins = Pass(architecture, layers, batch, table).margins()

    def output(x, weights):
        for layer in weights[:-1]:
            x = np.maximum(x @ layer[:-1] + layer[-1], 0)
        return x @ weights[-1][:-1] + weights[-1][-1]

    for i, margin in enumerate(margins):
        part = slice(batch.indptr[i], batch.indptr[i + 1])
        fields, vectors = batch.field[part], batch.x[part, None] * table[batch.inverse[part]]
        h = np.zeros((3, 3))
        h[0] = candidate = vectors[fields == 0].sum(axis=0)
        for history, unit in ((2, layers[3:5]), (1, layers[5:7])):
            for vector in vectors[fields == history]:
                features = np.concatenate([candidate, vector, candidate - vector, candidate * vector])
                h[history] += output(features, unit) * vector
        assert margin == pytest.approx(output(h.reshape(-1), layers[:3])[0])


@pytest.mark.parametrize("kind", INTERACTIONS)
def test_architecture_when_saved_then_has_its_interaction(kind):
    architecture = _made(kind)[0]
    assert Architecture.from_json(json.loads(json.dumps(architecture.to_json()))) == architecture


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: CrossNetwork(0), "crossLayers"),
        (lambda: CompressedInteraction(()), "cinLayers"),
        (lambda: CompressedInteraction((4, 0)), "cinLayers"),
        (lambda: SelfAttention(1, 0), "numHeads"),
        (lambda: HistoryAttention(()), "histories"),
    ],
)
def test_interaction_when_a_size_is_wrong_then_named(make, name):
    with pytest.raises(ConfigError, match=f"{name}: expected at least"):
        make()


def test_activate_when_dropping_then_share_and_mean_stay():
    """Dropout keeps its share of the elements, and their mean."""
    z = np.ones((400, 300), np.float32)
    activate(z, np.zeros(300, np.float32), 0.7, 11)
    assert np.mean(z > 0) == pytest.approx(0.7, abs=0.01)
    assert z.mean() == pytest.approx(1.0, abs=0.01)


def test_activate_when_seeds_differ_then_other_elements():
    """Another seed drops other elements."""
    kept = []
    for seed in (1, 2 << 32):
        z = np.ones((50, 40))
        activate(z, np.zeros(40), 0.5, seed)
        kept.append(z > 0)
    assert 0.4 < np.mean(kept[0] == kept[1]) < 0.6


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e300])
def test_losses_when_weights_are_of_any_size_then_slopes_alike(scale):
    """Weights are divided by their mean in float64, before float32 would lose them."""
    rng = np.random.default_rng(0)
    weights, margins, labels = rng.random(6), rng.normal(size=6).astype(np.float32), np.arange(6) % 2
    _, expected = logistic_loss(margins, labels, weights, weights.mean())
    _, result = logistic_loss(margins, labels, weights * scale, weights.mean() * scale)
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    left, right = (x / np.linalg.norm(x, axis=1)[:, None] for x in rng.normal(size=(2, 6, 3)).astype(np.float32))
    inputs = np.arange(6), np.zeros(6)
    one, other = (
        softmax_loss(left, right, PositivePairs(*inputs, weights * by), 0.1, weights.mean() * by) for by in (1.0, scale)
    )
    np.testing.assert_allclose(other[1], one[1], rtol=1e-5)


@pytest.mark.parametrize("given", [{"kind": "other"}, {"hidden": (4, 0)}, {"dropout": 1.0}, {"deep": 5}, {"k": 0}])
def test_architecture_when_wrong_then_named(given):
    """An error names the part that is wrong."""
    right = {"kind": "deepfm", "k": 4, "fields": 3, "deep": 3, "hidden": (4,), "dropout": 0.0}
    with pytest.raises(ConfigError, match=next(iter(given))):
        Architecture(**{**right, **given})
