"""node2vec on BlogCatalog with p = q = 0.25, and DeepWalk with the same params: F1 of labels."""

from __future__ import annotations

from benchmarks import embeddings_data as data
from benchmarks.embeddings_deepwalk import PARAMS, by_share
from benchmarks.embeddings_part import Asked, spark_and_servers
from benchmarks.frame import Part, answer, tell
from benchmarks.trees_part import Score
from ps2.algorithms.graph import DeepWalk, Node2Vec

P = Q = 0.25
GOAL_AT = 0.5


def measure(asked: Asked) -> Part:
    with spark_and_servers(asked, "node2vec") as spark:
        frame = data.framed(spark, data.edges(asked.data_dir))
        theirs = by_share(asked, DeepWalk(**PARAMS, numWalks=asked.walks).fit(frame).embedding)
        ours = by_share(asked, Node2Vec(**PARAMS, numWalks=asked.walks, p=P, q=Q).fit(frame).embedding)
    lines = []
    for share in ours:
        tell(f"{share:.0%}: DeepWalk {theirs[share]}, node2vec {ours[share]}")
        for at, kind in enumerate(("Macro-F1", "Micro-F1")):
            goal = theirs[share][at] if (share, kind) == (GOAL_AT, "Macro-F1") else None
            what = f"node2vec: {kind}, {share:.0%} labelled"
            lines.append(Score(what, "DeepWalk", "F1", goal, theirs[share][at], ours[share][at]))
    return Part(lines, facts={"walks": f"{asked.walks} of 40", "p": P, "q": Q})


if __name__ == "__main__":
    answer(Asked, measure)
