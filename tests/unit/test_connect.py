"""Sessions and frames of Spark Connect: the first call says that they cannot be used."""

from __future__ import annotations

import pytest

from ps2 import PS2Context
from ps2.algorithms import GBTRegressor, LogisticRegression, Word2Vec
from ps2.errors import ConfigError


def of_connect(name):
    """Return a thing that is known by where its class is; a real one takes packages that PS2 does not need."""
    return type(name, (), {"__module__": f"pyspark.sql.connect.{name.lower()}"})()


def test_context_when_session_is_spark_connect_then_config_error():
    with pytest.raises(
        ConfigError, match=r"spark: a SparkSession of Spark Connect cannot be used: .*without remote\(\)"
    ):
        PS2Context.getOrCreate(of_connect("SparkSession"), servers=1)
    assert PS2Context.getActive() is None


@pytest.mark.parametrize("estimator", [LogisticRegression, GBTRegressor, Word2Vec])
def test_fit_when_frame_is_of_spark_connect_then_config_error(estimator):
    with pytest.raises(
        ConfigError, match=r"dataset: a DataFrame of Spark Connect cannot be used: .*without remote\(\)"
    ):
        estimator().fit(of_connect("DataFrame"))
