"""Where the training of a dictionary runs."""

from __future__ import annotations

from typing import cast

from ps2.algorithms.dictionary.plan import DictionaryPlan
from ps2.algorithms.estimators.dealing import Dealer
from ps2.algorithms.estimators.tables import TableSurvey
from ps2.algorithms.estimators.via import why_on_servers
from ps2.algorithms.training.placement import Placement, ViaName
from ps2.algorithms.training.placement_costs import Work, place

# Seconds that an iteration computes with a stored value, for each atom (decision 65).
VALUE_S = 5e-9
# An iteration is two clocks.
CLOCKS = 2


def placed(plan: DictionaryPlan, found: TableSurvey, dealt: Dealer) -> Placement:
    """Choose the workers, and whether servers are between them."""
    values = sum(load.cost for load in found.loads.values())
    clocks = CLOCKS * (plan.settings.maxIter + 1)
    work = Work(
        values,
        plan.numbers,
        clocks,
        VALUE_S / CLOCKS * plan.settings.k,
        why_on_servers(plan.name, plan.numbers, "atoms"),
    )
    return place(work, dealt.slots, len(found.loads), dealt.wanted, cast(ViaName, plan.settings.via))
