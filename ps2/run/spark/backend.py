"""What PS2 needs of Spark in the driver's process, whichever way it reaches Spark.

Two classes provide it: ``ClassicSpark`` has a SparkContext, whose Java process it may ask anything. ``ConnectSpark`` is
a client of a Spark Connect server, and has Spark's public API alone. Nothing outside this package uses members of
pyspark that are private, or that only one of the two has.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ps2.errors import ConfigError


class RowSource(Protocol):
    """The rows of a DataFrame or an RDD, for a run's workers."""

    @property
    def partitions(self) -> int | None:
        """Number of rdd_partitions; None: Spark does not say."""

    def repartition(self, partitions: int) -> RowSource:
        """Return the same rows in another number of rdd_partitions, by a shuffle."""

    def job(self, work: Callable[[Any], int]) -> SparkJob:
        """Return the job that calls ``work``, which can be pickled, with the rows of each rdd_partition."""


class SparkJob(Protocol):
    """A Spark job that has not begun."""

    @property
    def tasks(self) -> int | None:
        """Number of its tasks; None: Spark does not say."""

    def run(self, tag: str) -> None:
        """Run the job to its end under a tag, in any thread, with the local properties of the thread that made it."""


class Broadcast(Protocol):
    """A value that tasks share. A closure that holds it carries a reference to it, not the value."""

    @property
    def value(self) -> Any: ...

    def unpersist(self) -> None:
        """Let executors drop their copies, where Spark can do that."""


class CheckpointFiles(Protocol):
    """Small files of a streaming query's checkpoint."""

    def exists(self, path: str) -> bool: ...

    def exists_uri(self, uri: str) -> bool:
        """Return whether there is a file with this URI, whose special characters are escaped ("%20")."""

    def names(self, folder: str) -> list[str]:
        """Return the names of what a folder holds; none if there is no folder."""

    def text(self, path: str) -> str:
        """Return the text of a file, UTF-8."""

    def delete(self, path: str) -> bool:
        """Delete a file; return whether it is gone."""


class SparkBackend(Protocol):
    """The Spark application of this driver. Two of the same application are equal."""

    # -- what it is ----------------------------------------------------------------------------------------------------

    @property
    def context(self) -> Any:
        """The SparkContext; None with Spark Connect."""

    @property
    def session(self) -> Any:
        """The SparkSession that the driver uses."""

    @property
    def master(self) -> str:
        """URL of Spark's master, for messages."""

    @property
    def application_id(self) -> str:
        """Tells the stages of this application from those of others."""

    @property
    def is_local(self) -> bool:
        """True if tasks run in the process of Spark's driver."""

    @property
    def addresses(self) -> dict[str, str]:
        """Settings ``spark.driver.host`` and ``spark.driver.bindAddress`` of the host that this driver runs on."""

    @property
    def shares_host(self) -> bool:
        """True if all tasks run on this driver's host."""

    def setting(self, name: str) -> str | None:
        """Return a setting of the application."""

    def is_stopped(self) -> bool:
        """Return whether the application is over, or out of reach for good."""

    def end_reason(self) -> str:
        """Say why the application is over, for a message."""

    def calling(self) -> AbstractContextManager[None]:
        """Raise StoppedError instead of what Spark raises because the application is over."""

    def check_alive(self) -> None:
        """Raise StoppedError if the application has ended or is unreachable, and no other call would report that."""

    def configure_python(self) -> None:
        """Let tasks on this host run with this process's Python; raise ConfigError if they cannot."""

    def start_python(self, access: str) -> threading.Thread | None:
        """Start a local application's Python workers, once in its life; return the thread that waits for them."""

    def python_error(self, message: str) -> ConfigError | None:
        """Return an error if Spark's message says that tasks failed because of their interpreter."""

    # -- the fleet in tasks --------------------------------------------------------------------------------------------

    def set_access(self, access: str) -> None:
        """Give the tasks of later jobs the sealed secrets that open fleets."""

    def set_fleet(self, fleet: str | None) -> None:
        """Set the fleet (a ``FleetRef`` as text) of this thread's later jobs, for closures without a handle."""

    def set_epoch(self, epoch: int) -> None:
        """Set how often the fleet has rolled back, for this thread's later jobs."""

    def mark_stopped(self, fleet_id: str) -> None:
        """Tell the tasks of later jobs that a fleet was stopped."""

    def status_tracker(self) -> Any:
        """Return Spark's status tracker; None if Spark does not tell this driver which stages are over."""

    # -- task slots ----------------------------------------------------------------------------------------------------

    def total_slots(self) -> int:
        """Return how many tasks Spark can run at once."""

    def retries_tasks(self) -> bool:
        """Return whether Spark starts a failed task again; with a master ``local[n]`` it does not."""

    def running_tasks(self) -> list[int]:
        """Return how many tasks each executor runs now; zeros if Spark does not say."""

    def has_active_jobs(self) -> bool:
        """Return whether the application runs jobs now; False if Spark does not say."""

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def row_source(self, data: Any) -> RowSource:
        """Return rows for workers; shuffles may run here.

        Raise ConfigError for data that this application cannot run over.
        """

    def numbered(self, partitions: int) -> RowSource:
        """Return a source whose n-th rdd_partition has a single row: n."""

    def cancel_jobs(self, tag: str) -> None:
        """Cancel the jobs with a tag."""

    def running_jobs_and_tasks(self, tag: str) -> tuple[int, int]:
        """Return how many jobs with a tag run now, and how many tasks those have running."""

    def failure_messages(self, tag: str) -> list[str]:
        """Return the error messages of failed task attempts of jobs with a tag; none if Spark does not say."""

    def log_urls(self, tag: str) -> dict[int, str]:
        """Return where executors keep the logs of running tasks of jobs with a tag, by rdd_partition.

        None for the tasks of which Spark does not say it: in local mode, with Spark Connect.
        """

    def job_tag(self, tag: str) -> AbstractContextManager[None]:
        """Give the jobs that this thread starts inside a ``with`` block a tag."""

    # -- streams -------------------------------------------------------------------------------------------------------

    def start_query(self, writer: Any, handle: Callable[[Any, int], None]) -> Any:
        """Start a streaming query; another thread calls ``handle`` with each batch's DataFrame and number."""

    def checkpoint_files(self) -> CheckpointFiles:
        """Return the files of queries' checkpoints."""

    # -- data ----------------------------------------------------------------------------------------------------------

    def with_fixed_plan(self, frame: Any) -> tuple[Any, int | None]:
        """Return a DataFrame of the same rows whose number of rdd_partitions stays as it is, and that number.

        Its shuffles may run here. None: Spark does not say, and the DataFrame is the given one.
        """

    def set_partitions(self, frame: Any, partitions: int) -> None:
        """State how many rdd_partitions a DataFrame has, so that ``row_source`` does not shuffle it again."""

    def estimated_bytes(self, frame: Any) -> int:
        """Return the size that Spark's optimizer estimates for a DataFrame, often too large."""

    def broadcast(self, value: Any) -> Broadcast:
        """Share a value with tasks: it travels once to each executor."""

    def progress_bar_hider(self) -> Callable[[], None]:
        """Return a function that hides Spark's own progress bar, which would overwrite a line in the terminal."""
