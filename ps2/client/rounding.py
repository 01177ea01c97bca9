"""Warns where float64 rounds what servers found in vectors of integers."""

from __future__ import annotations

import warnings

from ps2.client.plans import Plan, Target
from ps2.client.realign import caller_depth
from ps2.errors import PrecisionWarning

# Float64 holds all whole numbers below it.
EXACT_BELOW = 2.0**53


def warn_if_rounded(name: str, plan: Plan[float], target: Target) -> Plan[float]:
    """Return the plan of a scalar that warns if the scalar is of integers, and too large for float64 to be exact."""
    if target.spec.np_dtype.kind != "i":
        return plan

    def check(value: float) -> float:
        if abs(value) >= EXACT_BELOW:
            warnings.warn(
                f"{name} of a vector of {target.spec.dtype}: {value:.17g} is rounded, as float64 holds whole numbers "
                "below 2**53 exactly; pull the vector for more digits",
                PrecisionWarning,
                stacklevel=caller_depth(),
            )
        return value

    return plan.then(check)
