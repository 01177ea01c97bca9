"""The two short vectors of a training: one by which the driver tells the workers, one in which they add up for it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ps2.client.batch import Deferred, batch
from ps2.client.dcv import DCV

Float64Array = npt.NDArray[np.float64]

# Columns of what the workers add up; a family's own follow.
LOSS, WEIGHT, HELD_LOSS, HELD_WEIGHT, ROWS, BYTES = range(6)
SUMS = 6
# Columns of what the driver tells the workers; a family's own follow.
STOP = 0
TOLD = 1


@dataclass(frozen=True, eq=False)
class Tally:
    """Both vectors, float64; picklable.

    Attributes:
        control: the driver writes, the workers read.
        sums: the workers add, the driver takes.
    """

    control: DCV
    sums: DCV

    def stop(self) -> None:
        """Tell the workers to stop when they begin their next clock."""
        self.control.push(np.array([1.0]), np.array([STOP]))

    def take(self) -> Float64Array:
        """Return what the workers have added up, and begin anew."""
        with batch():
            taken = self.take_later()
        return taken.result()

    def take_later(self) -> Deferred[Float64Array]:
        """Do the same within a batch."""
        taken: Deferred[Float64Array] = self.sums.pull()
        self.sums.zero()
        return taken
