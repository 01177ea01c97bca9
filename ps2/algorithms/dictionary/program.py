"""Dictionary learning as a durable program: Mairal et al. (2010), with all rows in each iteration.

An iteration takes two clocks. In the first, workers compute the codes of their rows, given the dictionary on the
servers. In the second, they add products of codes and rows to the servers' sums. Then the driver computes coefficients
(``kernels.update``), with which the servers combine atoms and sums into the next dictionary.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.dictionary.kernels import update
from ps2.algorithms.dictionary.model import SparseCoder
from ps2.algorithms.dictionary.ops import TILE
from ps2.algorithms.dictionary.plan import WORDS, DictionaryPlan
from ps2.algorithms.dictionary.worker import (
    ATOMS,
    IDS,
    MAX_SPARE_ROWS,
    RANKS,
    Code,
    DictionaryWorker,
    NewAtoms,
    Scale,
    ServerVectors,
    Sum,
    Survey,
)
from ps2.algorithms.frame.memory import check_servers
from ps2.algorithms.frame.powers_of_two import exponent_of
from ps2.algorithms.frame.program import Ask, Program, Steps, run_program
from ps2.algorithms.training import row_draws
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.reading import Reading
from ps2.algorithms.training.record import Record, StepReport, Trained
from ps2.algorithms.training.table import Table
from ps2.client.dcv import DCV
from ps2.errors import InputError
from ps2.ops.exact_sums import sum_of_shards
from ps2.ops.kernels import Float64s

# If the largest absolute values of two rows differ by more than this factor, the smaller may be rounded to 0.
MAX_SPREAD = 2.0**20
# Growth of the objective by more than this fraction causes a warning; less may be rounding errors.
ROUNDING = 1e-9

SPREAD_WARNING = (
    "the largest absolute values of rows range from %g to %g: sums have the precision that the largest rows need, so "
    "small rows may have no effect, and the training may end early; scale rows, or remove outliers"
)
RAISED_WARNING = "iteration %d has raised the objective, through rounding errors; the training ends"

log = logging.getLogger(__name__)


def train(
    ps: Any, table: Table, plan: DictionaryPlan, on_step: Callable[[StepReport], None] = lambda step: None
) -> Trained[SparseCoder]:
    """Learn a dictionary on the servers; resume the training if the context has restored it.

    The result is the same for any number of workers and servers and any distribution of rows: sums of rows are exact.
    """
    names = CheckpointNames.of(plan.name, ps)
    if not names.finished_clocks:
        values_text = f"k={plan.settings.k:,} and {plan.dim:,} features make {plan.values:,} values, which"
        check_servers(f"{values_text}, together with their sums, take", plan.fleet_bytes, ps.memory())
    return run_program(ps, DictionaryProgram(plan, Record(on_step, WORDS), names, table.columns), table, names)


class DictionaryProgram(Program[Trained[SparseCoder]]):
    """The program of dictionary learning."""

    number = 2  # the version of the program's questions

    def __init__(self, plan: DictionaryPlan, record: Record, names: CheckpointNames, columns: ColumnNames) -> None:
        super().__init__(plan, plan.form, record)
        self._columns = columns
        dim, count = plan.dim, plan.settings.k
        atoms, sums = (
            names.vector(lambda name: DCV.dense(dim, count, "float64", layout="column", align=TILE, name=name)).matrix()
            for _ in range(2)
        )
        products, pairs = (
            names.vector(lambda name: DCV.dense(count * count, 1, "float64", name=name)) for _ in range(2)
        )
        self._vectors = ServerVectors(atoms, sums, products, pairs)

    def drive(self, ask: Ask) -> Steps[None]:
        plan = self.plan
        survey = yield Survey().then(partial(_merge_draws, plan.settings.k))
        scale = self._scale(ask, survey)
        ask.start_timer()
        # Drawn rows replace the atoms that no code uses; before the first iteration, they replace all atoms.
        iteration, max_codes, last_loss = 0, np.zeros(plan.settings.k), math.inf
        new_atoms = _new_atoms(np.arange(plan.settings.k), survey)
        while True:
            sums = yield Sum(scale, max_codes, new_atoms)  # Algorithm 1, lines 5 and 6
            ask(partial(self._update_atoms, scale, max_codes, new_atoms[ATOMS]))  # line 7
            codes = yield Code(scale, iteration + 1).then(partial(_merge_draws, MAX_SPARE_ROWS))  # line 4
            with np.errstate(over="ignore"):
                objective = float(np.ldexp(codes.loss, 2 * scale.exponent))
            ask.record_objective(objective, codes.rows, sums.bytes + codes.bytes)
            if iteration and last_loss - codes.loss <= plan.settings.tol * last_loss:
                if codes.loss > last_loss * (1.0 + ROUNDING):
                    ask(partial(log.warning, RAISED_WARNING, iteration))
                self.record.reason = (
                    f"iteration {iteration} reduced the objective by no more than tol={plan.settings.tol:g} of it"
                )
                return
            if iteration >= ask.setting(lambda: plan.settings.maxIter):
                self.record.reason = f"all {iteration} iterations were made"
                return
            iteration, max_codes, last_loss = iteration + 1, codes.max_codes, codes.loss
            new_atoms = _new_atoms(np.flatnonzero(max_codes == 0.0), codes)

    def _scale(self, ask: Ask, survey: Any) -> Scale:
        """Return the exponents of the power of two by which rows are divided, and of those that bound the sums."""
        if not survey.max_value > 0.0:
            name = self._columns.shown("features")
            raise InputError(f"{name}: expected rows with values, got {survey.rows:,} rows of zeros alone")
        if (min_value := -survey.negated_min) < survey.max_value / MAX_SPREAD:
            ask(partial(log.warning, SPREAD_WARNING, min_value, survey.max_value))
        exponent = exponent_of(survey.max_value)
        value_exponent = math.frexp(survey.max_value)[1] - exponent
        # A loss is at most that of zero codes: half of the squares of a row's values, at most ``max_size``.
        loss_exponent = 2 * value_exponent + math.frexp(survey.max_size)[1]
        return Scale(exponent, value_exponent, math.frexp(survey.rows)[1], loss_exponent)

    def _update_atoms(self, scale: Scale, max_codes: Float64s, new_atoms: npt.NDArray[np.int64]) -> None:
        """Minimise the objective over the dictionary, given the codes whose sums are on the servers (Algorithm 2).

        ``max_codes`` has the largest absolute code of each atom; ``new_atoms`` are indices of atoms to replace by rows.
        """
        vectors, count = self._vectors, self.plan.settings.k
        exponents = np.frexp(max_codes)[1].astype(np.int64)
        cross, sum_products = sum_of_shards(vectors.atoms.apply("dictionary.products", sums=vectors.sums), 2)
        units = np.ldexp(1.0, exponents - scale.sum_digits)  # the sums on the servers are integers, in these units
        pair_exponents = exponents[:, None] + exponents - scale.pair_digits
        pairs = np.ldexp(vectors.pairs.pull().reshape(count, count), pair_exponents)
        atom_products = vectors.products.pull().reshape(count, count)
        is_new = np.zeros(count, bool)
        is_new[new_atoms] = True
        units[is_new] = 1.0  # the sum of a new atom is the drawn row itself
        from_atoms, from_sums = update(
            pairs, atom_products, cross * units, units[:, None] * sum_products * units, is_new
        )
        shard_products = vectors.atoms.apply(
            "dictionary.combine", sums=vectors.sums, of_atoms=from_atoms, of_sums=from_sums * units
        )
        vectors.products.push(sum_of_shards(shard_products, 1)[0].reshape(-1))
        vectors.pairs.zero()

    def worker(self) -> Callable[[Reading], DictionaryWorker]:
        return partial(DictionaryWorker, self.plan, self._vectors)

    def result(self, returned: None) -> Trained[SparseCoder]:
        settings, atoms = self.plan.settings, self._vectors.atoms.pull(columns=np.arange(self.plan.dim)).T
        norms = np.linalg.norm(atoms, axis=1, keepdims=True)
        if num_zero := int((norms == 0.0).sum()):
            log.warning(
                "k is %d, and %d atoms are 0: there are too few distinct rows with large enough values",
                len(atoms),
                num_zero,
            )
        coder = SparseCoder(atoms / np.maximum(norms, 1.0), settings.regParam, settings.nonnegative)
        return Trained(coder, self.record.history())

    def free(self) -> None:
        for vector in vars(self._vectors).values():
            vector.free()


def _merge_draws(count: int, report: Any) -> dict[str, Any]:
    """Return a report with the first ``count`` drawn rows: their hashes, and the ranks of workers with them."""
    # If several workers have the same row, the first of them provides it.
    order = np.argsort(report.ranks, kind="stable")
    ids, ranks = report.ids[order], report.ranks[order]
    drawn = row_draws.smallest(report.priorities[order], ids, count)
    return {**vars(report), "priorities": None, IDS: ids[drawn], RANKS: ranks[drawn]}


def _new_atoms(atoms: npt.NDArray[np.int64], report: Any) -> NewAtoms:
    """Return the atoms to replace, each with one of the rows drawn in ``report``; fewer if fewer rows are drawn."""
    count = min(len(atoms), len(report.ids))
    return {ATOMS: atoms[:count], IDS: report.ids[:count], RANKS: report.ranks[:count]}
