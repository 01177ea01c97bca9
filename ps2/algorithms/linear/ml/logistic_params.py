"""Params of logistic regression."""

from __future__ import annotations

from pyspark.ml.classification import _LogisticRegressionParams
from pyspark.ml.param import Param

from ps2.algorithms.estimators.params import any_case, choice, getter, own_param
from ps2.algorithms.linear.ml.params import SOLVERS_OF_LASSO, TrainingParams
from ps2.algorithms.linear.ml.path import PathParams
from ps2.algorithms.training.sent_gradients import FACTORS, FactorsName

FAMILIES = ("auto", "binomial", "multinomial")


class LogisticParams(PathParams, _LogisticRegressionParams):
    """Those of pyspark.ml, of the solvers, and of paths of penalties."""

    solver: Param[str] = choice(
        TrainingParams.solver,
        SOLVERS_OF_LASSO,
        f"how to train: {', '.join(SOLVERS_OF_LASSO)}; auto is minibatch if an optimizer is set, else l-bfgs",
    )
    family: Param[str] = choice(_LogisticRegressionParams.family, FAMILIES)
    factors: Param[FactorsName] = own_param(
        "factors",
        "whether gradients of the multinomial model travel as sufficient factors: 'auto' (where these take fewer bytes "
        "than the values), 'always' or 'never' (l-bfgs, minibatch)",
        any_case(FACTORS),
    )
    _SOLVERS = SOLVERS_OF_LASSO

    def _set_defaults(self) -> None:
        super()._set_defaults()
        self._setDefault(factors="auto")

    getFactors = getter(factors)
