"""Every family with its defaults beside the peers that its users leave: quality and seconds of ``fit``.

docs/performance/defaults.md says how to read it. Trees are in ``benchmarks.tables``.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import numpy as np

from benchmarks import defaults_data as data
from benchmarks import frame
from benchmarks.frame import Benchmark, Part, option, tell, timed
from benchmarks.local_spark import WORKERS, cached, spark_and_servers
from ps2.errors import DivergedError

# Of these units, less is better.
LOWER = frozenset(("RMSE", "perplexity", "cost"))
# Sizes that estimators have no useful default for: clusters, and the length of recommendations.
CLUSTERS, FIRST, NEAREST = 10, 20, 10
# The defaults of DeepCTR-Torch 0.2.9, written in PyTorch by ``benchmarks.deep_torch``.
DEEPCTR = {
    "k": 4,
    "hidden": (256, 128),
    "dropout": 0.0,
    "batch": 256,
    "epochs": 1,
    "lr": 0.001,
    "table_lr": 0.001,
    "table_optimizer": "adam",
    "table_decay": 2e-5,
    "init_scale": 1e-4,
    "threads": WORKERS,
    "sparse": False,
}
# Quality of held-out rows, and seconds of the training.
Scored = tuple[float, float]
# A peer that is None is not installed.
Trainings = Mapping[str, Callable[[], Scored] | None]


@dataclass(frozen=True)
class Args(frame.Args):
    seeds: tuple[int, ...] = option((0, 1, 2), "Seeds of the splits and trainings.", least=0)
    torch_python: str = option(os.environ.get("TORCH_PYTHON", ""), "A Python that has torch.")


@dataclass(eq=False)
class Comparison:
    """The table of a part; ``trainings`` of the first name is ours."""

    seeds: Sequence[int]
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, estimator: str, name: str, unit: str, trainings: Callable[[int], Trainings]) -> None:
        """Train all on each seed's split; mark ours where a peer is better by more than the larger deviation."""
        results: dict[str, list[Scored]] = {}
        for seed in self.seeds:
            for who, train in trainings(seed).items():
                results.setdefault(who, [])
                if train is None:
                    continue
                try:
                    results[who].append(train())
                except DivergedError as error:
                    tell(f"{estimator}, {name}, {who}, seed {seed}: {error}")
                    results[who].append((float("nan"), 0.0))
                tell(f"{estimator}, {name}, {who}, seed {seed}: {unit} {results[who][-1][0]:.4f}")
        sign = -1 if unit in LOWER else 1
        ours = [quality for quality, _ in next(iter(results.values()))]
        for who, turns in results.items():
            row = {"estimator": estimator, "data": name, "who": who, "unit": unit}
            if not turns:
                self.rows.append({**row, "quality": "not installed", "deviation": "", "fit s": "", "": ""})
                continue
            values = [quality for quality, _ in turns]
            # A training of ours that has diverged makes the comparison false.
            is_better = not sign * (mean(values) - mean(ours)) <= max(pstdev(values), pstdev(ours))
            self.rows.append(
                {
                    **row,
                    "quality": _figure(mean(values)),
                    "deviation": _figure(pstdev(values)),
                    "fit s": f"{mean(seconds for _, seconds in turns):.1f}",
                    "": "BETTER THAN OURS" if is_better else "",
                }
            )


def _figure(value: float) -> str:
    return f"{value:.4f}" if value < 100 else f"{value:,.1f}"


def _started(args: Args, part: str) -> Any:
    return spark_and_servers(f"defaults_{part}", args.memory)


def _warm(estimator: Any, rows: Any) -> None:
    """Start Spark's Python workers, and compile what is not compiled yet."""
    with suppress(DivergedError):  # the measured training may diverge, too, and says so
        estimator.copy({estimator.maxIter: 1}).fit(rows.limit(500))


def _fit_and_evaluate(estimator: Any, evaluator: Any, train: Any, test: Any) -> Scored:
    model, seconds = timed(estimator.fit, train)
    quality = float(evaluator.evaluate(model.transform(test)))
    if hasattr(model, "free"):
        model.free()
    return quality, seconds


# -- parts -------------------------------------------------------------------------------------------------------------


