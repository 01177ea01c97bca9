"""Where the training of a dictionary runs."""

from __future__ import annotations

from ps2.algorithms.dictionary.options import DictionaryOptions
from ps2.algorithms.estimators.dealing import Dealer
from ps2.algorithms.estimators.tables import TableSurvey
from ps2.algorithms.estimators.via import why_on_servers
from ps2.algorithms.training.placement import Placement, ViaName
from ps2.algorithms.training.placement_costs import Work, place

# Seconds that an iteration computes with a stored value, for each atom (decision 65).
VALUE_S = 5e-9
# An iteration is two clocks.
CLOCKS = 2


def placed(options: DictionaryOptions, found: TableSurvey, dealt: Dealer, via: ViaName) -> Placement:
    """Choose the workers, and whether servers are between them.

    Args:
        via: what the user asked for.
    """
    values = sum(load.cost for load in found.loads.values())
    clocks = CLOCKS * (options.iterations + 1)
    work = Work(
        values,
        options.numbers,
        clocks,
        VALUE_S / CLOCKS * options.atoms,
        why_on_servers(options.name, options.numbers, "atoms"),
    )
    return place(work, dealt.slots, len(found.loads), dealt.wanted, via)
