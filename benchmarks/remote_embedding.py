"""``RemoteEmbedding`` on local servers against ``nn.EmbeddingBag(sparse=True)`` in one process: rows/s and losses.

    .venv-torch/bin/python -m benchmarks.remote_embedding

Both take the same steps of the same small model on the same generated batches, in turns. docs/performance/deep.md says
how to read it. PyTorch is only in the environment that ``make torch-test`` makes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

import click
import numpy as np
import torch

from benchmarks.frame import command, facts, machine, publish
from ps2 import EmbeddingTable, PS2Context
from ps2.torch import RemoteEmbedding

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
class Way:
    """One way to train: its name, a step that returns the loss, and what ends what is under way."""

    name: str
    step: Callable[[int], float]
    flush: Callable[[], object] = lambda: None


@command(
    click.option("--steps", type=click.IntRange(1), default=24, help="Steps of each way, after four others."),
    click.option("--servers", type=click.IntRange(1), default=1, help="Server processes."),
    click.option("--threads", type=click.IntRange(1), default=2, help="Threads of torch, in each way."),
    click.option("--strict", is_flag=True, help="Exit with 1 if a goal is missed."),
)
def main(steps: int, servers: int, threads: int, strict: bool, form: str, output: Path | None) -> None:
    """Compare rows/s and losses."""
    torch.set_num_threads(threads)
    torch.sparse.check_sparse_tensor_invariants.disable()  # as by default, but then torch warns
    lines = []
    with PS2Context.getOrCreate(servers=servers):
        for keys in ("skewed", "uniform"):
            for optimizer in RATES:
                click.echo(f"measuring: {keys} keys, {optimizer}", err=True)
                lines += _measure(keys, optimizer, steps)
    report = {"machine": machine(torch=torch.__version__), "servers": servers, "threads": threads, "lines": lines}
    publish(report, form, output, lambda: _print(report))
    losses_agree = all(line["difference"] <= TOLERANCE for line in lines if line["optimizer"] == "sgd")
    fast = all(line["met"] is not False for line in lines)
    sys.exit(0 if losses_agree and (fast or not strict) else 1)


def _measure(kind: str, optimizer: Optimizer, steps: int) -> list[dict[str, Any]]:
    batches = _batches(kind, SETTLE + steps)
    distinct = median(len(torch.unique(keys)) for keys, _ in batches)
    ways, tables = _ways(optimizer, batches)
    seconds: dict[str, list[float]] = {way.name: [] for way in ways}
    losses: dict[str, list[float]] = {way.name: [] for way in ways}
    # In turns of a few steps, so that what else the machine does meets all ways alike.
    for first in range(0, SETTLE + steps, SETTLE):
        for way in ways:
            for number in range(first, min(first + SETTLE, SETTLE + steps)):
                began_s = time.perf_counter()
                losses[way.name].append(way.step(number))
                if number % SETTLE == SETTLE - 1:
                    way.flush()
                seconds[way.name].append(time.perf_counter() - began_s)
    for table in tables:
        table.free()
    base = ways[0].name
    found = []
    for way in ways:
        step_s = median(seconds[way.name][SETTLE:])
        ratio = median(seconds[base][SETTLE:]) / step_s
        found.append(
            {
                "keys": kind,
                "distinct": distinct,
                "optimizer": optimizer,
                "way": way.name,
                "rows/s": round(ROWS / step_s),
                "ratio": ratio,
                "difference": float(np.abs(np.array(losses[way.name]) / losses[base] - 1).max()),
                "goal": GOAL if way is not ways[0] else None,
                "met": ratio >= GOAL if way is not ways[0] else None,
            }
        )
    return found


def _batches(kind: str, count: int) -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(count):
        keys = rng.integers(0, IDS, (ROWS, WIDTH))
        if kind == "skewed":
            keys = np.minimum((rng.pareto(0.8, (ROWS, WIDTH)) * 50).astype(np.int64), IDS - 1)
        found.append((torch.from_numpy(keys), torch.from_numpy(rng.normal(size=ROWS).astype(np.float32))))
    return found


def _ways(optimizer: Optimizer, batches: list[tuple[Any, Any]]) -> tuple[list[Way], list[EmbeddingTable]]:
    """Return the ways, torch's own first, whose weights begin alike."""
    weights = np.random.default_rng(1).normal(0, 0.01, (IDS, K)).astype(np.float32)
    own = torch.nn.EmbeddingBag.from_pretrained(torch.from_numpy(weights.copy()), freeze=False, mode="sum", sparse=True)
    ways, tables = [_own(own, OWN[optimizer](own.parameters()), batches)], []
    for name, wait in (("RemoteEmbedding", True), ("RemoteEmbedding, wait=False", False)):
        table = EmbeddingTable(K, optimizer, keys=IDS, lr=RATES[optimizer], init="zeros")
        _fill(table, weights)
        tables.append(table)
        module = RemoteEmbedding(table, "sum", wait=wait)
        ways.append(Way(name, _step(module, batches), module.flush))
    return ways, tables


def _fill(table: EmbeddingTable, weights: Any) -> None:
    """Write weights, and states of zeros, to all keys."""
    block = np.zeros((1 << 16, table.matrix.rows), np.float32)
    for begin in range(0, len(weights), len(block)):
        some = weights[begin : begin + len(block)]
        block[: len(some), :K] = some
        table.matrix.push(columns=np.arange(begin, begin + len(some)), values=block[: len(some)])


def _own(module: Any, optimizer: Any, batches: list[tuple[Any, Any]]) -> Way:
    forward = _step(module, batches)

    def step(number: int) -> float:
        optimizer.zero_grad()
        loss = forward(number)
        optimizer.step()
        return loss

    return Way("nn.EmbeddingBag", step)


def _step(module: Any, batches: list[tuple[Any, Any]]) -> Callable[[int], float]:
    """Return a function that computes the loss of a batch, and its gradients."""
    torch.manual_seed(2)
    head = torch.nn.Linear(K, 1)

    def step(number: int) -> float:
        keys, y = batches[number]
        loss = ((head(module(keys)).squeeze(1) - y) ** 2).mean()
        loss.backward()
        return loss.item()

    return step


def _print(report: dict[str, Any]) -> None:
    click.echo(facts(report["machine"]))
    click.echo(
        f"{report['servers']} servers; {report['threads']} threads of torch; {ROWS} rows of {WIDTH} keys, k = {K}"
    )
    for line in report["lines"]:
        verdict = "" if line["met"] is None else f"  (goal {line['goal']:g}{'' if line['met'] else ': MISSED'})"
        click.echo(
            f"{line['keys']:8} {line['distinct']:>9,.0f} distinct  {line['optimizer']:8} {line['way']:28}"
            f"{line['rows/s']:>10,} rows/s  {line['ratio']:5.2f} x{verdict}  losses differ by {line['difference']:.1e}"
        )


if __name__ == "__main__":
    main()