def linear(args: Args) -> Part:
    """Compare linear models and factorization machines with pyspark.ml's."""
    from pyspark.ml import classification, regression
    from pyspark.ml.evaluation import BinaryClassificationEvaluator, RegressionEvaluator

    from ps2 import algorithms

    table = Comparison(args.seeds)
    with _started(args, "linear") as (spark, _):
        for names, module, sets, unit, evaluator in (
            (
                ("LogisticRegression", "LinearSVC", "FMClassifier"),
                classification,
                data.labelled,
                "AUC",
                BinaryClassificationEvaluator(),
            ),
            (("LinearRegression", "FMRegressor"), regression, data.numbers, "RMSE", RegressionEvaluator()),
        ):
            for name, rows in sets(spark, args.data_dir).items():
                parts = {seed: data.split(rows, seed) for seed in args.seeds}
                for estimator in names:
                    kinds = getattr(algorithms, estimator), getattr(module, estimator)
                    table.add(estimator, name, unit, partial(_linear_trainings, kinds, evaluator, parts))
    return Part(table=table.rows)


def _linear_trainings(kinds: tuple[Any, Any], evaluator: Any, parts: Mapping[int, Any], seed: int) -> Trainings:
    ours, theirs = (kind(**({"seed": seed} if kind().hasParam("seed") else {})) for kind in kinds)
    if seed == next(iter(parts)):
        _warm(ours, parts[seed][0])
    return {
        "ours": partial(_fit_and_evaluate, ours, evaluator, *parts[seed]),
        "pyspark.ml": partial(_fit_and_evaluate, theirs, evaluator, *parts[seed]),
    }


def ratings(args: Args) -> Part:
    """Compare matrix factorization with pyspark.ml's ALS, and with implicit's for clicks."""
    from pyspark.ml.evaluation import RegressionEvaluator
    from pyspark.ml.recommendation import ALS

    from ps2.algorithms import MatrixFactorization

    table = Comparison(args.seeds)
    with _started(args, "ratings") as (spark, _):
        evaluator = RegressionEvaluator(labelCol="rating")
        for name, rated in data.ratings(args.data_dir).items():

            def explicit(seed: int, rated: data.Ratings = rated) -> Trainings:
                train, test = rated.frames(spark, seed)
                common: dict[str, Any] = {"coldStartStrategy": "drop", "seed": seed}
                return {
                    "ours": partial(_fit_and_evaluate, MatrixFactorization(**common), evaluator, train, test),
                    "pyspark.ml": partial(_fit_and_evaluate, ALS(**common), evaluator, train, test),
                }

            def implicit(seed: int, rated: data.Ratings = rated) -> Trainings:
                clicks = rated.clicks()
                train, _ = clicks.frames(spark, seed)
                common: dict[str, Any] = {"implicitPrefs": True, "seed": seed}
                score = partial(_recall, clicks, seed, train)
                has_peer = find_spec("implicit") is not None
                return {
                    "ours": partial(score, MatrixFactorization(**common)),
                    "pyspark.ml": partial(score, ALS(**common)),
                    "implicit": partial(_implicit, clicks, seed) if has_peer else None,
                }

            _warm(MatrixFactorization(), rated.frames(spark, args.seeds[0])[0])
            table.add("MatrixFactorization", name, "RMSE", explicit)
            table.add("MatrixFactorization, implicitPrefs", name, f"recall@{FIRST}", implicit)
    return Part(table=table.rows)


def _recall(clicks: data.Ratings, seed: int, train: Any, estimator: Any) -> Scored:
    model, seconds = timed(estimator.fit, train)
    vectors = list[Any]()
    for factors, count in zip((model.userFactors, model.itemFactors), clicks.counts, strict=True):
        table = factors.select("id", "features").toPandas()
        rows = np.zeros((count, len(table.features[0])), np.float32)
        rows[table.id] = np.stack(table.features)
        vectors.append(rows)
    return clicks.recall(vectors[0], vectors[1], seed, FIRST), seconds


def _implicit(clicks: data.Ratings, seed: int) -> Scored:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as it asks for
    from implicit.als import AlternatingLeastSquares

    model = AlternatingLeastSquares(num_threads=WORKERS, random_state=seed)
    _, seconds = timed(partial(model.fit, clicks.cells(seed), show_progress=False))
    return clicks.recall(model.user_factors, model.item_factors, seed, FIRST), seconds


