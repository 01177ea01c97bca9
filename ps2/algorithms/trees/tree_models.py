"""Base classes of models of several trees, and of one tree, for boosted trees and random forests."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import Vector, Vectors
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ps2.algorithms.frame.frames import check_frame, feature_names
from ps2.algorithms.frame.models import FleetModel
from ps2.algorithms.frame.predict import as_row
from ps2.algorithms.frame.tables import column, field
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.trees.inspection import (
    Inspected,
    Permutations,
    metric_names,
    partial_dependence,
    permutation_importance,
)
from ps2.algorithms.trees.tree import LEAF, Forest, ScoreName, Tree
from ps2.algorithms.trees.tree_table import nodes_as_table
from ps2.array_types import Float64s
from ps2.errors import ConfigError
from ps2.plot_extra import PlotPath, needs_matplotlib, save_plot
from ps2.run.spark.backend_lookup import backend_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

# The params whose values the models of single trees have from the model of all trees.
SHARED_COLUMNS = ("featuresCol", "featuresCols", "predictionCol", "leafCol", "labelCol")


def as_sparse(values: Float64s) -> Vector:
    indices = np.flatnonzero(values)
    return Vectors.sparse(len(values), indices.tolist(), values[indices].tolist())


class AnyTrees(FleetModel):
    """A model of one tree, or of several."""

    @property
    def _forest(self) -> Forest:
        forest: Forest = self._fitted.forest
        return forest

    def _importances(self) -> Float64s:
        """Return the features' importances, whose sum is 1."""
        return self._forest.importances()

    @property
    def featureImportances(self) -> Vector:
        """Each feature's fraction of the gains of all splits; of a random forest, the mean of the trees' fractions."""
        return as_sparse(self._importances())

    def getFeatureImportances(self, importanceType: ScoreName = "gain") -> Vector:
        """Return the importance of each feature, as xgboost's ``get_score`` computes it.

        Args:
            importanceType: "weight", or "split" as LightGBM calls it: the number of splits by the feature; "totalGain",
                "totalCover": the sum of the splits' gains, or of the hessians (of a random forest: the weight) of their
                rows; "gain", "cover": the mean of these.

        Raises:
            ConfigError: there is no such type.
        """
        if importanceType not in get_args(ScoreName):
            raise ConfigError(
                f"importanceType: expected one of {', '.join(get_args(ScoreName))}, got {importanceType!r}"
            )
        return as_sparse(self._forest.scores(importanceType))

    def toPandas(self, dataset: DataFrame | None = None) -> pd.DataFrame:
        """Return all trees as a DataFrame of pandas, with a row for each node; xgboost calls it ``trees_to_dataframe``.

        Its columns are ``tree``, ``node`` (0 is the root), ``depth``, ``feature`` (the index), ``name`` (None:
        unknown), ``threshold`` (values up to it go left) or ``categories`` (those that go left), ``left`` and ``right``
        (the children), ``missing`` (the side to which missing values go), ``gain``, ``cover``, ``count`` and ``value``
        (see ``ps2.algorithms.trees.tree.Tree``). Leaves have no feature.

        Args:
            dataset: rows whose column of features names the features in its metadata, as ``VectorAssembler`` writes it;
                None: only ``featuresCols`` has names.

        Raises:
            InputError: the DataFrame has no such column.
        """
        return nodes_as_table(self._forest, self._feature_names(dataset))

    def _feature_names(self, dataset: DataFrame | None) -> dict[int, str]:
        """Return the names of features that are known, by index."""
        if not isinstance(self._features, str):
            return dict(enumerate(self._features))
        return {} if dataset is None else feature_names(field(dataset, self._features))

    def _outputs(self) -> list[tuple[str, str]]:
        # The other base classes of a model define the other columns.
        return [*super()._outputs(), (self.getOrDefault("leafCol"), "leaf")]  # type: ignore[safe-super]

    def _leaves(self, value: Any) -> list[int]:
        leaves: list[int] = self._predictor.leaves(as_row(value, self.numFeatures, missing=True))[0].tolist()
        return leaves


