"""The first clocks of a training: what workers and driver tell each other before the first step.

Clock 0 brings the faults of all workers' rows together and, for standardisation, sums of each column; clock 1 the
squares about the mean; clock 2 leaves 1 / std of each column on the servers, and the weights to begin with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ps2.algorithms.losses.loss import Loss
from ps2.algorithms.solvers.solver import Bench, Data
from ps2.algorithms.training.faults import LENGTH as FAULTS
from ps2.algorithms.training.faults import Columns, error_of
from ps2.algorithms.training.parameters import Int64Array, Parameters, columns_of
from ps2.algorithms.training.problem import Facts
from ps2.algorithms.training.reading import Reading
from ps2.algorithms.training.scaling import column_sums, deviations, inverse, means, scaled, squared_distances
from ps2.client.batch import batch
from ps2.client.dcv import DCV
from ps2.rows import LocalRows

CLOCKS = 3


@dataclass(frozen=True, eq=False)
class Preparation:
    """Vectors that the workers fill; picklable.

    Attributes:
        faults: float64, ``FAULTS`` columns a worker.
        beginning: the parameters to begin with.
        sums: of each feature: of its values, of the weights of rows that have it, of squares about the mean; None: the
            features stay as they are.
        scale: 1 / std of each weight's feature, 0 where that is 0.
        center: mean / std of each feature, if the solver wants that.
    """

    facts: Facts
    loss: Loss
    seed: int
    faults: DCV
    beginning: Parameters
    sums: list[DCV] | None
    scale: DCV | None
    center: DCV | None

    @staticmethod
    def make(bench: Bench) -> Preparation:
        """Make what a bench is prepared by."""
        space, faults = bench.space, bench.space.small(bench.workers * FAULTS)
        sums = scale = None
        if bench.problem.standardize:
            sums, scale = space.features(3), space.weight()
        return Preparation(
            bench.facts, bench.loss, bench.recipe.seed, faults, bench.beginning, sums, scale, bench.center
        )

    def take_part(self, worker: Any, reading: Reading) -> Data:
        """Do a worker's share of the first clocks; return its rows, scaled."""
        rows, width = reading.training, self.beginning.width
        for clock in worker.clocks(CLOCKS):
            worker.barrier()  # with staleness, others may not have finished the clock before
            if clock == 0:
                self.faults.push(reading.faults, np.arange(FAULTS) + worker.rank * FAULTS)
            if self.sums is not None and clock < CLOCKS - 1:
                self._add_sums(clock, rows)
            elif self.scale is not None:
                self._set_scale(self.scale, rows.keys)
            if clock == CLOCKS - 1:
                self._begin(rows.keys)
        if self.scale is not None:
            # An attempt that was started again has not been through the clocks.
            factors = self.scale.pull(rows.keys * width).astype(np.float64)
            held = None if reading.held_out is None else scaled(reading.held_out, factors)
            return Data(scaled(rows, factors), held)
        return Data(rows, reading.held_out)

    def check(self, workers: int, columns: Columns) -> None:
        """Raise InputError if any worker found a fault; for the driver, after clock 0."""
        error = error_of(self.faults.pull().reshape(workers, FAULTS), columns)
        if error is not None:
            raise error

    def _add_sums(self, clock: int, rows: LocalRows) -> None:
        assert self.sums is not None
        of_values, of_weights, of_squares = self.sums
        if clock == 0:
            found = column_sums(rows)
            with batch():
                of_values.add(found.sums, rows.keys)
                of_weights.add(found.weights, rows.keys)
        else:
            of_squares.add(squared_distances(rows, means(of_values.pull(rows.keys), self.facts)), rows.keys)

    def _set_scale(self, scale: DCV, keys: Int64Array) -> None:
        assert self.sums is not None
        with batch():
            answers = [vector.pull(keys) for vector in self.sums]
        sums, weights, squares = (answer.result() for answer in answers)
        mean = means(sums, self.facts)
        factors = inverse(deviations(squares, weights, mean, self.facts))
        width = self.beginning.width
        scale.push(np.repeat(factors, width).astype(scale.dtype), columns_of(keys, width))
        if self.center is not None:
            self.center.push(mean * factors, keys)

    def _begin(self, keys: Int64Array) -> None:
        weights = self.loss.beginning(keys, self.seed)
        if weights is not None:
            vector = self.beginning.weight
            vector.push(weights.astype(vector.dtype), columns_of(keys, self.beginning.width))
