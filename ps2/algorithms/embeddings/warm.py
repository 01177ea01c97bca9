"""Compile all kernels of embeddings before their first use (``python -m ps2.algorithms.embeddings.warm``)."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from ps2.algorithms.embeddings import ops
from ps2.algorithms.embeddings import walk_kernels as kernels
from ps2.algorithms.embeddings.batch_kernels import add_batch_losses
from ps2.algorithms.embeddings.plan import EmbeddingPlan
from ps2.algorithms.embeddings.sampling import Sampler, kind_of
from ps2.algorithms.embeddings.sampling_kernels import add_initial_vectors
from ps2.algorithms.embeddings.settings import BiasedWalkSettings, EmbeddingSettings, LINESettings, Word2VecSettings
from ps2.algorithms.embeddings.skipgrams import ops as skipgrams
from ps2.algorithms.embeddings.training_kernels import STATISTICS
from ps2.algorithms.embeddings.walks import LocalGraph, bias_of, start_walkers
from ps2.algorithms.embeddings.worker import RowNumbering
from ps2.ops.guards import readable


def warm() -> None:
    """Call every kernel on one vertex, with the array types of workers and servers."""
    zero = np.zeros(1, np.int64)
    settings = BiasedWalkSettings(numWalks=1, walkLength=2, p=2.0)
    bias = bias_of(settings)
    for weights in (None, np.ones(1)):
        LocalGraph.from_edges(zero, zero, weights, 1).walk(settings, zero)
    for dtype in (np.int32, np.int64):
        _run_graph_ops(dtype)
        state = start_walkers(settings, zero, 1, zero, np.dtype(dtype))
        active = zero.copy()
        kernels.propose(active, state, zero.copy(), np.zeros(1))
        neighbour = readable(np.zeros(1, dtype))
        kernels.settle(active, neighbour, state, bias, zero.copy(), zero.copy(), zero.copy())
        kernels.settle_undecided(active[:0], neighbour[:0], zero[:0].copy(), state, bias)
        kernels.list_unfinished(active, state, zero.copy())
        kernels.choose(neighbour, readable(np.empty(0)), readable(zero), zero[0], 0.0, bias)
        kernels.convert_addresses(state.walks, state.lengths, readable(zero), 1)
    _train()


def _train() -> None:
    """Train on a sentence of one word: all architectures, with and without subsampling."""
    all_settings: list[EmbeddingSettings] = [LINESettings(vectorSize=1, order="second")]
    for architecture, sample in product(("skipgram", "cbow"), (0.0, 1.0)):
        all_settings.append(Word2VecSettings(vectorSize=1, architecture=architecture, sample=sample))
    batch = np.zeros(2, np.int32), np.array([0, 2])
    for settings in all_settings:
        plan = EmbeddingPlan(settings=settings, vocabulary=1, total=1)
        sampler = Sampler.from_frequencies(plan, np.ones(1, np.int64))
        sampled = sampler.sample(sampler.subsample(batch, np.uint64(0)), np.uint64(0))
        table = np.zeros((1, 1), np.float32)
        sampled.train(table, table.copy(), 0.0)
        RowNumbering(plan).renumber(sampled)
        _train_on_server(kind_of(plan))
    add_initial_vectors(np.zeros((1, 1), np.float32), readable(np.zeros(1, np.int64)), np.uint64(0), 1.0)


def _train_on_server(kind: int) -> None:
    table, tokens, offsets = np.zeros((1, 2), np.float32), np.zeros(2, np.uint16), np.array([0, 2], np.uint16)
    arguments: dict[str, Any] = {"words": 1, "key": 0, "window": 1, "negative": 1, "kind": kind}
    tables = table, table.copy()
    products = skipgrams.find_products(*tables, tokens, offsets, **arguments)
    add_batch_losses(readable(products), np.zeros(STATISTICS))
    skipgrams.learn_from_products(*tables, tokens, offsets, products, **arguments, rate=0.0, workers=1)
    skipgrams.train_sentences(*tables, tokens, offsets, **arguments, rate=0.0)


def _run_graph_ops(dtype: Any) -> None:
    slot, random = np.zeros(1, np.int64), np.zeros(1)
    neighbour = np.zeros(1, dtype)
    pack, sums = np.array([[2, 2, 0]], dtype), np.zeros((1, 3))
    ops.add_neighbours(pack, slot, neighbour)
    ops.order_neighbours(pack)
    ops.draw_neighbours(pack, slot, random)
    ops.are_neighbours(pack, slot, neighbour)
    pack = np.array([[2, 2, 0]], dtype)
    ops.add_weighted_neighbours(pack, sums, slot, neighbour, np.ones(1))
    ops.order_weighted_neighbours(pack, sums)
    ops.draw_weighted_neighbours(pack, sums, slot, random)


if __name__ == "__main__":
    warm()
