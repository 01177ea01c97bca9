"""An embedding on the servers computes what torch's own computes in one process."""

from __future__ import annotations

import copy

import cloudpickle
import numpy as np
import pytest
import torch

from ps2 import EmbeddingTable
from ps2.errors import ConfigError, DTypeError, OutOfRangeError, ShapeError, UsageError
from ps2.torch import RemoteEmbedding

pytestmark = pytest.mark.usefixtures("ps")

KEYS, K, ROWS, WIDTH, STEPS = 200, 8, 64, 5, 6
LR = 0.5


def random_table():
    """Return a table whose weights are random."""
    table, rng = EmbeddingTable(K, "sgd", keys=KEYS, lr=LR), np.random.default_rng(4)
    return table.push(np.arange(KEYS), rng.normal(size=(KEYS, K)).astype(np.float32))


def weights_of(table, keys=KEYS):
    return torch.from_numpy(table.pull(np.arange(keys)))


def own(table, mode):
    """Return torch's embedding with the table's weights."""
    if mode == "none":
        return torch.nn.Embedding.from_pretrained(weights_of(table), freeze=False, sparse=True)
    return torch.nn.EmbeddingBag.from_pretrained(weights_of(table), freeze=False, mode=mode, sparse=True)


def batches(steps=STEPS):
    rng = np.random.default_rng(3)
    for _ in range(steps):
        keys = torch.from_numpy(rng.integers(0, KEYS, (ROWS, WIDTH)))
        yield keys, torch.from_numpy(rng.normal(size=(ROWS, K)).astype(np.float32))


def loss_of(module, keys, y):
    result = module(keys)
    return (((result.sum(dim=1) if result.dim() == 3 else result) - y) ** 2).mean()


@pytest.mark.parametrize("mode", ["none", "sum", "mean"])
@pytest.mark.parametrize("wait", [True, False])
def test_embedding_when_trained_then_losses_are_torchs(mode, wait):
    table = random_table()
    theirs, ours = own(table, mode), RemoteEmbedding(table, mode, wait=wait)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=LR)
    for keys, y in batches():
        optimizer.zero_grad()
        expected, result = loss_of(theirs, keys, y), loss_of(ours, keys, y)
        expected.backward()
        result.backward()
        optimizer.step()
        assert result.item() == pytest.approx(expected.item(), rel=1e-6)
    ours.flush()
    torch.testing.assert_close(weights_of(table), theirs.weight.detach(), rtol=1e-5, atol=1e-6)


def test_embedding_when_bags_are_ragged_then_sums_are_torchs():
    table = random_table()
    theirs, ours = own(table, "sum"), RemoteEmbedding(table, "sum")
    keys, offsets = torch.tensor([3, 7, 3, 9, 1]), torch.tensor([0, 2, 2, 3])
    weights = torch.tensor([1.0, 2.0, 0.5, -1.0, 3.0])
    result = ours(keys, offsets, weights)
    torch.testing.assert_close(result, theirs(keys, offsets, weights))
    before = weights_of(table)
    result.sum().backward()
    expected = before.clone()
    expected[[1, 3, 7, 9]] -= LR * torch.tensor([[3.0], [1.5], [2.0], [-1.0]])
    torch.testing.assert_close(weights_of(table), expected)


def test_embedding_when_weights_need_gradients_then_get_them():
    bag = RemoteEmbedding(random_table(), "sum")
    theirs = own(bag.table, "sum")
    keys = torch.tensor([[1, 2], [2, 3]])
    result, expected = (torch.ones(2, 2, requires_grad=True) for _ in range(2))
    theirs(keys, per_sample_weights=expected).sum().backward()
    bag(keys, per_sample_weights=result).sum().backward()
    torch.testing.assert_close(result.grad, expected.grad)


def test_embedding_when_prefetched_then_answer_is_used():
    table = random_table()
    module, keys = RemoteEmbedding(table), torch.tensor([[5, 6], [6, 7]])
    before = module(keys).detach()
    module.prefetch(keys)
    table._reads._reads[next(iter(table._reads._reads))].wait()
    table.push(keys.numpy(), np.ones((2, 2, K), np.float32))
    torch.testing.assert_close(module(keys).detach(), before)
    assert not torch.equal(module(keys).detach(), before)


def test_embedding_when_prefetched_others_then_pulls_anew():
    table = random_table()
    module = RemoteEmbedding(table)
    module.prefetch(torch.tensor([1, 2]))
    torch.testing.assert_close(module(torch.tensor([2, 3])).detach(), weights_of(table)[[2, 3]])


def test_embedding_when_there_is_no_grad_then_only_reads():
    module = RemoteEmbedding(EmbeddingTable(K, "sgd"))
    with torch.no_grad():
        result = module(torch.tensor([2**62, 0]))
    assert not result.requires_grad
    assert module.table.keysCount() == 0


def test_embedding_when_in_a_module_then_has_no_parameters():
    net = torch.nn.Sequential(RemoteEmbedding(EmbeddingTable(K), "sum"), torch.nn.Linear(K, 1))
    assert list(net.state_dict()) == ["1.weight", "1.bias"]
    assert len(list(net.parameters())) == 2


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda module: cloudpickle.loads(cloudpickle.dumps(module))])
def test_embedding_when_copied_then_shares_the_table(copied):
    module = RemoteEmbedding(EmbeddingTable(K, "sgd", keys=KEYS, init="zeros"), "sum")
    other = copied(torch.nn.ModuleList([module]))[0]
    other(torch.tensor([[1, 2]])).sum().backward()
    assert module(torch.tensor([[1]])).abs().sum() > 0


def test_embedding_when_batch_is_empty_then_output_is():
    module = RemoteEmbedding(EmbeddingTable(K), "sum")
    result = module(torch.empty(0, 3, dtype=torch.int64))
    result.sum().backward()
    assert result.shape == (0, K)


def test_embedding_when_gradient_is_nan_then_pushes_nothing():
    module = RemoteEmbedding(EmbeddingTable(K))
    with pytest.raises(OutOfRangeError, match="nan for key 4"):
        (module(torch.tensor([4])).sum() * float("nan")).backward()
    assert module.table.keysCount() == 0


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda bag: bag([[1]]), DTypeError, "tensor of int64, got list"),
        (lambda bag: bag(torch.ones(1, 2)), DTypeError, "torch.float32"),
        (lambda bag: bag(torch.tensor([1, 2])), ShapeError, r"got shape \(2,\)"),
        (lambda bag: bag(torch.tensor([[-1]])), OutOfRangeError, "-1"),
        (lambda bag: RemoteEmbedding(bag.table)(torch.tensor([1]), torch.tensor([0])), UsageError, "'none'"),
        (lambda bag: RemoteEmbedding(bag.table, "max"), ConfigError, "none, sum, mean"),
        (lambda bag: RemoteEmbedding(8), DTypeError, "EmbeddingTable, got int"),
        (
            lambda bag: RemoteEmbedding(bag.table, "mean")(torch.tensor([[1]]), per_sample_weights=torch.ones(1, 1)),
            UsageError,
            "expected mode 'sum'",
        ),
    ],
)
def test_embedding_when_misused_then_error_says_why(call, error, said):
    with pytest.raises(error, match=said):
        call(RemoteEmbedding(EmbeddingTable(K), "sum"))