def clicks(args: Args) -> Part:
    """Compare models of clicks with DeepFM in PyTorch, and with pyspark.ml's logistic regression of hashed columns."""
    from pyspark.ml import Pipeline
    from pyspark.ml.classification import LogisticRegression
    from pyspark.ml.evaluation import BinaryClassificationEvaluator
    from pyspark.ml.feature import FeatureHasher

    from ps2 import algorithms

    table = Comparison(args.seeds)
    with _started(args, "clicks") as (spark, _):
        evaluator = BinaryClassificationEvaluator()
        for name, keyed in data.clicks(args.data_dir).items():
            peers: dict[int, Scored | None] = {}
            for estimator in ("DeepFM", "WideAndDeep", "OnlineFM", "OnlineLogisticRegression"):

                def trainings(
                    seed: int, estimator: str = estimator, keyed: data.Clicks = keyed, peers: Any = peers
                ) -> Trainings:
                    train, test = keyed.frames(spark, seed)
                    ours = getattr(algorithms, estimator)(categoricalCols=keyed.columns, seed=seed)
                    if seed == args.seeds[0]:
                        ours.fit(train.limit(500)).free()
                    result: dict[str, Callable[[], Scored] | None] = {
                        "ours": partial(_fit_and_evaluate, ours, evaluator, train, test)
                    }
                    if estimator == "OnlineLogisticRegression":
                        hasher = FeatureHasher(
                            inputCols=keyed.columns, outputCol="features", categoricalCols=keyed.columns
                        )
                        theirs = Pipeline(stages=[hasher, LogisticRegression()])
                        return {**result, "pyspark.ml": partial(_fit_and_evaluate, theirs, evaluator, train, test)}
                    if seed not in peers:  # one training is the peer of three estimators
                        peers[seed] = _deepfm_in_torch(args, keyed, seed)
                    scored = peers[seed]
                    return {**result, "PyTorch DeepFM": None if scored is None else lambda: scored}

                table.add(estimator, name, "AUC", trainings)
    return Part(table=table.rows)


def _deepfm_in_torch(args: Args, keyed: data.Clicks, seed: int) -> Scored | None:
    """Train DeepFM with the defaults of DeepCTR-Torch; None: there is no PyTorch."""
    if not Path(args.torch_python).is_file():
        return None
    with tempfile.TemporaryDirectory() as folder:
        rows, settings = f"{folder}/rows.npz", Path(folder) / "settings.json"
        np.savez(rows, **keyed.arrays(seed))
        settings.write_text(json.dumps({**DEEPCTR, "seed": seed}))
        command = [args.torch_python, "-m", "benchmarks.deep_torch", rows, str(settings)]
        home = Path(__file__).resolve().parents[1]
        result = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=home).stdout)
    return result["auc"][-1], sum(result["seconds"])


def clusters(args: Args) -> Part:
    """Compare k-means with pyspark.ml's: the cost of held-out rows."""
    from pyspark.ml.clustering import KMeans as Theirs

    from ps2.algorithms import KMeans, KMeansClusters

    def train(estimator: Any, rows: Any, test: Any) -> Scored:
        model, seconds = timed(estimator.fit, rows)
        return KMeansClusters(np.stack(model.clusterCenters())).cost(data.matrix(test)), seconds

    table = Comparison(args.seeds)
    with _started(args, "clusters") as (spark, _):
        for name, rows in data.points(spark, args.data_dir).items():
            _warm(KMeans(), rows)

            def trainings(seed: int, rows: Any = rows) -> Trainings:
                parts = data.split(rows, seed)
                return {
                    who: partial(train, kind(k=CLUSTERS, seed=seed), *parts)
                    for who, kind in (("ours", KMeans), ("pyspark.ml", Theirs))
                }

            table.add(f"KMeans, k={CLUSTERS}", name, "cost", trainings)
    return Part(table=table.rows)


