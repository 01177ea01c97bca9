"""Where the training of a metric runs."""

from __future__ import annotations

from ps2.algorithms.estimators.dealing import Dealer
from ps2.algorithms.estimators.tables import TableSurvey
from ps2.algorithms.estimators.via import why_on_servers
from ps2.algorithms.metric.options import MetricOptions
from ps2.algorithms.training.placement import Placement, ViaName
from ps2.algorithms.training.placement_costs import Work, place

# Seconds that a step computes with a value of a pair's difference, for each row of L.
VALUE_S = 2e-9
# Of a row, drawn pairs have about so many values for each partner of either kind: its own, and the partner's.
VALUES_BY_PARTNER = 4
# Clocks beside steps.
OTHER_CLOCKS = 2


def placed(options: MetricOptions, dim: int, found: TableSurvey, dealt: Dealer, via: ViaName) -> Placement:
    """Choose the workers, and whether servers are between them.

    Args:
        dim: number of features.
        via: what the user asked for.
    """
    values = sum(load.cost for load in found.loads.values())
    numbers = options.rank * dim
    of_pairs = 1 if options.pairs is None else VALUES_BY_PARTNER * options.pairs
    value_s = VALUE_S * options.rank * of_pairs * options.fraction
    why = why_on_servers(options.name, numbers, "rows of L")
    work = Work(values, numbers, options.steps + OTHER_CLOCKS, value_s, why)
    return place(work, dealt.slots, len(found.loads), dealt.wanted, via)
