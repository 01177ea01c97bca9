"""Types that several keywords have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

Floats = Sequence[float] | npt.NDArray[Any]
