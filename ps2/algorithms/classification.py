"""Classification: linear models, trees and forests with pyspark.ml's API; online models; deep models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps2.algorithms.public_names import exports

if TYPE_CHECKING:
    from ps2.algorithms.deep.estimator import DIN as DIN
    from ps2.algorithms.deep.estimator import AutoInt as AutoInt
    from ps2.algorithms.deep.estimator import AutoIntModel as AutoIntModel
    from ps2.algorithms.deep.estimator import DCNv2 as DCNv2
    from ps2.algorithms.deep.estimator import DCNv2Model as DCNv2Model
    from ps2.algorithms.deep.estimator import DeepFM as DeepFM
    from ps2.algorithms.deep.estimator import DeepFMModel as DeepFMModel
    from ps2.algorithms.deep.estimator import DINModel as DINModel
    from ps2.algorithms.deep.estimator import WideAndDeep as WideAndDeep
    from ps2.algorithms.deep.estimator import WideAndDeepModel as WideAndDeepModel
    from ps2.algorithms.deep.estimator import XDeepFM as XDeepFM
    from ps2.algorithms.deep.estimator import XDeepFMModel as XDeepFMModel
    from ps2.algorithms.linear.estimator import FMClassifier as FMClassifier
    from ps2.algorithms.linear.estimator import LinearSVC as LinearSVC
    from ps2.algorithms.linear.estimator import LogisticRegression as LogisticRegression
    from ps2.algorithms.linear.models import FMClassificationModel as FMClassificationModel
    from ps2.algorithms.linear.models import LinearSVCModel as LinearSVCModel
    from ps2.algorithms.linear.models import LogisticRegressionModel as LogisticRegressionModel
    from ps2.algorithms.online.estimator import OnlineFM as OnlineFM
    from ps2.algorithms.online.estimator import OnlineFMModel as OnlineFMModel
    from ps2.algorithms.online.estimator import OnlineLogisticRegression as OnlineLogisticRegression
    from ps2.algorithms.online.estimator import OnlineLogisticRegressionModel as OnlineLogisticRegressionModel
    from ps2.algorithms.trees.estimator import GBTClassifier as GBTClassifier
    from ps2.algorithms.trees.forests.estimator import RandomForestClassifier as RandomForestClassifier
    from ps2.algorithms.trees.models import GBTClassificationModel as GBTClassificationModel
    from ps2.algorithms.trees.models import RandomForestClassificationModel as RandomForestClassificationModel
else:
    __all__, __getattr__, __dir__ = exports(__name__)
