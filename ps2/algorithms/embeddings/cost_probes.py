"""Measure the costs of moving and computing on small temporary tables, and predict those of each strategy.

Measured costs are remembered by machine, servers and sizes, so that a second training does not measure them again: a
file for each combination, in the user's cache folder. Programs may write one at the same time: a file is written
aside and renamed into place, so that a reader finds a whole one, whichever that is. If it is of no use, costs are
measured again.
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
from pathlib import Path
from typing import Any

import numpy as np

from ps2.algorithms.embeddings.damping import UpdateRates
from ps2.algorithms.embeddings.loops import arguments_of, batch_tokens, piece_tokens
from ps2.algorithms.embeddings.plan import EmbeddingPlan
from ps2.algorithms.embeddings.sampling import Sampler
from ps2.algorithms.embeddings.tables import SlicedTable, VectorTable, make_columns, make_row, put_aliases
from ps2.algorithms.embeddings.work import PASSES, STRATEGIES, UnitCosts, seconds_per_token, work_per_token
from ps2.algorithms.embeddings.worker import clock_tokens
from ps2.cgroups import usable_cores
from ps2.client.calibration import fastest
from ps2.ops.kernels import Float64s, Int64s
from ps2.version import __version__

log = logging.getLogger(__name__)

# The maximum size of these tables; the number of multiply-adds to measure.
MAX_BYTES = 4 << 20
MADDS = 1 << 27
SENTENCE = 40
BUDGET_S = 0.15
# A measured zero counts as this much, so that it does not decide the choice.
MIN_S = 1e-13
# The folder of the files instead of ps2/costs in the user's cache folder; "off": costs are measured each time.
VARIABLE = "PS2_COSTS"
OFF = "off"
# The machine, or its other programs, may differ after this time.
MAX_AGE_S = 30 * 24 * 3600.0


def predict_seconds(
    plan: EmbeddingPlan,
    frequencies: Int64s,
    servers: int,
    workers: int,
    threads: int,
    hosts: Sequence[str] | None = None,
) -> Float64s:
    """Predict the seconds per token of each of ``STRATEGIES`` from measurements; none if the settings name a strategy.
    Measurements are cached by the hosts of the servers; None: costs are measured again."""
    if plan.settings.via != "auto":
        return np.empty(0)
    sampler = Sampler.from_frequencies(plan, frequencies)
    parts = min(servers, plan.size)
    updates = UpdateRates.from_frequencies(plan, frequencies, sampler.chances).max_per_token
    piece = piece_tokens(plan, updates * workers, parts)
    clock = clock_tokens(plan.with_via("local"), workers)
    work = work_per_token(plan, frequencies, sampler.chances, clock, batch_tokens(plan), piece)
    costs = _costs(plan, servers, piece, hosts)
    # The measurements are those of one thread.
    costs = replace(costs, local_s=costs.local_s / threads)
    seconds = seconds_per_token(work, costs, parts, workers, plan.tables * plan.table_bytes)
    log.info("costs %s, work %s: seconds a token %s", costs, work, seconds)
    return np.array([seconds[name] for name in STRATEGIES])


def _costs(plan: EmbeddingPlan, servers: int, piece: int, hosts: Sequence[str] | None) -> UnitCosts:
    """Return the costs between this process and the servers, from an earlier training of about the same size if any."""
    if hosts is None:
        return measure(plan, servers, piece)
    key = {
        "servers": sorted(hosts),
        "size": plan.size,
        "negative": plan.settings.negative,
        "window": plan.window,
        "architecture": plan.architecture,
        "order": plan.order,
        "vocabulary": plan.vocabulary.bit_length(),
        "piece": piece.bit_length(),
    }
    return remembered(key, lambda: measure(plan, servers, piece))


def measure(plan: EmbeddingPlan, servers: int, piece: int) -> UnitCosts:
    """Return the costs between this process, with one core, and the servers of the context. Measure a request (or pair
    of requests) of "servers" with ``piece`` tokens, up to ``MADDS``."""
    words = max(2, min(plan.vocabulary, MAX_BYTES // (4 * plan.size)))
    rng = np.random.default_rng(plan.seed)
    small = replace(plan, vocabulary=words)
    each = PASSES * plan.size * (1 + plan.settings.negative) * (plan.window + 1)
    # A sentence of one word has no pairs.
    sentence = plan.tokens_per_example if plan.tokens_per_example > 1 else max(2, min(SENTENCE, piece))
    count = max(1, min(piece, MADDS // each) // sentence) * sentence
    tokens = rng.integers(0, words, count).astype(np.int32)
    offsets = np.arange(0, count + 1, sentence)
    sampler = Sampler.from_frequencies(small, np.ones(words, np.int64))
    batch = sampler.sample((tokens, offsets), np.uint64(0))
    local = rng.random((2, words, plan.size)).astype(np.float32) / plan.size
    with ExitStack() as cleanup:
        table = VectorTable(make_columns(small, None).matrix())
        cleanup.callback(table.free)
        slices: list[SlicedTable] = []
        for _ in range(2):
            slices.append(SlicedTable(small, make_row(small, servers, None).matrix()))
            cleanup.callback(slices[-1].free)
        put_aliases(slices[0], slices[1], sampler.thresholds, sampler.aliases)
        arguments = {"contexts": slices[1].matrix, **arguments_of(small, tokens, offsets, np.uint64(0))}
        learn = _learn_at_once if slices[0].parts == 1 else _learn_by_products
        products, moved = learn(slices[0], arguments)
        columns, zeros = np.arange(words), np.zeros((words, plan.size), np.float32)
        probes = (
            lambda: table.pull(np.zeros(1, np.int64)),
            table.pull,
            lambda: table.matrix.add(columns=columns, values=zeros),
            lambda: learn(slices[0], arguments),
            lambda: batch.train(local[0], local[-1 if plan.tables == 2 else 0], 1e-9),
        )
        request_s, pull_s, add_s, server_s, local_s = fastest(probes, BUDGET_S)
        requests = 1 if slices[0].parts == 1 else 2
    madds = PASSES * (products or count * plan.inputs_per_token * (1 + plan.settings.negative)) * plan.size
    byte_s = max(pull_s + add_s - 2 * request_s, 0.0) / (2 * zeros.nbytes)
    return UnitCosts(
        latency_s=request_s,
        byte_s=byte_s,
        local_s=max(local_s / madds, MIN_S),
        server_s=max((server_s - requests * request_s - moved * byte_s) / madds, MIN_S),
    )


def _learn_at_once(slices: SlicedTable, arguments: dict[str, Any]) -> tuple[int, int]:
    """Train by one request with a negligible step; return the number of products (0: unknown) and of bytes moved."""
    slices.matrix.apply("skipgrams.train_sentences", rate=0.0, **arguments)
    return 0, 0


def _learn_by_products(slices: SlicedTable, arguments: dict[str, Any]) -> tuple[int, int]:
    """The same by two requests."""
    products = slices.matrix.apply("skipgrams.find_products", **arguments)
    slices.matrix.apply("skipgrams.learn_from_products", products=products, rate=0.0, workers=1, **arguments)
    return products.size, 2 * products.nbytes * slices.parts


def remembered(key: Mapping[str, Any], measure: Callable[[], UnitCosts]) -> UnitCosts:
    """Return remembered costs, or measure and remember them; ``key``: what they depend on beside this machine, plain
    data."""
    folder = _folder()
    if folder is None:
        return measure()
    whole = {"machine": [platform.node(), platform.machine(), usable_cores()], "version": __version__, **key}
    text = json.dumps(whole, sort_keys=True)
    path = folder / f"embeddings-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    costs = _read(path)
    if costs is None:
        costs = measure()
        _write(path, {"key": whole, "measured_s": time.time(), "costs": asdict(costs)})
    return costs


def _folder() -> Path | None:
    setting = os.environ.get(VARIABLE, "")
    if setting.lower() == OFF:
        return None
    if setting:
        return Path(setting)
    home = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification ignores relative paths.
    if os.path.isabs(home):
        return Path(home, "ps2", "costs")
    with suppress(RuntimeError):  # no home
        return Path.home() / ".cache" / "ps2" / "costs"
    return None


def _read(path: Path) -> UnitCosts | None:
    """Return the costs of a file; None if there is none, it is old, or, with a warning, it cannot be used."""
    try:
        content = json.loads(path.read_bytes())
        costs = UnitCosts(**{field.name: float(content["costs"][field.name]) for field in fields(UnitCosts)})
        age_s = time.time() - float(content["measured_s"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("%s is ignored, and costs are measured again: %r", path, error)
        return None
    if not all(math.isfinite(cost) and cost >= 0 for cost in asdict(costs).values()):
        log.warning("%s is ignored, and costs are measured again: they are %s", path, costs)
        return None
    return costs if 0 <= age_s <= MAX_AGE_S else None


def _write(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file whole; a folder that cannot be written to is no fault of the training."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=path.stem, delete=False) as file:
            json.dump(content, file)
        os.replace(file.name, path)
    except OSError as error:
        log.info("costs are not remembered in %s: %s", path, error)
