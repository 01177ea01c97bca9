"""Identifies the fleet that a handle belongs to, and what a task needs to reach it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from functools import lru_cache

from ps2.certificates import Pems
from ps2.config import RetryConfig


@dataclass(frozen=True)
class FleetRef:
    """Identifies a fleet. Part of every handle; holds no secret.

    Attributes:
        id: random, chosen by the coordinator; also the first part of mutation ids in tasks.
        master: ``host:port`` of the coordinator's master.
        strict: True if operations on vectors that are not co-located are an error instead of a warning.
        retry_timeout_s: how long calls wait for a lost server to be recovered.
    """

    id: str
    master: str
    strict: bool = False
    retry_timeout_s: float = RetryConfig.recovery_s


@dataclass(frozen=True)
class Access:
    """What a task needs to reach its fleet.

    Attributes:
        token: the fleet's token; None if its servers have none.
        application: id of the Spark application. Each application counts its stages from 0, and a fleet may outlive it.
        own_run_token: the token of runs, which always need one; None means the fleet's token.
        ops: modules that declare operations.
        tls: certificates for connections to the fleet; None if the fleet has no TLS.
    """

    fleet: FleetRef
    token: str | None = field(repr=False)
    application: str
    own_run_token: str | None = field(default=None, repr=False)
    ops: tuple[str, ...] = ()
    tls: Pems | None = None

    @property
    def run_token(self) -> str | None:
        """The token that a worker and its run prove to each other."""
        return self.own_run_token or self.token

    @property
    def series(self) -> str:
        """The common prefix of mutation ids of this application's tasks."""
        return f"{self.fleet.id}/{self.application}"


def seal(access: Access) -> str:
    """Return the access as text for one environment variable."""
    return json.dumps(asdict(access))


@lru_cache(maxsize=8)  # a task calls this with every mutation
def unseal(text: str) -> Access:
    content = json.loads(text)
    tls = Pems(**content["tls"]) if content["tls"] is not None else None
    return Access(**(content | {"fleet": FleetRef(**content["fleet"]), "ops": tuple(content["ops"]), "tls": tls}))
