"""Trees with their defaults on real tables: quality and seconds beside other libraries.

docs/performance/trees.md says where the files come from, and how to read it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from statistics import mean, pstdev
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.ml.functions import array_to_vector
from pyspark.sql import functions as F

from benchmarks import frame, tables_data
from benchmarks.frame import Benchmark, Part, option, tell, timed
from benchmarks.local_spark import WORKERS, cached, spark_and_servers
from benchmarks.ml_data import FEW, Array, auc
from benchmarks.tables_data import TABLES, Split

LIBRARIES = ("pyspark", "xgboost", "lightgbm", "catboost")
# The peer whose defaults ours have. Random forests have pyspark.ml's, or these params, which are scikit-learn's.
FACES = {f"ours, {name}'s": {"pyspark": "pyspark.ml"}.get(name, name) for name in (*LIBRARIES, "sklearn")}
SKLEARN_PARAMS = {"numTrees": 100, "maxDepth": 30, "maxBins": 256}
PEERS = ("lightgbm", "xgboost", "catboost", "sklearn", "pyspark.ml")
# pyspark.ml's ``maxBins`` is at least the number of categories: with more than this, a fit takes many minutes.
MAX_PYSPARK_CATEGORIES = 1000
# Scores of held-out rows, and the seconds of the training.
Scored = tuple[Array, float]


@dataclass(frozen=True)
class Args(frame.Args):
    seeds: tuple[int, ...] = option((0, 1, 2), "Seeds of the splits and trainings.", least=0)
    peers: tuple[str, ...] = option(PEERS, "Libraries that train beside ours, if installed.", choices=PEERS)
    forests: bool = option(True, "Whether random forests train too.")


def compare(name: str, args: Args) -> Part:
    """Train all on the splits of a table; mark ours where its peer is better by more than the peer's deviation."""
    read, unit, _ = TABLES[name]
    results: dict[tuple[str, str], list[tuple[float, float]]] = {}
    read(args.data_dir, 0)  # a missing file ends the part before Spark starts
    with spark_and_servers(f"tables_{name}", args.memory) as (spark, _):
        for turn, seed in enumerate(args.seeds):
            split = read(args.data_dir, seed)
            for key, train in _trainings(spark, split, unit, seed, args, warm=turn > 0).items():
                scores, seconds = train()
                results.setdefault(key, []).append((_quality(unit, scores, split), seconds))
                tell(f"{key[0]}, {key[1]}, seed {seed}: {unit} {results[key][-1][0]:.4f}, {seconds:.1f} s")
    facts = {"rows": len(split.y), "held out": len(split.y_test), "columns": split.train.shape[1]}
    return Part(facts=facts, table=_rows(unit, results))


def _quality(unit: str, scores: Array, split: Split) -> float:
    if unit == "RMSE":
        return float(np.sqrt(np.mean((scores - split.y_test) ** 2)))
    if unit == "AUC":
        return auc(scores, split.y_test)
    assert split.group_test is not None
    return tables_data.ndcg(scores, split.y_test, split.group_test)


def _rows(unit: str, results: dict[tuple[str, str], list[tuple[float, float]]]) -> list[dict[str, Any]]:
    """Return the table: a row for each library, then for each family the best of ours beside the best peer."""
    qualities = {key: [quality for quality, _ in turns] for key, turns in results.items()}
    ours, peers = (sorted(key for key in results if key[1].startswith("ours") is is_ours) for is_ours in (True, False))
    sign = -1 if unit == "RMSE" else 1

    def best(keys: list[tuple[str, str]], family: str) -> str:
        return max((sign * mean(qualities[key]), key[1]) for key in keys if key[0] == family)[1]

    def row(family: str, who: str, peer: str, label: str = "") -> dict[str, Any]:
        values, cells = qualities[family, who], {"against": "", "": ""}
        if theirs := qualities.get((family, peer)):
            is_worse = sign * (mean(theirs) - mean(values)) > pstdev(theirs)
            cells = {"against": peer, "": "WORSE" if is_worse else ""}
        seconds = round(mean(seconds for _, seconds in results[family, who]), 2)
        numbers = {unit: f"{mean(values):.4f}", "deviation": f"{pstdev(values):.4f}", "fit s": seconds}
        return {"trees": family, "who": label + who, **numbers, **cells}

    rows = [row(family, who, FACES.get(who, "")) for family, who in results]
    for family in dict(peers):
        rows.append(row(family, best(ours, family), best(peers, family), "best: "))
    return rows


