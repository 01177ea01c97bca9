"""Where a run's clocks stood at each checkpoint, for the moment when the fleet rolls back to one."""

from __future__ import annotations

from collections import Counter

from ps2.errors import PS2Error, RecoveryError, RolledBack
from ps2.run.clocks import Cut

# Cuts that are remembered. The fleet rolls back to one of the newest.
MAX_CUTS = 100
# How often the fleet may roll back to one checkpoint. A run that never reaches the next one makes no progress.
MAX_ROLLBACKS = 100


class CutLog:
    """Cuts by checkpoint. Not thread-safe: the run's lock guards it."""

    def __init__(self) -> None:
        self._cuts: dict[str, Cut] = {}
        self._rollbacks: Counter[str] = Counter()

    def __contains__(self, checkpoint: str) -> bool:
        return checkpoint in self._cuts

    def note(self, checkpoint: str, cut: Cut) -> None:
        self._cuts[checkpoint] = cut
        if len(self._cuts) > MAX_CUTS:
            del self._cuts[next(iter(self._cuts))]

    def roll_back(self, checkpoint: str) -> Cut | PS2Error:
        """Return the cut of a checkpoint that the fleet rolled back to, or the error that ends the run."""
        cut = self._cuts.get(checkpoint)
        if cut is None:
            return RolledBack(f"the fleet rolled back to a checkpoint from before this run: {checkpoint}")
        self._rollbacks[checkpoint] += 1
        if self._rollbacks[checkpoint] > MAX_ROLLBACKS:
            return RecoveryError(
                f"run: servers were lost again and again: the fleet rolled back {self._rollbacks[checkpoint]} times to "
                f"checkpoint {checkpoint} (clock {min(cut.applied)}), and the run never came to the next one; it goes "
                f"on from the same one {MAX_ROLLBACKS} times at most"
            )
        return cut
