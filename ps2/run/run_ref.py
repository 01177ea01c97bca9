"""How a task finds its run."""

from __future__ import annotations

from dataclasses import dataclass

from ps2.client.fleet import FleetRef
from ps2.logs import TEXT, LogFormat


@dataclass(frozen=True)
class RunRef:
    """Identifies the run of a task; travels in the task's closure and holds no secret.

    Attributes:
        address: ``host:port`` of the run's server in the driver.
        number: the number of the run in its fleet.
        staleness: the run's staleness; None for ASP.
        first: the run's first clock.
        seed: the seed of ``worker.rng``.
        takes_reports: True if ``onClock`` takes the workers' reports.
        retries: True if Spark restarts a failed task.
        log_format: the format of the workers' logs: that of the driver's.
    """

    fleet: FleetRef
    address: str
    number: int
    staleness: int | None
    first: int
    seed: int
    takes_reports: bool = False
    retries: bool = True
    log_format: LogFormat = TEXT

    @property
    def series(self) -> str:
        """The common part of the mutation ids of all runs in this fleet."""
        return f"{self.fleet.id}/runs"
