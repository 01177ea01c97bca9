"""The same forest for any placement of rows and histograms: digests for each number of workers and servers."""

from __future__ import annotations

import hashlib
from dataclasses import fields
from itertools import product
from typing import Any

import numpy as np

from benchmarks import ml_data, trees_data
from benchmarks.frame import Check, Part, answer, tell
from benchmarks.trees_fit import Settings, alone
from benchmarks.trees_part import Asked, spark_alone
from ps2 import PS2Context

SLOTS = (1, 2, 4)
FLEETS = (1, 2, 3)
PLACES = (("local", 1), *(("servers", workers) for workers in SLOTS))
ROWS, FEATURES = 20_000, 10_000
SETTINGS = Settings(trees=3, depth=6, bins=64)
# Printed characters of a digest; the whole digest is compared.
SHOWN = 12


def measure(asked: Asked) -> Part:
    from ps2.algorithms import GBTClassifier

    sizes: list[dict[str, Any]] = []
    found: dict[str, set[str]] = {}
    with spark_alone(asked, "same", max(SLOTS)) as spark:
        frames = {
            f"dense, {ROWS:,} x {trees_data.DENSE_FEATURES}": trees_data.dense(spark, ROWS).frame,
            f"sparse, {ROWS:,} x {FEATURES:,}": ml_data.generate(spark, ROWS, FEATURES).frame,
        }
        for servers in FLEETS:
            with PS2Context.getOrCreate(spark, servers=servers):
                for (what, frame), (via, workers) in product(frames.items(), PLACES):
                    params = {**SETTINGS.ours(), "via": via, "numWorkers": workers}
                    made = digest(alone(GBTClassifier(**params, subsamplingRate=0.8).fit(frame)).forest)
                    found.setdefault(what, set()).add(made)
                    sizes.append(
                        {"rows": what, "servers": servers, "via": via, "workers": workers, "digest": made[:SHOWN]}
                    )
                    tell(f"{what}, {servers} servers, via {via}, {workers} workers: {made}")
    checks = [Check(f"{what}: different forests", len(digests) - 1, 0) for what, digests in found.items()]
    return Part(checks=checks, sizes=sizes, facts={"trees": SETTINGS.trees, "depth": SETTINGS.depth})


def digest(forest: Any) -> str:
    """Return a hash of all bits of all trees."""
    hashed = hashlib.sha256()
    for tree in forest.trees:
        for field in fields(tree):
            hashed.update(np.ascontiguousarray(getattr(tree, field.name)).tobytes())
    return hashed.hexdigest()


if __name__ == "__main__":
    answer(Asked, measure)
