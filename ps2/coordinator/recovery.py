"""How a fleet gets back what lost servers held: pure decisions, and what is told of them afterwards."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Source = Literal["replica", "checkpoint", "handover"]
Recover = Literal["auto", "shard", "consistent"]


@dataclass(frozen=True)
class Policy:
    """What a fleet does about lost servers.

    Attributes:
        replicas: 1: each server's shards have copies on the next one.
        recover: without copies: "consistent": all servers go back to the checkpoint. "shard": the lost one alone does.
            "auto": all do if what is under way in the driver can go on from there by itself.
    """

    replicas: int
    recover: Recover = "auto"


@dataclass(frozen=True)
class Lost:
    """What was known of a fleet when servers of it were given up.

    Attributes:
        servers: their indices.
        reason: why they were.
        silent_s: since the last sign of life of the one that was silent longest.
        mutations: by index: the id of the server that was there, and how many requests had changed something on it.
    """

    servers: tuple[int, ...]
    reason: str
    silent_s: float
    mutations: Mapping[int, tuple[str, int]]

    def mutations_since(self, held: Mapping[str, int], indices: Collection[int]) -> int:
        """Return how many came on these servers after a checkpoint that holds so many of each server id."""
        counts = [self.mutations[index] for index in indices]
        return sum(max(0, count - held.get(server_id, 0)) for server_id, count in counts)


@dataclass(frozen=True)
class Recovery:
    """What happened to lost servers; one of ``ps.recoveries``.

    Attributes:
        servers: their indices.
        reason: why they were lost.
        source: "replica", or the checkpoint with which a server ended in order ("handover"): nothing is missing.
            "checkpoint": what came after it is.
        checkpoint: its folder, unless it was a replica.
        step: first step that the checkpoint does not hold, if it has one.
        rolledBack: all servers went back to it, not only the lost ones.
        mixed: others did not: vectors are of two ages, on the servers that were lost of the checkpoint's.
        detectS: seconds from the last sign of life until they were given up.
        startS: seconds until new processes had registered.
        loadS: seconds until their shards were back.
        nbytes: of these shards.
        mutationsLost: requests that had changed something there after the checkpoint, as of the last heartbeat.
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
        which = ", ".join(map(str, self.servers))
        text = f"server {which} is back after {self.seconds:.1f} s ({self.reason.splitlines()[0].rstrip(';')})"
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
    """Choose where the shards of lost servers come from; None: there is nothing to get them from."""
    if policy.replicas and not any(backup_of(index, servers) in lost for index in lost):
        return "replica"
    return "checkpoint" if has_checkpoint else None


def all_go_back(policy: Policy, has_way_back: bool) -> bool:
    """Tell whether all servers go back to a checkpoint, not only the lost ones.

    Args:
        has_way_back: whether a run or a step is under way that can go on from that checkpoint by itself.
    """
    return policy.recover == "consistent" or (policy.recover == "auto" and has_way_back)


def backups(addresses: Sequence[str], lost: Collection[int], replicas: int) -> list[str]:
    """Return the address of each server's backup, by index; "" where there is none now."""
    count = len(addresses)
    if not replicas:
        return [""] * count
    return ["" if backup_of(i, count) in lost else addresses[backup_of(i, count)] for i in range(count)]
