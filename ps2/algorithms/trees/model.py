"""A trained forest where there is no Spark and no server."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

from ps2.algorithms.frame.heads import ClassHead, ValueHead
from ps2.algorithms.trees.contributions import Explainer
from ps2.algorithms.trees.files import load_forest
from ps2.algorithms.trees.predict import TreesModel
from ps2.algorithms.trees.tree import Forest
from ps2.algorithms.trees.xgboost_file import save_xgboost
from ps2.array_types import Float64s
from ps2.errors import ConfigError


class GBTModel(TreesModel):
    """Boosted trees: the trained part of a model of ``GBTClassifier`` or ``GBTRegressor``; picklable.

    Example::

        model = GBTModel.load("models/clicks")
        model.predict(X)  # NumPy or scipy CSR
    """

    def __init__(self, forest: Forest) -> None:
        self.forest = forest

    @staticmethod
    def load(path: str) -> GBTModel:
        """Read a model that ``model.save(path)`` of an estimator's model wrote.

        Raises:
            CheckpointMissingError: the folder holds no model.
            UsageError: it is no model of trees, or of a version that is not known here.
            CheckpointCorruptError: the files are not what the metadata say.
        """
        return GBTModel(load_forest(path))

    @property
    def classes(self) -> int | None:
        """The number of classes; None: predictions are numbers."""
        return {"logistic": 2, "softmax": self.forest.width}.get(self.forest.loss)

    def margins(self, x: Any) -> Float64s:
        """Compute the margins of rows: the base plus the leaves of the trees.

        Args:
            x: shape (n, features), NumPy, scipy CSR or pandas; NaN is missing. An entry that a sparse row does not
                store is 0 or, if the trees were grown so (``forest.absent``), missing.

        Returns:
            float64, shape (n, 1), or one column a class.

        Raises:
            ShapeError, DTypeError: x is no such matrix.
        """
        return self._predictor.margins(x)

    def first(self, numTrees: int) -> GBTModel:
        """Return the model of the first trees.

        Args:
            numTrees: the number of trees of each output, which is the number of rounds.

        Raises:
            ConfigError: the model has fewer trees.
        """
        rounds = len(self.forest.trees) // self.forest.width
        if not 1 <= numTrees <= rounds:
            raise ConfigError(f"numTrees: expected a number from 1 to {rounds}, got {numTrees}")
        return GBTModel(replace(self.forest, trees=self.forest.trees[: numTrees * self.forest.width]))

    def contributions(self, x: Any, numTrees: int | None = None) -> Float64s:
        """Compute SHAP values: each feature's contribution to the margins of rows (path-dependent TreeSHAP, exact).

        Args:
            x, numTrees: see ``predict``.

        Returns:
            float64, shape (n, features + 1), of several classes (n, classes, features + 1), as xgboost's
            ``pred_contribs``: a row's numbers sum up to its margin, and the last one is the mean margin of the training
            rows, by their hessians.

        Raises:
            ConfigError, ShapeError, DTypeError: see ``predict``.
        """
        contributions = self._limited(numTrees)._explainer.contributions(x)
        return contributions[:, 0] if self.forest.width == 1 else contributions

    def predict(self, x: Any, numTrees: int | None = None) -> Float64s:
        """Return classes or values, float64, shape (n,).

        Args:
            x: see ``margins``.
            numTrees: use this many trees (of each class) from the first one on; None: all.

        Raises:
            ConfigError: the model has fewer trees.
            ShapeError, DTypeError: see ``margins``.
        """
        return self.head.prediction(self.head.raw(self._limited(numTrees).margins(x)))

    def predictProbability(self, x: Any, numTrees: int | None = None) -> Float64s | None:
        """Return the probability of each class, float64, shape (n, classes); None: predictions are numbers.

        For Args and Raises, see ``predict``.
        """
        return self.head.probability(self.head.raw(self._limited(numTrees).margins(x)))

    def _limited(self, rounds: int | None) -> GBTModel:
        return self if rounds is None else self.first(rounds)

    def saveXGBoost(self, path: str) -> None:
        """Write xgboost's JSON model: ``xgboost.Booster(model_file=path)`` predicts the same, up to float32's rounding.

        xgboost takes entries that a sparse matrix does not store for missing, whatever ``forest.absent`` is.

        Raises:
            UsageError: xgboost, whose numbers are float32, would split rows of training otherwise, or round leaves
                away.
            RecoveryError: the file system refuses.
        """
        save_xgboost(path, self.forest)

    @property
    def head(self) -> ClassHead | ValueHead:
        """The function from margins to predictions."""
        if self.classes is None:
            return ValueHead(link="exp" if self.forest.loss == "poisson" else None)
        return ClassHead(self.classes, "softmax" if self.forest.loss == "softmax" else "logistic")

    def __repr__(self) -> str:
        return f"GBTModel(trees={len(self.forest.trees)}, features={self.dim}, loss={self.forest.loss!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {"forest": self.forest}

    @cached_property
    def _explainer(self) -> Explainer:
        return Explainer(self.forest)
