"""The training of boosted trees where one worker has all rows: the driver takes in trees, and decides when they end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.record import Record
from ps2.algorithms.training.replay_journal import ReplayJournal
from ps2.algorithms.training.run import FIRST_CLOCK
from ps2.algorithms.trees.boosting_record import BoostingRecord
from ps2.algorithms.trees.local_worker import LocalTreeProgram
from ps2.algorithms.trees.tree import Tree
from ps2.client.dcv import DCV
from ps2.run.message import Message


class LocalTreeDriver:
    """The driver's program.

    Args:
        program: of the worker.
        record: grows with the rounds.
        journal: of this driver, and of the earlier ones.
        named: what the servers have of the training: a vector with its name.

    Attributes:
        is_over: whether a message has ended the training.
    """

    def __init__(self, program: LocalTreeProgram, record: Record, journal: ReplayJournal, named: DCV) -> None:
        self._named = named
        self.program, self.record, self.journal = program, record, journal
        self.boosting = BoostingRecord(program.problem, program.options, record)
        self.is_over = False
        self._starts: list[int] = []  # trees at the beginning of each clock

    def free(self) -> None:
        """Free what is on the servers."""
        self._named.free()

    def go_on_from(self, names: CheckpointNames) -> None:
        """Replay what an earlier driver heard, up to the first clock that the worker has not finished."""
        self.record.start()
        told = {one["clock"]: one["trees"] for one in names.messages if isinstance(one, Mapping) and "trees" in one}
        for clock in range(names.begun - FIRST_CLOCK):
            if not self.is_over:
                self._after(clock, list, told.get(FIRST_CLOCK + clock + 1, []))

    def on_clock(self, clock: int, reports: Sequence[Any] = ()) -> Message | None:
        """Go on after a clock, counted from ``FIRST_CLOCK``; it may be one again, when the fleet has rolled back."""
        if not clock:
            self.record.start()
        said = list(reports[0]) if reports else []
        first = self._after(clock, lambda: [{**one, "trees": len(one["trees"])} for one in said], _trees_of(said))
        trees = [data for one in said for data in one["trees"]][: len(self.boosting.trees) - first]
        scales = [one["scales"] for one in said if one["trees"]][-1:]
        told: dict[str, Any] = {"clock": FIRST_CLOCK + clock + 1, "first": first, "trees": trees, "ends": self.is_over}
        return self.journal.message(**told, scales=scales[0] if scales else None)

    def _after(self, clock: int, ask: Callable[[], list[dict[str, Any]]], grown: Sequence[Any]) -> int:
        """Take in the rounds of a clock; return how many trees there were before.

        Args:
            ask: returns what was reported of each round, with the number of trees in place of these.
            grown: the trees, as plain data.
        """
        self.record.enter(clock)
        if clock < len(self._starts):  # the fleet has rolled back
            del self.boosting.trees[self._starts[clock] :], self._starts[clock:]
        first = len(self.boosting.trees)
        self._starts.append(first)
        self.is_over = False
        with self.journal.page(FIRST_CLOCK + clock):
            left = list(grown)
            for sums in self.journal.hear(ask):
                self._take_in(sums, [Tree(*data) for data in left[: sums["trees"]]])
                del left[: sums["trees"]]
                if self.is_over:
                    break
        return first

    def _take_in(self, sums: Mapping[str, Any], trees: list[Tree]) -> None:
        """Note the losses before a round, and its trees, if the training does not end before."""
        boosting = self.boosting
        # An earlier driver that wanted fewer rounds has noted its last one's losses.
        is_known = len(self.record.objective) > sums["round"]
        is_enough = not is_known and boosting.note(sums, self.journal, sums["lap_s"])
        self.is_over = is_enough or len(boosting.trees) >= boosting.most
        if not self.is_over:
            boosting.trees += trees


def _trees_of(said: Sequence[Mapping[str, Any]]) -> list[Any]:
    return [data for one in said for data in one["trees"]]
