"""Dense parameters on the servers take the steps that torch's own optimizers take."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

from ps2.errors import ConfigError, DivergedError, DTypeError, UsageError
from ps2.torch import RemoteOptimizer

pytestmark = pytest.mark.usefixtures("ps")

STEPS = 8
OWN = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=0.1, eps=1e-8),
    "adam": lambda params: torch.optim.Adam(params, lr=0.1, eps=1e-8),
}


def network():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 1))


def losses(model, optimizer, steps=STEPS):
    rng = np.random.default_rng(0)
    result = []
    for _ in range(steps):
        x, y = (torch.from_numpy(rng.normal(size=(32, n)).astype(np.float32)) for n in (5, 1))
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        result.append(loss.item())
    return result


@pytest.mark.parametrize("name", OWN)
def test_optimizer_when_stepping_then_agrees_with_torch(name):
    theirs, ours = network(), network()
    expected = losses(theirs, OWN[name](theirs.parameters()))
    result = losses(ours, RemoteOptimizer(ours.parameters(), name, lr=0.1))
    np.testing.assert_allclose(result, expected, rtol=2e-5)


def test_optimizer_when_groups_differ_then_each_has_its_rate():
    theirs, ours = network(), network()

    def groups(model):
        return [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.01}]

    expected = losses(theirs, torch.optim.Adam(groups(theirs), lr=0.1))
    result = losses(ours, RemoteOptimizer(groups(ours), "adam", lr=0.1))
    np.testing.assert_allclose(result, expected, rtol=2e-5)


def test_optimizer_when_scheduled_then_sends_the_rate():
    model = network()
    optimizer = RemoteOptimizer(model.parameters(), "sgd", lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    before = model[0].weight.detach().clone()
    for expected in (1.0, 0.5):
        model[0].weight.grad = torch.ones_like(model[0].weight)
        optimizer.step()
        scheduler.step()
        before -= expected
        torch.testing.assert_close(model[0].weight.detach(), before)


def test_optimizer_when_pickled_with_module_then_both_work():
    model = network()
    optimizer = RemoteOptimizer(model.parameters(), "adam", lr=0.1)
    losses(model, optimizer, 2)
    copied, other = pickle.loads(pickle.dumps((model, optimizer)))
    losses(model, optimizer, 1)
    other.pull()
    torch.testing.assert_close(list(copied.parameters()), list(model.parameters()))


def test_optimizer_when_state_is_loaded_then_goes_on_alike():
    model = network()
    optimizer = RemoteOptimizer(model.parameters(), "adam", lr=0.1)
    losses(model, optimizer, 3)
    state, weights = optimizer.state_dict(), copy.deepcopy(model.state_dict())
    expected = losses(model, optimizer)
    again = network()
    again.load_state_dict(weights)
    loaded = RemoteOptimizer(again.parameters(), "adam", lr=0.5)
    loaded.load_state_dict(state)
    assert losses(again, loaded) == expected


def test_optimizer_when_not_pulling_then_module_stays():
    model = network()
    optimizer = RemoteOptimizer(model.parameters(), "sgd", lr=0.1)
    before = copy.deepcopy(model.state_dict())
    model(torch.ones(3, 5)).sum().backward()
    optimizer.step(pull=False)
    torch.testing.assert_close(model.state_dict(), before)


def test_optimizer_when_gradient_is_nan_then_sends_nothing():
    model = network()
    optimizer = RemoteOptimizer(model.parameters(), "adam", lr=0.1)
    before = copy.deepcopy(model.state_dict())
    (model(torch.ones(3, 5)).sum() * float("nan")).backward()
    with pytest.raises(DivergedError, match="not finite"):
        optimizer.step()
    optimizer.pull()
    torch.testing.assert_close(model.state_dict(), before)


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda model: RemoteOptimizer(model.parameters(), "lion"), ConfigError, "sgd, momentum, adagrad, adam"),
        (lambda model: RemoteOptimizer(model.half().parameters()), DTypeError, "torch.float16"),
        (lambda model: RemoteOptimizer(model.parameters()).add_param_group({"params": []}), UsageError, "groups"),
        (lambda model: RemoteOptimizer(model.parameters()).load_state_dict({}), UsageError, r"expected .*\[50\]"),
    ],
)
def test_optimizer_when_misused_then_error_says_why(make, error, said):
    with pytest.raises(error, match=said):
        make(network())


def test_optimizer_when_rate_is_negative_then_names_it():
    model = network()
    optimizer = RemoteOptimizer(model.parameters(), "sgd", lr=-1.0)
    model(torch.ones(3, 5)).sum().backward()
    with pytest.raises(ConfigError, match="lr"):
        optimizer.step()
