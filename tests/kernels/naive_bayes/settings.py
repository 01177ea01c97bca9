"""The parameters of multinomial naive Bayes."""

from __future__ import annotations

from ps2.algorithms.frame.settings import Setting, getter, param, setter
from ps2.algorithms.frame.shared_settings import FeatureSettings, ProbabilitySettings


class NaiveBayesSettings(FeatureSettings, ProbabilitySettings):
    """The parameters of multinomial naive Bayes."""

    smoothing: Setting[float] = param(1.0, "the number that is added to each count", above=0)

    getSmoothing, setSmoothing = getter(smoothing), setter(smoothing)