class Ensemble(AnyTrees):
    """A trained model of several trees."""

    # The text between "uid" and the uid in ``repr``, the same as pyspark.ml's.
    _EQUALS = "="

    @property
    def _rate(self) -> float:
        """The weight of all trees except the first of each output."""
        return 1.0

    @property
    def trees(self) -> list[Any]:
        """The trees, as models. A row's margin is the sum of their predictions, each times the tree's weight.

        The predictions of the first tree (with more than two classes, of the first tree of each class) include the
        margin with which all rows begin.
        """
        names = {name: self.getOrDefault(name) for name in SHARED_COLUMNS if self.isSet(name)}
        return [tree._resetUid(f"{self.uid}_{t}")._set(**names) for t, tree in enumerate(self._tree_models())]

    @abstractmethod
    def _tree_models(self) -> list[Any]:
        """Return a new model of each tree."""

    @property
    def treeWeights(self) -> list[float]:
        """The weights of the trees: 1 for random forests and for the first tree (of each class), else ``stepSize``."""
        return self._forest.weights(self._rate)

    @property
    def getNumTrees(self) -> int:
        """Number of trees; of boosted trees with more than two classes, the trees of all classes."""
        return len(self._forest.trees)

    @property
    def totalNumNodes(self) -> int:
        """Number of nodes of all trees."""
        return self._forest.nodes

    @property
    def toDebugString(self) -> str:
        """All trees as text, with a line for each condition and leaf."""
        return self._forest.to_debug_string(repr(self), self._rate)

    def __repr__(self) -> str:
        classes = f", numClasses={self._fitted.classes}" if self._fitted.classes else ""
        name = f"{type(self).__name__}: uid{self._EQUALS}{self.uid}"
        return f"{name}, numTrees={self.getNumTrees}{classes}, numFeatures={self.numFeatures}"

    def predictLeaf(self, value: Any) -> Vector:
        """Return the leaf of each tree that one row reaches, counted from the left."""
        return Vectors.dense(self._leaves(value))

    def partialDependence(
        self, dataset: DataFrame, features: Iterable[int | str] | int | str, gridPoints: int | Sequence[float] = 20
    ) -> DataFrame:
        """Return the partial dependence of predictions on features, one by one (Friedman, 2001).

        For a value of a feature, it is the mean prediction over all rows in which the feature has this value; rows
        count by ``weightCol``. Probabilities do not depend on ``thresholds``.

        Args:
            dataset: rows with the columns that ``transform`` needs.
            features: indices; or names, which are those of ``featuresCols``, or of the metadata of the column.
            gridPoints: the number of values, which are quantiles between 5% and 95%, or all values of a feature that
                has at most this many; or the values.

        Returns:
            A DataFrame with ``feature`` (the index), ``name`` (null: unknown), ``value`` and ``prediction``, or for
            classes ``probability`` with an array of the classes' probabilities.

        Raises:
            ConfigError: there is no such feature, or no grid point.
            InputError: a column is missing or has another type, or there are no rows.
        """
        if (gridPoints if isinstance(gridPoints, int) else len(gridPoints)) < 1:
            raise ConfigError(f"gridPoints: expected a positive number, or values, got {gridPoints!r}")
        model = self._inspected(dataset, with_label=False)
        return partial_dependence(dataset, model, model.find_features(features), gridPoints)

    def permutationImportance(
        self,
        dataset: DataFrame,
        features: Iterable[int | str] | int | str | None = None,
        *,
        metric: str | None = None,
        repeats: int = 5,
        seed: int = 0,
        maxRows: int = 100_000,
    ) -> DataFrame:
        """Return how much worse a metric gets when the values of a feature are permuted among all rows (Breiman, 2001).

        The permutations depend on the seed and on the rows, but not on their order or partitions.

        Args:
            dataset: labelled rows, best those that were not trained on.
            features: indices or names, see ``partialDependence``; None: those that the trees use. All others have 0.
            metric: "logloss", "error" or, of two classes, "auc"; "rmse" or "mae" of numbers; "ndcg" of rankings. None:
                the first of these that applies.
            repeats: the number of permutations of each feature.
            seed: the seed of the permutations, and of the sample.
            maxRows: the maximum number of rows, which each task has in memory; of more rows, a sample is used.

        Returns:
            A DataFrame with ``feature`` (the index), ``name`` (null: unknown), and the ``mean`` and the standard
            deviation ``stddev`` of the metric's loss over the repeats. The mean is positive if the feature helps.

        Raises:
            ConfigError: there is no such feature or metric, or ``repeats`` or ``maxRows`` is not positive.
            InputError: a column is missing or has another type, or there are no rows.
        """
        for name, value in (("repeats", repeats), ("maxRows", maxRows)):
            if value < 1:
                raise ConfigError(f"{name}: expected a number from 1 on, got {value!r}")
        model = self._inspected(dataset, with_label=True)
        metrics = metric_names(model.head.classes, model.columns.group is not None)
        if metric not in (None, *metrics):
            raise ConfigError(f"metric: expected one of {', '.join(metrics)}, got {metric!r}")
        used = sorted({int(f) for tree in self._predictor.forest.trees for f in tree.feature if f != LEAF})
        numbers = used if features is None else model.find_features(features)
        return permutation_importance(
            dataset, model, numbers, Permutations(metric or metrics[0], repeats, seed, maxRows)
        )

    def _inspected(self, dataset: DataFrame, with_label: bool) -> Inspected:
        check_frame(dataset)
        columns = ColumnNames(self._features, None, self._weight_column, margin=self._margin_column)
        if with_label:
            group = self.getOrDefault("groupCol") if self.hasParam("groupCol") else None
            columns = replace(columns, label=self.getOrDefault("labelCol"), group=group)
        absent = 0.0 if self._forest.absent == "zero" else math.nan
        names, load_fitted = self._feature_names(dataset), self._share(backend_of(dataset))
        return Inspected(columns, load_fitted, self._head(), self.numFeatures, names, absent)

    def plotImportances(self, path: PlotPath = None, most: int = 20, *, ax: Axes | None = None) -> Axes:
        """Draw the importances of the most important features, as bars.

        Features have the names of ``featuresCols``; without these, the numbers that are in ``toDebugString``.

        Args:
            path: a file for the plot: PNG, or the format of its suffix (.svg, .pdf); None: no file is written.
            most: the maximum number of bars.
            ax: the Axes to draw in; None: a new figure without pyplot, which opens no window; a notebook shows it.

        Returns:
            The Axes with the plot.

        Raises:
            ConfigError: matplotlib is not installed, or there are no splits.
        """
        with needs_matplotlib("plotImportances"):
            from ps2.algorithms.frame.plotting import draw_importances
        names = () if isinstance(self._features, str) else self._features
        return save_plot(draw_importances(self._importances(), names, most, ax), path)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        frame, name = super()._transform(dataset), self.getOrDefault("leafCol")
        if not name:
            return frame
        leaves = [{"idx": t, "num_vals": tree.leaf_count} for t, tree in enumerate(self._predictor.forest.trees)]
        attributes = {"attrs": {"nominal": leaves}} if leaves else {}
        metadata = {"ml_attr": {**attributes, "num_attrs": len(leaves)}}
        return frame.withColumn(name, column(name).alias(name, metadata=metadata))


