"""Where a k-means training runs."""

from __future__ import annotations

from ps2.algorithms.clusters.options import KMeansOptions
from ps2.algorithms.estimators.dealing import Dealer
from ps2.algorithms.estimators.tables import TableSurvey
from ps2.algorithms.training.placement import Placement, ViaName
from ps2.algorithms.training.placement_costs import MOST_LOCAL_WEIGHTS, Work, place
from ps2.coordinator.context import PS2Context

# Seconds that a clock computes with a stored value, for each cluster (decision 61).
VALUE_S = 0.4e-9
# Clocks beside iterations and draws, about.
OTHER_CLOCKS = 6


def placed(options: KMeansOptions, found: TableSurvey, dealt: Dealer, via: ViaName) -> Placement:
    """Choose the workers, and whether servers are between them.

    Args:
        via: what the user asked for.
    """
    values = sum(load.cost for load in found.loads.values())
    clocks = options.iterations + 2 * options.rounds + OTHER_CLOCKS
    work = Work(values, options.numbers, clocks, VALUE_S * options.clusters, _why_on_servers(options))
    return place(work, dealt.slots, len(found.loads), dealt.wanted, via)


def _why_on_servers(options: KMeansOptions) -> str:
    """Return why centres have to be on servers; "" if they need not be."""
    active = PS2Context.getActive()
    if options.name:
        return "another driver may go on with this training"
    if active is not None and (active.conf.checkpointEverySteps or active.conf.checkpointEveryS):
        return "checkpoints are made during the training"
    if options.numbers > MOST_LOCAL_WEIGHTS:
        return f"the centres have {options.numbers:,} numbers"
    return ""
