"""Devices of modules. No test machine has a GPU: a CPU device whose memory counts as apart takes the same code path."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from test_remote_embedding import K, batches, loss_of, own, random_table, weights_of
from test_remote_optimizer import losses, network
from test_torch_training import learn, rows

from ps2.errors import ConfigError
from ps2.torch import Bags, RemoteEmbedding, RemoteOptimizer, device, training
from ps2.torch.device import batch_to, choose_device, copy_in, copy_out, host_keys
from tests.in_process import training_context

CPU = torch.device("cpu")


@pytest.fixture
def copies(monkeypatch):
    """Let the CPU be a device with memory of its own; return the sizes of the copies to it ("in") and from it."""
    sizes = {"in": [], "out": []}

    def send(buffer, target):
        sizes["in"].append(len(buffer))
        return buffer.to(target, copy=True)

    def receive(buffer, tensor):
        sizes["out"].append(len(buffer))
        buffer.view(tensor.dtype).copy_(tensor.reshape(-1))

    for name, fake in (("is_apart", lambda one: True), ("send", send), ("receive", receive)):
        monkeypatch.setattr(device, name, fake)
    monkeypatch.setattr("ps2.torch.embedding.is_apart", lambda one: True)
    return sizes


@pytest.fixture
def gpus(monkeypatch):
    """Return a function that sets the number of GPUs that PyTorch finds."""

    def find(count):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return find


def test_copies_when_device_is_apart_then_one_brings_all(copies):
    arrays = [np.arange(3, dtype=np.float32), np.zeros((0, 2)), np.arange(5), np.array([[True, False]]), np.array(2.5)]
    result = copy_in(arrays, CPU)
    assert copies == {"in": [96], "out": []}
    for tensor, array in zip(result, arrays, strict=True):
        np.testing.assert_array_equal(copy_out(tensor), array)
        assert copy_out(tensor).dtype == array.dtype
        assert copy_out(tensor).shape == array.shape


def test_batch_when_on_a_device_then_keys_stay_known(copies):
    keys, bags = torch.arange(4).view(2, 2), Bags(torch.arange(3), torch.tensor([0, 1, 3]))
    numbers, moved, stayed = batch_to(CPU, [torch.ones(2), keys, bags])
    assert len(copies["in"]) == 1
    assert host_keys(moved) is keys
    assert stayed is bags
    assert torch.equal(numbers, torch.ones(2))
    moved += 7
    assert torch.equal(host_keys(moved), keys + 7)


@pytest.mark.usefixtures("ps")
@pytest.mark.parametrize("mode", ["none", "sum", "mean"])
def test_embedding_on_a_device_then_one_copy_a_direction(mode, copies):
    table = random_table()
    theirs, ours = own(table, mode), RemoteEmbedding(table, mode)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.5)
    for keys, y in batches():
        optimizer.zero_grad()
        expected, result = loss_of(theirs, keys, y), loss_of(ours, keys, y)
        expected.backward()
        backward = threading.Thread(target=result.backward)  # a GPU's backward pass has a thread of its own
        backward.start()
        backward.join()
        optimizer.step()
        assert result.item() == pytest.approx(expected.item(), rel=1e-6)
        distinct = len(torch.unique(keys))
        assert copies == {"in": [distinct * K * 4 + keys.numel() * 8], "out": [distinct * K * 4]}
        copies["in"].clear()
        copies["out"].clear()
    torch.testing.assert_close(weights_of(table), theirs.weight.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("ps")
def test_bags_on_a_device_then_offsets_and_weights_travel(copies):
    table = random_table()
    theirs, ours = own(table, "sum"), RemoteEmbedding(table, "sum")
    bounds, keys, weights = torch.tensor([0, 2, 2, 4]), torch.tensor([3, 7, 3, 9]), torch.tensor([1.0, 2.0, 0.5, -1.0])
    result = ours(Bags(keys, bounds), per_sample_weights=Bags(weights, bounds))
    torch.testing.assert_close(result, theirs(keys, bounds[:-1], weights))
    assert len(copies["in"]) == 1
    learned = weights.clone().requires_grad_()
    ours(keys, bounds[:-1], learned).sum().backward()
    torch.testing.assert_close(learned.grad, theirs.weight.detach()[keys].sum(dim=1))


@pytest.mark.usefixtures("ps")
def test_embedding_on_a_device_when_empty_then_output_is(copies):
    for mode, shape in (("sum", (0, K)), ("none", (0, 3, K))):
        result = RemoteEmbedding(random_table(), mode)(torch.empty(0, 3, dtype=torch.int64))
        result.sum().backward()
        assert result.shape == shape


@pytest.mark.usefixtures("ps")
def test_optimizer_on_a_device_then_one_copy_a_direction(copies):
    theirs, ours = network(), network()
    expected = losses(theirs, torch.optim.Adam(theirs.parameters(), lr=0.1))
    optimizer = RemoteOptimizer(ours.parameters(), "adam", lr=0.1)
    copies["out"].clear()  # the initial parameters
    np.testing.assert_allclose(losses(ours, optimizer), expected, rtol=2e-5)
    assert copies == {"in": [208] * 8, "out": [200] * 8}


def test_training_on_a_device_then_steps_are_those_of_the_cpu(request):
    """A step copies minibatch, vectors and parameters to the device, and the gradients of both from it."""
    with training_context() as ps:
        expected = learn(ps, rows(), held_out="", epochs=2)[1].objective
        copies = request.getfixturevalue("copies")
        result = learn(ps, rows(), held_out="", epochs=2)[1].objective
    np.testing.assert_allclose(result, expected, rtol=1e-5)
    others = 2  # the initial parameters, from the device; the first pull and the last one, to it
    assert (len(copies["in"]), len(copies["out"])) == (3 * len(result) + others, 2 * len(result) + 1)


def test_training_when_workers_share_a_host_then_ranks_are_local(monkeypatch):
    ranks = []
    monkeypatch.setattr(training, "choose_device", lambda name, local_rank: ranks.append((name, local_rank)) or CPU)
    with training_context() as ps:
        learn(ps, rows(), workers=3, device="cuda")
    assert sorted(ranks) == [("cuda", rank) for rank in range(3)]


def test_device_when_workers_share_a_host_then_gpus_take_turns(gpus):
    gpus(2)
    assert [str(choose_device("cuda", rank)) for rank in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert [str(choose_device(name, 1)) for name in ("auto", "cuda:0", "cpu")] == ["cuda:1", "cuda:0", "cpu"]


def test_device_when_spark_assigns_a_gpu_then_takes_it(gpus, monkeypatch):
    gpus(4)
    context = SimpleNamespace(resources=lambda: {"gpu": SimpleNamespace(addresses=["3"])})
    monkeypatch.setattr(device, "task_context", lambda: context)
    assert [str(choose_device(name)) for name in ("auto", "cuda", "cuda:1")] == ["cuda:3", "cuda:3", "cuda:1"]
    gpus(2)  # the process sees only its own
    assert str(choose_device("cuda", 1)) == "cuda:1"


def test_device_when_there_is_no_gpu_then_error_says_so(gpus):
    gpus(0)
    assert choose_device("auto") == CPU
    with pytest.raises(ConfigError, match="because PyTorch finds no GPU on this host, got 'cuda'"):
        choose_device("cuda")
    gpus(2)
    with pytest.raises(ConfigError, match="expected a GPU below cuda:2, because this host has 2, got 'cuda:2'"):
        choose_device("cuda:2")
