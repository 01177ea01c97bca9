"""Train a dictionary: the run, and the driver's program between its clocks.

An iteration takes two clocks. In one, the workers find codes of their rows by the dictionary on the servers; in the
other, they add sums of rows by code. Then the servers combine atoms and sums to the next dictionary (``updates.py``).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.dictionary.coding import exponent_of
from ps2.algorithms.dictionary.ops import TILE, folded
from ps2.algorithms.dictionary.options import WORDS, DictionaryOptions, FittedDictionary, check_fleet
from ps2.algorithms.dictionary.updates import Products, update
from ps2.algorithms.dictionary.worker import (
    CHOSEN,
    CODE,
    DO,
    DRAW,
    IDS,
    LARGEST,
    PLACES,
    RANKS,
    SCALE,
    SPARE,
    SUM,
    SURVEY,
    DictionaryProgram,
    Fleet,
    Scale,
)
from ps2.algorithms.training import row_draws
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.phases import END, Phases, run_phases
from ps2.algorithms.training.record import Record, StepReport
from ps2.algorithms.training.replay_journal import ReplayJournal
from ps2.algorithms.training.table import Table
from ps2.client.dcv import DCV
from ps2.errors import InputError
from ps2.ops.kernels import Float64s

# Clocks beside two for each iteration: the survey, the first atoms, their codes, and one whose message keeps what was
# found last.
OTHER_CLOCKS = 4
# Largest values of rows that differ by more leave squares of the smaller ones no digits in sums.
MAX_SPREAD = 2.0**20
# Growth of the objective, relative, that is not worth a warning.
ROUNDING = 1e-9

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
    driver = _Driver(options, Record(on_step, WORDS), names, table)
    return run_phases(ps, driver, table, options.form, options.seed, names)


@dataclass(frozen=True, eq=False)
class _State:
    """The driver's state before a clock.

    Attributes:
        do: the workers' task in the clock.
        iteration: number of finished iterations.
        scale: divisors of the rows; None: not known yet.
        largest: the largest absolute code of each atom.
        chosen: rows that replace atoms: ``PLACES``, ``IDS`` and ``RANKS``.
        objective: objective of the last dictionary for scaled rows; None: not known yet.
        reason: "", or why the tolerance ends the training.
    """

    do: str = SURVEY
    iteration: int = 0
    scale: Scale | None = None
    largest: Float64s | None = None
    chosen: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    objective: float | None = None
    reason: str = ""

    def message(self) -> dict[str, Any]:
        """Return the message to the workers."""
        assert self.scale is not None
        told: dict[str, Any] = {DO: self.do, SCALE: list(asdict(self.scale).values())}
        if self.do == CODE:
            told[DRAW] = self.iteration + 1
        elif self.do == SUM:
            told |= {LARGEST: self.largest, CHOSEN: self.chosen}
        return told


class _Driver:
    """The driver's program."""

    def __init__(self, options: DictionaryOptions, record: Record, names: CheckpointNames, table: Table) -> None:
        self._options, self._record, self._table = options, record, table
        settings = {name: value for name, value in asdict(options).items() if name not in ("iterations", "name")}
        self.journal = ReplayJournal.of(names, settings)
        dim, count = options.dim, options.atoms

        def matrix() -> Any:
            return names.give(
                lambda name: DCV.dense(dim, count, "float64", layout="column", align=TILE, name=name)
            ).matrix()

        def vector() -> DCV:
            return names.give(lambda name: DCV.dense(count * count, 1, "float64", name=name))

        self._fleet = Fleet(matrix(), matrix(), vector(), vector())
        self.program = DictionaryProgram(options, self._fleet, OTHER_CLOCKS + 2 * options.iterations + names.begun)
        self.phases = Phases(_State(), self._follow, self.journal, record, keeps_end=bool(options.name))
        record.completed = f"all {options.iterations} iterations were made"

    def _follow(self, state: _State, reports: Sequence[Any]) -> _State:
        return _FOLLOWING[state.do](self, state, reports)

    def _surveyed(self, state: _State, reports: Sequence[Any]) -> _State:
        def ask() -> dict[str, Any]:
            return {**reports[0], **reports[1], CHOSEN: _drawn(reports[2], self._options.atoms)}

        heard = self.journal.hear(ask)
        if not heard["largest"] > 0.0:
            name = self._table.columns.shown("features")
            raise InputError(f"{name}: expected rows with values, got {heard['rows']:,} rows of zeros alone")
        if (least := -heard["negative_least"]) < heard["largest"] / MAX_SPREAD:
            log.warning(
                "the largest values of rows are from %g to %g: sums are rounded to digits of the largest, so small "
                "rows may count for nothing, and the training ends early, as the objective is that of the largest; "
                "scale rows, or leave outliers out",
                *(least, heard["largest"]),
            )
        exponent = exponent_of(heard["largest"])
        values = math.frexp(heard["largest"])[1] - exponent
        losses = 2 * values + math.frexp(heard["longest"])[1]
        scale = Scale(exponent, values, math.frexp(heard["rows"])[1], losses)
        self._record.start()
        every = np.arange(self._options.atoms)
        return replace(state, do=SUM, scale=scale, largest=np.zeros(len(every)), chosen=_placed(heard[CHOSEN], every))

    def _coded(self, state: _State, reports: Sequence[Any]) -> _State:
        def ask() -> dict[str, Any]:
            drawn = _drawn(reports[2], SPARE)
            return {**reports[0], **reports[1], CHOSEN: drawn, "seconds": self._record.lap_s}

        heard = self.journal.hear(ask)
        assert state.scale is not None
        self._record.add(int(heard["rows"]), int(heard["bytes"]))
        now, before, limit = heard["loss"], state.objective, self._options.tolerance
        with np.errstate(over="ignore"):
            objective = float(np.ldexp(now, 2 * state.scale.exponent))
        self._record.evaluated(objective, heard["seconds"] if self.journal.is_replaying else None)
        chosen = _placed(heard[CHOSEN], np.flatnonzero(heard[LARGEST] == 0.0))
        following = replace(state, do=SUM, objective=now, largest=heard[LARGEST], chosen=chosen)
        is_still = before is not None and before - now <= limit * before
        if is_still or state.iteration >= self._options.iterations:
            if before is not None and now > before * (1.0 + ROUNDING):
                log.warning("iteration %d has raised the objective, by roundings, and is the last one", state.iteration)
            done = f"iteration {state.iteration} lessened the objective by no more than tol={limit:g} of it"
            self._record.reason = done if is_still else ""
            return replace(following, do=END, reason=self._record.reason)
        return following

    def _summed(self, state: _State, reports: Sequence[Any]) -> _State:
        def ask() -> int:
            self._update(state)
            return int(reports[0]["bytes"])

        self._record.add(0, self.journal.hear(ask))
        is_first = state.objective is None
        return replace(state, do=CODE, iteration=state.iteration + (not is_first), chosen={})

    def _update(self, state: _State) -> None:
        """Move the dictionary to the minimum for the codes that the sums are of."""
        fleet, scale, count = self._fleet, state.scale, self._options.atoms
        assert scale is not None
        assert state.largest is not None
        exponents = np.frexp(state.largest)[1].astype(np.int64)
        cross, sums = folded(fleet.atoms.apply("dictionary.products", sums=fleet.sums), 2)
        # Sums are whole numbers; these are the units.
        units = np.ldexp(1.0, exponents - scale.sum_digits)
        pair_exponents = exponents[:, None] + exponents - scale.pair_digits
        pairs = np.ldexp(fleet.pairs.pull().reshape(count, count), pair_exponents)
        atoms = fleet.products.pull().reshape(count, count)
        fresh = np.zeros(count, bool)
        fresh[state.chosen[PLACES]] = True
        units[fresh] = 1.0
        given = Products(pairs, atoms, cross * units, units[:, None] * sums * units)
        of_atoms, of_sums = update(given, fresh)
        found = fleet.atoms.apply("dictionary.combine", sums=fleet.sums, of_atoms=of_atoms, of_sums=of_sums * units)
        fleet.products.push(folded(found, 1)[0].reshape(-1))
        fleet.pairs.zero()

    # -- the end -------------------------------------------------------------------------------------------------------

    def fitted(self) -> FittedDictionary:
        """Return the result."""
        self._record.reason = self.phases.last.reason
        atoms = self._fleet.atoms.pull(columns=np.arange(self._options.dim)).T
        lengths = np.linalg.norm(atoms, axis=1, keepdims=True)
        if empty := int((lengths == 0.0).sum()):
            log.warning(
                "k is %d, and %d atoms are 0: there are fewer different rows that are large enough", len(atoms), empty
            )
        return FittedDictionary(np.ascontiguousarray(atoms / np.maximum(lengths, 1.0)), self._record.history())

    def free(self) -> None:
        """Free what is on the servers."""
        for one in vars(self._fleet).values():
            one.free()


_FOLLOWING: dict[str, Callable[[_Driver, _State, Sequence[Any]], _State]] = {
    SURVEY: _Driver._surveyed,
    SUM: _Driver._summed,
    CODE: _Driver._coded,
}


def _drawn(found: Any, count: int) -> dict[str, npt.NDArray[Any]]:
    """Return the rows that all workers' draws come to: their hashes, and a worker that has each."""
    # Of equal rows, the first worker's.
    found = {name: found[name][np.argsort(found[RANKS], kind="stable")] for name in ("priorities", IDS, RANKS)}
    first = row_draws.least(found["priorities"], found[IDS], count)
    return {name: found[name][first] for name in (IDS, RANKS)}


def _placed(drawn: dict[str, npt.NDArray[Any]], places: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[Any]]:
    """Return rows with the atoms that they begin anew: as many as there are of both."""
    count = min(len(places), len(drawn[IDS]))
    return {PLACES: places[:count], **{name: of_rows[:count] for name, of_rows in drawn.items()}}
