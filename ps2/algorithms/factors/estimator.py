"""The public estimator and model of matrix factorization, with the interface of pyspark.ml's ALS."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from pyspark.ml import Estimator, Model, recommendation
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_type

from ps2.algorithms.factors import recommendation_frame as frames
from ps2.algorithms.factors.ccd_program import CcdProgram
from ps2.algorithms.factors.dealing import Assignment, PackedRatings, deal_ratings
from ps2.algorithms.factors.model import MatrixFactors, Side, check_k
from ps2.algorithms.factors.plan import FactorizationPlan, FittedFactors
from ps2.algorithms.factors.program import Problem
from ps2.algorithms.factors.ratings import RatingColumns, RatingsSurvey, survey_ratings
from ps2.algorithms.factors.settings import FactorColumnSettings, FactorizationSettings
from ps2.algorithms.factors.sgd_program import SgdProgram
from ps2.algorithms.frame.arrow_batches import collect_vectors
from ps2.algorithms.frame.dealing import check_workers
from ps2.algorithms.frame.estimator import HasInitialModel
from ps2.algorithms.frame.frames import check_frame
from ps2.algorithms.frame.models import FittedModel
from ps2.algorithms.frame.program import run_program
from ps2.algorithms.frame.retry import retry_after_server_loss
from ps2.algorithms.frame.scoring import PairScoring
from ps2.algorithms.frame.summaries import HistorySummary
from ps2.algorithms.frame.tables import field
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.record import Placement, StepReport, TrainingHistory
from ps2.algorithms.training.table import OwnRows, Table
from ps2.errors import ConfigError, DivergenceWarning, UsageError
from ps2.run.spark.backend_lookup import active_session, backend_of, cores_each
from ps2.run.spark.jvm import java_frame
from ps2.storage.export_writing import Export

E = TypeVar("E", bound="MatrixFactorization")

# The bytes of a float32, and the number of float32s that "sgd" stores after each vector (``sgd_kernels.WIDTH``).
FLOAT32_BYTES, EXTRA_COLUMNS = 4, 4
SOLVERS: dict[str, type[SgdProgram | CcdProgram]] = {"sgd": SgdProgram, "ccd": CcdProgram}
# The range of ids in pyspark.ml's ALS: 32-bit integers.
MIN_ID, MAX_ID = -(2**31), 2**31 - 1


class FactorizationSummary(HistorySummary):
    """The history of a factorization: the RMSE, or the loss of implicit feedback, in each iteration."""

    @property
    def bestIteration(self) -> int:
        """The iteration, from 1, whose vectors the model has: the last, or the best on the held-out rows."""
        history = self._history
        return history.steps if history.best is None else history.best


class MatrixFactorization(FactorizationSettings, HasInitialModel, Estimator["MatrixFactorizationModel"]):
    """Matrix factorization: ``pyspark.ml.recommendation.ALS`` on servers, by gradient or coordinate descent.

    Example::

        model = MatrixFactorization(rank=32, maxIter=20, biases=True).fit(df)  # user, item: integers or strings; rating
        model.recommendForAllUsers(10).show()
    """

    __module__ = "ps2.algorithms.recommendation"

    if TYPE_CHECKING:  # keywords of the constructor
        initialModel: MatrixFactorizationModel | MatrixFactors | None = None
        validationData: DataFrame | None = None

    def setNumBlocks(self: E, value: int) -> E:
        """Set numUserBlocks and numItemBlocks, which have no effect."""
        return self._set(numUserBlocks=value, numItemBlocks=value)

    def setInitialModel(self: E, value: MatrixFactorizationModel | MatrixFactors | None) -> E:
        """Set the model whose vectors the training begins with, or None. The data may have new users and items.

        ``save`` does not write the initial model.

        Raises:
            ConfigError: the value is another kind of model.
        """
        return super().setInitialModel(value)

    def _read_initial_model(self, value: Any) -> MatrixFactors:
        factors = value.factors if isinstance(value, MatrixFactorizationModel) else value
        if not isinstance(factors, MatrixFactors):
            raise ConfigError(f"initialModel: expected a MatrixFactorizationModel, got {type(value).__name__}")
        return factors

    def _plan(self) -> FactorizationPlan:
        """Return the plan; raise ConfigError if params contradict each other or the initial model."""
        plan = FactorizationPlan(settings=self._values(FactorizationSettings), name=self._name)
        if self._initial is not None:
            for name, expected in (("rank", self._initial.rank), ("biases", self._initial.hasBiases)):
                if (value := getattr(plan.settings, name)) != expected:
                    raise ConfigError(f"{name}: expected {expected}, as the initial model has, got {value}")
        return plan

    def _train_on(self, dataset: DataFrame) -> tuple[MatrixFactorizationModel, TrainingHistory]:
        plan = self._plan()
        check_workers(backend_of(dataset), plan.settings.numWorkers)
        fitted = retry_after_server_loss(lambda: self._factorize(dataset, plan))
        if fitted.halvings and fitted.step_size is not None:
            first_step = fitted.step_size * 2**fitted.halvings
            warnings.warn(
                f"stepSize: the training diverged with a step of {first_step:.3g}, and the model was trained with a "
                f"step of {fitted.step_size:.3g}; set this step to save the time of the first attempt",
                DivergenceWarning,
                stacklevel=4,
            )
        columns = plan.settings.userCol, plan.settings.itemCol
        id_types = [to_arrow_type(field(dataset, name).dataType) for name in columns]
        return MatrixFactorizationModel._of(MatrixFactors.of(fitted, *id_types)), fitted.history

    def _factorize(self, dataset: DataFrame, plan: FactorizationPlan) -> FittedFactors:
        """Survey ratings, assign users and items to workers, and train."""
        settings, spark = plan.settings, backend_of(dataset)
        optional = settings.ratingCol, settings.weightCol, settings.validationIndicatorCol
        columns = RatingColumns(settings.userCol, settings.itemCol, *(name or None for name in optional))
        initial_model = None if self._initial is None else self._initial.fitted()
        survey = survey_ratings(dataset, columns, settings)
        try:
            survey = survey.with_ids_of(initial_model)
            workers = settings.numWorkers or spark.total_slots()
            workers = min(workers, int(np.count_nonzero(survey.user_counts)))
            threads = cores_each(spark, workers)
            assignment = Assignment.from_counts(
                survey.user_counts,
                survey.item_counts,
                workers,
                threads,
                FLOAT32_BYTES * (settings.rank + EXTRA_COLUMNS),
            )
            packed = deal_ratings(dataset, survey, assignment, plan)
            table = Table(packed.frame, ColumnNames(columns.user, label=None), workers)
            fitted = self._train_in_context(
                table, settings.maxIter, lambda ps, on_step: train(ps, packed, survey, plan, initial_model, on_step)
            )
        finally:
            survey.release()
        limit = f"numWorkers is {settings.numWorkers}" if settings.numWorkers else "a worker for each task slot"
        placement = Placement(workers, threads, "servers", f"{limit}, and at most one for each user")
        return replace(fitted, history=replace(fitted.history, placement=placement))


def train(
    ps: Any,
    packed: PackedRatings,
    survey: RatingsSurvey,
    plan: FactorizationPlan,
    initial_model: FittedFactors | None = None,
    on_step: Callable[[StepReport], None] = lambda step: None,
) -> FittedFactors:
    """Factorize ratings, or continue in a restored context; ``survey`` includes the initial model's users and items."""
    rank = plan.settings.rank
    if initial_model is not None and initial_model.rank != rank:
        raise ConfigError(f"rank: the initial model has rank {initial_model.rank}, and the training {rank}")
    try:
        names = CheckpointNames.of(plan.name, ps)
        program = SOLVERS[plan.solver](Problem(survey, packed.assignment, plan, initial_model), names, on_step)
        return run_program(ps, program, OwnRows(packed.frame, packed.workers, program.reader()), names)
    finally:
        survey.release()


