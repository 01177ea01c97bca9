"""Topics, embeddings, factors and clusters on small data."""

from __future__ import annotations

from typing import Any

from pyspark.ml import clustering as theirs_clustering
from pyspark.ml import feature as theirs_feature
from pyspark.ml import recommendation as theirs_recommendation

from benchmarks.frame import Part, answer
from benchmarks.small_part import PYSPARK_DATA, Asked, Fit, compared, kept, rows_of, small_spark
from ps2.algorithms import clustering, feature, recommendation

# As many sentences as rows of a9a have numbers of their features as words.
SENTENCES = 4000


def measure(asked: Asked) -> Part:
    with small_spark("others", asked.memory) as spark:
        agaricus = rows_of(spark, asked, "agaricus")
        words, ratings = _sentences(spark, asked), _ratings(spark)
        lda: dict[str, Any] = {"k": 10, "maxIter": 20, "seed": 1}
        vectors: dict[str, Any] = {"vectorSize": 100, "minCount": 1, "seed": 1, "inputCol": "words"}
        als: dict[str, Any] = {
            "userCol": "user",
            "itemCol": "item",
            "ratingCol": "rating",
            "rank": 10,
            "maxIter": 10,
            "seed": 1,
        }
        groups: dict[str, Any] = {"k": 10, "seed": 1}
        fits = [
            Fit("LDA, agaricus", agaricus, clustering.LDA(**lda), theirs_clustering.LDA(**lda)),
            Fit("Word2Vec, a9a", words, feature.Word2Vec(**vectors), theirs_feature.Word2Vec(**vectors)),
            Fit(
                *("MatrixFactorization, 1,500 ratings", ratings),
                *(recommendation.MatrixFactorization(**als), theirs_recommendation.ALS(**als)),
            ),
            Fit(
                *("KMeans, a9a", rows_of(spark, asked, "a9a")),
                *(clustering.KMeans(**groups), theirs_clustering.KMeans(**groups)),
            ),
        ]
        return compared(spark, asked, fits)


def _sentences(spark: Any, asked: Asked) -> Any:
    """Return the numbers of the features of some rows of a9a as words."""
    some = rows_of(spark, asked, "a9a").limit(SENTENCES).select("features").collect()
    return kept(spark.createDataFrame([([str(i) for i in row.features.indices],) for row in some], ["words"]))


def _ratings(spark: Any) -> Any:
    lines = (PYSPARK_DATA / "als" / "sample_movielens_ratings.txt").read_text().split()
    found = [tuple(map(int, line.split("::")[:3])) for line in lines]
    return kept(spark.createDataFrame([(user, item, float(stars)) for user, item, stars in found], _COLUMNS))


_COLUMNS = ["user", "item", "rating"]


if __name__ == "__main__":
    answer(Asked, measure)
