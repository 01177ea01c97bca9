"""The records of a run: its workers' times and logged values, in arrays of bounded size."""

from __future__ import annotations

import logging
from abc import abstractmethod
from array import array
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ps2.rpc.run_control import ClockTimes, Logged

log = logging.getLogger(__name__)

# The maximum numbers of records of one run: 128 MiB of times for all workers together, and 32 MiB of metrics.
MAX_TIMES = 1 << 20
MAX_METRICS = 1 << 20


# The stored fields of ``ClockTimes``, in the order of a row, and the types of the fields that are not floats.
COLUMNS = (
    *("clock", "began", "compute", "pull", "push", "wait", "outside", "on_clock", "block", "left"),
    *("kernels", "checkpoint", "coordinator", "connect", "imports", "spark"),
)
_TYPES = {"clock": int, "block": int, "outside": bool}
_values = attrgetter(*COLUMNS)


class _Records(Sequence[Any]):
    """Records, stored as rows of floats. At ``limit`` records, the older half is dropped. The first time is logged.

    Attributes:
        dropped: the number of dropped records.
    """

    def __init__(self, width: int, limit: int, noun: str) -> None:
        self._width, self._limit, self._noun = width, max(limit, 2), noun
        self._cells = array("d")
        self.dropped = 0

    @property
    def added(self) -> int:
        """The number of all records, including dropped records."""
        return self.dropped + len(self)

    def since(self, added: int) -> NDArray[np.float64]:
        """Return a copy of the rows after the first ``added`` records, without dropped rows: shape (rows, width)."""
        begin = max(0, added - self.dropped)
        return np.array(self._cells[begin * self._width :], np.float64).reshape(-1, self._width)

    def tail(self, limit: int) -> NDArray[np.float64]:
        """Return a copy of the newest rows, at most ``limit``."""
        return self.since(self.added - limit)

    def __len__(self) -> int:
        return len(self._cells) // self._width

    def __getitem__(self, index: Any) -> Any:
        indices = range(len(self))[index]
        return self._record(indices) if isinstance(indices, int) else tuple(map(self._record, indices))

    @abstractmethod
    def _record(self, index: int) -> Any:
        """Return the record at an index that is not negative."""

    def _append(self, row: Sequence[float]) -> None:
        if len(self) == self._limit:
            if not self.dropped:
                log.warning("run: there are more than %d %s; only the newest are kept", self._limit, self._noun)
            half = self._limit // 2
            del self._cells[: half * self._width]
            self.dropped += half
        self._cells.extend(row)

    def _row(self, index: int) -> Sequence[float]:
        return self._cells[index * self._width : (index + 1) * self._width]


class Timeline(_Records):
    """The ``ClockTimes`` of one worker, in the order in which its clocks ended."""

    def __init__(self, limit: int = MAX_TIMES) -> None:
        super().__init__(len(COLUMNS), limit, "clocks of a worker")

    def append(self, times: ClockTimes) -> None:
        self._append(_values(times))

    def _record(self, index: int) -> ClockTimes:
        row = zip(COLUMNS, self._row(index), strict=True)
        return ClockTimes(**{name: _TYPES.get(name, float)(value) for name, value in row})


class Metrics(_Records):
    """Pairs (rank, ``Logged``), in order of arrival."""

    def __init__(self, limit: int = MAX_METRICS) -> None:
        super().__init__(4, limit, "logged values")
        self._ids_by_name: dict[str, int] = {}
        self._names_by_id: list[str] = []

    def append(self, rank: int, metric: Logged) -> None:
        name_id = self._ids_by_name.setdefault(metric.name, len(self._ids_by_name))
        if name_id == len(self._names_by_id):
            self._names_by_id.append(metric.name)
        self._append((rank, name_id, metric.clock, metric.value))

    def name(self, name_id: int) -> str:
        """Return the name of a metric. Rows contain (rank, name id, clock, value)."""
        return self._names_by_id[name_id]

    def _record(self, index: int) -> tuple[int, Logged]:
        rank, name_id, clock, value = self._row(index)
        return int(rank), Logged(self._names_by_id[int(name_id)], value, int(clock))
