"""Decides how a fleet recovers the shards of lost servers, without I/O, and describes each recovery."""

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
        recover: the servers that roll back to the checkpoint if there are no copies. "consistent": all. "shard": the
            lost ones. "auto": all if the run or step can continue from the checkpoint by itself, else the lost ones.
    """

    replicas: int
    recover: Recover = "auto"


@dataclass(frozen=True)
class Outage:
    """The state of a fleet when servers were declared lost.

    ``silent_s``: the longest time since the last heartbeat of a lost server. ``mutations``: by index, each server's id
    and the number of requests that had changed data on it.
    """

    servers: tuple[int, ...]
    reason: str
    silent_s: float
    mutations: Mapping[int, tuple[str, int]]

    def mutations_since(self, checkpointed: Mapping[str, int], indices: Collection[int]) -> int:
        """Return how many mutations these servers have had since a checkpoint, given its counts by server id."""
        counts = [self.mutations[index] for index in indices]
        return sum(max(0, count - checkpointed.get(server_id, 0)) for server_id, count in counts)


@dataclass(frozen=True)
class Recovery:
    """A recovery of lost servers; one of ``ps.recoveries``.

    Attributes:
        servers: indices of the lost servers; empty if a program let the fleet roll back.
        reason: why they were lost.
        source: "replica", "handover" (the checkpoint that a server made at a normal shutdown) or "checkpoint". Only
            with "checkpoint" are later changes missing.
        checkpoint: folder of the checkpoint, unless the source is a replica.
        step: first step that the checkpoint does not hold; None if it belongs to no step.
        rolledBack: True if all servers rolled back to the checkpoint, not only the lost ones.
        mixed: True if the other servers did not roll back, so that vectors mix values of two ages.
        detectS: seconds from the last sign of life until the servers were declared lost.
        startS: seconds until new processes had registered.
        loadS: seconds until the new processes had their shards.
        nbytes: bytes of these shards.
        mutationsLost: number of requests whose changes are lost: those after the checkpoint, as of the last heartbeat.
        zeros: matrices (and rows) created after the checkpoint, which are zeros now.
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
        which = f"server {', '.join(map(str, self.servers))} is" if self.servers else "the fleet is"
        text = f"{which} back after {self.seconds:.1f} s ({reason})"
        if self.source == "replica":
            return f"{text}: from the copies, nothing is missing"
        if self.source == "handover":
            return f"{text}: from checkpoint {self.checkpoint}, which it made when it shut down; nothing is missing"
        subject = "all servers are" if self.rolledBack else "it is"
        text += f": {subject} at checkpoint {self.checkpoint} again (next step {self.step})"
        text += f", {self.mutationsLost} requests that changed something are missing"
        if self.mixed:
            text += "; the other servers did not roll back, so ages of vectors are mixed"
        zeros = f"; zeros, because they were created after the checkpoint: {', '.join(self.zeros)}"
        return text + zeros if self.zeros else text


def backup_of(index: int, servers: int) -> int:
    """Return the index of the server that holds the copies of a server's shards."""
    return (index + 1) % servers


def source_of(lost: Collection[int], servers: int, policy: Policy, has_checkpoint: bool) -> Source | None:
    """Choose the source of the shards of lost servers; None: there is none."""
    if policy.replicas and not any(backup_of(index, servers) in lost for index in lost):
        return "replica"
    return "checkpoint" if has_checkpoint else None


def all_roll_back(policy: Policy, can_resume: bool) -> bool:
    """Return True if all servers roll back to a checkpoint, False if only the lost ones do.

    ``can_resume``: a run or step is under way that can resume from that checkpoint by itself.
    """
    return policy.recover == "consistent" or (policy.recover == "auto" and can_resume)


def backups(addresses: Sequence[str], lost: Collection[int], replicas: int) -> list[str]:
    """Return the address of each server's backup, by index; "" if there is none now."""
    count = len(addresses)
    if not replicas:
        return [""] * count
    return ["" if backup_of(i, count) in lost else addresses[backup_of(i, count)] for i in range(count)]


class RecoveryLog:
    """Recoveries of one fleet. Once a recovered server has answered a client, the log holds the recovery.

    Attributes:
        lock: guards the log. It is held from before a recovered server answers until the recovery is appended.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._recoveries: list[tuple[float, Recovery]] = []

    def append(self, recovery: Recovery) -> None:
        """Append a recovery; the caller holds the lock."""
        self._recoveries.append((time.time(), recovery))

    def all(self) -> list[Recovery]:
        with self.lock:
            return [recovery for _, recovery in self._recoveries]

    def timed(self) -> list[tuple[float, Recovery]]:
        """Return (end, recovery) of all recoveries; the end is in seconds since the Unix epoch."""
        with self.lock:
            return list(self._recoveries)
