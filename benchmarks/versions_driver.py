"""A driver that fits when it is told to, for ``benchmarks/versions.py``.

    python -m benchmarks.versions_driver ROWS < names of fits, one a line

Prints the seconds of each fit. ``PYTHONPATH`` says whose ``ps2`` it imports.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from benchmarks import bare_driver as bare


def clicks(spark: Any) -> Any:
    """Return rows of two categories and a label."""
    return spark.range(bare.ROWS).selectExpr("cast(id % 3 = 0 as double) label", "id % 50 user", "id % 30 ad")


SERVERS = {"via": "servers"}
CLICKS = {"categoricalCols": ["user", "ad"], "factorSize": 4, "hiddenLayers": [8], "maxIter": 3}
# Module below ps2.algorithms, estimator, params and rows of each fit.
FITS: dict[str, tuple[str, str, dict[str, Any], Callable[[Any], Any]]] = {
    "boosted trees": ("classification", "GBTClassifier", {}, bare.labelled),
    "boosted trees on servers": ("classification", "GBTClassifier", SERVERS, bare.labelled),
    "forest": ("classification", "RandomForestClassifier", {}, bare.labelled),
    "forest on servers": ("classification", "RandomForestClassifier", SERVERS, bare.labelled),
    "logistic regression": ("classification", "LogisticRegression", {}, bare.labelled),
    "linear regression": ("regression", "LinearRegression", {"regParam": 0.01, "elasticNetParam": 0.5}, bare.labelled),
    "LDA": ("clustering", "LDA", {"k": 5}, bare.documents),
    "k-means": ("clustering", "KMeans", {"k": 5}, bare.labelled),
    "Word2Vec": ("feature", "Word2Vec", {"inputCol": "words"}, bare.sentences),
    "factors by ccd": ("recommendation", "MatrixFactorization", {}, bare.ratings),
    "factors by sgd": ("recommendation", "MatrixFactorization", {"solver": "sgd"}, bare.ratings),
    "DeepFM": ("classification", "DeepFM", CLICKS, clicks),
}


def main() -> None:
    bare.ROWS = int(sys.argv[1])
    spark = bare.start()
    frames: dict[Callable[[Any], Any], Any] = {}
    for line in sys.stdin:
        module, name, params, make = FITS[line.strip()]
        if make not in frames:
            frames[make] = make(spark).repartition(2).cache()
            frames[make].count()
        estimator = getattr(import_module(f"ps2.algorithms.{module}"), name)(**params)
        begin_s = time.perf_counter()
        estimator.fit(frames[make])
        print(time.perf_counter() - begin_s, flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
