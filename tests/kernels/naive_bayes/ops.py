"""What servers compute for multinomial naive Bayes."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ps2.ops.table import FLOATS, Range, Row, op

Positive = Annotated[float, Range(above=0)]


@op(writes=("counts",), dtypes=FLOATS)
def log_shares(counts: Row, *, total: Positive, smoothing: Positive) -> None:
    """Make of a class's counts the logarithms of its features' probabilities: log((count + smoothing) / total)."""
    np.log((counts + smoothing) / total, out=counts)
