"""Choose the fastest placement, by a cost model of clocks, reading and computing. Pure.

The figures were measured on 2 cores (decision 57); only their ratios matter.
"""

from __future__ import annotations

from dataclasses import dataclass

from ps2.algorithms.training.placement import Placement, ViaName
from ps2.errors import ConfigError
from ps2.formats import short_time

# Fixed cost of a clock on servers: release, two requests each way, the driver's function.
SERVER_CLOCK_S = 8e-3
# Fixed cost of a clock in the only worker's process.
LOCAL_CLOCK_S = 2e-3
# Cost of reading one stored value into a worker's arrays, with the shuffle that deals out rows.
READ_S = 40e-9
# Cost of sending one weight one way.
WEIGHT_S = 4e-9
# Limit of the number of weights that the only worker can return in its message.
MAX_LOCAL_WEIGHTS = 1 << 22


@dataclass(frozen=True)
class Work:
    """The work of a training.

    Attributes:
        values: number of stored feature values plus number of rows.
        weights: number of the model's weights.
        clocks: approximate number of clocks.
        value_s: seconds of computing per value and clock, in one thread.
        why_not_local: why the model cannot be in the only worker's process; "": it can.
    """

    values: float
    weights: int
    clocks: int
    value_s: float
    why_not_local: str = ""


def seconds(work: Work, workers: int, is_local: bool) -> float:
    """Estimate the duration of a training in seconds."""
    clock_s = LOCAL_CLOCK_S if is_local else SERVER_CLOCK_S + 2 * WEIGHT_S * work.weights
    return work.values / workers * READ_S + work.clocks * (work.values / workers * work.value_s + clock_s)


def place(work: Work, slots: int, partitions: int, wanted: int | None, via: ViaName) -> Placement:
    """Choose the number of workers, and where the model is between clocks.

    Args:
        slots: tasks that Spark can run at once.
        partitions: number of nonempty rdd_partitions of the rows.
        wanted: the number of workers that the user set; None: not set.
        via: the user's choice of the model's place.

    Raises:
        ConfigError: the user's choices contradict each other, or are impossible.
    """
    if via == "local":
        if wanted not in (None, 1):
            raise ConfigError(f"via: 'local' is for one worker that has all rows, got numWorkers {wanted}")
        if work.why_not_local:
            raise ConfigError(f"via: 'local' cannot train this: {work.why_not_local}")
        return Placement(1, 1, "local", "via is 'local'")
    many = wanted or max(1, min(partitions, slots))
    if via == "servers" or (wanted or 0) > 1:
        return Placement(many, 1, "servers", "via is 'servers'" if via == "servers" else f"numWorkers is {wanted}")
    if work.why_not_local:
        return Placement(many, 1, "servers", work.why_not_local)
    one_s, many_s = seconds(work, 1, is_local=True), seconds(work, many, is_local=False)
    told = f"{work.values:,.0f} values and rows take one worker about {short_time(one_s)} by itself, "
    told += f"{many} by servers {short_time(many_s)}"
    if wanted == 1 or one_s <= many_s:
        return Placement(1, 1, "local", told)
    return Placement(many, 1, "servers", told)
