"""The trees of a forest one by one, as pyspark.ml has them: models that predict and transform."""

from __future__ import annotations

import math
from typing import Any

from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import Vector
from pyspark.ml.regression import DecisionTreeRegressionModel, RegressionModel, _DecisionTreeRegressorParams
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ps2.algorithms.estimators.heads import ValueHead
from ps2.algorithms.estimators.models import FleetRegressionModel
from ps2.algorithms.estimators.predict import rows_of
from ps2.algorithms.estimators.summaries import RegressionSummary, RegressionTrainingSummary
from ps2.algorithms.estimators.tables import column
from ps2.algorithms.trees.files import read_forest, write_forest
from ps2.algorithms.trees.ml.vectors import as_sparse
from ps2.algorithms.trees.model import GBTModel
from ps2.algorithms.trees.tree import Forest, Tree


class BoostedTreeModel(FleetRegressionModel, _DecisionTreeRegressorParams, RegressionModel[Vector]):
    """A tree of a model of boosted trees: what it predicts, times its weight, is its part of the margin.

    Attributes:
        arrays: the tree; learning rates are not in its leaves.
    """

    @property
    def _forest(self) -> Forest:
        forest: Forest = self._fitted.forest
        return forest

    @property
    def arrays(self) -> Tree:
        return self._forest.trees[0]

    @property
    def numNodes(self) -> int:
        """Number of nodes."""
        return len(self.arrays)

    @property
    def depth(self) -> int:
        """How many splits lie above the deepest leaf."""
        return self.arrays.depth

    @property
    def featureImportances(self) -> Vector:
        """Each feature's share of the gains of all splits."""
        return as_sparse(self._forest.importances())

    @property
    def toDebugString(self) -> str:
        """The tree in words."""
        return f"{self!r}\n{self.arrays.to_debug_string(2, float(self._forest.base[0]))}"

    def __repr__(self) -> str:
        told = f"depth={self.depth}, numNodes={self.numNodes}, numFeatures={self.numFeatures}"
        return f"DecisionTreeRegressionModel: uid={self.uid}, {told}"

    def predictLeaf(self, value: Any) -> float:
        """Return the leaf that one row comes to, counted from the left."""
        return float(self._fitted.leaves(rows_of(value, self.numFeatures, missing=True))[0, 0])

    def _head(self) -> ValueHead:
        return ValueHead()

    def _outputs(self) -> list[tuple[str, str]]:
        return [*super()._outputs(), (self.getLeafCol(), "leaf")]

    def _transform(self, dataset: DataFrame) -> DataFrame:
        made, name = super()._transform(dataset), self.getLeafCol()
        if not name:
            return made
        # Of one tree it is a number, not a vector of one.
        leaf = F.coalesce(vector_to_array(column(name))[0], F.lit(math.nan))
        described = {"ml_attr": {"type": "nominal", "num_vals": self.arrays.leaf_count}}
        return made.withColumn(name, leaf.alias(name, metadata=described))

    def _summaries(self) -> tuple[Any, Any]:
        return RegressionSummary, RegressionTrainingSummary

    def _write_content(self, url: str) -> dict[str, Any]:
        return write_forest(url, self._forest)

    @classmethod
    def _read_content(cls, path: str, url: str, content: Any) -> GBTModel:
        return GBTModel(read_forest(path, url, content))


# An instance of it to those who ask; to be derived from it, it would have to wrap an object in Java.
DecisionTreeRegressionModel.register(BoostedTreeModel)