def _trainings(
    spark: Any, split: Split, unit: str, seed: int, args: Args, warm: bool
) -> dict[tuple[str, str], Callable[[], Scored]]:
    """Return the trainings by family of trees and library."""
    libraries = [name for name in args.peers if name == "pyspark.ml" or find_spec(name)]
    if missing := [name for name in args.peers if name not in libraries and not warm]:
        tell(f"left out: no {', '.join(missing)}; python -m pip install -r benchmarks/requirements.txt")
    rows = _SparkRows.from_split(spark, split)
    trainings: dict[tuple[str, str], Callable[[], Scored]] = {
        ("boosted", f"ours, {name}'s"): partial(rows.fit, "GBT", {"defaults": name}, unit, seed, warm)
        for name in LIBRARIES
    }
    theirs = {"lightgbm": _lightgbm, "xgboost": _xgboost, "catboost": _catboost}
    trainings |= {("boosted", name): partial(theirs[name], split, unit, seed) for name in libraries if name in theirs}
    if unit == "NDCG@10":
        return trainings
    peer_rows = None
    if "pyspark.ml" in libraries:
        peer_rows = _SparkRows.from_split(spark, split, with_missing=False)
        if max(peer_rows.categories.values(), default=0) > MAX_PYSPARK_CATEGORIES:
            tell("pyspark.ml is left out: too many categories")
            peer_rows = None
    if peer_rows is not None:
        trainings["boosted", "pyspark.ml"] = partial(peer_rows.fit_pyspark, "GBT", unit, seed)
    if args.forests:
        params = SKLEARN_PARAMS | {"featureSubsetStrategy": "sqrt" if unit == "AUC" else "all"}
        trainings["forest", "ours, pyspark's"] = partial(rows.fit, "RandomForest", {}, unit, seed, warm)
        trainings["forest", "ours, sklearn's"] = partial(rows.fit, "RandomForest", params, unit, seed, warm)
        if "sklearn" in libraries:
            trainings["forest", "sklearn"] = partial(_sklearn, split, unit, seed)
        if peer_rows is not None:
            trainings["forest", "pyspark.ml"] = partial(peer_rows.fit_pyspark, "RandomForest", unit, seed)
    return trainings


# -- in Spark ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _SparkRows:
    """Both parts of a split in Spark's cache: vectors with categories in the metadata.

    Attributes:
        test: the rows to score, as numbers.
        categories: the number of categories by feature.
    """

    train: Any
    test_frame: Any
    test: Array
    categories: dict[int, int]

    @staticmethod
    def from_split(spark: Any, split: Split, with_missing: bool = True) -> _SparkRows:
        """Cache a split. pyspark.ml refuses NaN: without missing values, these are one more category, or -1e9."""
        x, test, categories = split.as_numbers()
        if not with_missing:
            for index in range(x.shape[1]):
                value = categories.get(index, -1e9)
                x[np.isnan(x[:, index]), index] = value
                test[np.isnan(test[:, index]), index] = value
            categories = {index: count + 1 for index, count in categories.items()}
        nominal = [{"idx": index, "num_vals": count} for index, count in categories.items()]
        metadata = {"ml_attr": {"attrs": {"nominal": nominal}, "num_attrs": x.shape[1]}}

        def in_spark(rows: Array, y: Array, group: Array | None) -> Any:
            ends = np.arange(0, rows.size + 1, rows.shape[1], dtype=np.int32)
            columns = {
                "row": np.arange(len(y)),
                "label": y,
                "x": pa.ListArray.from_arrays(ends, pa.array(rows.reshape(-1))),
            }
            if group is not None:
                columns["query"] = group
            table = spark.createDataFrame(pa.table(columns))
            table = table.withColumn("features", array_to_vector(F.col("x"))).drop("x")
            return cached(table.withMetadata("features", metadata), WORKERS if group is None else 1)

        train = in_spark(x, split.y, split.group)
        return _SparkRows(train, in_spark(test, split.y_test, split.group_test), test, categories)

    def fit(self, trees: str, params: dict[str, Any], unit: str, seed: int, warm: bool) -> Scored:
        """Train ours; trees: "GBT" or "RandomForest"."""
        from ps2 import algorithms

        kind = {"AUC": "Classifier", "RMSE": "Regressor", "NDCG@10": "Ranker"}[unit]
        group = {"groupCol": "query"} if unit == "NDCG@10" else {}
        estimator = getattr(algorithms, f"{trees}{kind}")(seed=seed, **params, **group)
        if not warm:  # starts Spark's Python workers, and compiles what is not compiled yet
            estimator.copy({estimator.maxIter if trees == "GBT" else estimator.numTrees: 1}).fit(self.train.limit(FEW))
        model, seconds = timed(estimator.fit, self.train)
        if unit == "NDCG@10":
            return np.asarray(model.fitted.margins(self.test))[:, 0], seconds
        if unit == "AUC":
            return np.asarray(model.fitted.predictProbability(self.test))[:, 1], seconds
        return np.asarray(model.fitted.predict(self.test)), seconds

    def fit_pyspark(self, trees: str, unit: str, seed: int) -> Scored:
        """Train pyspark.ml's, with its defaults, except maxBins, which must not be below the number of categories."""
        from pyspark.ml import classification, regression
        from pyspark.ml.functions import vector_to_array

        module, kind = (classification, "Classifier") if unit == "AUC" else (regression, "Regressor")
        bins = max(32, *self.categories.values()) if self.categories else 32
        estimator = getattr(module, f"{trees}{kind}")(seed=seed, maxBins=bins)
        model, seconds = timed(estimator.fit, self.train)
        column = vector_to_array(F.col("probability"))[1] if unit == "AUC" else F.col("prediction")
        scored = model.transform(self.test_frame).select("row", column.alias("score")).toArrow()
        return scored.sort_by("row").column("score").to_numpy(), seconds


