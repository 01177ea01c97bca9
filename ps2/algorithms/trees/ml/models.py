"""What the models of boosted trees have in common."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from pyspark.ml.linalg import Vector, Vectors
from pyspark.sql import DataFrame

from ps2.algorithms.estimators.models import FleetModel
from ps2.algorithms.estimators.params import setter
from ps2.algorithms.estimators.predict import rows_of
from ps2.algorithms.estimators.tables import column
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.trees.files import read_forest, write_forest
from ps2.algorithms.trees.ml.evaluation import losses_by_round
from ps2.algorithms.trees.ml.params import TreeParams
from ps2.algorithms.trees.ml.ranking_summaries import check_relevance
from ps2.algorithms.trees.ml.tree_models import BoostedTreeModel
from ps2.algorithms.trees.ml.vectors import as_sparse
from ps2.algorithms.trees.model import GBTModel
from ps2.algorithms.trees.tree import Forest, LossName, ScoreName
from ps2.errors import ConfigError, LimitError
from ps2.plot_extra import PlotPath, needs_matplotlib, saved

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Of a row's vector: tasks hold those of ten thousand rows at a time.
MAX_CONTRIBUTIONS = 20_000


class ForestModel(FleetModel, TreeParams):
    """A trained model of boosted trees."""

    _LOADER = "ps2.algorithms.trees.model:GBTModel"

    @property
    def _trained(self) -> GBTModel:
        trained: GBTModel = self._fitted
        return trained

    @property
    def _predicting(self) -> GBTModel:
        """The first trees, as many as ``numTrees`` says."""
        if not self.isSet("numTrees"):
            return self._trained
        count = self.getOrDefault("numTrees")
        if self._first is None or self._first[0] != count:
            self._first = count, self._trained.first(count)
        return self._first[1]

    @property
    def _rounds(self) -> int | None:
        return self.getOrDefault("numTrees") if self.isSet("numTrees") else None

    _first: tuple[int, GBTModel] | None = None
    setNumTrees = setter(TreeParams.numTrees)
    setContribCol = setter(TreeParams.contribCol)

    @property
    def featureImportances(self) -> Vector:
        """Each feature's share of the gains of all splits."""
        return as_sparse(self._trained.forest.importances())

    def getFeatureImportances(self, importanceType: ScoreName = "gain") -> Vector:
        """Return a number for each feature as xgboost does.

        Args:
            importanceType: "weight": how many splits are by it; "totalGain", "totalCover": the sum of their gains, or
                of the hessians of their rows; "gain", "cover": its mean.

        Raises:
            ConfigError: there is no such type.
        """
        if importanceType not in get_args(ScoreName):
            raise ConfigError(
                f"importanceType: expected one of {', '.join(get_args(ScoreName))}, got {importanceType!r}"
            )
        return as_sparse(self._trained.forest.scores(importanceType))

    def plotImportances(self, path: PlotPath = None, most: int = 20, *, ax: Axes | None = None) -> Axes:
        """Draw the shares of the features that matter most, as bars.

        Features have the names of ``featuresCols``, else the numbers that ``toDebugString`` has.

        Args:
            path: writes it there as well: PNG, or what the suffix says (.svg, .pdf).
            most: bars at most.
            ax: draws there; None: a figure of its own, without a window and pyplot, which a notebook shows.

        Returns:
            The Axes with the plot.

        Raises:
            ConfigError: matplotlib is not installed, or the trees split by no feature.
        """
        with needs_matplotlib("plotImportances"):
            from ps2.algorithms.estimators.plotting import draw_importances
        names = () if isinstance(self._features, str) else self._features
        return saved(draw_importances(self._trained.forest.importances(), names, most, ax), path)

    @property
    def trees(self) -> list[BoostedTreeModel]:
        """The trees, as models: the sum of what they predict, each times its weight, is a row's margin.

        The first one says what margins begin with as well; of more than two classes, the first one of each class.
        """
        return [self._tree(number, part) for number, part in enumerate(self._trained.forest.parts(self._rate))]

    def _tree(self, number: int, part: Forest) -> BoostedTreeModel:
        tree = BoostedTreeModel(GBTModel(part))._resetUid(f"{self.uid}_{number}")
        shared = ("featuresCol", "featuresCols", "predictionCol", "leafCol", "labelCol")
        return tree._set(**{name: self.getOrDefault(name) for name in shared if self.isSet(name)})

    @property
    def treeWeights(self) -> list[float]:
        """What trees are multiplied by: 1 the first one (of each class), ``stepSize`` the others."""
        return self._trained.forest.weights(self._rate)

    @property
    def _rate(self) -> float:
        return float(self.getOrDefault("stepSize"))

    @property
    def getNumTrees(self) -> int:
        """Number of trees; of more than two classes, all classes' together. ``numTrees`` does not change it."""
        return len(self._trained.forest.trees)

    @property
    def totalNumNodes(self) -> int:
        """Number of nodes of all trees."""
        return self._trained.forest.nodes

    @property
    def toDebugString(self) -> str:
        """All trees in words."""
        return self._trained.forest.to_debug_string(repr(self), self._rate)

    def __repr__(self) -> str:
        # With the blanks that pyspark.ml has, or has not.
        classes, sign = "", "="
        if self._trained.classes:
            classes, sign = f", numClasses={self._trained.classes}", " = "
        name = f"{type(self).__name__}: uid{sign}{self.uid}"
        return f"{name}, numTrees={self.getNumTrees}{classes}, numFeatures={self.numFeatures}"

    def predictLeaf(self, value: Any) -> Vector:
        """Return the leaf of each tree that one row comes to, counted from the left."""
        return Vectors.dense(self._predicting.leaves(rows_of(value, self.numFeatures, missing=True))[0].tolist())

    def _transform(self, dataset: DataFrame) -> DataFrame:
        made, name = super()._transform(dataset), self.getLeafCol()
        if not name:
            return made
        leaves = [{"idx": t, "num_vals": tree.leaf_count} for t, tree in enumerate(self._predicting.forest.trees)]
        attributes = {"attrs": {"nominal": leaves}} if leaves else {}
        described = {"ml_attr": {**attributes, "num_attrs": len(leaves)}}
        return made.withColumn(name, column(name).alias(name, metadata=described))

    def _outputs(self) -> list[tuple[str, str]]:
        contrib = self.getOrDefault("contribCol") if self.isSet("contribCol") else ""
        numbers = (self.numFeatures + 1) * self._trained.forest.width
        if contrib and numbers > MAX_CONTRIBUTIONS:
            raise LimitError(
                f"contribCol: expected up to {MAX_CONTRIBUTIONS:,} numbers a row, got {numbers:,}; GBTModel's "
                "contributions computes those of a few rows"
            )
        # Each model's next class defines the other columns.
        outputs = super()._outputs()  # type: ignore[safe-super]
        return [*outputs, (self.getLeafCol(), "leaf"), (contrib, "contrib")]

    def evaluateEachIteration(self, dataset: DataFrame) -> list[float]:
        """Return the mean loss of a DataFrame's rows after each round of trees.

        Raises:
            InputError: a column is missing or of another type. What only the rows can tell is an error of Spark.
        """
        return self._losses_by_round(dataset, self._trained.forest.loss)

    @property
    def _margin_column(self) -> str | None:
        return self.getOrDefault("baseMarginCol") if self.isSet("baseMarginCol") else None

    def _losses_by_round(self, dataset: DataFrame, loss: LossName) -> list[float]:
        columns = ColumnNames(
            self._features, self.getOrDefault("labelCol"), self._weight_column, margin=self._margin_column
        )
        if self.hasParam("groupCol"):
            columns = replace(columns, group=self.getOrDefault("groupCol"))
            check_relevance(dataset, columns)
        return losses_by_round(dataset, columns, self._trained, loss)

    def saveXGBoost(self, path: str) -> None:
        """Write xgboost's JSON model: ``xgboost.Booster(model_file=path)`` predicts the same, as far as float32 goes.

        The file has the first ``numTrees`` trees if that is set. xgboost takes what a sparse matrix does not hold for
        missing: as this model, if ``absentAsMissing`` was set.

        Raises:
            UsageError: xgboost, whose numbers are float32, would part rows of training otherwise, or round leaves away.
            RecoveryError: the file system refuses.
        """
        self._predicting.saveXGBoost(path)

    def _write_content(self, url: str) -> dict[str, Any]:
        return write_forest(url, self._trained.forest)

    @classmethod
    def _read_content(cls, path: str, url: str, content: Any) -> GBTModel:
        return GBTModel(read_forest(path, url, content))
