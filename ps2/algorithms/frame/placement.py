"""Where a training runs: one cost model for all families. Pure.

A family computes its ``Work`` from measured times of one core. With s = ``thread_efficiency``, a training with T
threads of the only worker ("local"), or with W workers of t threads each and servers, then takes::

    local      read_s     + steps * (step_s / (1 + s * (T - 1)) + local_s)
    servers    read_s / W + steps * (step_s / (W * t)           + servers_s)

The constants of this module were measured on 2 cores (docs/decisions, number 57); only their ratios matter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ps2.algorithms.training.record import Placement, Via, ViaName
from ps2.errors import ConfigError
from ps2.formats import short_time

# The fixed cost of a clock with servers: its barrier, two requests each way, and the driver's function.
SERVER_CLOCK_S = 8e-3
# The fixed cost of a clock in the only worker's process.
LOCAL_CLOCK_S = 2e-3
# The seconds in which a stored value is read into a worker's arrays, including the shuffle.
READ_S = 40e-9
# The seconds in which one weight is sent to a server or back.
WEIGHT_S = 4e-9
# The maximum number of weights that the only worker can return in its message.
MAX_LOCAL_WEIGHTS = 1 << 22


@dataclass(frozen=True)
class Work:
    """The work of a training. A step is a clock, an iteration or a tree.

    Attributes:
        read_s: the seconds in which one worker reads all rows.
        step_s: the seconds in which one core computes a step of all rows.
        local_s: the other seconds of a step in the only worker's process.
        servers_s: the other seconds of a step with servers.
        weights: the number of weights that the only worker returns in its message; 0: it returns them in another way.
        local_threads: the largest number of threads of the only worker.
        worker_threads: the largest number of threads of each worker with servers.
        thread_efficiency: the speed of each further thread of the only worker, relative to that of the first thread.
        why_servers: the reason why only servers can train this; "": there is none.
        why_not_auto: the reason why "auto" chooses servers whatever the costs; "": there is none.
    """

    read_s: float
    steps: float
    step_s: float
    local_s: float = LOCAL_CLOCK_S
    servers_s: float = SERVER_CLOCK_S
    weights: int = 0
    local_threads: float = 1
    worker_threads: float = 1
    thread_efficiency: float = 1.0
    why_servers: str = ""
    why_not_auto: str = ""

    @staticmethod
    def of_clocks(values: float, weights: int, clocks: int, value_s: float, why_servers: str = "") -> Work:
        """Return the work of clocks that compute with every row, and send all weights in both directions.

        ``values`` is the number of stored values plus the number of rows; each takes ``value_s`` seconds in a clock.
        """
        servers_s = SERVER_CLOCK_S + 2 * WEIGHT_S * weights
        return Work(
            values * READ_S, clocks, values * value_s, servers_s=servers_s, weights=weights, why_servers=why_servers
        )

    def seconds(self, cores: Cores) -> dict[Via, float]:
        """Return the estimated duration of the training for each way to run it."""
        speedup = 1 + self.thread_efficiency * (min(cores.local, self.local_threads) - 1)
        all_threads = cores.workers * min(cores.per_worker, self.worker_threads)
        return {
            "local": self.read_s + self.steps * (self.step_s / speedup + self.local_s),
            "servers": self.read_s / cores.workers + self.steps * (self.step_s / all_threads + self.servers_s),
        }


@dataclass(frozen=True)
class Cores:
    """The cores that Spark has for a training.

    Attributes:
        local: the number of cores for the only worker, if the training is "local".
        workers: the number of workers, if the training uses servers.
        per_worker: the number of cores for each of these workers.
    """

    local: int
    workers: int
    per_worker: int


@dataclass(frozen=True)
class Request:
    """The requirements of the user and of the application.

    Attributes:
        via: the value of the param ``via``.
        workers: the value of the param ``numWorkers``; None: not set.
        why_servers: the reason why the application needs the model on servers; "": it does not.
        earlier_via: where an earlier driver has run this training; None: there is no earlier driver.
    """

    via: ViaName = "auto"
    workers: int | None = None
    why_servers: str = ""
    earlier_via: Via | None = None

    def check(self) -> None:
        """Raise ConfigError if the request contradicts itself."""
        if self.via == "local" and (self.workers or 1) > 1:
            raise ConfigError(
                f"via: expected 'servers' or 'auto' for {self.workers} workers (numWorkers), got 'local', which has "
                "one worker"
            )


def place(work: Work, cores: Cores, request: Request) -> Placement:
    """Choose where to train, and the number of workers; raise ConfigError if the request cannot be met."""
    request.check()
    why_servers = request.why_servers or work.why_servers
    if not why_servers and work.weights > MAX_LOCAL_WEIGHTS:
        why_servers = f"the model has {work.weights:,} weights"
    if request.via == "local" and why_servers:
        raise ConfigError(f"via: 'local' cannot train this: {why_servers}")
    via: Via
    if request.via != "auto":
        via, reason = request.via, "as requested"
    elif request.earlier_via is not None:
        via, reason = request.earlier_via, "as the training began"
    elif (request.workers or 1) > 1:
        via, reason = "servers", f"numWorkers is {request.workers}"
    elif why_servers or work.why_not_auto:
        via, reason = "servers", why_servers or work.why_not_auto
    else:
        via, reason = fastest(work.seconds(cores))
    if via == "local":
        return Placement(1, int(min(cores.local, work.local_threads)), via, reason)
    return Placement(cores.workers, int(min(cores.per_worker, work.worker_threads)), via, reason)


def fastest(seconds: Mapping[Via, float], unit: str = "") -> tuple[Via, str]:
    """Return the fastest way to train, and the reason in words, from the predicted seconds (infinity: impossible).

    ``unit`` is the part of a training that takes this time, such as " per token"; "": the whole training.
    """
    via = min(seconds, key=lambda name: seconds[name])
    times = (
        f"{name!r} {short_time(time_s)}" if math.isfinite(time_s) else f"{name!r} does not fit"
        for name, time_s in seconds.items()
    )
    return via, f"chosen by predicted time{unit}: {', '.join(times)}"
