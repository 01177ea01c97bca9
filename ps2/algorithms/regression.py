"""Regression: LinearRegression, FMRegressor, GBTRegressor and RandomForestRegressor with pyspark.ml's API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps2.algorithms.public_names import exports

if TYPE_CHECKING:
    from ps2.algorithms.linear.estimator import FMRegressor as FMRegressor
    from ps2.algorithms.linear.estimator import LinearRegression as LinearRegression
    from ps2.algorithms.linear.models import FMRegressionModel as FMRegressionModel
    from ps2.algorithms.linear.models import LinearRegressionModel as LinearRegressionModel
    from ps2.algorithms.trees.estimator import GBTRegressor as GBTRegressor
    from ps2.algorithms.trees.forests.estimator import RandomForestRegressor as RandomForestRegressor
    from ps2.algorithms.trees.models import GBTRegressionModel as GBTRegressionModel
    from ps2.algorithms.trees.models import RandomForestRegressionModel as RandomForestRegressionModel
else:
    __all__, __getattr__, __dir__ = exports(__name__)
