"""Which fleet a handle belongs to."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class FleetRef:
    """Travels in every handle; holds no secret.

    Attributes:
        id: random, made by the coordinator; also the first part of the ids of mutations in tasks.
        master: ``host:port`` of the coordinator's master.
        strict: whether vectors that are not co-located are an error instead of a warning.
    """

    id: str
    master: str
    strict: bool = False


def seal(fleet: FleetRef, token: str | None) -> str:
    """Return what tasks need to reach the fleet, as the text of one environment variable."""
    return json.dumps({"fleet": asdict(fleet), "token": token})


def unseal(text: str) -> tuple[FleetRef, str | None]:
    content = json.loads(text)
    return FleetRef(**content["fleet"]), content["token"]
