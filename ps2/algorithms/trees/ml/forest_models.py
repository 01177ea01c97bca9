"""What the models of random forests have in common, and their trees."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pyspark.ml.classification import (
    DecisionTreeClassificationModel,
    ProbabilisticClassificationModel,
    _DecisionTreeClassifierParams,
)
from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import Vector, Vectors
from pyspark.ml.regression import DecisionTreeRegressionModel, RegressionModel, _DecisionTreeRegressorParams
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ps2.algorithms.estimators.heads import ValueHead, VotesHead
from ps2.algorithms.estimators.models import FleetModel, FleetRegressionModel, ProbabilityModel
from ps2.algorithms.estimators.predict import rows_of
from ps2.algorithms.estimators.summaries import (
    ClassificationSummary,
    ClassificationTrainingSummary,
    RegressionSummary,
    RegressionTrainingSummary,
)
from ps2.algorithms.estimators.tables import column
from ps2.algorithms.trees.forests.random_forest import RandomForest, read_random_forest, write_random_forest
from ps2.algorithms.trees.ml.vectors import as_sparse
from ps2.algorithms.trees.tree import Tree, java_number
from ps2.plot_extra import PlotPath, needs_matplotlib, saved

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class RandomForestModel(FleetModel):
    """A trained random forest, or one of its trees."""

    @property
    def _trained(self) -> RandomForest:
        trained: RandomForest = self._fitted
        return trained

    @property
    def featureImportances(self) -> Vector:
        """Each feature's importance: the mean over trees of its share of the gains of all splits, summing up to 1."""
        return as_sparse(self._trained.importances())

    def _outputs(self) -> list[tuple[str, str]]:
        # Each model's next class defines the other columns.
        return [*super()._outputs(), (self.getOrDefault("leafCol"), "leaf")]  # type: ignore[safe-super]

    def _write_content(self, url: str) -> dict[str, Any]:
        return write_random_forest(url, self._trained)

    @classmethod
    def _read_content(cls, path: str, url: str, content: Any) -> RandomForest:
        return read_random_forest(path, url, content)


class ForestOfTrees(RandomForestModel):
    """A trained random forest."""

    _LOADER = "ps2.algorithms.trees.forests.random_forest:RandomForest"

    _TREE: type[ForestTree]

    @property
    def trees(self) -> list[Any]:
        """The trees, as models."""
        return [self._tree(number) for number in range(self.getNumTrees)]

    def _tree(self, number: int) -> ForestTree:
        tree = self._TREE(self._trained.part(number))._resetUid(f"{self.uid}_{number}")
        shared = ("featuresCol", "featuresCols", "predictionCol", "leafCol", "labelCol")
        return tree._set(**{name: self.getOrDefault(name) for name in shared if self.isSet(name)})

    @property
    def treeWeights(self) -> list[float]:
        """What trees are multiplied by: 1 each."""
        return [1.0] * self.getNumTrees

    @property
    def getNumTrees(self) -> int:
        """Number of trees."""
        return len(self._trained.forest.trees)

    @property
    def totalNumNodes(self) -> int:
        """Number of nodes of all trees."""
        return self._trained.forest.nodes

    @property
    def toDebugString(self) -> str:
        """All trees in words."""
        said = (
            f"  Tree {number} (weight {java_number(1.0)}):\n{tree.to_debug_string(4)}"
            for number, tree in enumerate(self._trained.forest.trees)
        )
        return f"{self!r}\n{''.join(said)}"

    def __repr__(self) -> str:
        classes = f", numClasses={self._trained.classes}" if self._trained.classes else ""
        name = f"{type(self).__name__}: uid={self.uid}"
        return f"{name}, numTrees={self.getNumTrees}{classes}, numFeatures={self.numFeatures}"

    def predictLeaf(self, value: Any) -> Vector:
        """Return the leaf of each tree that one row comes to, counted from the left."""
        return Vectors.dense(self._trained.leaves(rows_of(value, self.numFeatures, missing=True))[0].tolist())

    def plotImportances(self, path: PlotPath = None, most: int = 20, *, ax: Axes | None = None) -> Axes:
        """Draw the importances of the features that matter most, as bars: as models of boosted trees do.

        Args:
            path: writes it there as well: PNG, or what the suffix says (.svg, .pdf).
            most: bars at most.
            ax: draws there; None: a figure of its own, without a window and pyplot, which a notebook shows.

        Raises:
            ConfigError: matplotlib is not installed, or the trees split by no feature.
        """
        with needs_matplotlib("plotImportances"):
            from ps2.algorithms.estimators.plotting import draw_importances
        names = () if isinstance(self._features, str) else self._features
        return saved(draw_importances(self._trained.importances(), names, most, ax), path)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        made, name = super()._transform(dataset), self.getOrDefault("leafCol")
        if not name:
            return made
        leaves = [{"idx": t, "num_vals": tree.leaf_count} for t, tree in enumerate(self._trained.forest.trees)]
        described = {"ml_attr": {"attrs": {"nominal": leaves}, "num_attrs": len(leaves)}}
        return made.withColumn(name, column(name).alias(name, metadata=described))


