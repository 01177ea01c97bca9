"""Train k-means: the run, and the driver's program between its clocks.

The first clocks find the first centres (``start.py``). In each further one the workers assign their rows to the nearest
centres and add sums of rows to the servers; then the servers move the centres to the means (Lloyd's algorithm).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.clusters import start
from ps2.algorithms.clusters.assigning import exponent_of, shifted
from ps2.algorithms.clusters.ops import LENGTH, LENGTH_REST, WAY, WAY_REST, add_exactly
from ps2.algorithms.clusters.options import WORDS, FittedClusters, KMeansOptions, check_fleet
from ps2.algorithms.clusters.worker import (
    CANDIDATES,
    CHOSEN,
    CLUSTERS,
    DO,
    DRAW,
    LAST,
    LEAST,
    PLACE,
    RANK,
    SCALE,
    STEP,
    SURVEY,
    TELL,
    WEIGH,
    ClusteringProgram,
    Fleet,
    Scale,
    wanted,
)
from ps2.algorithms.training import row_draws
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.phases import END, Phases, run_phases
from ps2.algorithms.training.record import Record, StepReport
from ps2.algorithms.training.replay_journal import ReplayJournal
from ps2.algorithms.training.table import Table
from ps2.client.dcv import DCV
from ps2.errors import InputError, LimitError
from ps2.ops.kernels import Float64s, Int64s
from ps2.protocol.plain_data import LIMIT_BYTES

# Clocks of a training beside draws and iterations: the survey, the candidates' weights, placing, the evaluation, and,
# where another driver may go on, one whose message keeps what the evaluation found.
OTHER_CLOCKS = 5
# Of the bytes of a message, for candidates.
SHARE_OF_MESSAGE = 0.9


def train(
    ps: Any, table: Table, options: KMeansOptions, on_step: Callable[[StepReport], None] = lambda step: None
) -> FittedClusters:
    """Find clusters, with their centres on the servers; in a restored context, continue.

    The result is the same on any number of workers and servers, and wherever rows are: sums of rows are exact.

    Args:
        ps: the PS2Context.
        table: rows.
        options: the options.
        on_step: called in the driver after each iteration.

    Raises:
        LimitError: centres do not fit on the servers or in a worker, or candidates of the start in a message.
        NotFoundError, ConfigError: the context was restored from a checkpoint without a training of this name, or with
            another one.
        InputError: rows cannot be used; says how many, and names one.
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
        draw: number of the draw.
        least: the largest priority that is drawn.
        candidates: packed rows; None: there are none.
        chosen: hashes of the first centres, in order.
        clusters: number of clusters.
        iteration: number of finished iterations.
        scale: divisors of the rows; None: not known yet.
        reason: "", or why the tolerance ends the training.
        sizes: number of rows of each cluster at the end.
    """

    do: str = SURVEY
    draw: int = 0
    least: float = 0.0
    candidates: dict[str, npt.NDArray[Any]] | None = None
    chosen: npt.NDArray[np.uint64] | None = None
    clusters: int = 0
    iteration: int = 0
    scale: Scale | None = None
    reason: str = ""
    sizes: Int64s | None = None

    def message(self) -> dict[str, Any]:
        """Return the message to the workers."""
        said: dict[str, Any] = {DO: self.do, SCALE: [] if self.scale is None else list(asdict(self.scale).values())}
        if self.do in (RANK, TELL, WEIGH):
            said |= {DRAW: self.draw, LEAST: self.least, CANDIDATES: self.candidates}
        elif self.do == PLACE:
            said[CHOSEN] = self.chosen
        else:
            said[CLUSTERS] = self.clusters
        return said


class _Driver:
    """The driver's program."""

    def __init__(self, options: KMeansOptions, record: Record, names: CheckpointNames, table: Table) -> None:
        self._options, self._record, self._table = options, record, table
        settings = {name: value for name, value in asdict(options).items() if name not in ("iterations", "name")}
        self.journal = ReplayJournal.of(names, settings)
        dim, clusters = options.dim, options.clusters

        def matrix(dtype: str) -> Any:
            return names.give(lambda name: DCV.dense(dim, clusters, dtype, layout="column", name=name)).matrix()

        def vector(length: int) -> DCV:
            return names.give(lambda name: DCV.dense(length, 1, "float64", name=name))

        centres, sums = matrix(options.dtype), matrix("float64")
        highs, lows = (names.give(lambda name: DCV.dense(dim, 1, "float64", name=name).fill(-np.inf)) for _ in range(2))
        of_features = highs, lows, vector(dim), vector(dim), vector(dim)
        self._fleet = Fleet(centres, sums, vector(clusters), vector(clusters), *of_features)
        clocks = OTHER_CLOCKS + 2 * (options.rounds + 1) + options.iterations + names.begun
        self.program = ClusteringProgram(options, self._fleet, clocks)
        self.phases = Phases(_State(), self._follow, self.journal, record, keeps_end=bool(options.name))
        record.completed = f"all {options.iterations} iterations were made"

    def _follow(self, state: _State, reports: Sequence[Any]) -> _State:
        return _FOLLOWING[state.do](self, state, reports)

    # -- the first centres ---------------------------------------------------------------------------------------------

    def _surveyed(self, state: _State, reports: Sequence[Any]) -> _State:
        def ask() -> dict[str, Any]:
            fleet, heard = self._fleet, {**reports[0], **reports[1], "value": 0.0}
            if self._options.distance == "euclidean":  # no cosine stays the same
                found = fleet.highs.zip(fleet.lows, fleet.held, fleet.sizes, fleet.shifts)
                found.apply("clusters.shift", rows=float(heard["rows"]))
                heard["value"] = fleet.sizes.max()
            return heard

        heard = self.journal.hear(ask)
        name = self._table.columns.shown("features")
        if heard["without_length"]:
            raise InputError(
                f"{name}: {heard['without_length']:,} of {heard['rows']:,} rows hold zeros alone, which have no cosine "
                "distance from anything; leave them out"
            )
        if not heard["weight"] > 0:
            raise InputError(
                f"expected weights of which some are above 0, got {heard['rows']:,} rows whose weights are all 0"
            )
        exponent = exponent_of(np.array(heard["value"]))
        weights = 0 if self._table.columns.weight is None else math.frexp(heard["weight"])[1]
        self._record.start()
        return replace(state, do=RANK, scale=Scale(exponent, weights, math.frexp(heard["rows"])[1]))

    def _ranked(self, state: _State, reports: Sequence[Any]) -> _State:
        def ask() -> list[Any]:
            ranks, ids = reports[0]["ranks"], reports[0]["ids"]
            first = row_draws.least(ranks, ids, wanted(self._options, state.draw))
            if self._options.start == "random":
                return [0.0, ids[first]]
            return [float(ranks[first[-1]]) if len(first) else -1.0, None]

        least, chosen = self.journal.hear(ask)
        if chosen is not None:
            return replace(state, do=PLACE, chosen=chosen, clusters=len(chosen))
        # Without a row that adds to the cost, the candidates are all different rows.
        return replace(state, do=WEIGH if least < 0 else TELL, least=least)

    def _told(self, state: _State, reports: Sequence[Any]) -> _State:
        drawn = self.journal.hear(lambda: start.without_repeats(reports[0]))
        candidates = drawn if state.candidates is None else start.joined([state.candidates, drawn])
        taken = sum(array.nbytes for array in candidates.values())
        if taken > SHARE_OF_MESSAGE * LIMIT_BYTES:
            raise LimitError(
                f"initMode: 'k-means||' has found {len(candidates['ids']):,} candidates for k="
                f"{self._options.clusters:,} first centres, which take {taken:,} bytes, more than a message can bring "
                "to the workers; use 'random'"
            )
        is_last = state.draw == self._options.rounds
        return replace(state, do=WEIGH if is_last else RANK, draw=state.draw + (not is_last), candidates=candidates)

    def _weighed(self, state: _State, reports: Sequence[Any]) -> _State:
        def ask() -> npt.NDArray[np.uint64]:
            assert state.candidates is not None
            rows = start.unpacked(state.candidates, self._options.dim)
            chosen = start.plus_plus(rows, reports[0]["weights"], self._options.clusters, self._options.seed)
            return np.asarray(state.candidates["ids"][chosen])

        chosen = self.journal.hear(ask)
        return replace(state, do=PLACE, candidates=None, chosen=chosen, clusters=len(chosen))

    def _placed(self, state: _State, reports: Sequence[Any]) -> _State:
        def ask() -> None:
            lengths = _folded(self._fleet.centres.apply("clusters.squares"), 2)
            self._fleet.norms.push(lengths[0] + lengths[1])

        self.journal.hear(ask)
        return replace(state, do=STEP if self._options.iterations else LAST, chosen=None)

    # -- iterations ----------------------------------------------------------------------------------------------------

    def _stepped(self, state: _State, reports: Sequence[Any]) -> _State:
        heard = self.journal.hear(lambda: {**self._evaluated(state, reports), "way": self._move()})
        self._note(heard)
        limit = self._options.tolerance
        if self._options.distance == "cosine":
            is_still = heard["way"] / 2.0 <= limit
        else:
            assert state.scale is not None
            is_still = math.sqrt(heard["way"]) <= float(shifted(np.array(limit), -state.scale.exponent))
        iteration = state.iteration + 1
        is_last = is_still or iteration >= self._options.iterations
        reason = f"no centre moved further than tol={limit:g} in iteration {iteration}" if is_still else ""
        return replace(state, do=LAST if is_last else STEP, iteration=iteration, reason=reason)

    def _ended(self, state: _State, reports: Sequence[Any]) -> _State:
        heard = self.journal.hear(lambda: {**self._evaluated(state, reports[1:]), **reports[0]})
        if not state.reason and state.iteration < self._options.iterations:  # more than an earlier driver wanted
            return replace(state, do=STEP)
        self._record.reason = state.reason
        self._note(heard)
        return replace(state, do=END, sizes=heard["sizes"])

    def _evaluated(self, state: _State, reports: Sequence[Any]) -> dict[str, Any]:
        """Return the cost of the centres before a clock, what it took, and the time."""
        assert state.scale is not None
        parts = reports[0]["cost"]
        cost = math.fsum(parts.reshape(-1))
        if self._options.distance == "cosine":
            cost /= 2.0
        with np.errstate(over="ignore"):
            cost = float(np.ldexp(cost, 2 * state.scale.exponent + state.scale.weights))
        return {"cost": cost, "seconds": self._record.lap_s, **reports[1]}

    def _note(self, heard: dict[str, Any]) -> None:
        self._record.add(int(heard["rows"]), int(heard["bytes"]))
        self._record.evaluated(heard["cost"], heard["seconds"] if self.journal.is_replaying else None)

    def _move(self) -> float:
        """Move the centres to the means of their rows; return the largest squared way of one.

        A centre without rows stays where it is.
        """
        fleet = self._fleet
        divisors: Float64s = fleet.counts.pull()
        if self._options.distance == "cosine":
            lengths = _folded(fleet.sums.apply("clusters.squares"), 2)
            divisors = np.where(divisors > 0, np.sqrt(lengths[0] + lengths[1]), 0.0)
        found = _folded(fleet.centres.apply("clusters.move", sums=fleet.sums, divisors=divisors), 4)
        fleet.norms.push(found[LENGTH] + found[LENGTH_REST])
        fleet.counts.zero()
        return float((found[WAY] + found[WAY_REST]).max())

    # -- the end -------------------------------------------------------------------------------------------------------

    def fitted(self) -> FittedClusters:
        """Return the result."""
        state, options = self.phases.last, self._options
        assert state.scale is not None
        assert state.sizes is not None
        centres = self._fleet.centres.pull(columns=np.arange(options.dim))[:, : state.clusters].T
        centres = (shifted(centres, state.scale.exponent) + self._fleet.shifts.pull()).astype(options.dtype)
        return FittedClusters(centres, state.sizes, self._record.history())

    def free(self) -> None:
        """Free what is on the servers."""
        for one in vars(self._fleet).values():
            one.free()


_FOLLOWING: dict[str, Callable[[_Driver, _State, Sequence[Any]], _State]] = {
    SURVEY: _Driver._surveyed,
    RANK: _Driver._ranked,
    TELL: _Driver._told,
    WEIGH: _Driver._weighed,
    PLACE: _Driver._placed,
    STEP: _Driver._stepped,
    LAST: _Driver._ended,
}


def _folded(found: Float64s, rows: int) -> Float64s:
    """Return the sum of what shards returned, one after the other; rows come in pairs, a sum and what it has lost.

    Args:
        rows: of each shard.
    """
    folded = np.zeros((rows, found.shape[1]))
    for part in found.reshape(-1, rows, found.shape[1]):
        for row in range(0, rows, 2):
            add_exactly(folded[row], folded[row + 1], part[row])
            folded[row + 1] += part[row + 1]
    return folded
