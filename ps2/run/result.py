"""The result of a run."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ps2.errors import NotFoundError
from ps2.plot_extra import PlotPath, needs_matplotlib, save_plot
from ps2.rpc.run_control import Logged
from ps2.run.summary import RunTimes, shares_by_category, summary, summary_parts
from ps2.run.timeline import FIELDS, ClockTable, rounded, rows
from ps2.text_tables import to_html

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False, repr=False)
class RunResult(Sequence[Any]):
    """The result of ``ps.run``: a sequence of the workers' results by rank, with timings and logged numbers.

    Attributes:
        results: the workers' results, by rank.
        seconds: duration of the run, the start of Spark's tasks included.
        staleness: the run's staleness.
        firstClock: the run's first clock.
    """

    results: tuple[Any, ...]
    seconds: float
    staleness: int | None
    firstClock: int
    _tables: tuple[ClockTable, ...] = field(repr=False)
    _logged: tuple[tuple[int, Logged], ...] = field(repr=False, default=())
    _has_daemon: bool = field(repr=False, default=True)

    def __getitem__(self, rank: Any) -> Any:
        return list(self.results[rank]) if isinstance(rank, slice) else self.results[rank]

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.results)

    def __eq__(self, other: object) -> bool:
        """Compare the results as lists. Timings do not count."""
        return list(self) == list(other) if isinstance(other, (RunResult, list)) else NotImplemented

    __hash__ = None  # type: ignore[assignment] # as a list

    def __repr__(self) -> str:
        return f"RunResult({reprlib.repr(list(self))}, seconds={rounded(self.seconds)})"

    def _repr_html_(self) -> str:
        return to_html(repr(self), *summary_parts(self._times))

    @property
    def _times(self) -> RunTimes:
        return RunTimes(self._tables, self.seconds, self.staleness, self._has_daemon)

    @cached_property
    def timeline(self) -> tuple[ClockTable, ...]:
        """The times of each rank, clock by clock.

        Each rank has a NumPy record array with a row for each clock, in the order in which the rank did them. Example:
        ``result.timeline[0].wait.sum()``. The columns, in seconds (float64) unless noted:

        * ``clock`` (int64);
        * ``began``: when the worker arrived before the clock, since the call of ``ps.run``;
        * ``compute``: the function's own work, everything that no other column holds;
        * ``pull``, ``push``: reading vectors, and changing them;
        * ``wait``: for other workers, at the clock's beginning and at its barriers;
        * ``onClock``, ``checkpoint``: waiting for the driver, after the other workers let this one go;
        * ``coordinator``: the rest of that wait: messages, and the coordinator's own work;
        * ``kernels``, ``imports``: numba loads or compiles functions; Python imports modules;
        * ``block`` (int64): the block that the worker had in a rotation, or -1;
        * ``left``: the share of the block's work that was left for the next rotation.

        The times add up: the next row begins at the sum of ``began`` and all of them. A clock that is repeated after a
        failed task or a rollback has a row for each time; the work of a killed attempt is unknown. Beyond a million
        rows of all ranks together, the oldest are dropped.
        """
        return tuple(rows(table, outside=False) for table in self._tables)

    @property
    def outside(self) -> tuple[ClockTable, ...]:
        """The times of each rank outside of clocks. The columns are those of ``timeline``, ``connect`` and ``spark``.

        An attempt has rows for the time before it joined the run, for reading rows before the first clock, for the time
        between two loops, and for the time after the last loop, with its wait for the other workers. Two more rows
        cover the time from the worker's return to that of ``ps.run``. ``clock`` is the next clock.
        """
        return tuple(rows(table, outside=True) for table in self._tables)

    @property
    def metricNames(self) -> list[str]:
        """The names of the workers' logged numbers (``worker.log``)."""
        return sorted({metric.name for _, metric in self._logged})

    def metrics(self, name: str) -> NDArray[np.float64]:
        """Return the numbers that the workers logged under a name.

        Example: ``result.metrics("loss").mean(axis=0)`` is the mean over the workers, by clock.

        Returns:
            Shape (workers, clocks), from ``firstClock`` up to the last clock with a value. NaN where a worker logged
            nothing, the last value where it logged several in one clock.

        Raises:
            NotFoundError: no worker logged a number under the name.
        """
        logged = [
            (rank, metric.clock - self.firstClock, metric.value) for rank, metric in self._logged if metric.name == name
        ]
        if not logged:
            raise NotFoundError(f"metrics: no worker logged {name!r}; there are {self.metricNames}")
        values = np.full((len(self), 1 + max(clock for _, clock, _ in logged)), np.nan)
        for rank, clock, value in logged:
            values[rank, clock] = value
        return values

    def toPandas(self) -> pd.DataFrame:
        """Return timeline and metrics as one pandas DataFrame.

        The columns are ``rank``, those of ``timeline``, and one for each metric, with the suffix ``_logged`` if its
        name is also a column of ``timeline``. There is a row for each clock of each rank, ordered by rank and clock.
        Numbers that were logged after the last clock have a row whose times are NaN.
        """
        import pandas as pd

        names = list(FIELDS.names or ())
        frame = pd.concat(
            [
                pd.DataFrame({"rank": rank, **{name: table[name] for name in names}})
                for rank, table in enumerate(self.timeline)
            ],
            ignore_index=True,
        )
        if self._logged:
            logged = pd.DataFrame(
                [(rank, metric.clock, metric.name, metric.value) for rank, metric in self._logged],
                columns=["rank", "clock", "name", "value"],
            )
            last = logged.drop_duplicates(["rank", "clock", "name"], keep="last")
            values = last.pivot(index=["rank", "clock"], columns="name", values="value")
            values = values.rename(columns={name: f"{name}_logged" for name in frame}).rename_axis(columns=None)
            frame = frame.merge(values.reset_index(), how="outer", on=["rank", "clock"])
        return frame.sort_values(["rank", "clock"], kind="stable", ignore_index=True)

    def summary(self) -> None:
        """Print the workers' time by category and by rank, and for which ranks the others waited most."""
        print(summary(self._times))

    @property
    def shares(self) -> dict[str, float]:
        """The share of each category in the time of all workers, from the call of ``ps.run`` to its return.

        They add up to 1. The categories are those of ``timeline``; "outside", the function's own work outside of
        clocks; "connect", "imports" and "spark", times around the tasks; and "other", the unmeasured time.
        """
        return shares_by_category(self._times)

    def plot(
        self, path: PlotPath = None, clocks: range | tuple[int, int] | None = None, *, ax: Axes | None = None
    ) -> Axes:
        """Draw a Gantt chart: a lane for each rank with bars for its activities (Zhang et al., "MLlib*", Figure 2).

        The categories of a clock are drawn in the order wait, onClock, pull, compute, push. If there are too many
        clocks for bars, each column of pixels shows the categories' shares of its time. The axis begins with the first
        task, or shortly before the first clock if the setup was long, and ends likewise; labels below the axis name the
        times that are cut off. In a rotation, clocks also have the numbers of their blocks, and bands in the blocks'
        colours. A lane is blank while its rank has no running task. With more than 32 ranks, the busiest and some
        others are shown.

        Args:
            path: the file that the chart is also written to: PNG, or the format of the suffix (.svg, .pdf).
            clocks: the first clock to draw and the one after the last, such as ``(10, 20)``; None: all.
            ax: the Axes to draw on; None: a new figure, without a window and pyplot, which a notebook shows.

        Returns:
            The Axes with the plot.

        Raises:
            ConfigError: matplotlib is not installed, or there is nothing to draw.
        """
        with needs_matplotlib("plot"):
            from ps2.run.gantt import draw
        return save_plot(draw(self._tables, self.staleness, clocks, ax), path)
