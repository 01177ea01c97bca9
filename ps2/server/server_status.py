"""The status of this server, collected from its parts."""

from __future__ import annotations

import os
from dataclasses import fields

import psutil

from ps2.config import CONTAINER_VARIABLE, NODE_VARIABLE
from ps2.rpc.server_status import Counts, ServerStatus
from ps2.server.engine import Engine
from ps2.version import __version__


def status_of(  # noqa: PLR0913 - parts of one server
    engine: Engine,
    *,
    server_id: str,
    uptime_s: float,
    connections: int,
    backup: str,
    behind: int,
    most: int | None = None,
) -> ServerStatus:
    """Return the counters and contents of a server.

    Args:
        backup: address of the backup; "" if there is none.
        behind: number of shards whose copy is out of sync.
        most: number of matrices to describe, the largest ones; None: all.
    """
    counts, shards = engine.meter.read(), list(engine.shards().values())
    return ServerStatus(
        **{f.name: getattr(counts, f.name) for f in fields(Counts)},
        server_id=server_id,
        version=__version__,
        pid=os.getpid(),
        uptime_s=uptime_s,
        matrices=tuple(engine.matrices(most)),
        # Fast-path buffers are left out, because they depend only on the number of connections.
        memory_bytes=engine.memory.taken_bytes - engine.fast_paths.nbytes,
        memory_limit_bytes=engine.memory.limit_bytes,
        rss_bytes=psutil.Process().memory_info().rss,
        key_cache_hits=engine.keys.hits,
        key_cache_misses=engine.keys.misses,
        key_cache_bytes=engine.keys.nbytes,
        connections=connections,
        route_version=engine.fence.route_version,
        backup=backup,
        copies_bytes=sum(shard.nbytes for shard in shards if shard.copy),
        behind=behind,
        applied_scopes=sum(len(shard.applied) for shard in shards),
        container=os.environ.get(CONTAINER_VARIABLE, ""),
        node=os.environ.get(NODE_VARIABLE, ""),
    )
