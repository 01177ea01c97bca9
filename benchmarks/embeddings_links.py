"""LINE and DeepWalk on BlogCatalog: prediction of a hidden fifth of the edges against pairs without an edge."""

from __future__ import annotations

import time
from typing import Any

from benchmarks import embeddings_data as data
from benchmarks.embeddings_deepwalk import PARAMS
from benchmarks.embeddings_part import Asked, spark_and_servers
from benchmarks.frame import Part, answer, tell
from benchmarks.trees_part import Score
from ps2.algorithms.graph import LINE, DeepWalk

HIDDEN = 0.2
# Goal relative to DeepWalk's AUC.
GOAL = 0.9
ORDERS = ("both", "first", "second")


def measure(asked: Asked) -> Part:
    train, positive, negative = data.hidden(data.edges(asked.data_dir), HIDDEN)

    def auc(name: str, estimator: Any, frame: Any) -> float:
        began_s = time.monotonic()
        embedding = estimator.fit(frame).embedding
        scores = [embedding.score(pairs[:, 0], pairs[:, 1]) for pairs in (positive, negative)]
        found = data.auc(*scores)
        tell(f"{name}: {time.monotonic() - began_s:.0f} s, AUC {found:.4f}")
        return found

    with spark_and_servers(asked, "links") as spark:
        frame = data.framed(spark, train)
        theirs = auc("DeepWalk", DeepWalk(**PARAMS, numWalks=10), frame)
        lines = []
        for order in ORDERS:
            ours = auc(f"LINE, {order}", LINE(vectorSize=128, order=order, seed=1), frame)
            goal = GOAL * theirs if order == "both" else None
            lines.append(Score(f"LINE, order {order}: hidden edges", "DeepWalk", "AUC", goal, theirs, ours))
    return Part(lines, facts={"hidden": len(positive), "without an edge": len(negative)})


if __name__ == "__main__":
    answer(Asked, measure)
