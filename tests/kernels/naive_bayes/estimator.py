"""The public estimator and model of multinomial naive Bayes."""

from __future__ import annotations

from pyspark.ml import Estimator, Model

from ps2.algorithms.frame.estimator import FleetEstimator
from ps2.algorithms.frame.models import ProbabilityModel
from tests.kernels.naive_bayes.program import ClassProbabilities, NaiveBayesPlan, NaiveBayesProgram
from tests.kernels.naive_bayes.settings import NaiveBayesSettings


class NaiveBayesModel(NaiveBayesSettings, ProbabilityModel, Model):
    """A trained ``NaiveBayes``."""

    _ARRAYS = ClassProbabilities


class NaiveBayes(NaiveBayesSettings, FleetEstimator, Estimator[NaiveBayesModel]):
    """Multinomial naive Bayes of rows of counts: ``NaiveBayes(smoothing=1.0).fit(df)``."""

    _CLASSES, _PLAN, _MODEL, _TRAIN = 0, NaiveBayesPlan, NaiveBayesModel, NaiveBayesProgram.train
