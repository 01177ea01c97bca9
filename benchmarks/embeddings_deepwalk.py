"""DeepWalk on BlogCatalog in each way: F1 of labels by logistic regression, compared with the authors' results."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks import embeddings_data as data
from benchmarks.embeddings_part import Asked, spark_and_servers
from benchmarks.frame import Part, answer, tell
from benchmarks.trees_part import Score
from ps2.algorithms.graph import DeepWalk

# Macro-F1 and Micro-F1 by the share of labelled vertices, from DeepWalk's README: 80 walks of 40, d = 128, window 10.
PUBLISHED = {0.1: (21.08, 35.86), 0.5: (27.68, 41.51), 0.9: (28.21, 42.40)}
# By how much PS2's results may be below these.
LESS = 0.5
PARAMS: dict[str, Any] = {"vectorSize": 128, "walkLength": 40, "windowSize": 10, "seed": 1}


def measure(asked: Asked) -> Part:
    lines, sizes = [], []
    with spark_and_servers(asked, "deepwalk") as spark:
        frame = data.framed(spark, data.edges(asked.data_dir))
        for via in asked.via:
            began_s = time.monotonic()
            model = DeepWalk(**PARAMS, numWalks=asked.walks, via=via).fit(frame)
            seconds = time.monotonic() - began_s
            for share, found in by_share(asked, model.embedding).items():
                tell(f"{via}, {share:.0%}: {seconds:.0f} s, Macro-F1 {found[0]:.2f}, Micro-F1 {found[1]:.2f}")
                for kind, ours, published in zip(("Macro-F1", "Micro-F1"), found, PUBLISHED[share], strict=True):
                    what, goal = f"{via}: {kind}, {share:.0%} labelled", published - LESS
                    lines.append(Score(what, "published", "F1", goal, published, ours))
            sizes.append({"via": via, "s": f"{seconds:.1f}"})
    return Part(lines, facts={"walks": f"{asked.walks} of 40", "d": 128, "window": 10}, sizes=sizes)


def by_share(asked: Asked, embedding: Any) -> dict[float, tuple[float, float]]:
    """Return Macro-F1 and Micro-F1 by the share of labelled vertices."""
    vertices, wanted = data.labels(asked.data_dir)
    vectors = embedding.vectors[embedding.names.known(vertices)].astype(np.float64)
    return {share: data.f1(vectors, wanted, share) for share in PUBLISHED}


if __name__ == "__main__":
    answer(Asked, measure)
