"""Features that are many beside the servers' memory: what fits is trained, else an error comes before a tree grows."""

from __future__ import annotations

import pytest
from pyspark.ml.linalg import Vectors

from ps2 import PS2Context
from ps2.algorithms import GBTClassifier
from ps2.errors import LimitError

FEATURES = 100_000
ROWS = 20
LIMIT = 4 << 20


@pytest.fixture(scope="module", autouse=True)
def ps(request, spark):
    """Two servers with less memory than a bin of each feature takes, or with so much."""
    with PS2Context.getOrCreate(spark, servers=2, memoryLimit=getattr(request, "param", LIMIT)) as context:
        yield context


@pytest.fixture
def frame_of(spark):
    """``frame_of(used, size)``: rows of which every other one holds all of the first ``used`` features."""

    def make(used, size=FEATURES):
        rows = [
            (Vectors.sparse(size, range(used * (i % 2)), [1.0] * (used * (i % 2))), float(i % 2)) for i in range(ROWS)
        ]
        return spark.createDataFrame(rows, ["features", "label"])

    return make


@pytest.fixture
def estimator():
    return GBTClassifier(maxIter=1, minChildWeight=0.0, via="servers")


def test_features_when_most_have_one_value_then_take_no_room(frame_of, estimator):
    assert FEATURES * 8 * ROWS > 2 * LIMIT - FEATURES * 24
    made = estimator.fit(frame_of(500))
    assert (made.numFeatures, made.trees[0].numNodes) == (FEATURES, 3)


@pytest.mark.parametrize(
    ("used", "told"),
    [
        (
            30_000,
            r"^100,000 features have 60,000 bins .* a tree that grows needs 18 histograms of \d{3},\d{3} bytes at",
        ),
        (
            FEATURES,
            "in clock 2: the values of 100,000 features, of which cut points are made, do not fit the servers: ",
        ),
    ],
    ids=["bins", "values"],
)
def test_features_when_too_many_have_values_then_limit_error(frame_of, estimator, used, told):
    with pytest.raises(LimitError, match=told):
        estimator.fit(frame_of(used))


def test_features_when_they_can_never_fit_then_early_limit_error(frame_of, estimator):
    with pytest.raises(LimitError, match="2,147,483,647 features: what finds their bins, and the 17 histograms"):
        estimator.fit(frame_of(4, 2**31 - 1))


def test_features_when_all_have_missing_bins_then_limit_error(frame_of, estimator):
    with pytest.raises(LimitError, match=r"100,000 features: what .* of 200,000 bins at least, take 60,000,000 bytes"):
        estimator.setAbsentAsMissing(True).fit(frame_of(4))


@pytest.mark.parametrize("ps", [1 << 30], indirect=True)
def test_features_when_ten_million_in_2_gb_then_limit_error(frame_of, estimator):
    told = "10,000,000 features: .* of 20,000,000 bins at least, take 6,000,000,000 bytes or more, and 2,"
    with pytest.raises(LimitError, match=told):
        estimator.setAbsentAsMissing(True).fit(frame_of(4, 10**7))