class MatrixFactorizationModel(FactorColumnSettings, FittedModel, Model):
    """A trained ``MatrixFactorization``."""

    __module__ = "ps2.algorithms.recommendation"
    _ARRAYS = MatrixFactors

    def __repr__(self) -> str:
        factors = self.factors
        sizes = f"users={len(factors.users):,}, items={len(factors.items):,}"
        return f"{type(self).__name__}: uid={self.uid}, rank={self.rank}, {sizes}"

    @staticmethod
    def fromVectors(
        users: DataFrame, items: DataFrame, userCol: str = "user", itemCol: str = "item", vectorCol: str = "vector"
    ) -> MatrixFactorizationModel:
        """Return a model of any vectors, such as those of a ``TwoTowerModel``; ratings are their inner products.

        All vectors pass through the driver.

        Args:
            users: a row for each user: distinct ids in ``userCol``, and arrays of numbers in ``vectorCol``.
            items: the same for the items, with ids in ``itemCol``.

        Raises:
            InputError: an id is null or repeated; arrays have several lengths; or there are no rows.
            ShapeError: the vectors of users and of items have different lengths.
        """
        user_ids, user_vectors = collect_vectors(users, userCol, vectorCol)
        item_ids, item_vectors = collect_vectors(items, itemCol, vectorCol)
        model = MatrixFactorizationModel._of(MatrixFactors(user_ids, item_ids, user_vectors, item_vectors))
        return model.setUserCol(userCol).setItemCol(itemCol)

    @property
    def factors(self) -> MatrixFactors:
        """The factors as arrays, usable without Spark."""
        factors: MatrixFactors = self._fitted
        return factors

    @property
    def rank(self) -> int:
        """The number of factors in a vector."""
        return self.factors.rank

    @property
    def mean(self) -> float:
        """The mean rating, which predictions begin with; 0 without biases."""
        return self.factors.mean

    @property
    def userFactors(self) -> DataFrame:
        """All users' vectors, by ascending id: columns id, features (array of floats) and, with biases, bias."""
        return frames.factors_frame(*self._session_and_broadcast(), self.factors.user, for_users=True)

    @property
    def itemFactors(self) -> DataFrame:
        """All items' vectors; see ``userFactors``."""
        return frames.factors_frame(*self._session_and_broadcast(), self.factors.item, for_users=False)

    def recommend(self, user: Any, k: int = 10, **more: Any) -> list[tuple[Any, float]]:
        """Return the best items for a user; see ``MatrixFactors.recommend``."""
        return self.factors.recommend(user, k, **more)

    def predict(self, users: Any, items: Any) -> Any:
        """Predict the ratings of pairs of ids; see ``MatrixFactors.predict``."""
        return self.factors.predict(users, items)

    def similarItems(self, item: Any, k: int = 10) -> list[tuple[Any, float]]:
        """Return the most similar items; see ``MatrixFactors.similarItems``."""
        return self.factors.similarItems(item, k)

    def similarUsers(self, user: Any, k: int = 10) -> list[tuple[Any, float]]:
        """Return the most similar users; see ``MatrixFactors.similarUsers``."""
        return self.factors.similarUsers(user, k)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        check_frame(dataset)
        name = self.getPredictionCol()
        if not name:
            return dataset
        columns = self.getUserCol(), self.getItemCol()
        get_factors = self._share(backend_of(dataset))
        predicted = frames.with_ratings(dataset, get_factors, self.factors, columns, name)
        return predicted.where(~F.isnan(F.col(f"`{name}`"))) if self.getColdStartStrategy() == "drop" else predicted

    def scoring(self) -> PairScoring:
        """Describe how ``transform`` scores rows, for scorers without Spark, which never drop rows."""
        columns = self.getUserCol(), self.getItemCol()
        integers = self.factors.users.are_integers, self.factors.items.are_integers
        return PairScoring(f"{MatrixFactors.__module__}:MatrixFactors", *columns, self.getPredictionCol(), integers)

    def recommendForAllUsers(self, numItems: int, exclude: DataFrame | None = None) -> DataFrame:
        """Return the items with the largest predicted ratings for every user, by ascending user id.

        Args:
            exclude: pairs in the columns ``userCol`` and ``itemCol``, such as the ratings: these items are not
                recommended to these users. Unknown ids and nulls are ignored. Lists are shorter where fewer than
                ``numItems`` items are left.

        Returns:
            Columns ``userCol`` and recommendations: an array of structs (``itemCol``, rating), the largest rating
            first; ties go to the larger id.

        Raises:
            ConfigError: ``numItems`` is below 1.
            InputError: a column of ``exclude`` is missing or has ids of another type.
        """
        return self._recommended(None, numItems, True, exclude)

    def recommendForAllItems(self, numUsers: int, exclude: DataFrame | None = None) -> DataFrame:
        """Return the users with the largest predicted ratings for every item; see ``recommendForAllUsers``."""
        return self._recommended(None, numUsers, False, exclude)

    def recommendForUserSubset(self, dataset: DataFrame, numItems: int, exclude: DataFrame | None = None) -> DataFrame:
        """Return the items with the largest predicted ratings for each distinct known user in ``userCol``.

        Returns:
            See ``recommendForAllUsers``.

        Raises:
            InputError: the column is missing or has ids of another type.
            ConfigError: ``numItems`` is below 1.
        """
        return self._recommended(dataset, numItems, True, exclude)

    def recommendForItemSubset(self, dataset: DataFrame, numUsers: int, exclude: DataFrame | None = None) -> DataFrame:
        """Return the users with the largest predicted ratings for each distinct known item in ``itemCol``."""
        return self._recommended(dataset, numUsers, False, exclude)

    def _recommended(self, dataset: Any, k: int, for_users: bool, exclude: DataFrame | None) -> DataFrame:
        check_k(k)
        names = self.getUserCol(), self.getItemCol()
        direction = frames.Direction(for_users, *(names if for_users else reversed(names)))
        if for_all := dataset is None:
            dataset = active_session()
        else:
            check_frame(dataset)
        if exclude is not None:
            check_frame(exclude)
        get_factors = self._share(backend_of(dataset))
        return frames.recommended(dataset, get_factors, self.factors, direction, k, for_all, exclude)

    def export(self, path: str) -> Export:
        """Write an export, from which ``ps2 serve`` recommends items; see ``MatrixFactors.export``."""
        return self.factors.export(path)

    def exportVectors(self, path: str, form: str = "parquet", side: str = "item") -> None:
        """Write ids and vectors for an index or a database; see ``MatrixFactors.exportVectors``."""
        self.factors.exportVectors(path, form, side)

    def _session_and_broadcast(self) -> tuple[SparkSession, Callable[[], MatrixFactors]]:
        spark = active_session()
        return spark, self._share(backend_of(spark))

    def _remember(self, dataset: DataFrame, history: TrainingHistory) -> None:
        self._summary = FactorizationSummary(history)

    def toPyspark(self) -> recommendation.ALSModel:
        """Return a pyspark.ml model with the same predictions.

        Its vectors are those of ``MatrixFactors.extended``: with biases, they have two elements more.

        Raises:
            UsageError: ids are strings, or integers of more than 32 bits, which pyspark.ml does not support.
        """
        factors = self.factors
        for side in (factors.user, factors.item):
            _check_int32_ids(side)
        # pyspark.ml's ALS persists the factors of its models, too.
        users = frames.extended_frame(*self._session_and_broadcast(), factors.user, for_users=True).persist()
        items = frames.extended_frame(*self._session_and_broadcast(), factors.item, for_users=False).persist()
        rank = factors.extended()[0].shape[1]
        return self._as_pyspark(recommendation.ALSModel, rank, java_frame(users), java_frame(items))


def _check_int32_ids(side: Side) -> None:
    """Raise UsageError unless all ids are integers of 32 bits."""
    expected = f"toPyspark: expected {side.names.what}s' ids that are integers of 32 bits, as pyspark.ml's are, got"
    if not side.names.are_integers:
        raise UsageError(f"{expected} strings")
    for id in (side.names[0], side.names[-1]):
        if not MIN_ID <= id <= MAX_ID:
            raise UsageError(f"{expected} {id}")


# For isinstance(). A subclass of ALSModel would have to wrap a Java object.
recommendation.ALSModel.register(MatrixFactorizationModel)
