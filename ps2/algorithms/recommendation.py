"""Recommendation: matrix factorization and two-tower models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps2.algorithms.public_names import exports

if TYPE_CHECKING:
    from ps2.algorithms.deep.estimator import TwoTower as TwoTower
    from ps2.algorithms.deep.estimator import TwoTowerModel as TwoTowerModel
    from ps2.algorithms.factors.estimator import MatrixFactorization as MatrixFactorization
    from ps2.algorithms.factors.estimator import MatrixFactorizationModel as MatrixFactorizationModel
else:
    __all__, __getattr__, __dir__ = exports(__name__)
