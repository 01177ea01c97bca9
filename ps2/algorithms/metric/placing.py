"""Where the training of a metric runs."""

from __future__ import annotations

from typing import cast

from ps2.algorithms.estimators.dealing import Dealer
from ps2.algorithms.estimators.tables import TableSurvey
from ps2.algorithms.estimators.via import why_on_servers
from ps2.algorithms.metric.plan import MetricPlan
from ps2.algorithms.training.placement import Placement, ViaName
from ps2.algorithms.training.placement_costs import Work, place

# Seconds that a step computes with a value of a pair's difference, for each row of L.
VALUE_S = 2e-9
# Of a row, drawn pairs have about so many values for each partner of either kind: its own, and the partner's.
VALUES_BY_PARTNER = 4
# Clocks beside steps.
OTHER_CLOCKS = 2


def placed(plan: MetricPlan, found: TableSurvey, dealt: Dealer) -> Placement:
    """Choose the workers, and whether servers are between them."""
    values = sum(load.cost for load in found.loads.values())
    settings = plan.settings
    values_per_row = VALUES_BY_PARTNER * settings.pairsPerRow if plan.draws_pairs else 1
    value_s = VALUE_S * settings.rank * values_per_row * settings.miniBatchFraction
    why = why_on_servers(plan.name, plan.numbers, "rows of L")
    work = Work(values, plan.numbers, settings.maxIter + OTHER_CLOCKS, value_s, why)
    return place(work, dealt.slots, len(found.loads), dealt.wanted, cast(ViaName, settings.via))
