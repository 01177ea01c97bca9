"""Which placement is fastest, by a model of what clocks, stages and values cost. Pure.

The figures were measured on 2 cores (decision 57); only their ratios matter.
"""

from __future__ import annotations

from dataclasses import dataclass

from ps2.algorithms.training.placement import Placement, ViaName
from ps2.errors import ConfigError

# A clock of a run on servers, without its work: release, two requests each way, the driver's function.
SERVER_CLOCK_S = 8e-3
# A clock in the only worker's process.
LOCAL_CLOCK_S = 2e-3
# Reading a stored value into a worker's arrays; and moving it by a shuffle, where rows must be dealt out anew.
READ_S = 40e-9
# A weight on the network, each way.
WEIGHT_S = 4e-9
# Parameters that fit the message in which the only worker returns them.
MAX_LOCAL_WEIGHTS = 1 << 22


@dataclass(frozen=True)
class Work:
    """What a training has to do.

    Attributes:
        values: stored feature values of all rows, and the rows.
        weights: of the model.
        clocks: that it takes, about.
        value_s: seconds that a clock computes with each value, of one thread.
        why_not_local: why the model cannot be in the only worker's process; "": it can.
    """

    values: float
    weights: int
    clocks: int
    value_s: float
    why_not_local: str = ""


def seconds(work: Work, workers: int, is_local: bool) -> float:
    """Return what a training takes, about."""
    clock_s = LOCAL_CLOCK_S if is_local else SERVER_CLOCK_S + 2 * WEIGHT_S * work.weights
    return work.values / workers * READ_S + work.clocks * (work.values / workers * work.value_s + clock_s)


def place(work: Work, slots: int, partitions: int, wanted: int | None, via: ViaName) -> Placement:
    """Choose workers, and what works on the model between clocks.

    Args:
        slots: tasks that Spark can run at once.
        partitions: of the rows, not empty.
        wanted: workers that the user asked for; None: none were asked for.
        via: what the user asked for.

    Raises:
        ConfigError: what was asked for contradicts itself, or cannot be.
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
    told = f"{work.values:,.0f} values and rows take one worker about {one_s:.2g} s by itself, "
    told += f"{many} by servers {many_s:.2g} s"
    if wanted == 1 or one_s <= many_s:
        return Placement(1, 1, "local", told)
    return Placement(many, 1, "servers", told)
