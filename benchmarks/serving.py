"""Exports of a table on servers, whole and of what changed, and a Scorer that takes them while it is asked.

Scores are those of a factorization machine, and of a DeepFM with layers of (400, 400), a row of 40 keys each.

    python -m benchmarks.serving --keys 20000000
    python -m benchmarks.serving --keys 1000000 --folder /tmp/exports

docs/performance/online.md says what is measured and how to read it.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from benchmarks.frame import Check, Part, command, exit_code, machine, print_parts, publish, tell
from ps2 import EmbeddingTable, PS2Context
from ps2.algorithms.deep.architecture import Architecture
from ps2.serving import Scorer
from ps2.storage.export_writing import Content, write_export
from ps2.storage.exports import Description

K, KEYS_OF_ROW = 16, 40
TOUCHED, REFRESHES = 0.01, 5
DEEP_KEYS, LAYERS = 1_000_000, (400, 400)
PUSHED = 1 << 18
ROWS = 20_000
MODEL: dict[str, Any] = {"kind": "fm", "dense": {"bias": np.zeros(1)}}


@command(
    click.option("--keys", type=click.IntRange(1000), default=2_000_000, help="Keys of the table."),
    click.option("--servers", type=click.IntRange(1), default=1, help="Servers of the fleet."),
    click.option("--folder", default="", help="Where exports go; a folder for temporary files if not given."),
    click.option("--strict", is_flag=True, help="Exit with 1 if a goal is missed, too."),
)
def main(keys: int, servers: int, folder: str, strict: bool, form: str, output: Path | None) -> None:
    """Export a table and what changed of it, and score with both."""
    place = tempfile.mkdtemp(prefix="ps2-serving-", dir=folder or None)
    try:
        with PS2Context.getOrCreate(servers=servers):
            checks, facts = _measured(keys, place)
    finally:
        shutil.rmtree(place)
    part = Part(checks=checks, facts={"keys": keys, "weights of a key": K, "servers": servers, **facts}).as_json()
    report = {"machine": machine(numpy=np.__version__), "rounds": 1, "parts": {"serving": part}}
    publish(report, form, output, lambda: print_parts(report, lambda _: None))
    sys.exit(exit_code(report, strict))


def _measured(count: int, place: str) -> tuple[list[Check], dict[str, Any]]:
    rng = np.random.default_rng(0)
    keys = np.unique(rng.integers(0, 2**63 - 1, count))
    table = EmbeddingTable(K, "adagrad", lr=0.1, zeroColumns=1)
    _push(table, keys, rng)
    tell(f"{len(keys):,} keys pushed")
    full, full_s = _timed(lambda: table.export(place, **MODEL))
    scorer, load_s = _timed(lambda: Scorer(place))
    tell(f"export {full_s:.2f} s, {full.nbytes / 1e6:,.0f} MB; load {load_s:.2f} s")
    rows = rng.choice(keys, (ROWS, KEYS_OF_ROW))
    still = _latencies(scorer, rows, threading.Event(), ROWS)
    latencies, refreshes_s = [], []
    for number in range(REFRESHES):
        touched = np.sort(rng.choice(keys, int(len(keys) * TOUCHED), replace=False))
        _push(table, touched, rng)
        one, one_s = _timed(lambda: table.export(place, since="last", **MODEL))
        if not number:
            delta, delta_s = one, one_s
            tell(f"delta {delta_s:.3f} s, {delta.nbytes / 1e6:,.1f} MB, full: {delta.full} {delta.reason or ''}")
        found, refresh_s = _refreshed(scorer, rows)
        latencies.append(found)
        refreshes_s.append(refresh_s)
    during = np.concatenate(latencies)
    right = np.array_equal(scorer.vectors(touched[:1000]), table.pull(touched[:1000]))
    deep = _deep_latencies(f"{place}/deep", rng)
    checks = [
        Check("seconds of the delta / of the whole export", delta_s / full_s, 0.05),
        Check("bytes of the delta / of the whole export", delta.nbytes / full.nbytes, 0.05),
        Check("seconds of a refresh, the longest", max(refreshes_s), 1.0),
        Check("ms for the score of a row of 40 keys, p99", float(np.percentile(still, 99)), 1.0),
        Check("the same during refreshes", float(np.percentile(during, 99)), 1.0),
        Check("the same of a DeepFM", float(np.percentile(deep, 99)), 1.0),
        Check("wrong vectors after the refreshes", float(not right), 0.0),
    ]
    facts = {
        "export s": round(full_s, 2),
        "export MB": round(full.nbytes / 1e6),
        "load s": round(load_s, 2),
        "delta s": round(delta_s, 3),
        "p50 ms": _rounded(still, 50),
        "longest ms": _rounded(still, 100),
        "scores during refreshes": len(during),
        "their p50 ms": _rounded(during, 50),
        "their longest ms": _rounded(during, 100),
        "DeepFM p50 ms": _rounded(deep, 50),
        "DeepFM longest ms": _rounded(deep, 100),
    }
    return checks, facts


def _rounded(milliseconds: Any, percent: float) -> float:
    return round(float(np.percentile(milliseconds, percent)), 3)


def _deep_latencies(place: str, rng: np.random.Generator) -> Any:
    """Return milliseconds of one row each, of a DeepFM whose numbers are random."""
    model = Architecture("deepfm", K, KEYS_OF_ROW, KEYS_OF_ROW, LAYERS)
    keys = np.unique(rng.integers(0, 2**63 - 1, DEEP_KEYS))
    dense = {layer.name: w for layer, w in zip(model.layers(), model.initial(0), strict=True)}
    content = Content(keys, lambda some: rng.normal(0, 0.1, (len(some), model.width)).astype(np.float32), dense=dense)
    write_export(place, Description("deepfm", model.width, {"architecture": model.to_json()}), content)
    rows = rng.choice(keys, (ROWS, KEYS_OF_ROW))
    return _latencies(Scorer(place), rows, threading.Event(), ROWS)


def _push(table: EmbeddingTable, keys: npt.NDArray[np.int64], rng: np.random.Generator) -> None:
    for begin in range(0, len(keys), PUSHED):
        some = keys[begin : begin + PUSHED]
        table.pushDistinct(some, rng.normal(size=(len(some), K)).astype(np.float32))


def _latencies(scorer: Scorer, rows: npt.NDArray[np.int64], ended: threading.Event, most: int) -> Any:
    """Return milliseconds of one row each, until ``ended`` or ``most`` rows."""
    found = []
    for row in rows[:most]:
        began_s = time.perf_counter()
        scorer.score(row[None])
        found.append((time.perf_counter() - began_s) * 1e3)
        if ended.is_set():
            break
    return np.array(found)


def _refreshed(scorer: Scorer, rows: npt.NDArray[np.int64]) -> tuple[Any, float]:
    """Refresh in a thread; return the latencies meanwhile, and the seconds of the refresh."""
    ended, seconds = threading.Event(), []

    def refresh() -> None:
        seconds.append(_timed(scorer.refresh)[1])
        ended.set()

    thread = threading.Thread(target=refresh)
    thread.start()
    found = _latencies(scorer, rows, ended, len(rows))
    thread.join()
    return found, seconds[0]


def _timed(call: Any) -> tuple[Any, float]:
    began_s = time.perf_counter()
    return call(), time.perf_counter() - began_s


if __name__ == "__main__":
    main()
