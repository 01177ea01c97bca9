"""The best 10 of many items for a user, from exact and from approximate indexes: users per second, and recall.

Vectors are generated: axes of falling variance, as those of a factorization, and norms that differ between items.
docs/performance/factors.md says how to read it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import frame
from benchmarks.frame import Benchmark, Part, Score, option, tell, timed
from ps2.algorithms.factors.top_k import Candidates
from ps2.array_types import Float32s
from ps2.serving.approximate import ApproximateCandidates

K = 10


@dataclass(frozen=True)
class Args(frame.Args):
    items: int = option(50_000, "Items to choose from.", least=1000)
    rank: int = option(64, "Numbers of a vector.", least=1)
    users: int = option(300, "Users who are asked for, one after the other.", least=1)


def recommend(args: Args) -> Part:
    """Compare exact search with the index of serving, and with a graph of vectors that have equal norms."""
    rng = np.random.default_rng(0)
    axes = np.arange(1, args.rank + 1) ** -0.5
    users = (rng.normal(size=(args.users, args.rank)) * axes).astype(np.float32)
    items = rng.normal(size=(args.items, args.rank)) * axes * rng.lognormal(0, 0.4, (args.items, 1))
    vectors = np.ascontiguousarray(items, np.float32)
    exact, result = Candidates(vectors), list[dict[str, Any]]()
    best, exact_s = _ask(exact, users)
    indexes: dict[str, Any] = {}
    for name, make in (("approximate", ApproximateCandidates), ("with equal norms", _EqualNorms)):
        indexes[name], build_s = timed(make, vectors)
        lists, seconds = _ask(indexes[name], users)
        recall = float(np.mean([len(np.intersect1d(*pair)) / K for pair in zip(lists, best, strict=True)]))
        result.append({"index": name, "recall@10": recall, "users/s": args.users / seconds, "built in s": build_s})
        tell(f"{name}: recall@10 {recall:.4f}, {args.users / seconds:,.0f} users/s, built in {build_s:.1f} s")
    speed, recall = (float(result[0][name]) for name in ("users/s", "recall@10"))
    result.append({"index": "exact", "recall@10": 1.0, "users/s": args.users / exact_s, "built in s": 0.0})
    tell(f"exact: {args.users / exact_s:,.0f} users/s")
    lines = [
        Score("users per second", "exact search", "users/s", None, args.users / exact_s, speed),
        Score("recall@10", "exact search", "", 0.95, 1.0, recall),
    ]
    return Part(lines, facts={"items": args.items, "rank": args.rank}, table=result)


def _ask(index: Any, users: Float32s) -> tuple[list[Any], float]:
    """Ask for one user at a time, as requests do; return the positions of the best items, and the CPU seconds."""
    index.best(users[:1], K)
    began_s = time.process_time()
    lists = [index.best(user[None], K)[1][0] for user in users]
    return lists, time.process_time() - began_s


class _EqualNorms(ApproximateCandidates):
    """The same graph, of vectors with one more element, which makes all norms equal (Bachrach et al., 2014, section 3).

    A user's vector has 0 there, so the order of items by cosine is that by inner product.
    """

    def __init__(self, vectors: Float32s) -> None:
        squares = np.square(vectors, dtype=np.float64).sum(axis=1)
        super().__init__(np.column_stack([vectors, np.sqrt(squares.max() - squares)]).astype(np.float32))

    def best(self, left: Float32s, k: int, excluded: Any = None) -> Any:
        return super().best(np.column_stack([left, np.zeros(len(left), np.float32)]), k, excluded)


BENCHMARK = Benchmark("recommend", Args, {"recommend": recommend}, packages=("usearch",))

if __name__ == "__main__":
    BENCHMARK.main()
