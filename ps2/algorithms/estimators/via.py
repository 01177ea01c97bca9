"""The param ``via``: what works on the model between the clocks of a training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from pyspark.ml.param import Param

from ps2.algorithms.estimators.params import ByName, Check, any_case, getter, one_of, own_param, setter
from ps2.algorithms.training.placement import ViaName

VIAS: tuple[ViaName, ...] = get_args(ViaName)
# For the ranges of a family's params.
VIA: Mapping[str, Check] = {"via": one_of(VIAS)}


class HasVia(ByName):
    """The param ``via`` of estimators whose model may lie in the only worker's process."""

    via: Param[ViaName] = own_param(
        "via",
        "what works on the model between clocks: 'servers', 'local' (one worker has all rows and the model, with the "
        "same result), or 'auto' (the faster one by a cost model; 'servers' if numWorkers is above 1)",
        any_case(VIAS),
    )

    getVia = getter(via)
    setVia = setter(via)

    def _set_defaults(self) -> None:
        super()._set_defaults()
        self._setDefault(via="auto")