class OneTree(AnyTrees):
    """A tree of a model.

    Attributes:
        arrays: the tree, without learning rate; for classification, a node's value is its most frequent class.
    """

    # The name in ``repr``, which is the name of pyspark.ml's class.
    _NAME = "DecisionTreeRegressionModel"

    @property
    def arrays(self) -> Tree:
        return self._forest.trees[0]

    @property
    def numNodes(self) -> int:
        """Number of nodes."""
        return len(self.arrays)

    @property
    def depth(self) -> int:
        """Number of splits above the deepest leaf."""
        return self.arrays.depth

    @property
    def toDebugString(self) -> str:
        """The tree as text, with a line for each condition and leaf."""
        return f"{self!r}\n{self.arrays.to_debug_string(2, float(self._forest.base[0]))}"

    def __repr__(self) -> str:
        classes = f", numClasses={self._fitted.classes}" if self._fitted.classes else ""
        sizes = f"depth={self.depth}, numNodes={self.numNodes}{classes}, numFeatures={self.numFeatures}"
        return f"{self._NAME}: uid={self.uid}, {sizes}"

    def predictLeaf(self, value: Any) -> float:
        """Return the leaf that one row reaches, counted from the left."""
        return float(self._leaves(value)[0])

    def _transform(self, dataset: DataFrame) -> DataFrame:
        frame, name = super()._transform(dataset), self.getOrDefault("leafCol")
        if not name:
            return frame
        # The leaf of one tree is a number, not a vector of one.
        leaf = F.coalesce(vector_to_array(column(name))[0], F.lit(math.nan))
        metadata = {"ml_attr": {"type": "nominal", "num_vals": self.arrays.leaf_count}}
        return frame.withColumn(name, leaf.alias(name, metadata=metadata))
