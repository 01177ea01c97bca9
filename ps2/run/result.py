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
from ps2.run.summary import RunTimes, fractions_by_category, summary, summary_parts
from ps2.run.timeline import FIELDS, ClockTable, rounded, rows
from ps2.text_tables import to_html

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False, repr=False)
class RunResult(Sequence[Any]):
    """The result of ``ps.run``: a sequence of the workers' results by rank, with timings and logged values.

    Attributes:
        results: the workers' results, by rank.
        seconds: duration of the run, including the start of Spark's tasks.
        staleness: the run's staleness, in clocks; None for ASP.
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
        """Compare only the results, as lists."""
        return list(self) == list(other) if isinstance(other, (RunResult, list)) else NotImplemented

    __hash__ = None  # type: ignore[assignment] # like a list, it has no hash

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

        Each rank has a NumPy record array with a row for each clock, in the order in which they ended. Example:
        ``result.timeline[0].wait.sum()``. The columns, in seconds (float64) unless noted:

        * ``clock`` (int64);
        * ``began``: when the worker arrived at the clock, since the call of ``ps.run``;
        * ``compute``: the function's own work: the clock's time that no other column contains;
        * ``pull``, ``push``: reading vectors, and changing them;
        * ``wait``: for other workers, at the clock's beginning and at its barriers;
        * ``onClock``, ``checkpoint``: for calls in the driver, after all other workers had reached the needed clock;
        * ``coordinator``: the rest of the wait for the driver: messages, and the coordinator's own work;
        * ``kernels``, ``imports``: numba loads or compiles functions; Python imports modules;
        * ``block`` (int64): the block that the worker had in a rotation, or -1;
        * ``left``: the fraction of the block's work that was left for the next rotation.

        The sum of ``began`` and all times of a row is ``began`` of the next row. A clock that is repeated after a
        failed task or a rollback has several rows; the work of a killed attempt is unknown. Beyond a million rows of
        all ranks together, the oldest rows are dropped.
        """
        return tuple(rows(table, outside=False) for table in self._tables)

    @property
    def outside(self) -> tuple[ClockTable, ...]:
        """The times of each rank outside of clocks. The columns are ``connect``, ``spark`` and those of ``timeline``.

        An attempt has rows for the time before it joined the run, for reading rows before the first clock, for the time
        between two loops, and for the time after the last loop, with its wait for the other workers. Two more rows
        cover the time from the return of ``worker_fn`` to the return of ``ps.run``. ``clock`` is the next clock.
        """
        return tuple(rows(table, outside=True) for table in self._tables)

    @property
    def metricNames(self) -> list[str]:
        """The names of the values that workers logged (``worker.log``)."""
        return sorted({metric.name for _, metric in self._logged})

    def metrics(self, name: str) -> NDArray[np.float64]:
        """Return the values that the workers logged under a name.

        Example: ``result.metrics("loss").mean(axis=0)`` is the mean over the workers, by clock.

        Returns:
            Shape (workers, clocks), from ``firstClock`` to the last clock with a value. NaN: the worker logged nothing.
            If it logged several values in a clock, the last one.

        Raises:
            NotFoundError: no worker logged a value under the name.
        """
        logged = [
            (rank, metric.clock - self.firstClock, metric.value) for rank, metric in self._logged if metric.name == name
        ]
        if not logged:
            raise NotFoundError(f"metrics: no worker logged {name!r}; logged names: {self.metricNames}")
        values = np.full((len(self), 1 + max(clock for _, clock, _ in logged)), np.nan)
        for rank, clock, value in logged:
            values[rank, clock] = value
        return values

    def toPandas(self) -> pd.DataFrame:
        """Return timeline and metrics as one pandas DataFrame.

        The columns are ``rank``, those of ``timeline``, and one for each metric, with the suffix ``_logged`` if its
        name is also a column of ``timeline``. There is a row for each clock of each rank, ordered by rank and clock.
        Values that were logged after the last clock have a row whose times are NaN.
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
        """Print the workers' time by category and by rank, and the ranks for which other workers waited most."""
        print(summary(self._times))

    @property
    def shares(self) -> dict[str, float]:
        """The fraction of each category in the time of all workers, from the call of ``ps.run`` to its return.

        They add up to 1. The categories are those of ``timeline``; "outside", the function's own work outside of
        clocks; "connect", "imports" and "spark", times around the tasks; and "other", the unmeasured time.
        """
        return fractions_by_category(self._times)

    def plot(
        self, path: PlotPath = None, clocks: range | tuple[int, int] | None = None, *, ax: Axes | None = None
    ) -> Axes:
        """Draw a Gantt chart: a lane for each rank with bars for its activities (Zhang et al., "MLlib*", Figure 2).

        The categories of a clock are drawn in the order wait, onClock, pull, compute, push. If there are too many
        clocks for bars, each column of pixels shows the categories' fractions of its time. The axis begins with the
        first task, or shortly before the first clock if the setup was long, and its end is chosen in the same way.
        Labels below the axis name the times that are cut off. In a rotation, clocks are also labelled with the numbers
        of their blocks, and bands have the blocks' colours. A lane is blank while its rank has no running task. With
        more than 32 ranks, the busiest and some other ranks are shown.

        Args:
            path: the file to which the chart is also written: PNG, or the format of the suffix (.svg, .pdf).
            clocks: the first clock to draw and the first clock not to draw, such as ``(10, 20)``; None: all clocks.
            ax: the Axes to draw on; None: a new figure, without a window and pyplot, which a notebook shows.

        Returns:
            The Axes with the plot.

        Raises:
            ConfigError: matplotlib is not installed, or there is nothing to draw.
        """
        with needs_matplotlib("plot"):
            from ps2.run.gantt import draw
        return save_plot(draw(self._tables, self.staleness, clocks, ax), path)
