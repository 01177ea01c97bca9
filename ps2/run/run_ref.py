"""How a task finds its run."""

from __future__ import annotations

from dataclasses import dataclass

from ps2.client.fleet import FleetRef
from ps2.logs import TEXT, LogFormat


@dataclass(frozen=True)
class RunRef:
    """Which run a task works for; travels in the task's closure and holds no secret.

    Attributes:
        address: ``host:port`` of the run's server in the driver.
        number: of the run in its fleet.
        staleness: None for ASP.
        first: the run's first clock.
        seed: of ``worker.rng``.
        takes_reports: whether ``onClock`` takes what workers report.
        retries: whether Spark starts a task that failed again.
        log_format: of what workers log, as the driver's.
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
