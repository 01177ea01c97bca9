"""How a fleet recovers the shards of lost servers: pure decisions, and the report of each recovery."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Source = Literal["replica", "checkpoint", "handover"]
Recover = Literal["auto", "shard", "consistent"]


@dataclass(frozen=True)
class Policy:
    """How a fleet recovers from lost servers.

    Attributes:
        replicas: 1: each server's shards have copies on the next server.
        recover: without copies, "consistent": all servers roll back to the checkpoint. "shard": only the lost one does.
            "auto": all do if the run or step under way can go on from the checkpoint by itself.
    """

    replicas: int
    recover: Recover = "auto"


@dataclass(frozen=True)
class Lost:
    """The state of a fleet when servers were declared lost.

    Attributes:
        servers: their indices.
        reason: why they are lost.
        silent_s: seconds since the last sign of life of the server that was silent longest.
        mutations: by index: the server's id, and how many requests had changed data on it.
    """

    servers: tuple[int, ...]
    reason: str
    silent_s: float
    mutations: Mapping[int, tuple[str, int]]

    def mutations_since(self, held: Mapping[str, int], indices: Collection[int]) -> int:
        """Return how many mutations these servers had after a checkpoint that holds ``held`` of each server id."""
        counts = [self.mutations[index] for index in indices]
        return sum(max(0, count - held.get(server_id, 0)) for server_id, count in counts)


@dataclass(frozen=True)
class Recovery:
    """What happened to lost servers; one of ``ps.recoveries``.

    Attributes:
        servers: their indices; none if a program let the fleet roll back.
        reason: why they were lost.
        source: "replica", "handover" (the checkpoint with which a server ended in order) or "checkpoint". Only with
            "checkpoint" are later changes missing.
        checkpoint: its folder, unless the source is a replica.
        step: first step that the checkpoint does not hold, if it has one.
        rolledBack: all servers rolled back to the checkpoint, not only the lost ones.
        mixed: the other servers did not roll back, so vectors on lost and on other servers are of two ages.
        detectS: seconds from the last sign of life until the servers were declared lost.
        startS: seconds until new processes had registered.
        loadS: seconds until their shards were back.
        nbytes: of these shards.
        mutationsLost: requests that had changed data there after the checkpoint, as of the last heartbeat.
        zeros: matrices (and rows) younger than the checkpoint, which came back as zeros.
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
        why = self.reason.splitlines()[0].removesuffix("; its log ends:").rstrip(";")
        which = f"server {', '.join(map(str, self.servers))} is" if self.servers else "the fleet is"
        text = f"{which} back after {self.seconds:.1f} s ({why})"
        if self.source == "replica":
            return f"{text}: from the copies, nothing is missing"
        if self.source == "handover":
            return f"{text}: from checkpoint {self.checkpoint}, with which it had ended; nothing is missing"
        who = "all servers are" if self.rolledBack else "it is"
        text += f": {who} at checkpoint {self.checkpoint} again (next step {self.step})"
        text += f", {self.mutationsLost} requests that changed something are missing"
        if self.mixed:
            text += "; the other servers go on from where they were, so ages of vectors are mixed"
        return f"{text}; zeros, as younger: {', '.join(self.zeros)}" if self.zeros else text


def backup_of(index: int, servers: int) -> int:
    """Return the server that holds the copies of a server's shards."""
    return (index + 1) % servers


def source_of(lost: Collection[int], servers: int, policy: Policy, has_checkpoint: bool) -> Source | None:
    """Choose the source of the shards of lost servers; None: there is none."""
    if policy.replicas and not any(backup_of(index, servers) in lost for index in lost):
        return "replica"
    return "checkpoint" if has_checkpoint else None


def all_roll_back(policy: Policy, can_resume: bool) -> bool:
    """Return whether all servers roll back to a checkpoint, not only the lost ones.

    Args:
        can_resume: whether a run or a step is under way that can go on from that checkpoint by itself.
    """
    return policy.recover == "consistent" or (policy.recover == "auto" and can_resume)


def backups(addresses: Sequence[str], lost: Collection[int], replicas: int) -> list[str]:
    """Return the address of each server's backup, by index; "" where there is none now."""
    count = len(addresses)
    if not replicas:
        return [""] * count
    return ["" if backup_of(i, count) in lost else addresses[backup_of(i, count)] for i in range(count)]
