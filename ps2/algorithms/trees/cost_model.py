"""Where trees grow faster: in one worker that has all rows, or on servers. Pure; decision 55 has the measurements."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ps2.algorithms.training.placement import Placement, Via
from ps2.algorithms.trees.problem import BoostingPlan
from ps2.algorithms.trees.rows import DENSE_FROM
from ps2.errors import ConfigError
from ps2.formats import short_time

# Seconds of one core: to read and bin a stored value; to add one to a histogram; for a row's gradient, its rounding and
# its way to a leaf; to look at a bin of a node.
READ_S, ADD_S, ROW_S, BIN_S = 100e-9, 0.75e-9, 40e-9, 5e-9
# Of sparse rows, whose bins lie far apart: to add a value, and to send what it adds to.
ADD_SPARSE_S, SEND_SPARSE_S = 40e-9, 16e-9
# Seconds of a clock with servers, whatever it does.
CLOCK_S = 10e-3
# What threads of one worker do, beside as many workers.
SHARE_OF_THREADS = 0.8
# Stored values that one worker takes, at most: with bins and gradients, about 1 GB.
MAX_VALUES = 50_000_000
# Levels of a tree that grows by leaf, for each doubling of its leaves.
LEVELS_BY_LEAF = 1.0
# Clocks of a tree that grows by leaf, for each doubling of its leaves.
CLOCKS_BY_LEAF = 3.0


@dataclass(frozen=True)
class Work:
    """The size of a training.

    Attributes:
        rows: how many there are.
        values: stored feature values of all rows.
        features: how many there are.
        trees: most that are grown.
        node_s: seconds that a node takes on servers, beside its bins.
    """

    rows: int
    values: float
    features: int
    trees: int
    node_s: float = 0.0


@dataclass(frozen=True)
class Cores:
    """What Spark has.

    Attributes:
        one: cores of the process that a task runs in.
        workers: tasks that would train with servers.
        each: cores of each of these.
    """

    one: int
    workers: int
    each: int


def seconds(work: Work, plan: BoostingPlan, cores: Cores) -> tuple[float, float]:
    """Predict seconds of a training in one worker, and with servers."""
    leaves = min(plan.max_leaves, max(work.rows // max(plan.settings.minInstancesPerNode, 1), 1))
    if plan.settings.growth == "level":
        levels = clocks = float(max(plan.settings.maxDepth, 1))
    else:
        doublings = math.log2(max(leaves, 2))
        levels, clocks = LEVELS_BY_LEAF * doublings, CLOCKS_BY_LEAF * doublings
    # A histogram has the bins that rows fill.
    bins = min(work.features * min(plan.settings.maxBins, work.rows), work.values)
    # Of two children, the histogram of the one with fewer rows is added up.
    added, looked, add_s, send_s = work.values * (1 + levels / 2), leaves * bins, ADD_S, 0.0
    if work.values < DENSE_FROM * work.rows * work.features:
        # Only bins that are filled are looked at.
        looked, add_s, send_s = min(looked, work.values * levels), ADD_SPARSE_S, SEND_SPARSE_S
    of_tree = added * add_s + work.rows * ROW_S + looked * BIN_S
    threads = 1 + SHARE_OF_THREADS * (cores.one - 1)
    here = work.values * READ_S + work.trees * of_tree / threads
    spread = cores.workers * cores.each
    of_servers = of_tree / spread + added * send_s + leaves * work.node_s + clocks * CLOCK_S
    there = work.values * READ_S / cores.workers + work.trees * of_servers
    return here, there


def choose(
    via: str, wanted: int | None, work: Work, plan: BoostingPlan, cores: Cores, begun: Via | None = None
) -> Placement:
    """Choose where trees grow.

    Args:
        via: what the user wants; wanted: workers that the user wants, None: any number.
        begun: where an earlier driver of the training has begun it.

    Raises:
        ConfigError: the user wants several workers, and no servers.
    """
    here, there = Placement(1, cores.one, "local", ""), Placement(cores.workers, cores.each, "servers", "")
    if via == "local" and (wanted or 1) > 1:
        raise ConfigError(f"via: expected 'servers' or 'auto' for {wanted} workers (numWorkers), got 'local'")
    if via != "auto":
        return _with(here if via == "local" else there, "as requested")
    if begun is not None:
        return _with(here if begun == "local" else there, "as the training began")
    if wanted is not None and wanted > 1:
        return _with(there, f"numWorkers is {wanted}")
    if work.values > MAX_VALUES:
        return _with(there, f"{work.values:,.0f} stored values are more than the {MAX_VALUES:,} of one worker")
    local_s, servers_s = seconds(work, plan, cores)
    predicted = f"predicted: local {short_time(local_s)}, servers {short_time(servers_s)}"
    return _with(here if local_s <= servers_s else there, predicted)


def _with(placement: Placement, reason: str) -> Placement:
    return Placement(placement.workers, placement.threads, placement.via, reason)
