"""Where topics are sampled: a cost model of one worker that has all counts, and of several that share them. Pure.

Seconds of an iteration (docs/decisions/0056), with V words, K topics, N tokens, T threads and W workers:

    local      N * token / T + V * K * look + clock
    servers    N * token / W + V * K * exchange + clock + requests
"""

from __future__ import annotations

from dataclasses import dataclass

from ps2.algorithms.training.placement import Placement, ViaName
from ps2.formats import short_time

# Of a token: a part of its own, and one for each topic, which is smaller where documents have lists of their topics.
TOKEN_S, TOPIC_S, LISTED_S, MAX_DENSE = 45e-9, 0.35e-9, 0.12e-9, 256
# Of a count, to compute its part of the likelihood; to bring it from servers to a worker, and its change back.
LOOK_S, EXCHANGE_S = 1e-9, 16e-9
# Of an iteration: the clock, and requests for topics' totals and slices of words.
CLOCK_S, REQUESTS_S = 4e-3, 10e-3
# Bytes of one worker: of a count, and of a token with its topic, its document and its part of the document's counts.
COUNT_BYTES, TOKEN_BYTES = 4, 24
# A worker with more than this may not fit its task.
MAX_BYTES = 2 << 30


@dataclass(frozen=True)
class SamplingSize:
    """What decides about the costs of an iteration.

    Attributes:
        topics: K.
        vocabulary: V.
        tokens: N.
        threads: of a worker that is alone.
        workers: that would share the counts.
        by_time: turns end by time, which only workers with servers can do.
    """

    topics: int
    vocabulary: int
    tokens: int
    threads: int
    workers: int
    by_time: bool = False

    @property
    def counts(self) -> int:
        return self.vocabulary * self.topics

    @property
    def bytes(self) -> int:
        """Memory of a worker that is alone."""
        return self.counts * COUNT_BYTES + self.tokens * TOKEN_BYTES

    @property
    def token_s(self) -> float:
        listed = max(self.topics - MAX_DENSE, 0)
        return TOKEN_S + min(self.topics, MAX_DENSE) * TOPIC_S + listed * LISTED_S

    @property
    def local_s(self) -> float:
        """Seconds of an iteration of one worker."""
        return self.tokens * self.token_s / self.threads + self.counts * LOOK_S + CLOCK_S

    @property
    def servers_s(self) -> float:
        """Seconds of an iteration of workers with servers."""
        return self.tokens * self.token_s / self.workers + self.counts * EXCHANGE_S + CLOCK_S + REQUESTS_S


def place(via: ViaName, size: SamplingSize, wanted: int | None) -> Placement:
    """Choose where to sample.

    Args:
        via: as the user wants it.
        wanted: number of workers that the user wants; None: any. It is not above 1 with "local".
    """
    servers = wanted or size.workers
    if via == "local":
        return Placement(1, size.threads, "local", "as requested")
    if via == "servers":
        return Placement(servers, 1, "servers", "as requested")
    if wanted is not None and wanted > 1:
        return Placement(servers, 1, "servers", f"numWorkers is {wanted}")
    if size.by_time:
        return Placement(servers, 1, "servers", "budgetS is set")
    if size.bytes > MAX_BYTES:
        return Placement(servers, 1, "servers", f"one worker would take {size.bytes >> 20:,} MiB")
    predicted = f"an iteration is predicted to take {short_time(size.local_s)} with 'local'"
    reason = f"{predicted}, {short_time(size.servers_s)} with 'servers' and {size.workers} workers"
    if size.local_s <= size.servers_s:
        return Placement(1, size.threads, "local", reason)
    return Placement(servers, 1, "servers", reason)