# -- other libraries ---------------------------------------------------------------------------------------------------


def _score(model: Any, unit: str, rows: Any) -> Array:
    return np.asarray(model.predict_proba(rows)[:, 1] if unit == "AUC" else model.predict(rows))


def _lightgbm(split: Split, unit: str, seed: int) -> Scored:
    import lightgbm

    kind = {"AUC": lightgbm.LGBMClassifier, "RMSE": lightgbm.LGBMRegressor, "NDCG@10": lightgbm.LGBMRanker}[unit]
    model = kind(verbose=-1, n_jobs=WORKERS, random_state=seed)
    train, test = split.as_categories()
    groups = {} if split.group is None else {"group": np.unique(split.group, return_counts=True)[1]}
    _, seconds = timed(partial(model.fit, train, split.y, **groups))
    return _score(model, unit, test), seconds


def _xgboost(split: Split, unit: str, seed: int) -> Scored:
    import xgboost

    kind = {"AUC": xgboost.XGBClassifier, "RMSE": xgboost.XGBRegressor, "NDCG@10": xgboost.XGBRanker}[unit]
    model = kind(enable_categorical=True, n_jobs=WORKERS, random_state=seed)
    train, test = split.as_categories()
    groups = {} if split.group is None else {"qid": split.group}
    _, seconds = timed(partial(model.fit, train, split.y, **groups))
    return _score(model, unit, test), seconds


def _catboost(split: Split, unit: str, seed: int) -> Scored:
    import catboost

    categorical = split.categorical
    params: dict[str, Any] = {"verbose": 0, "thread_count": WORKERS, "random_seed": seed, "allow_writing_files": False}
    train, test = (
        part.assign(**{name: part[name].fillna("missing").astype(str) for name in categorical})
        for part in (split.train, split.test)
    )
    if split.group is not None:
        model = catboost.CatBoostRanker(**params)
        _, seconds = timed(partial(model.fit, train, split.y, group_id=split.group))
    else:
        kind = catboost.CatBoostClassifier if unit == "AUC" else catboost.CatBoostRegressor
        model = kind(cat_features=categorical, **params)
        _, seconds = timed(partial(model.fit, train, split.y))
    return _score(model, unit, test), seconds


def _sklearn(split: Split, unit: str, seed: int) -> Scored:
    """Train scikit-learn's random forest, which takes the numbers of categories as numbers."""
    from sklearn import ensemble

    kind = ensemble.RandomForestClassifier if unit == "AUC" else ensemble.RandomForestRegressor
    train, test, _ = split.as_numbers()
    model = kind(n_jobs=WORKERS, random_state=seed)
    _, seconds = timed(model.fit, train, split.y)
    return _score(model, unit, test), seconds


# -- parts -------------------------------------------------------------------------------------------------------------


def adult(args: Args) -> Part:
    return compare("adult", args)


def bank(args: Args) -> Part:
    return compare("bank", args)


def amazon(args: Args) -> Part:
    return compare("amazon", args)


def ames(args: Args) -> Part:
    return compare("ames", args)


def ranking(args: Args) -> Part:
    return compare("ranking", args)


def noise(args: Args) -> Part:
    return compare("noise", args)


PARTS = {"adult": adult, "bank": bank, "amazon": amazon, "ames": ames, "ranking": ranking, "noise": noise}
FILES = {name: files for name, (_, _, files) in TABLES.items() if files}
BENCHMARK = Benchmark(
    "tables", Args, PARTS, FILES, packages=("lightgbm", "xgboost-cpu", "xgboost", "catboost", "scikit-learn")
)

if __name__ == "__main__":
    BENCHMARK.main()