def topics(args: Args) -> Part:
    """Compare topics with pyspark.ml's and tomotopy's: the perplexity of a half of held-out documents."""
    from pyspark.ml.clustering import LDA as Theirs

    from benchmarks.topics import perplexity
    from benchmarks.topics_data import framed, halves
    from ps2.algorithms import LDA

    def train(estimator: Any, rows: Any, held: Any) -> Scored:
        model, seconds = timed(estimator.fit, rows)
        alpha = np.array(model.estimatedDocConcentration().toArray())
        return perplexity(model.topicsMatrix().toArray(), alpha, *halves(held)), seconds

    def tomotopy(counts: Any, held: Any, seed: int) -> Scored:
        import tomotopy as tp

        model = tp.LDAModel(k=Theirs().getK(), seed=seed + 1)
        for begin, end in zip(counts.indptr[:-1], counts.indptr[1:], strict=True):
            model.add_doc(list(map(str, np.repeat(counts.indices[begin:end], counts.data[begin:end]))))
        _, seconds = timed(partial(model.train, 100, workers=WORKERS))
        weights = np.full((counts.shape[1], model.k), 1e-12)
        words = np.array(list(model.used_vocabs), np.int64)
        weights[words] = np.stack([model.get_topic_word_dist(topic) for topic in range(model.k)], axis=1)
        return perplexity(weights, np.asarray(model.alpha, float), *halves(held)), seconds

    table, has_peer = Comparison(args.seeds), find_spec("tomotopy") is not None
    with _started(args, "topics") as (spark, _):
        for name, counts in data.corpora(args.data_dir).items():
            _warm(LDA(), framed(spark, counts[:50], WORKERS))

            def trainings(seed: int, counts: Any = counts) -> Trainings:
                is_held = np.random.default_rng(seed).random(counts.shape[0]) < data.HELD_OUT
                rows, held = framed(spark, counts[~is_held], WORKERS), counts[is_held]
                return {
                    "ours": partial(train, LDA(seed=seed), rows, held),
                    "pyspark.ml": partial(train, Theirs(seed=seed), rows, held),
                    "tomotopy": partial(tomotopy, counts[~is_held], held, seed) if has_peer else None,
                }

            table.add("LDA", name, "perplexity", trainings)
    return Part(table=table.rows)


def words(args: Args) -> Part:
    """Compare vectors with pyspark.ml's and gensim's: the share of a word's nearest words that have a label of its."""
    from pyspark.ml.feature import Word2Vec as Theirs

    from ps2.algorithms import Word2Vec

    def in_spark(estimator: Any, rows: Any, labels: data.Labels) -> Scored:
        model, seconds = timed(estimator.fit, rows)
        vectors = {row["word"]: row["vector"].toArray() for row in model.getVectors().toLocalIterator()}
        return labels.nearest_share(vectors, NEAREST), seconds

    def gensim(rows: Any, labels: data.Labels, seed: int) -> Scored:
        from gensim.models import Word2Vec as Gensim

        lists = [row["words"] for row in rows.toLocalIterator()]
        model, seconds = timed(partial(Gensim, lists, workers=WORKERS, seed=seed))
        return labels.nearest_share({word: model.wv[word] for word in model.wv.index_to_key}, NEAREST), seconds

    table, has_peer = Comparison(args.seeds), find_spec("gensim") is not None
    with _started(args, "words") as (spark, _):
        for name, corpus in data.sentences(spark, args.data_dir).items():

            def trainings(seed: int, corpus: data.Corpus = corpus) -> Trainings:
                rows, labels = cached(corpus.sentences(seed)), corpus.labels
                common: dict[str, Any] = {"inputCol": "words", "seed": seed}
                if seed == args.seeds[0]:
                    _warm(Word2Vec(**common).setMinCount(0), rows)
                return {
                    "ours": partial(in_spark, Word2Vec(**common), rows, labels),
                    "pyspark.ml": partial(in_spark, Theirs(**common), rows, labels),
                    "gensim": partial(gensim, rows, labels, seed) if has_peer else None,
                }

            table.add("Word2Vec", name, "share", trainings)
    return Part(table=table.rows)


PARTS = {
    "linear": linear, "ratings": ratings, "clicks": clicks, "clusters": clusters, "topics": topics, "words": words
}  # fmt: skip
BENCHMARK = Benchmark("defaults", Args, PARTS, packages=("implicit", "gensim", "tomotopy"))

if __name__ == "__main__":
    BENCHMARK.main()
