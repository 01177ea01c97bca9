"""Decides how a fleet recovers the shards of lost servers (without I/O), and records each recovery."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Source = Literal["replica", "checkpoint", "handover"]
Recover = Literal["auto", "shard", "consistent"]


@dataclass(frozen=True)
class Policy:
    """The settings of a fleet's recovery.

    Attributes:
        replicas: 1 if each server's shards have copies on the next server, else 0.
        recover: the servers that load the checkpoint if there are no copies. "consistent": all servers. "shard": only
            the lost ones. "auto": all servers if the current run or step can continue from the checkpoint without the
            program's help, else only the lost ones.
    """

    replicas: int
    recover: Recover = "auto"


@dataclass(frozen=True)
class Outage:
    """The state of a fleet when servers were declared lost.

    Attributes:
        silent_s: the longest time since the last sign of life of a lost server.
        mutations: (server id, number of requests that had changed data on the server), by index.
    """

    servers: tuple[int, ...]
    reason: str
    silent_s: float
    mutations: Mapping[int, tuple[str, int]]

    def mutations_since(self, checkpointed: Mapping[str, int], indices: Collection[int]) -> int:
        """Return how many mutations servers applied after a checkpoint; ``checkpointed``: its counts, by server id."""
        counts = [self.mutations[index] for index in indices]
        return sum(max(0, count - checkpointed.get(server_id, 0)) for server_id, count in counts)


@dataclass(frozen=True)
class Recovery:
    """A recovery of lost servers; one of ``ps.recoveries``.

    Attributes:
        servers: indices of the lost servers; empty if a program called ``rollBack``.
        reason: the reason why the servers were lost.
        source: the source of the restored data: "replica", "handover" (the checkpoint of a server that was shut down
            normally) or "checkpoint". Changes after the checkpoint are lost only with "checkpoint".
        checkpoint: folder of the checkpoint; None if the source is a replica.
        step: the first step after the checkpoint; None if the checkpoint belongs to no step.
        rolledBack: True if all servers loaded the checkpoint, not only the replaced ones.
        mixed: True if only the replaced servers loaded the checkpoint. Their shards are then older than the others.
        detectS: seconds from the last sign of life until the servers were declared lost.
        startS: seconds from then until new processes had registered.
        loadS: seconds from then until the new processes had their shards.
        nbytes: bytes of the restored shards.
        mutationsLost: number of requests after the checkpoint whose changes are lost. Requests after the last heartbeat
            of a lost server are not counted.
        zeros: names of the matrices (and rows) that were created after the checkpoint, and contain zeros now.
    """

    servers: tuple[int, ...]
    reason: str
    source: Source
    checkpoint: str | None
    step: int | None
    rolledBack: bool
    mixed: bool
    detectS: float
    startS: float
    loadS: float
    nbytes: int
    mutationsLost: int
    zeros: tuple[str, ...]

    @property
    def seconds(self) -> float:
        return self.detectS + self.startS + self.loadS

    def __str__(self) -> str:
        reason = self.reason.splitlines()[0].removesuffix("; its log ends:").rstrip(";")
        subject = f"server {', '.join(map(str, self.servers))} is" if self.servers else "the fleet is"
        text = f"{subject} back after {self.seconds:.1f} s ({reason})"
        if self.source == "replica":
            return f"{text}: from the copies, nothing is missing"
        if self.source == "handover":
            return f"{text}: from checkpoint {self.checkpoint}, which it made when it shut down; nothing is missing"
        restored = "all servers are" if self.rolledBack else "it is"
        text += f": {restored} at checkpoint {self.checkpoint} again (next step {self.step})"
        text += f", {self.mutationsLost} requests that changed something are missing"
        if self.mixed:
            text += "; the other servers did not roll back, so ages of vectors are mixed"
        zeros = f"; zeros, because they were created after the checkpoint: {', '.join(self.zeros)}"
        return text + zeros if self.zeros else text


def backup_of(index: int, servers: int) -> int:
    """Return the index of the server with the copies of the shards of server ``index``."""
    return (index + 1) % servers


def source_of(lost: Collection[int], servers: int, policy: Policy, has_checkpoint: bool) -> Source | None:
    """Choose the source from which lost shards are restored; None: neither copies nor a checkpoint exist."""
    if policy.replicas and not any(backup_of(index, servers) in lost for index in lost):
        return "replica"
    return "checkpoint" if has_checkpoint else None


def all_roll_back(policy: Policy, can_resume: bool) -> bool:
    """Return True if all servers load the checkpoint, not only replaced ones; see ``Steps.can_resume``."""
    return policy.recover == "consistent" or (policy.recover == "auto" and can_resume)


def backups(addresses: Sequence[str], lost: Collection[int], replicas: int) -> list[str]:
    """Return the address of each server's backup, in order of index; "" if it has none or the backup is lost."""
    count = len(addresses)
    if not replicas:
        return [""] * count
    indices = (backup_of(index, count) for index in range(count))
    return ["" if index in lost else addresses[index] for index in indices]


class RecoveryLog:
    """The recoveries of one fleet. A client never gets an answer of a recovered server before its recovery is logged.

    The supervisor acquires ``lock`` before a recovered server may answer, and releases it after ``append``.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._recoveries: list[tuple[float, Recovery]] = []

    def append(self, recovery: Recovery) -> None:
        """Append a recovery. The caller must have acquired ``lock``."""
        self._recoveries.append((time.time(), recovery))

    def all(self) -> list[Recovery]:
        with self.lock:
            return [recovery for _, recovery in self._recoveries]

    def timed(self) -> list[tuple[float, Recovery]]:
        """Return (end, recovery) of all recoveries; the end is in seconds since 1970."""
        with self.lock:
            return list(self._recoveries)
