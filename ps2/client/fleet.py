"""Which fleet a handle belongs to."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from functools import lru_cache

from ps2.certificates import Pems
from ps2.config import RetryConfig


@dataclass(frozen=True)
class FleetRef:
    """Travels in every handle; holds no secret.

    Attributes:
        id: random, made by the coordinator; also the first part of the ids of mutations in tasks.
        master: ``host:port`` of the coordinator's master.
        strict: whether vectors that are not co-located are an error instead of a warning.
        retry_timeout_s: how long calls wait for a lost server to be brought back.
    """

    id: str
    master: str
    strict: bool = False
    retry_timeout_s: float = RetryConfig.recovery_s


@dataclass(frozen=True)
class Access:
    """What a task needs to reach its fleet.

    Attributes:
        token: the fleet's; None: its servers have none.
        application: id of the Spark application, whose stages are counted from 0; a fleet may outlive it.
        own_run_token: of runs, which want one in any case; None: the fleet's.
        ops: modules that declare operations.
        tls: what to connect to the fleet with; None: there is no TLS.
    """

    fleet: FleetRef
    token: str | None = field(repr=False)
    application: str
    own_run_token: str | None = field(default=None, repr=False)
    ops: tuple[str, ...] = ()
    tls: Pems | None = None

    @property
    def run_token(self) -> str | None:
        """What a worker and its run prove to each other that they know."""
        return self.own_run_token or self.token

    @property
    def series(self) -> str:
        """What the ids of mutations in this application's tasks have in common."""
        return f"{self.fleet.id}/{self.application}"


def seal(access: Access) -> str:
    """Return the access as the text of one environment variable."""
    return json.dumps(asdict(access))


@lru_cache(maxsize=8)  # a task asks for it with every mutation
def unseal(text: str) -> Access:
    content = json.loads(text)
    tls = Pems(**content["tls"]) if content["tls"] is not None else None
    return Access(**(content | {"fleet": FleetRef(**content["fleet"]), "ops": tuple(content["ops"]), "tls": tls}))
