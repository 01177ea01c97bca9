"""The problem that a training of trees solves, and the plan of a training of boosted trees."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ps2.algorithms.frame.placement import Work
from ps2.algorithms.frame.settings import Plan, with_values
from ps2.algorithms.training.faults import Form
from ps2.algorithms.training.record import Via
from ps2.algorithms.training.table import Facts
from ps2.algorithms.trees.cut_points import unit_of
from ps2.algorithms.trees.dropout import Dropout
from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.layout import DENSE_FROM, MAX_CATEGORIES, MAX_CODES, WORD_BITS
from ps2.algorithms.trees.metrics import CustomMetric, Metric
from ps2.algorithms.trees.settings import MAX_LEAVES, BoostingSettings, num_features_of
from ps2.algorithms.trees.target_statistics import StatisticColumns
from ps2.algorithms.trees.tree import Absent, Forest
from ps2.errors import ConfigError, LimitError

# The minimum gain of a split in xgboost.
MIN_GAIN = 1e-6
# CatBoost's default learning rate is exp(a log(rows) + b + c log(trees / 1000)): a, b and c by the loss, and whether
# rows are held out (catboost/libs/train_lib/options_helper.cpp, TAutoLRParamsGuesser, for CPUs).
RATE_COEFFICIENTS = {
    ("logistic", False): (0.427, -7.525, -0.917),
    ("logistic", True): (0.247, -5.158, -0.435),
    ("softmax", False): (0.051, -2.889, -0.845),
    ("softmax", True): (0.02, -2.364, -0.382),
    ("squared", False): (0.158, -4.287, -0.813),
    ("squared", True): (0.157, -4.062, -0.61),
}
MAX_AUTOMATIC_RATE = 0.5
# Gradients below this fraction of the largest label may be rounding errors.
ROUNDING_FRACTION = 1e-14
# The largest absolute leaf value for classes with ``defaults="pyspark"``, before stepSize: twice the largest of
# pyspark.ml, whose margins are half as large. Without it, the value of a leaf whose rows have one class would be the
# inverse of a probability, which may be tiny.
MAX_CLASS_LEAF = 8.0
# The rate of the first tree if its hessians are ``gradients.PYSPARK_HESSIAN``: its leaves are Newton steps from a
# margin of 0, where the hessian is 1/4.
PYSPARK_FIRST_RATE = 0.5
# The maximum number of bits of the mean weight, and of the sum of all weights, as integers.
WEIGHT_BITS, WEIGHT_SUM_BITS = 20, 29

# The value of minDataPerGroup if it is not set: MIN_GROUP rows, or one MIN_GROUP_SHARE-th of the rows if that is less.
MIN_GROUP, MIN_GROUP_SHARE = 100, 20

# The source of a node's weight: see ``BoostingPlan``.
WeightSource = Literal["hessians", "rows", "weights"]

# Seconds of one core, for ``work_of``: to read and bin a stored value; to add it to a histogram; to compute a row's
# gradient, round it and move the row to a leaf; to search a bin of a node.
READ_S, ADD_S, ROW_S, BIN_S = 100e-9, 0.75e-9, 40e-9, 5e-9
# Seconds for a value of sparse rows: to add it to a bin, which is rarely in a cache, and to send its bin.
ADD_SPARSE_S, SEND_SPARSE_S = 40e-9, 16e-9
# Seconds of the overhead of a clock with servers.
CLOCK_S = 10e-3
# The speed of each further thread of a worker, relative to the first thread.
THREAD_SPEEDUP = 0.8
# The maximum number of stored values for which via="auto" means one worker: with bins and gradients, about 1 GB.
MAX_LOCAL_VALUES = 50_000_000
# For a tree that grows by leaf: the number of levels, and of clocks, for each doubling of the number of leaves.
LEVELS_BY_LEAF, CLOCKS_BY_LEAF = 1.0, 3.0


@dataclass(frozen=True)
class TreeProblem:
    """What a training of trees predicts, and from which features.

    Attributes:
        dim: the number of features, with the columns of target statistics.
        base: the margins before any tree, one for each output.
        absent: how to read an entry that a sparse row does not store: zero or missing.
        categories: the number of categories by feature number; features without an entry are numeric.
        initial: the forest from which the training resumes, whose base is ``base``; None: there is none.
        statistics: the columns of target statistics, which replace categorical features; None: there are none.
        reach: the lowest and the highest margin before the first new tree, relative to the base.
    """

    objective: Objective
    dim: int
    base: tuple[float, ...]
    absent: Absent = "zero"
    categories: Mapping[int, int] = field(default_factory=dict)
    initial: Forest | None = field(default=None, repr=False)
    reach: tuple[float, float] = (0.0, 0.0)
    statistics: StatisticColumns | None = None

    @property
    def form(self) -> Form:
        """The form of the rows that workers read."""
        dim, categories, statistics = self.dim, self.categories, self.statistics
        if statistics is not None:
            dim, categories = statistics.features, {**categories, **statistics.categories}
        return Form(dim, self.classes, missing=True, categories=categories)

    @property
    def span(self) -> tuple[float, float]:
        """The range of the margins before the first new tree."""
        return min(self.base) + self.reach[0], max(self.base) + self.reach[1]

    @property
    def words(self) -> int:
        """The number of int64s in a set of categories, which has a bit for each category with a bin of its own."""
        return -(-min(max(self.categories.values(), default=0), MAX_CATEGORIES) // WORD_BITS)

    @property
    def folded(self) -> list[int]:
        """The features of which only the most frequent categories have bins of their own, ascending."""
        return sorted(feature for feature, count in self.categories.items() if count > MAX_CATEGORIES)

    @property
    def classes(self) -> int | None:
        """The number of classes; None: labels are numbers."""
        return self.objective.classes


class TreeTraining(NamedTuple):
    """The plan of boosted trees or of a random forest, and the problem."""

    plan: Any
    problem: TreeProblem


@dataclass(frozen=True, kw_only=True)
class BoostingPlan(Plan[BoostingSettings]):
    """A training of boosted trees.

    Attributes:
        via: "local": the process of the only worker has the histograms; "servers": the servers have them.
        tree_features: the number of features that each tree samples; 0: all.
        level_features: the number of its tree's features that each level samples; 0: all.
        node_features: the number of its level's features that each node samples; 0: all.
        first_rate: the learning rate of the first tree of each output; None: ``stepSize``.
        max_leaf_value: the largest absolute leaf value, before the learning rate.
        min_gain: reject splits that gain no more than this; the gain may be rounding error.
        weight_source: the source of a node's weight: the sum of hessians (if these are the rows' weights), the number
            of rows (if all weigh 1), or a separate sum of weights.
        weight_unit: the weight that 1 in an integer weight stands for.
        mean_weight: the mean weight of rows.
        has_sorted_categories: whether a feature has more than ``maxCatToOnehot`` categories.
        custom_metric: the user's metric; None: ``evalMetric`` names the metric.
        validation_sets: see ``Survey``.
    """

    via: Via = "servers"
    tree_features: int = 0
    level_features: int = 0
    node_features: int = 0
    first_rate: float | None = None
    max_leaf_value: float = math.inf
    min_gain: float = MIN_GAIN
    min_node_weight: float = 0.0
    weight_source: WeightSource = "hessians"
    weight_unit: float = 1.0
    mean_weight: float = 1.0
    has_sorted_categories: bool = False
    custom_metric: CustomMetric | None = None
    validation_sets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        min_rows = self.settings.minInstancesPerNode
        if self._needs_weights and self.weight_source == "weights" and min_rows > 1:
            raise ConfigError(
                "minInstancesPerNode: expected 1 with minInfoGain or minWeightFractionPerNode and weights of rows, for "
                f"a loss whose hessians are not the weights, got {min_rows}"
            )

    def plain(self) -> dict[str, Any]:
        values = super().plain()
        if self.custom_metric is not None and self.custom_metric.function is not None:
            values["custom_metric"] = self.custom_metric.function.fingerprint
        return values

    @property
    def metric(self) -> Metric:
        """The metric of the held-out rows."""
        return self.custom_metric or Metric.parse(self.settings.evalMetric or "")

    @property
    def max_leaves(self) -> int:
        settings, limit = self.settings, self.settings.maxLeaves
        if limit is None:
            limit = MAX_LEAVES[settings.growth]
        return min(limit or 1 << settings.maxDepth, 1 << settings.maxDepth)

    @property
    def bounds(self) -> npt.NDArray[np.float64]:
        """The smallest and the largest value of a leaf, before the learning rate."""
        return np.array([-self.max_leaf_value, self.max_leaf_value])

    @property
    def monotone(self) -> tuple[int, ...]:
        """The direction of predictions by feature: -1, 0 or 1; empty: no feature has a constraint."""
        signs = self.settings.monotoneConstraints or ()
        return tuple(signs) if any(signs) else ()

    @property
    def _needs_weights(self) -> bool:
        """Whether a rule of splits depends on the weight of nodes."""
        return self.min_node_weight > 0 or self.settings.minInfoGain > 0

    @property
    def third_channel(self) -> WeightSource | None:
        """What a bin's third channel sums: "rows" (their number) or "weights"; None: a bin has two channels."""
        if self._needs_weights and self.weight_source != "hessians":
            return self.weight_source
        return "rows" if self.has_sorted_categories or self.settings.minInstancesPerNode > 1 else None

    @property
    def channels(self) -> int:
        """The number of a bin's channels: hessians, gradients, and a third one if needed."""
        return 2 if self.third_channel is None else 3

    @property
    def min_third(self) -> int:
        """The minimum sum of the third channel on each side of a split; 0: there is no minimum."""
        match self.third_channel:
            case "rows":
                # Without the tolerance, a rounding error of the weight could require one more row.
                min_from_weight = self.min_node_weight * (1 - 1e-6) if self.weight_source == "rows" else 0.0
                return max(self.settings.minInstancesPerNode, math.ceil(min_from_weight))
            case "weights":
                return math.ceil(self.min_node_weight * (1 - 1e-6) / self.weight_unit)
            case _:
                return 0

    def third_of(self, rows: float) -> int:
        """Return the third total of this many rows of the mean weight; 0: bins have no third channel."""
        third_of_row = {"rows": 1.0, "weights": self.mean_weight / self.weight_unit}
        return round(rows * third_of_row.get(self.third_channel or "", 0.0))

    @property
    def min_hessian(self) -> float:
        """The minimum sum of hessians on each side of a split."""
        min_from_weight = self.min_node_weight * (1 - 1e-6) if self.weight_source == "hessians" else 0.0
        return max(self.settings.minChildWeight, min_from_weight)

    @property
    def is_goss(self) -> bool:
        """Whether trees sample rows by their gradients."""
        return self.settings.dataSampleStrategy == "goss"

    @property
    def amplification(self) -> float:
        """The factor of the gradients of rows that are sampled and are not top rows; 1: without GOSS."""
        return (1 - self.settings.topRate) / self.settings.otherRate if self.is_goss else 1.0

    def samples_by_gradient(self, rounds: int) -> bool:
        """Return whether the round after ``rounds`` rounds uses GOSS: not the first 1 / stepSize, as in LightGBM."""
        return self.is_goss and rounds >= int(1 / self.settings.stepSize)

    def node_key(self, tree: int) -> int:
        """Return the random key by which the nodes of a tree sample features: see ``search_kernels.node_keys``."""
        return key_of(self.seed, tree, 1)

    def rate_of(self, tree: int, width: int) -> float:
        """Return the learning rate of a tree, by its number; width: the number of outputs."""
        rate = self.settings.stepSize if self.first_rate is None or tree >= width else self.first_rate
        return rate if self.dropout is None else rate * self.dropout.drop(tree // width).new_scale

    @cached_property
    def dropout(self) -> Dropout | None:
        """The rounds that each round drops; None: trees are not dropped."""
        return Dropout(self.settings, self.seed) if self.settings.boostingType == "dart" else None


def default_min_group(rows: int) -> int:
    """Return the value of minDataPerGroup if it is not set."""
    return min(MIN_GROUP, max(rows // MIN_GROUP_SHARE, 1))


def with_table_facts(plan: BoostingPlan, problem: TreeProblem, facts: Facts, is_weighted: bool) -> BoostingPlan:
    """Return a plan with the fields that depend on the rows."""
    settings, mean_weight = plan.settings, facts.weight / facts.rows
    objective, dim, num_categories = problem.objective, problem.dim, max(problem.categories.values(), default=0)
    min_gain, max_leaf_value, first_rate = MIN_GAIN, objective.max_leaf_value, None
    if settings.defaults != "xgboost":
        # The minimum gain is relative to labels and weights, so that trees do not depend on their units.
        max_gradient = 1.0 if objective.has_bounded_gradients else max(map(abs, facts.label_range))
        min_gain = without_last_digits(mean_weight * (ROUNDING_FRACTION * max_gradient) ** 2)
    if settings.defaults == "pyspark":
        is_bounded = objective.classes or objective.loss == "lambdarank"
        max_leaf_value = min(max_leaf_value, MAX_CLASS_LEAF if is_bounded else math.inf)
        first_rate = 1.0 if objective.hessian is None else PYSPARK_FIRST_RATE
    if problem.initial is not None:
        # The first new tree is not the model's first tree. New trees need other random numbers than the old trees.
        settings = with_values(settings, seed=key_of(plan.seed, len(problem.initial.trees)))
        first_rate = None
    if settings.minDataPerGroup is None:
        # pyspark.ml has no minimum, and refuses features of more than maxBins categories.
        is_pyspark = objective.hessian is not None and num_categories <= settings.maxBins
        settings = with_values(settings, minDataPerGroup=1 if is_pyspark else default_min_group(facts.rows))
    tree_features = max(int(settings.colsampleBytree * dim), 1)
    level_features = max(int(settings.colsampleBylevel * tree_features), 1)
    # The sum of all integer weights fits int32.
    weight_bits = max(min(WEIGHT_BITS, WEIGHT_SUM_BITS - math.ceil(math.log2(facts.rows))), 0)
    return replace(
        plan,
        settings=settings,
        tree_features=tree_features if tree_features < dim else 0,
        level_features=level_features if level_features < tree_features else 0,
        node_features=num_features_of(settings.featureSubsetStrategy, level_features),
        first_rate=first_rate,
        max_leaf_value=max_leaf_value,
        min_gain=min_gain,
        min_node_weight=without_last_digits(settings.minWeightFractionPerNode * facts.weight),
        weight_source="rows" if not is_weighted else "hessians" if objective.hessians_are_weights else "weights",
        weight_unit=unit_of(mean_weight, weight_bits) if is_weighted else 1.0,
        mean_weight=without_last_digits(mean_weight),
        has_sorted_categories=num_categories > settings.maxCatToOnehot,
    )


def with_statistics(problem: TreeProblem, settings: BoostingSettings, facts: Facts) -> TreeProblem:
    """Return the problem with the columns of target statistics, if the settings want them for some features.

    Raises:
        ConfigError: another setting does not go together with target statistics.
        LimitError: there would be too many columns.
    """
    complexity, many = settings.maxCtrComplexity, settings.minCtrCategories
    categories = {feature: count for feature, count in problem.categories.items() if count >= many}
    if complexity == 0 or (complexity is None and settings.defaults != "catboost") or not categories:
        return problem
    names = ("monotoneConstraints", "interactionConstraints", "featureWeights")
    clashes = [*(name for name in names if getattr(settings, name)), *["initialModel"] * (problem.initial is not None)]
    if clashes:
        raise ConfigError(
            f"{clashes[0]}: expected with maxCtrComplexity=0, but {len(categories)} features of at least {many} "
            "categories would be replaced by target statistics"
        )
    max_label = max(map(abs, facts.label_range))
    columns = StatisticColumns.combine(problem.dim, categories, complexity, problem.classes or 0, max_label)
    others = {feature: count for feature, count in problem.categories.items() if feature not in categories}
    return replace(problem, dim=columns.dim, categories=others, statistics=columns)


def automatic_rate(settings: BoostingSettings, loss: str, rows: int) -> float:
    """Return the learning rate that CatBoost chooses by loss, rows and trees; ``stepSize`` if it has no formula."""
    coefficients = RATE_COEFFICIENTS.get((loss, settings.validationIndicatorCol is not None))
    if coefficients is None or not settings.maxIter:
        return settings.stepSize
    a, b, c = coefficients
    rate = math.exp(a * math.log(rows) + b + c * math.log(settings.maxIter / 1000))
    return round(min(rate, MAX_AUTOMATIC_RATE), 6)


def without_last_digits(number: float) -> float:
    """Round a sum to 6 digits, because its last digits depend on the order of the rows."""
    return float(f"{number:.6g}")


def check_features(settings: BoostingSettings, dim: int) -> None:
    """Raise ConfigError unless constraints and weights match the features."""
    for name in ("monotoneConstraints", "featureWeights"):
        entries = getattr(settings, name)
        if entries and len(entries) != dim:
            raise ConfigError(f"{name}: expected one for each of {dim} features, got {len(entries)}")
    for feature in (feature for group in settings.interactionConstraints or () for feature in group):
        if not 0 <= feature < dim:
            raise ConfigError(f"interactionConstraints: expected features from 0 to {dim - 1}, got {feature}")


def check_categories(categories: Mapping[int, int], monotone: Sequence[int] = ()) -> None:
    """Raise LimitError for too many categories, ConfigError for a constraint of a categorical feature."""
    for feature, count in categories.items():
        if count > MAX_CODES:
            raise LimitError(f"feature {feature}: expected at most {MAX_CODES:,} categories, got {count:,}")
        if monotone and monotone[feature]:
            raise ConfigError(
                f"monotoneConstraints: expected 0 for feature {feature}, which has {count:,} categories, "
                f"got {monotone[feature]}"
            )


def check_initial(initial: Forest, objective: Objective, dim: int) -> None:
    """Raise ConfigError unless a training can resume from a forest."""
    if initial.statistics is not None:
        raise ConfigError("initialModel: expected a model without target statistics (maxCtrComplexity=0)")
    for name, expected, value in (
        ("loss", objective.loss, initial.loss),
        ("features", dim, initial.features),
        ("classes", objective.width, initial.width),
        ("lossShape", objective.shape if objective.has_shape else None, initial.shape if objective.has_shape else None),
    ):
        if expected != value:
            raise ConfigError(
                f"initialModel: expected a model of {name} {expected!r}, as this training is, got {value!r}"
            )


def key_of(seed: int, *numbers: int) -> int:
    """Return a key for random numbers, below 2**63; zeros at the end change nothing.

    ``quantise`` and ``sample_rows`` hash one key differently, so what they choose is independent.
    """
    return int(np.random.SeedSequence([seed, *numbers]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def work_of(survey: Any, plan: BoostingPlan, trees: int, node_s: float = 0.0, columns: int = 0) -> Work:
    """Estimate the work of a training of boosted trees.

    Args:
        survey: the result of the survey: rows, dim, and cost, which is the number of rows plus that of stored values.
        node_s: seconds that servers need for a node, in addition to the time for its bins.
        columns: the number of columns of target statistics.
    """
    rows, dim = survey.rows, survey.dim + columns
    values = survey.cost - rows + rows * columns
    leaves = min(plan.max_leaves, max(rows // max(plan.settings.minInstancesPerNode, 1), 1))
    if plan.settings.growth == "level":
        levels = clocks = float(max(plan.settings.maxDepth, 1))
    else:
        doublings = math.log2(max(leaves, 2))
        levels, clocks = LEVELS_BY_LEAF * doublings, CLOCKS_BY_LEAF * doublings
    # At most as many bins as stored values have rows.
    bins = min(dim * min(plan.settings.maxBins, rows), values)
    # Workers add up the histogram of only one of two children: the child with fewer rows.
    num_additions = plan.settings.colsampleBytree * values * (1 + levels / 2)
    num_searched_bins, add_s, send_s = leaves * bins, ADD_S, 0.0
    if values < DENSE_FROM * rows * dim:
        # Servers search only bins that are not empty.
        num_searched_bins, add_s, send_s = min(num_searched_bins, values * levels), ADD_SPARSE_S, SEND_SPARSE_S
    why_not_auto = ""
    if values > MAX_LOCAL_VALUES:
        why_not_auto = f"{values:,.0f} stored values are more than the {MAX_LOCAL_VALUES:,} of one worker"
    return Work(
        read_s=values * READ_S,
        steps=trees,
        step_s=num_additions * add_s + rows * ROW_S + num_searched_bins * BIN_S,
        local_s=0.0,
        servers_s=num_additions * send_s + leaves * node_s + clocks * CLOCK_S,
        local_threads=math.inf,
        worker_threads=math.inf,
        thread_efficiency=THREAD_SPEEDUP,
        why_not_auto=why_not_auto,
    )
