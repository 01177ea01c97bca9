"""Where a k-means training runs."""

from __future__ import annotations

from typing import cast

from ps2.algorithms.clusters.plan import KMeansPlan
from ps2.algorithms.estimators.dealing import Dealer
from ps2.algorithms.estimators.tables import TableSurvey
from ps2.algorithms.estimators.via import why_on_servers
from ps2.algorithms.training.placement import Placement, ViaName
from ps2.algorithms.training.placement_costs import Work, place

# Seconds that a clock computes with a stored value, of dense and of sparse rows: alone, and with each cluster (decision
# 61).
DENSE_S, SPARSE_S = (2.5e-9, 0.14e-9), (10e-9, 0.4e-9)
# Clocks beside iterations and draws, about.
OTHER_CLOCKS = 6


def placed(plan: KMeansPlan, found: TableSurvey, dealt: Dealer) -> Placement:
    """Choose the workers, and whether servers are between them."""
    values = sum(load.cost for load in found.loads.values())
    clocks = plan.settings.maxIter + 2 * plan.settings.initSteps + OTHER_CLOCKS
    alone_s, cluster_s = DENSE_S if values >= found.rows * (plan.dim + 1) else SPARSE_S
    why = why_on_servers(plan.name, plan.numbers, "centres")
    work = Work(values, plan.numbers, clocks, alone_s + cluster_s * plan.clusters, why)
    return place(work, dealt.slots, len(found.loads), dealt.wanted, cast(ViaName, plan.settings.via))
