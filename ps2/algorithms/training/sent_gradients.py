"""Choose how a worker's gradient is sent: value by value, or as sufficient factors (Xing et al., 2016, section 3.4).

If a model has K weights for each of D features, its gradient can be the sum over b rows i of x_i (D values) times
slopes_i' (K values). The factors have b (D + K) values, or fewer if rows are sparse. The sum has K D values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy.typing as npt

from ps2.algorithms.training.record import Gradients
from ps2.array_types import Float64s, Int64s
from ps2.client.dcv import DCV
from ps2.client.factors import sizes

Array = npt.NDArray[Any]

# Whether gradients are sent as sufficient factors; "auto": if factors take fewer bytes than values.
FactorsName = Literal["auto", "always", "never"]
FACTORS: tuple[FactorsName, ...] = get_args(FactorsName)


@dataclass(frozen=True, eq=False)
class SentValues:
    """A gradient as values at some columns of the vector."""

    values: Array
    columns: Int64s

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    def add_to(self, vector: DCV) -> None:
        vector.add(self.values.astype(vector.dtype, copy=False), self.columns)


@dataclass(frozen=True, eq=False)
class SentFactors:
    """A gradient as the factors ``x_i`` and ``slopes_i`` of n rows; servers add up the products ``x_i slopes_i'``.

    Attributes:
        slopes: the derivatives with respect to each row's margins, shape (n, width).
        x: the rows, scipy CSR or an array, shape (n, k).
        keys: the features of the columns of x, int64, shape (k,).
    """

    slopes: Float64s
    x: Any
    keys: Int64s
    nbytes: int

    def add_to(self, vector: DCV) -> None:
        vector.addFactors(self.slopes.astype(vector.dtype, copy=False), self.x, self.keys)


@dataclass(eq=False)
class FormChoice:
    """Chooses the form of a worker's gradients; picklable.

    Attributes:
        requested: the user's choice; "auto" compares the bytes of both forms for each gradient.
        counts: since the last ``take_report``: the number of gradients, those sent as factors, the bytes of both forms.
    """

    requested: FactorsName
    counts: dict[str, int] = field(default_factory=dict)

    def factor_bytes(self, vector: DCV, width: int, x: Any, keys: Int64s) -> int | None:
        """Return the bytes of a gradient to send as factors to a dense vector; None: send it value by value."""
        as_factors, as_values = sizes(vector, width, x, keys)
        is_factored = self.requested == "always" or (self.requested == "auto" and as_factors < as_values)
        new = {"gradients": 1, "factored": int(is_factored), "factor_bytes": as_factors, "value_bytes": as_values}
        self.counts = {name: self.counts.get(name, 0) + value for name, value in new.items()}
        return as_factors if is_factored else None

    def take_report(self) -> dict[str, int]:
        """Return the counts since the last call, for ``gradients_of``, and reset them."""
        counts, self.counts = self.counts, {}
        return counts


def gradients_of(report: Mapping[str, Any]) -> Gradients | None:
    """Return the gradients of all workers in a clock from their merged reports; None: there was no choice."""
    if not report.get("gradients"):
        return None
    names = ("gradients", "factored", "factor_bytes", "value_bytes")
    return Gradients(*(int(report[name]) for name in names))
