"""What is compiled ahead is all that predictions of linear models and factorization machines take."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp
from compiled_kernels import compiled

from ps2.algorithms.linear import loss_kernels, warm
from ps2.algorithms.linear.losses import loss_of
from ps2.algorithms.linear.plan import Problem

MODULES = (loss_kernels,)


@pytest.mark.parametrize("loss", ["huber", "softmax", "fmLogistic"])
def test_margins_when_warm_then_prediction_compiles_nothing(loss):
    warm.warm()
    before = compiled(MODULES)
    problem = Problem(loss, 3, width=1 if loss == "huber" else 3)
    w, b = np.ones(3 * problem.width), np.zeros(problem.biases)
    result = []
    for values in (np.array([2.0, 3.0]), pa.array([2.0, 3.0]).to_numpy()):
        x = sp.csr_array((values, np.array([0, 2]), np.array([0, 1, 2])), shape=(2, 3))
        result.append(loss_of(problem).margins(x, w, b))
    assert result[0].tolist() == result[1].tolist()
    assert compiled(MODULES) == before
