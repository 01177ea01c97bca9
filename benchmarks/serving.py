"""Exports of a table on servers, whole and of what changed, and a Scorer that takes them while it is asked.

Scores are those of a factorization machine, and of a DeepFM with layers of (400, 400), a row of 40 keys each.
docs/performance/online.md says how to read it.
"""

from __future__ import annotations

import tempfile
import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import frame
from benchmarks.frame import Benchmark, Check, Part, option, tell, timed, within
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


@dataclass(frozen=True)
class Args(frame.Args):
    keys: int = option(2_000_000, "Keys of the table.", least=1000)
    servers: int = option(1, "Servers of the fleet.", least=1)
    folder: str = option("", "Where exports go; default: the folder of temporary files.")


def serving(args: Args) -> Part:
    """Export a table and what changed of it, and score with both."""
    folder = tempfile.TemporaryDirectory(prefix="ps2-serving-", dir=args.folder or None)
    with folder as position, PS2Context.getOrCreate(servers=args.servers):
        return _measured(args.keys, position)


def _measured(count: int, place: str) -> Part:
    rng = np.random.default_rng(0)
    keys = np.unique(rng.integers(0, 2**63 - 1, count))
    table = EmbeddingTable(K, "adagrad", lr=0.1, zeroColumns=1)
    _push(table, keys, rng)
    full, full_s = timed(lambda: table.export(place, **MODEL))
    scorer, load_s = timed(lambda: Scorer(place))
    tell(f"export {full_s:.2f} s, {full.nbytes / 1e6:,.0f} MB; load {load_s:.2f} s")
    rows = rng.choice(keys, (ROWS, KEYS_OF_ROW))
    still = _latencies(scorer, rows, threading.Event())
    latencies, refreshes_s, deltas = [], [], []
    for _ in range(REFRESHES):
        touched = np.sort(rng.choice(keys, int(len(keys) * TOUCHED), replace=False))
        _push(table, touched, rng)
        deltas.append(timed(lambda: table.export(place, since="last", **MODEL)))
        during_ms, refresh_s = _refreshed(scorer, rows)
        latencies.append(during_ms)
        refreshes_s.append(refresh_s)
    delta, delta_s = deltas[0]
    tell(f"delta {delta_s:.3f} s, {delta.nbytes / 1e6:,.1f} MB, full: {delta.full} {delta.reason or ''}")
    right = np.array_equal(scorer.vectors(touched[:1000]), table.pull(touched[:1000]))
    measured = {"": still, "during refreshes": np.concatenate(latencies), "DeepFM": _deep(f"{place}/deep", rng)}
    lines = [
        within("time of the delta / of the whole export", "of it", 0.05, [delta_s / full_s]),
        within("bytes of the delta / of the whole export", "of it", 0.05, [delta.nbytes / full.nbytes]),
        within("a refresh, the longest", "s", 1.0, [max(refreshes_s)]),
        *(
            within(f"score of a row of 40 keys, p99 {name}", "ms", 1.0, [float(np.percentile(one, 99))])
            for name, one in measured.items()
        ),
    ]
    checks = [Check("wrong vectors after the refreshes", float(not right), 0.0)]
    table_rows = [
        {"scores": name, "count": len(one), **{f"{title} ms": round(float(np.percentile(one, percent)), 3)
         for title, percent in (("p50", 50), ("p99", 99), ("longest", 100))}}
        for name, one in measured.items()
    ]  # fmt: skip
    facts = {"export s": full_s, "export MB": full.nbytes / 1e6, "load s": load_s, "delta s": delta_s}
    return Part(lines, checks, facts, table_rows)


def _deep(place: str, rng: np.random.Generator) -> Any:
    """Return milliseconds of one row each, of a DeepFM whose numbers are random."""
    model = Architecture("deepfm", K, KEYS_OF_ROW, KEYS_OF_ROW, LAYERS)
    keys = np.unique(rng.integers(0, 2**63 - 1, DEEP_KEYS))
    dense = {layer.name: w for layer, w in zip(model.layers(), model.initial(0), strict=True)}
    content = Content(keys, lambda some: rng.normal(0, 0.1, (len(some), model.width)).astype(np.float32), dense=dense)
    write_export(place, Description("deepfm", model.width, {"architecture": model.to_json()}), content)
    rows = rng.choice(keys, (ROWS, KEYS_OF_ROW))
    return _latencies(Scorer(place), rows, threading.Event())


def _push(table: EmbeddingTable, keys: npt.NDArray[np.int64], rng: np.random.Generator) -> None:
    for begin in range(0, len(keys), PUSHED):
        some = keys[begin : begin + PUSHED]
        table.pushDistinct(some, rng.normal(size=(len(some), K)).astype(np.float32))


def _latencies(scorer: Scorer, rows: npt.NDArray[np.int64], ended: threading.Event) -> Any:
    """Return milliseconds of one row each, until ``ended``."""
    result = []
    for row in rows:
        began_s = time.perf_counter()
        scorer.score(row[None])
        result.append((time.perf_counter() - began_s) * 1e3)
        if ended.is_set():
            break
    return np.array(result)


def _refreshed(scorer: Scorer, rows: npt.NDArray[np.int64]) -> tuple[Any, float]:
    """Refresh in a thread; return the latencies meanwhile, and the seconds of the refresh."""
    ended, seconds = threading.Event(), []

    def refresh() -> None:
        seconds.append(timed(scorer.refresh)[1])
        ended.set()

    thread = threading.Thread(target=refresh)
    thread.start()
    result = _latencies(scorer, rows, ended)
    thread.join()
    return result, seconds[0]


BENCHMARK = Benchmark("serving", Args, {"serving": serving})

if __name__ == "__main__":
    BENCHMARK.main()
