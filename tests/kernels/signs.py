"""An optimizer that is not PS2's: sign descent, as docs/contributing/optimizer.md has it."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ps2.ops.table import FLOATS, Optimizer, Range, Row, op

Positive = Annotated[float, Range(above=0)]
NonNegative = Annotated[float, Range(at_least=0)]


@op(writes=("weight", "mean"), dtypes=FLOATS, optimizer=Optimizer(damping=1.0))
def signs(
    weight: Row,
    mean: Row,
    gradient: Row,
    *,
    lr: Positive,
    decay: Annotated[float, Range(at_least=0, below=1)] = 0.9,
    l1: NonNegative = 0.0,
    l2: NonNegative = 0.0,
) -> None:
    """Take one step of sign descent: m <- decay m + (1 - decay) g; w <- w - lr (sign(m) + l1 sign(w) + l2 w)."""
    mean *= decay
    mean += (1 - decay) * gradient
    weight -= lr * (np.sign(mean) + l1 * np.sign(weight) + l2 * weight)
