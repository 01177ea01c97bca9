"""What PS2 needs of Spark in the driver's process, whichever way it reaches Spark.

Two classes provide it: ``ClassicSpark`` has a SparkContext, whose Java process it may ask anything. ``ConnectSpark`` is
a client of a Spark Connect server, and has Spark's public API alone. Nothing outside this package uses members of
pyspark that are private, or that only one of the two has.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ps2.errors import ConfigError


class Source(Protocol):
    """Rows for a run's workers."""

    @property
    def partitions(self) -> int | None:
        """How many rdd_partitions they have; None: Spark does not say."""

    def spread(self, partitions: int) -> Source:
        """Return the same rows in another number of rdd_partitions."""

    def job(self, work: Callable[[Any], int]) -> Job:
        """Return the job that calls ``work`` with the rows of each rdd_partition, ready to run in another thread.

        Args:
            work: picklable; returns its rank.
        """


class Job(Protocol):
    """A Spark job that has not begun."""

    @property
    def tasks(self) -> int | None:
        """How many tasks it has; None: Spark does not say."""

    def run(self, tag: str) -> None:
        """Run the job to its end under a tag, in any thread, with the local properties of the thread that made it."""


class Shared(Protocol):
    """A value that tasks share: pickled in a closure, it takes no room."""

    @property
    def value(self) -> Any: ...

    def unpersist(self) -> None:
        """Let go of copies that are not needed any more, as far as Spark can."""


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
        """Whether tasks run in the process of Spark's driver."""

    @property
    def addresses(self) -> dict[str, str]:
        """Settings ``spark.driver.host`` and ``spark.driver.bindAddress`` of the host that this driver runs on."""

    @property
    def shares_host(self) -> bool:
        """Whether all tasks run on this driver's host."""

    def setting(self, name: str) -> str | None:
        """Return a setting of the application."""

    def is_stopped(self) -> bool:
        """Return whether the application is over, or out of reach for good."""

    def check_reached(self) -> None:
        """Raise StoppedError if a run would wait for ever for an application that has ended without a word."""

    def prepare_python(self) -> None:
        """Let tasks run with this process's Python if they run on this host, or raise ConfigError if they cannot."""

    def wrong_python(self, said: str) -> ConfigError | None:
        """Return an error if Spark's message says that tasks failed because of their interpreter."""

    # -- the fleet in tasks --------------------------------------------------------------------------------------------

    def give_access(self, access: str) -> None:
        """Give the tasks of later jobs the sealed access to fleets."""

    def name_fleet(self, fleet: str | None) -> None:
        """Name the fleet of later jobs of this thread whose closures have no handle, as text; None: there is none."""

    def set_epoch(self, epoch: int) -> None:
        """Note how often the fleet has rolled back, for the later jobs of this thread."""

    def note_stopped(self, fleet_id: str) -> None:
        """Let the tasks of later jobs know that a fleet was stopped."""

    def tracker(self) -> Any:
        """Return Spark's status tracker; None if Spark does not tell this driver which stages are over."""

    # -- task slots ----------------------------------------------------------------------------------------------------

    def total_slots(self) -> int:
        """Return how many tasks Spark can run at once."""

    def retries_tasks(self) -> bool:
        """Return whether Spark starts a failed task again; with a master ``local[n]`` it does not."""

    def running_tasks(self) -> list[int]:
        """Return how many tasks each executor runs now, as far as Spark tells."""

    def other_jobs_run(self) -> bool:
        """Return whether the application runs jobs now, as far as Spark tells."""

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def source(self, data: Any) -> Source:
        """Return rows for workers. Shuffles may run here.

        Raises:
            ConfigError: the data are nothing that this application can run over.
        """

    def cancel(self, tag: str) -> None:
        """Cancel the jobs with a tag."""

    def jobs_and_tasks(self, tag: str) -> tuple[int, int]:
        """Return how many jobs with a tag run now, and how many tasks of theirs, as far as Spark tells."""

    def failures(self, tag: str) -> list[str]:
        """Return the messages of failed attempts of tasks of jobs with a tag, as far as Spark tells."""

    def job_tag(self, tag: str) -> AbstractContextManager[None]:
        """Give the jobs that this thread starts inside a ``with`` block a tag."""

    # -- data ----------------------------------------------------------------------------------------------------------

    def fixed_frame(self, frame: Any) -> tuple[Any, int | None]:
        """Return a DataFrame of the same rows, and how many rdd_partitions it will have; None: Spark does not say."""

    def note_partitions(self, frame: Any, partitions: int) -> None:
        """Note that a DataFrame has so many rdd_partitions, so that ``source`` keeps them."""

    def planned_bytes(self, frame: Any) -> int:
        """Return about how many bytes a DataFrame has, often too many."""

    def broadcast(self, value: Any) -> Shared:
        """Share a value with tasks: it travels once to each executor."""

    def progress_bar_hider(self) -> Callable[[], None]:
        """Return a function that hides Spark's own progress bar, which would overwrite a line in the terminal."""