class ForestTree(RandomForestModel):
    """A tree of a random forest.

    Attributes:
        arrays: the tree; of classes, its values are those with the largest share.
    """

    _NAME = ""

    @property
    def arrays(self) -> Tree:
        return self._trained.forest.trees[0]

    @property
    def numNodes(self) -> int:
        """Number of nodes."""
        return len(self.arrays)

    @property
    def depth(self) -> int:
        """How many splits lie above the deepest leaf."""
        return self.arrays.depth

    @property
    def toDebugString(self) -> str:
        """The tree in words."""
        return f"{self!r}\n{self.arrays.to_debug_string(2)}"

    def __repr__(self) -> str:
        classes = f", numClasses={self._trained.classes}" if self._trained.classes else ""
        told = f"depth={self.depth}, numNodes={self.numNodes}{classes}, numFeatures={self.numFeatures}"
        return f"{self._NAME}: uid={self.uid}, {told}"

    def predictLeaf(self, value: Any) -> float:
        """Return the leaf that one row comes to, counted from the left."""
        return float(self._trained.leaves(rows_of(value, self.numFeatures, missing=True))[0, 0])

    def _transform(self, dataset: DataFrame) -> DataFrame:
        made, name = super()._transform(dataset), self.getOrDefault("leafCol")
        if not name:
            return made
        # Of one tree it is a number, not a vector of one.
        leaf = F.coalesce(vector_to_array(column(name))[0], F.lit(math.nan))
        described = {"ml_attr": {"type": "nominal", "num_vals": self.arrays.leaf_count}}
        return made.withColumn(name, leaf.alias(name, metadata=described))


class ForestRegressionTree(ForestTree, FleetRegressionModel, _DecisionTreeRegressorParams, RegressionModel[Vector]):
    """A tree of a regression."""

    _NAME = "DecisionTreeRegressionModel"

    def _head(self) -> ValueHead:
        return ValueHead()

    def _summaries(self) -> tuple[Any, Any]:
        return RegressionSummary, RegressionTrainingSummary


class ForestClassificationTree(
    ForestTree, ProbabilityModel, _DecisionTreeClassifierParams, ProbabilisticClassificationModel
):
    """A tree of a classification."""

    _NAME = "DecisionTreeClassificationModel"

    def _head(self) -> VotesHead:
        return VotesHead(self.numClasses, self._thresholds())

    def _summaries(self) -> tuple[Any, Any]:
        return ClassificationSummary, ClassificationTrainingSummary


# Instances of them to those who ask; to be derived from them, they would have to wrap objects in Java.
DecisionTreeRegressionModel.register(ForestRegressionTree)
DecisionTreeClassificationModel.register(ForestClassificationTree)
