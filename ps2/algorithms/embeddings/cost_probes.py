"""Measure the costs of training on small temporary tables, and predict the time of each strategy.

Measured costs are cached in the user's cache folder: a JSON file for each combination of machine, servers and sizes. A
program writes a temporary file and renames it, so readers always find complete files. Invalid files are ignored.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import platform
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ps2.algorithms.embeddings.damping import UpdateRates
from ps2.algorithms.embeddings.plan import EmbeddingPlan
from ps2.algorithms.embeddings.sampling import Sampler
from ps2.algorithms.embeddings.tables import SlicedTable, VectorTable, make_columns, make_row, put_aliases
from ps2.algorithms.embeddings.work import PASSES, STRATEGIES, UnitCosts, seconds_per_token, work_per_token
from ps2.algorithms.embeddings.worker import arguments_of, batch_tokens, clock_tokens, minibatch_tokens
from ps2.cgroups import usable_cores
from ps2.client.calibration import fastest
from ps2.ops.kernels import Float64s, Int64s
from ps2.version import __version__

log = logging.getLogger(__name__)

# The maximum size of a temporary table.
MAX_BYTES = 4 << 20
# The maximum number of multiply-adds of a probe, the length of its sentences, and the seconds for all probes.
MADDS, SENTENCE, BUDGET_S = 1 << 27, 40, 0.15
# The minimum seconds of a multiply-add. With a measured 0, a strategy would cost nothing.
MIN_S = 1e-13
# The environment variable with the folder of cached costs; "off": costs are not cached.
VARIABLE, OFF = "PS2_COSTS", "off"
# Files older than this are ignored, because the machine or its load can have changed.
MAX_AGE_S = 30 * 24 * 3600.0


def predict_seconds(
    plan: EmbeddingPlan,
    frequencies: Int64s,
    servers: int,
    workers: int,
    threads: int,
    hosts: Sequence[str] | None = None,
) -> Float64s:
    """Predict the seconds per token of each of ``STRATEGIES``; return an empty array if ``via`` names a strategy.

    ``hosts``: the hosts of the servers, part of the cache's key; None: measure without the cache.
    """
    if plan.settings.via != "auto":
        return np.empty(0)
    sampler = Sampler.from_frequencies(plan, frequencies)
    num_slices = min(servers, plan.size)
    updates = UpdateRates.from_frequencies(plan, frequencies, sampler.negative_probabilities).max_per_token
    minibatch = minibatch_tokens(plan, updates * workers, num_slices)
    clock = clock_tokens(plan.with_via("local"), workers)
    work = work_per_token(plan, frequencies, sampler.negative_probabilities, clock, batch_tokens(plan), minibatch)
    key = {
        "servers": sorted(hosts or ()),
        "size": plan.size,
        "negative": plan.settings.negative,
        "window": plan.window,
        "architecture": plan.architecture,
        "order": plan.order,
        "vocabulary": plan.vocabulary.bit_length(),
        "piece": minibatch.bit_length(),
    }
    costs = (
        measure(plan, servers, minibatch)
        if hosts is None
        else cached_costs(key, partial(measure, plan, servers, minibatch))
    )
    # The probe used one thread.
    costs = replace(costs, local_s=costs.local_s / threads)
    seconds = seconds_per_token(work, costs, num_slices, workers, plan.tables * plan.table_bytes)
    log.info("costs %s, work %s: seconds a token %s", costs, work, seconds)
    return np.array([seconds[name] for name in STRATEGIES])


def measure(plan: EmbeddingPlan, servers: int, minibatch: int) -> UnitCosts:
    """Measure one core of this process, and the servers with requests of ``minibatch`` tokens, or fewer (``MADDS``)."""
    words = max(2, min(plan.vocabulary, MAX_BYTES // (4 * plan.size)))
    rng = np.random.default_rng(plan.seed)
    small_plan = replace(plan, vocabulary=words)
    token_madds = PASSES * plan.size * (1 + plan.settings.negative) * (plan.window + 1)
    # A sentence of one word has no pairs.
    sentence = plan.tokens_per_example if plan.tokens_per_example > 1 else max(2, min(SENTENCE, minibatch))
    count = max(1, min(minibatch, MADDS // token_madds) // sentence) * sentence
    tokens = rng.integers(0, words, count).astype(np.int32)
    offsets = np.arange(0, count + 1, sentence)
    sampler = Sampler.from_frequencies(small_plan, np.ones(words, np.int64))
    batch = sampler.sample((tokens, offsets), np.uint64(0))
    local = rng.random((2, words, plan.size)).astype(np.float32) / plan.size
    with ExitStack() as cleanup:
        table = VectorTable(make_columns(small_plan, None).matrix())
        cleanup.callback(table.free)
        slices: list[SlicedTable] = []
        for _ in range(2):
            slices.append(SlicedTable(small_plan, make_row(small_plan, servers, None).matrix()))
            cleanup.callback(slices[-1].free)
        put_aliases(slices[0], slices[1], sampler.thresholds, sampler.aliases)
        arguments = {"contexts": slices[1].matrix, **arguments_of(small_plan, tokens, offsets, np.uint64(0))}
        learn = _learn_at_once if slices[0].num_slices == 1 else _learn_by_products
        products, moved_bytes = learn(slices[0], arguments)
        columns, zeros = np.arange(words), np.zeros((words, plan.size), np.float32)
        probes = (
            lambda: table.pull(np.zeros(1, np.int64)),
            table.pull,
            lambda: table.matrix.add(columns=columns, values=zeros),
            lambda: learn(slices[0], arguments),
            lambda: batch.train(local[0], local[-1 if plan.tables == 2 else 0], 1e-9),
        )
        request_s, pull_s, add_s, server_s, local_s = fastest(probes, BUDGET_S)
        requests = 1 if slices[0].num_slices == 1 else 2
    madds = PASSES * (products or count * plan.inputs_per_token * (1 + plan.settings.negative)) * plan.size
    byte_s = max(pull_s + add_s - 2 * request_s, 0.0) / (2 * zeros.nbytes)
    return UnitCosts(
        latency_s=request_s,
        byte_s=byte_s,
        local_s=max(local_s / madds, MIN_S),
        server_s=max((server_s - requests * request_s - moved_bytes * byte_s) / madds, MIN_S),
    )


def _learn_at_once(slices: SlicedTable, arguments: dict[str, Any]) -> tuple[int, int]:
    """Train in one request with a step size of 0; return the numbers of products (0: unknown) and of bytes moved."""
    slices.matrix.apply("skipgrams.train_sentences", rate=0.0, **arguments)
    return 0, 0


def _learn_by_products(slices: SlicedTable, arguments: dict[str, Any]) -> tuple[int, int]:
    """Like ``_learn_at_once``, in two requests."""
    products = slices.matrix.apply("skipgrams.find_products", **arguments)
    slices.matrix.apply("skipgrams.learn_from_products", products=products, rate=0.0, workers=1, **arguments)
    return products.size, 2 * products.nbytes * slices.num_slices


def cached_costs(key: Mapping[str, Any], measure: Callable[[], UnitCosts]) -> UnitCosts:
    """Return the cached costs of ``key`` (plain data) on this machine; measure and cache them if there are none."""
    if (folder := _folder()) is None:
        return measure()
    full_key = {"machine": [platform.node(), platform.machine(), usable_cores()], "version": __version__, **key}
    text = json.dumps(full_key, sort_keys=True)
    path = folder / f"embeddings-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    if (costs := _read(path)) is not None:
        return costs
    costs = measure()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=path.stem, delete=False) as file:
            json.dump({"key": full_key, "measured_s": time.time(), "costs": asdict(costs)}, file)
        os.replace(file.name, path)
    except OSError as error:  # the training does not need the file
        log.info("costs are not cached in %s: %s", path, error)
    return costs


def _folder() -> Path | None:
    """Return the folder of cached costs; None: costs are not cached."""
    setting, home = os.environ.get(VARIABLE, ""), os.environ.get("XDG_CACHE_HOME", "")
    if setting:
        return None if setting.lower() == OFF else Path(setting)
    with suppress(RuntimeError):  # the user has no home folder
        # The XDG Base Directory Specification says to ignore relative paths.
        return Path(home if os.path.isabs(home) else Path.home() / ".cache", "ps2", "costs")
    return None


def _read(path: Path) -> UnitCosts | None:
    """Return the costs in a file; None: the file is missing, old or (with a warning) invalid."""
    try:
        content = json.loads(path.read_bytes())
        costs = UnitCosts(**{field.name: float(content["costs"][field.name]) for field in fields(UnitCosts)})
        if not all(math.isfinite(cost) and cost >= 0 for cost in asdict(costs).values()):
            raise ValueError(f"expected finite costs that are not negative, got {costs}")
        return costs if 0 <= time.time() - float(content["measured_s"]) <= MAX_AGE_S else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("%s is ignored, and costs are measured again: %r", path, error)
        return None
