"""A dictionary as a durable program.

An iteration takes two clocks. In one, the workers find codes of their rows by the dictionary on the servers; in the
other, they add sums of rows by code. Then the servers combine atoms and sums to the next dictionary (``updates.py``).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.dictionary.coding import exponent_of
from ps2.algorithms.dictionary.ops import TILE, folded
from ps2.algorithms.dictionary.options import WORDS, DictionaryOptions, FittedDictionary, check_fleet
from ps2.algorithms.dictionary.updates import Products, update
from ps2.algorithms.dictionary.worker import (
    IDS,
    PLACES,
    RANKS,
    SPARE,
    Code,
    DictionaryWork,
    Fleet,
    NewAtoms,
    Scale,
    Sum,
    Survey,
)
from ps2.algorithms.frame.program import Ask, Program, Steps, run_program
from ps2.algorithms.training import row_draws
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.record import Record, StepReport
from ps2.algorithms.training.table import Table
from ps2.client.dcv import DCV
from ps2.errors import InputError
from ps2.ops.kernels import Float64s

# Largest values of rows that differ by more leave squares of the smaller ones no digits in sums.
MAX_SPREAD = 2.0**20
# Growth of the objective, relative, that is not worth a warning.
ROUNDING = 1e-9

# Warnings.
SPREAD = (
    "the largest values of rows are from %g to %g: sums are rounded to digits of the largest, so small rows may count "
    "for nothing, and the training ends early, as the objective is that of the largest; scale rows, or leave outliers "
    "out"
)
RAISED = "iteration %d has raised the objective, by roundings, and is the last one"

log = logging.getLogger(__name__)


def train(
    ps: Any, table: Table, options: DictionaryOptions, on_step: Callable[[StepReport], None] = lambda step: None
) -> FittedDictionary:
    """Learn a dictionary that lies on the servers; in a restored context, continue.

    The result is the same on any number of workers and servers, and wherever rows are: sums of rows are exact.

    Args:
        ps: the PS2Context.
        table: rows.
        options: the options.
        on_step: called in the driver after each iteration.

    Raises:
        LimitError: the dictionary does not fit on the servers, or in a worker.
        NotFoundError, ConfigError: the context was restored from a checkpoint without a training of this name, or with
            another one.
        InputError: rows cannot be used; says how many, and names one. Or all of them are zeros.
        SlotsError, WorkerError...: as ``ps.run`` raises.
    """
    names = CheckpointNames.of(options.name, ps)
    if not names.begun:
        check_fleet(options, ps.memory())
    return run_program(ps, DictionaryProgram(options, Record(on_step, WORDS), names, table.columns), table, names)


class DictionaryProgram(Program[FittedDictionary]):
    """Dictionary learning."""

    def __init__(
        self, options: DictionaryOptions, record: Record, names: CheckpointNames, columns: ColumnNames
    ) -> None:
        super().__init__(options, options.form, record)
        self._columns = columns
        dim, count = options.dim, options.atoms

        def matrix() -> Any:
            return names.give(
                lambda name: DCV.dense(dim, count, "float64", layout="column", align=TILE, name=name)
            ).matrix()

        def vector() -> DCV:
            return names.give(lambda name: DCV.dense(count * count, 1, "float64", name=name))

        self.fleet = Fleet(matrix(), matrix(), vector(), vector())

    # -- the algorithm -------------------------------------------------------------------------------------------------

    def drive(self, ask: Ask) -> Steps[None]:
        options = self.options
        survey = yield Survey().then(partial(_with_draw, options.atoms))
        scale = self._scale(ask, survey)
        ask.start()
        new_atoms = _new_atoms(np.arange(options.atoms), survey)
        iteration, largest, before = 0, np.zeros(options.atoms), math.inf
        while True:
            sums = yield Sum(scale, largest, new_atoms)
            ask(partial(self._update, scale, largest, new_atoms[PLACES]))
            codes = yield Code(scale, iteration + 1).then(partial(_with_draw, SPARE))
            with np.errstate(over="ignore"):
                objective = float(np.ldexp(codes.loss, 2 * scale.exponent))
            ask.evaluated(objective, codes.rows, sums.bytes + codes.bytes)
            if iteration and before - codes.loss <= options.tolerance * before:
                if codes.loss > before * (1.0 + ROUNDING):
                    ask(partial(log.warning, RAISED, iteration))
                self.record.reason = (
                    f"iteration {iteration} lessened the objective by no more than tol={options.tolerance:g} of it"
                )
                return
            if iteration >= ask.setting(lambda: options.iterations):
                self.record.reason = f"all {iteration} iterations were made"
                return
            iteration, largest, before = iteration + 1, codes.largest, codes.loss
            new_atoms = _new_atoms(np.flatnonzero(largest == 0.0), codes)

    def _scale(self, ask: Ask, survey: Any) -> Scale:
        """Return what rows are divided by, and to which digits their sums are rounded."""
        if not survey.largest > 0.0:
            name = self._columns.shown("features")
            raise InputError(f"{name}: expected rows with values, got {survey.rows:,} rows of zeros alone")
        if (smallest := -survey.negative_least) < survey.largest / MAX_SPREAD:
            ask(partial(log.warning, SPREAD, smallest, survey.largest))
        exponent = exponent_of(survey.largest)
        values = math.frexp(survey.largest)[1] - exponent
        losses = 2 * values + math.frexp(survey.longest)[1]
        return Scale(exponent, values, math.frexp(survey.rows)[1], losses)

    def _update(self, scale: Scale, largest: Float64s, new: npt.NDArray[np.int64]) -> None:
        """Move the dictionary to the minimum for the codes that the sums are of.

        Args:
            largest: the largest absolute code of each atom.
            new: atoms that rows replace.
        """
        fleet, count = self.fleet, self.options.atoms
        exponents = np.frexp(largest)[1].astype(np.int64)
        cross, sums = folded(fleet.atoms.apply("dictionary.products", sums=fleet.sums), 2)
        # Sums are whole numbers; these are the units.
        units = np.ldexp(1.0, exponents - scale.sum_digits)
        pair_exponents = exponents[:, None] + exponents - scale.pair_digits
        pairs = np.ldexp(fleet.pairs.pull().reshape(count, count), pair_exponents)
        atoms = fleet.products.pull().reshape(count, count)
        fresh = np.zeros(count, bool)
        fresh[new] = True
        units[fresh] = 1.0
        products = Products(pairs, atoms, cross * units, units[:, None] * sums * units)
        of_atoms, of_sums = update(products, fresh)
        combined = fleet.atoms.apply("dictionary.combine", sums=fleet.sums, of_atoms=of_atoms, of_sums=of_sums * units)
        fleet.products.push(folded(combined, 1)[0].reshape(-1))
        fleet.pairs.zero()

    # -- what the frame calls ------------------------------------------------------------------------------------------

    def worker(self) -> DictionaryWork:
        return DictionaryWork(self.options, self.fleet)

    def result(self, returned: None) -> FittedDictionary:
        atoms = self.fleet.atoms.pull(columns=np.arange(self.options.dim)).T
        lengths = np.linalg.norm(atoms, axis=1, keepdims=True)
        if empty := int((lengths == 0.0).sum()):
            log.warning(
                "k is %d, and %d atoms are 0: there are fewer different rows that are large enough", len(atoms), empty
            )
        return FittedDictionary(np.ascontiguousarray(atoms / np.maximum(lengths, 1.0)), self.record.history())

    def free(self) -> None:
        for vector in vars(self.fleet).values():
            vector.free()


def _with_draw(count: int, report: Any) -> dict[str, Any]:
    """Return a report whose drawn rows are those of all workers together: their hashes, and a worker that has each."""
    # Of equal rows, the first worker's.
    order = np.argsort(report.ranks, kind="stable")
    ids, ranks = report.ids[order], report.ranks[order]
    first = row_draws.smallest(report.priorities[order], ids, count)
    return {**vars(report), "priorities": None, IDS: ids[first], RANKS: ranks[first]}


def _new_atoms(places: npt.NDArray[np.int64], drawn: Any) -> NewAtoms:
    """Return rows with the atoms that they replace: as many as there are of both."""
    count = min(len(places), len(drawn.ids))
    return {PLACES: places[:count], IDS: drawn.ids[:count], RANKS: drawn.ranks[:count]}
