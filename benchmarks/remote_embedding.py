"""``RemoteEmbedding`` on local servers against ``nn.EmbeddingBag(sparse=True)`` in one process: rows/s and losses.

Both take the same steps of the same small model on the same generated batches, in turns. PyTorch is only in the
environment that ``make torch-test`` makes: run this by ``.venv-torch/bin/python -m benchmarks.remote_embedding``.
docs/performance/deep.md says how to read it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from statistics import median
from typing import Any, Literal

import numpy as np

from benchmarks import frame
from benchmarks.frame import Benchmark, Check, Line, Part, SkippedError, option
from ps2 import EmbeddingTable, PS2Context

if find_spec("torch") is not None:
    import torch

    from ps2.torch import RemoteEmbedding
    from ps2.torch.device import choose_device

IDS, K, ROWS, WIDTH = 1_000_000, 32, 4096, 40
SETTLE = 4
GOAL = 0.4
# Of losses in float32: each step may round anew.
TOLERANCE = 1e-5
Optimizer = Literal["sgd", "adagrad"]
RATES: dict[Optimizer, float] = {"sgd": 0.5, "adagrad": 0.05}
OWN: dict[Optimizer, Callable[[Any], Any]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=RATES["sgd"]),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=RATES["adagrad"], eps=1e-8),
}


@dataclass(frozen=True)
class Args(frame.Args):
    rounds: int = option(6, "Turns of four steps of each way.", least=1)
    servers: int = option(1, "Server processes.", least=1)
    threads: int = option(2, "Threads of torch, in each way.", least=1)
    device: str = option("cpu", "Where torch computes: cpu, or cuda, with nn.EmbeddingBag in the GPU's memory.")


@dataclass(frozen=True)
class Way:
    """One way to train: its name, a step that returns the loss, and what ends what is under way."""

    name: str
    step: Callable[[int], float]
    flush: Callable[[], object] = lambda: None


def skewed(args: Args) -> Part:
    """Compare with keys as in click logs: a few popular ones, many rare ones."""
    return _compared(args, "skewed")


def uniform(args: Args) -> Part:
    """Compare with uniform keys."""
    return _compared(args, "uniform")


def _compared(args: Args, keys: str) -> Part:
    if find_spec("torch") is None:
        raise SkippedError("no PyTorch: .venv-torch/bin/python has it after make torch-test")
    torch.set_num_threads(args.threads)
    torch.sparse.check_sparse_tensor_invariants.disable()  # as by default, but then torch warns
    lines: list[Line] = []
    checks: list[Check] = []
    batches, device = _batches(keys, SETTLE * (1 + args.rounds)), choose_device(args.device)
    with PS2Context.getOrCreate(servers=args.servers):
        for optimizer in RATES:
            (own, *others), losses, rates = _trained(optimizer, batches, device)
            for name in others:
                what = f"{optimizer}, {name}"
                lines.append(Line(what, own, "rows/s", GOAL, rates[own], rates[name]))
                if optimizer == "sgd":
                    difference = float(np.abs(np.array(losses[name]) / losses[own] - 1).max())
                    checks.append(Check(f"{what}: losses differ from torch's, relatively", difference, TOLERANCE))
    distinct = median(len(torch.unique(batch)) for batch, _ in batches)
    return Part(lines, checks, {"rows of a batch": ROWS, "keys of a row": WIDTH, "distinct": distinct, "k": K})


def _trained(
    optimizer: Optimizer, batches: list[tuple[Any, Any]], device: Any
) -> tuple[list[str], dict[str, list[float]], dict[str, list[float]]]:
    """Train in turns of a few steps; return the ways, their losses, and rows/s of each counted step."""
    variants, tables = _ways(optimizer, batches, device)
    rates: dict[str, list[float]] = {variant.name: [] for variant in variants}
    losses: dict[str, list[float]] = {variant.name: [] for variant in variants}
    for first in range(0, len(batches), SETTLE):
        for variant in variants:
            for number in range(first, first + SETTLE):
                began_s = time.perf_counter()
                losses[variant.name].append(variant.step(number))
                if number == first + SETTLE - 1:
                    variant.flush()
                if first:
                    rates[variant.name].append(ROWS / (time.perf_counter() - began_s))
    for table in tables:
        table.free()
    return [variant.name for variant in variants], losses, rates


def _batches(kind: str, count: int) -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(0)
    result = []
    for _ in range(count):
        keys = rng.integers(0, IDS, (ROWS, WIDTH))
        if kind == "skewed":
            keys = np.minimum((rng.pareto(0.8, (ROWS, WIDTH)) * 50).astype(np.int64), IDS - 1)
        result.append((torch.from_numpy(keys), torch.from_numpy(rng.normal(size=ROWS).astype(np.float32))))
    return result


def _ways(optimizer: Optimizer, batches: list[tuple[Any, Any]], device: Any) -> tuple[list[Way], list[EmbeddingTable]]:
    """Return the ways, torch's own first, whose weights begin alike."""
    weights = np.random.default_rng(1).normal(0, 0.01, (IDS, K)).astype(np.float32)
    own = torch.nn.EmbeddingBag.from_pretrained(torch.from_numpy(weights.copy()), freeze=False, mode="sum", sparse=True)
    own.to(device)
    variants, tables = [_own(own, OWN[optimizer](own.parameters()), batches, device)], []
    for name, wait in (("RemoteEmbedding", True), ("RemoteEmbedding, wait=False", False)):
        table = EmbeddingTable(K, optimizer, keys=IDS, lr=RATES[optimizer], init="zeros")
        _fill(table, weights)
        tables.append(table)
        module = RemoteEmbedding(table, "sum", wait=wait).to(device)
        variants.append(Way(name, _step(module, batches, device), module.flush))
    return variants, tables


def _fill(table: EmbeddingTable, weights: Any) -> None:
    """Write weights, and states of zeros, to all keys."""
    block = np.zeros((1 << 16, table.matrix.rows), np.float32)
    for begin in range(0, len(weights), len(block)):
        some = weights[begin : begin + len(block)]
        block[: len(some), :K] = some
        table.matrix.push(columns=np.arange(begin, begin + len(some)), values=block[: len(some)])


def _own(module: Any, optimizer: Any, batches: list[tuple[Any, Any]], device: Any) -> Way:
    forward = _step(module, [(keys.to(device), y) for keys, y in batches], device)

    def step(number: int) -> float:
        optimizer.zero_grad()
        loss = forward(number)
        optimizer.step()
        return loss

    return Way("nn.EmbeddingBag", step)


def _step(module: Any, batches: list[tuple[Any, Any]], device: Any) -> Callable[[int], float]:
    """Return a function that computes the loss of a batch, and its gradients."""
    torch.manual_seed(2)
    head = torch.nn.Linear(K, 1).to(device)

    def step(number: int) -> float:
        keys, y = batches[number]
        loss = ((head(module(keys)).squeeze(1) - y.to(device)) ** 2).mean()
        loss.backward()
        return loss.item()

    return step


BENCHMARK = Benchmark("remote_embedding", Args, {"skewed": skewed, "uniform": uniform}, packages=("torch",))

if __name__ == "__main__":
    BENCHMARK.main()
