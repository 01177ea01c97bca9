"""The objective of a linear model or a factorization machine.

A model is a vector of ``dim * width`` weights, feature by feature (a feature's ``width`` numbers lie side by side), and
a short vector of biases, which no penalty touches. The objective is

    sum_i c_i loss(x_i, y_i; w, b) / sum_i c_i + l1 |w|_1 + l2 / 2 |w|^2

where c_i is the weight of row i, and w belongs to features that have been divided by their standard deviation if
``standardize`` is set, as in pyspark.ml.
"""

from __future__ import annotations

from dataclasses import dataclass

from ps2.algorithms.linear.settings import LossName


@dataclass(frozen=True)
class Problem:
    """An objective.

    Attributes:
        loss: "logistic", "hinge" and "squaredHinge" take labels 0 and 1, "softmax" 0 to width - 1; "huber" is Owen's,
            with a scale of its own (2007, as in pyspark.ml); "fmLogistic" and "fmSquared" are factorization machines'.
        dim: the number of features.
        width: the number of weights of a feature: 1; the number of classes ("softmax"); 1 + factors (factorization
            machines: the linear weight first).
        fit_intercept: whether the intercepts are trained; else they stay 0.
        fit_linear: whether a factorization machine has linear weights.
        l1: the strength of the L1 penalty, at least 0.
        l2: the strength of the L2 penalty, at least 0.
        standardize: whether features are divided by their standard deviations first.
        epsilon: the residual, in scales, at which "huber" turns from quadratic to linear; above 1.
        init_std: the standard deviation of a factorization machine's initial factors.
    """

    loss: LossName
    dim: int
    width: int = 1
    fit_intercept: bool = True
    fit_linear: bool = True
    l1: float = 0.0
    l2: float = 0.0
    standardize: bool = True
    epsilon: float = 1.35
    init_std: float = 0.01

    @property
    def biases(self) -> int:
        """The number of biases: the intercepts; with "huber" also the logarithm of the scale, which comes last."""
        return {"softmax": self.width, "huber": 2}.get(self.loss, 1)

    @property
    def outputs(self) -> int:
        """The number of margins of a row, each with an intercept."""
        return self.width if self.loss == "softmax" else 1

    @property
    def classes(self) -> int | None:
        """The number of classes of the labels; None: they are numbers."""
        return {"softmax": self.width, "logistic": 2, "hinge": 2, "squaredHinge": 2, "fmLogistic": 2}.get(self.loss)

    @property
    def size(self) -> int:
        """The number of weights."""
        return self.dim * self.width

    @property
    def curvature(self) -> float | None:
        """The largest second derivative of the loss by a margin, or about that; None: margins are not linear."""
        return {"logistic": 0.25, "softmax": 0.25, "squaredHinge": 2.0, "fmLogistic": None, "fmSquared": None}.get(
            self.loss, 1.0
        )
