"""The interface through which PS2 uses Spark in the driver.

Two classes implement it: ``ClassicSpark`` has a SparkContext, and calls its Java process. ``ConnectSpark`` is a client
of a Spark Connect server, and has only Spark's public API. Other packages use no private members of pyspark, and no
members that only one of the two has.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ps2.client.fleet import Loan
from ps2.errors import ConfigError


class RowSource(Protocol):
    """The rows of a DataFrame or an RDD, for a run's workers."""

    @property
    def partitions(self) -> int | None:
        """The number of Spark partitions; None: unknown."""

    def repartition(self, partitions: int) -> RowSource:
        """Return the same rows in another number of Spark partitions; this needs a shuffle."""

    def job(self, work: Callable[[Any], int]) -> SparkJob:
        """Return the job that calls ``work`` with the rows of each Spark partition; ``work`` is pickled."""


class SparkJob(Protocol):
    """A Spark job that has not begun."""

    @property
    def tasks(self) -> int | None:
        """The number of its tasks; None: unknown."""

    def run(self, tag: str) -> None:
        """Run the job and wait for its end. It gets a tag, and the local properties of the thread that created it."""


class Broadcast(Protocol):
    """A value that tasks share. A closure that contains this object is pickled without the value."""

    @property
    def value(self) -> Any: ...

    def unpersist(self) -> None:
        """Let executors drop their copies, if Spark supports that."""


class CheckpointFiles(Protocol):
    """The small files of a streaming query's checkpoint."""

    def exists(self, path: str) -> bool: ...

    def exists_uri(self, uri: str) -> bool:
        """Return whether a file with this URI exists. Special characters of the URI are escaped ("%20")."""

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder; none if there is no folder."""

    def text(self, path: str) -> str:
        """Return the text of a file, UTF-8."""

    def delete(self, path: str) -> bool:
        """Delete a file; return whether it is gone."""


class SparkBackend(Protocol):
    """The Spark application of this driver. Objects of the same application are equal."""

    @property
    def context(self) -> Any:
        """The SparkContext; None with Spark Connect."""

    @property
    def session(self) -> Any:
        """The SparkSession that the driver uses."""

    @property
    def master(self) -> str:
        """The URL of Spark's master, for messages."""

    @property
    def application_id(self) -> str:
        """The application's id, which distinguishes its stages from those of other applications."""

    @property
    def is_local(self) -> bool:
        """True if tasks run in the process of Spark's driver."""

    @property
    def addresses(self) -> dict[str, str]:
        """The settings of this driver's addresses: ``spark.driver.host`` and ``spark.driver.bindAddress``, if set."""

    @property
    def shares_host(self) -> bool:
        """True if all tasks run on this driver's host."""

    def setting(self, name: str) -> str | None:
        """Return a setting of the application."""

    def is_stopped(self) -> bool:
        """Return whether the application has ended, or can no longer be reached."""

    def end_reason(self) -> str:
        """Return the reason for the application's end, for a message."""

    def calling(self) -> AbstractContextManager[None]:
        """In the with-block, raise StoppedError instead of Spark's error if the application has ended."""

    def check_alive(self) -> None:
        """Raise StoppedError if the application has ended or is unreachable, unless other calls report that anyway."""

    def configure_python(self) -> None:
        """Let tasks on this host run with this process's Python; raise ConfigError if that is impossible."""

    def start_python(self, access: str) -> threading.Thread | None:
        """Start a local application's Python workers, once per application; return the thread that waits for it."""

    def python_error(self, message: str) -> ConfigError | None:
        """Return an error if tasks failed because of their Python interpreter, according to Spark's message."""

    # -- the fleet in tasks --------------------------------------------------------------------------------------------

    def set_access(self, access: str) -> None:
        """Give the tasks of later jobs the encrypted access to fleets (``ps2.client.fleet.seal``)."""

    def set_fleet(self, fleet: str | None) -> None:
        """Set the fleet (a ``FleetRef`` as text) of this thread's later jobs, for closures without a handle."""

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the fleet's rollbacks for this thread's later jobs."""

    def mark_stopped(self, fleet_id: str) -> None:
        """Tell the tasks of later jobs that a fleet was stopped."""

    def status_tracker(self) -> Any:
        """Return Spark's status tracker; None if this driver has none."""

    # -- task slots ----------------------------------------------------------------------------------------------------

    def total_slots(self) -> int:
        """Return the number of tasks that Spark can run at once."""

    def retries_tasks(self) -> bool:
        """Return whether Spark restarts a failed task; with a master ``local[n]`` it does not."""

    def running_tasks(self) -> list[int]:
        """Return the number of running tasks of each executor; zeros if unknown."""

    def has_active_jobs(self) -> bool:
        """Return whether the application runs jobs now; False if unknown."""

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def row_source(self, data: Any) -> RowSource:
        """Return rows for workers; shuffles may run. Raise ConfigError for data of another application."""

    def numbered_rows(self, partitions: int) -> RowSource:
        """Return a source whose n-th Spark partition has a single row: n."""

    def cancel_jobs(self, tag: str) -> None:
        """Cancel the jobs with a tag."""

    def running_jobs_and_tasks(self, tag: str) -> tuple[int, int]:
        """Return the number of running jobs with a tag, and of their running tasks."""

    def failure_messages(self, tag: str) -> list[str]:
        """Return the error messages of failed task attempts of jobs with a tag; empty if unknown."""

    def log_urls(self, tag: str) -> dict[int, str]:
        """Return the URLs of the logs of running tasks of jobs with a tag, by Spark partition.

        Tasks without a known URL are left out: in local mode, and with Spark Connect.
        """

    def job_tag(self, tag: str) -> AbstractContextManager[None]:
        """Give a tag to the jobs that this thread starts in the with-block."""

    # -- streams -------------------------------------------------------------------------------------------------------

    def start_query(self, writer: Any, handle: Callable[[Any, int], None]) -> Any:
        """Start a streaming query; another thread calls ``handle`` with each batch's DataFrame and number."""

    def checkpoint_files(self) -> CheckpointFiles:
        """Return the files of queries' checkpoints."""

    # -- data ----------------------------------------------------------------------------------------------------------

    def with_fixed_plan(self, frame: Any) -> tuple[Any, int | None]:
        """Return a DataFrame of the same rows with a fixed number of Spark partitions, and that number.

        Shuffles may run. None: the number is unknown, and the DataFrame is unchanged.
        """

    def set_partitions(self, frame: Any, partitions: int) -> None:
        """Declare a DataFrame's number of Spark partitions, so that ``row_source`` does not shuffle it again."""

    def estimated_bytes(self, frame: Any) -> int:
        """Return the size in bytes that Spark's optimizer estimates for a DataFrame, which is often too large."""

    def broadcast(self, value: Any) -> Broadcast:
        """Share a value with tasks. Spark sends it once to each executor."""

    def loan(self) -> Loan | None:
        """Return a loan for the plan of one DataFrame (``lending``); None: its lifetime is unknown."""

    def progress_bar_hider(self) -> Callable[[], None]:
        """Return a function that hides Spark's own progress bar, which would overwrite a line in the terminal."""
