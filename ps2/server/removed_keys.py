"""``RemovedKeys``: the keys that a shard has removed, and when, for ``DCVMatrix.removed`` and delta exports."""

from __future__ import annotations

import numpy as np

from ps2.array_types import Int64s
from ps2.errors import StaleMarkError
from ps2.ops.table import Array

MIN_CAPACITY = 256
# Maximum number of removals that are kept. When it is exceeded, the older half is dropped.
MAX_KEYS = 1 << 20


class RemovedKeys:
    """Removed keys in the order of their removal, from the first mark on.

    Attributes:
        complete_from: all removals in and after this tick are kept. None: no mark was made, so no removals are kept.
    """

    def __init__(self) -> None:
        self._keys, self._ticks, self._count = np.empty(0, np.int64), np.empty(0, np.int64), 0
        self.complete_from: int | None = None

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes + self._ticks.nbytes

    def begin(self, tick: int) -> None:
        """Keep removals from a tick on, unless they are kept already."""
        if self.complete_from is None:
            self.complete_from = tick

    def add(self, keys: Int64s, tick: int) -> None:
        """Record the removal of keys in a tick. Ticks must not decrease from call to call."""
        if self.complete_from is None:
            return
        if self._count + keys.size > MAX_KEYS:
            self._forget((self._count + 1) // 2 if keys.size <= MAX_KEYS // 2 else self._count)
        keys = keys[-MAX_KEYS:]
        if self._count + keys.size > len(self._keys):
            capacity = max(MIN_CAPACITY, 2 * (self._count + keys.size))
            self._keys, self._ticks = np.resize(self._keys, capacity), np.resize(self._ticks, capacity)
        self._keys[self._count : self._count + keys.size] = keys
        self._ticks[self._count : self._count + keys.size] = tick
        self._count += keys.size

    def since(self, tick: int) -> Int64s:
        """Return the keys removed in or after a tick, in order.

        Raises:
            StaleMarkError: some of them are no longer kept.
        """
        if self.complete_from is None or tick < self.complete_from:
            available = (
                "none are kept" if self.complete_from is None else f"kept are those from tick {self.complete_from} on"
            )
            raise StaleMarkError(f"removals since tick {tick}: {available}: read all keys instead")
        begin = int(np.searchsorted(self._ticks[: self._count], tick))
        return self._keys[begin : self._count].copy()

    def state(self) -> dict[str, Array]:
        """Return the content as arrays by name, for ``adopt``."""
        complete_from = np.array([-1 if self.complete_from is None else self.complete_from])
        return {
            "removed": self._keys[: self._count].copy(),
            "removed_at": self._ticks[: self._count].copy(),
            "removed_from": complete_from,
        }

    def adopt(self, state: dict[str, Array], mine: Array) -> None:
        """Add removals from another shard's ``state``; ``mine`` is True for the keys that belong to this shard."""
        keys = np.append(self._keys[: self._count], state["removed"][mine])
        ticks = np.append(self._ticks[: self._count], state["removed_at"][mine])
        order = np.argsort(ticks, kind="stable")
        self._keys, self._ticks, self._count = keys[order], ticks[order], keys.size
        if (complete_from := int(state["removed_from"][0])) >= 0:
            self.complete_from = max(self.complete_from or 0, complete_from)

    def _forget(self, count: int) -> None:
        if not count:
            return
        self.complete_from = int(self._ticks[count - 1]) + 1
        self._keys, self._ticks = self._keys[count : self._count].copy(), self._ticks[count : self._count].copy()
        self._count -= count
