"""``OnlineLogisticRegression`` and ``OnlineFM``, and their models."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ps2.algorithms.online.ml.estimator import OnlineEstimator
from ps2.algorithms.online.ml.models import OnlineModel
from ps2.algorithms.online.ml.params import FactorParams, FactorSetters
from ps2.algorithms.online.settings import OnlineSettings

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ps2.algorithms.estimators.keywords import online_ml_click_models as keywords


class OnlineLogisticRegressionModel(OnlineModel):
    """What ``OnlineLogisticRegression`` trains."""


class OnlineLogisticRegression(OnlineEstimator):
    """Logistic regression on keys without bound, that learns from batches and streams (McMahan et al., 2013).

    Example::

        estimator = OnlineLogisticRegression(keysCol="keys", labelCol="click", alpha=0.1, l1=1.0)
        training = estimator.fitStream(clicks, checkpointLocation="hdfs:///jobs/clicks")
        training.lastProgress  # each row was predicted before it was learned
        training.model.transform(rows)
    """

    def __init__(self, **params: Unpack[keywords.OnlineLogisticRegression]) -> None:
        super().__init__(**params)

    _MODEL = OnlineLogisticRegressionModel


class OnlineFMModel(FactorParams, OnlineModel):
    """What ``OnlineFM`` trains."""


class OnlineFM(FactorSetters, OnlineEstimator):
    """Factorization machine on keys without bound, that learns from batches and streams (Rendle, 2010).

    Example::

        model = OnlineFM(keysCol="keys", labelCol="click", factorSize=8).fit(rows)
    """

    def __init__(self, **params: Unpack[keywords.OnlineFM]) -> None:
        super().__init__(**params)

    _MODEL = OnlineFMModel

    def _settings(self) -> OnlineSettings:
        plain = super()._settings()
        decay = self.getFactorL2() if plain.is_ftrl else plain.decay
        return replace(plain, factors=self.getFactorSize(), init_scale=self.getInitStd(), decay=decay)
