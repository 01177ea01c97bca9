"""The core of a server, without gRPC and protobuf: stores shards, and runs requests on them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import nlargest

from ps2.config import DEFAULT_NAMESPACE
from ps2.errors import (
    BusyError,
    LimitError,
    OutOfRangeError,
    ProtocolError,
    PS2Error,
    StaleRouteError,
    StoppedError,
)
from ps2.matrix.partition import MatrixSpec, Partition
from ps2.ops.warm import load_managed
from ps2.protocol.drafts import RequestDraft
from ps2.protocol.messages import NO_RESULT, Reply, Request, RequestId, ShardId
from ps2.rpc.catalogs import names_by_matrix
from ps2.rpc.server_status import MatrixStatus
from ps2.server.applied import EndedStages
from ps2.server.copies import TRANSFER, Copies
from ps2.server.fast_path import CompiledFastPath, FastPaths
from ps2.server.fence import Fence
from ps2.server.key_operations import reply_bytes
from ps2.server.keycache import KeyCache
from ps2.server.managed_shard import new_shard
from ps2.server.memory import MemoryAccount
from ps2.server.metrics import Meter
from ps2.server.pieces import PieceAssembler, is_piece
from ps2.server.reply_cache import ReplyCache
from ps2.server.request_runner import Replicator, RequestRunner
from ps2.server.shard import Shard, ShardLock, check_colocated

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SharedParts:
    """The parts that the engines of one process share: memory, caches, buffers, and the counts of requests.

    Keys are cached by matrix, and the id of a matrix is unique in the fleet.
    """

    memory: MemoryAccount
    keys: KeyCache
    meter: Meter
    fast_paths: FastPaths
    allow_udf: bool


class Engine:
    """All shards of one namespace on a server, and everything that requests need to run on them.

    Attributes:
        shared: what this engine shares with the engines of the server's other namespaces (``sibling``).
        catalog: the encoded catalog of named matrices that the coordinator has published for its successor.
    """

    def __init__(
        self,
        memory_limit_bytes: int,
        allow_udf: bool,
        namespace: str = DEFAULT_NAMESPACE,
        shared: SharedParts | None = None,
    ) -> None:
        if shared is None:
            memory, meter = MemoryAccount(memory_limit_bytes), Meter()
            shared = SharedParts(memory, KeyCache(memory), meter, FastPaths(memory, meter), allow_udf)
        self.namespace, self.shared = namespace, shared
        self.catalog = b""
        self.memory, self.keys, self.meter = shared.memory, shared.keys, shared.meter
        self.fast_paths = shared.fast_paths
        self._shards: dict[tuple[int, int], Shard] = {}
        self._lock = threading.Lock()  # guards the dict; each shard has its own lock
        self.replies = ReplyCache()
        self._ended_stages = EndedStages()
        self.fence = Fence(namespace)
        self.replicator: Replicator | None = None
        self._copies = Copies(self.replies, self.keys)
        self._pieces = PieceAssembler(self.memory)
        self._runner = RequestRunner(self.replies, self.meter, self.memory, shared.allow_udf)

    def sibling(self, namespace: str) -> Engine:
        """Return an engine without shards for another namespace of this server."""
        return Engine(self.memory.limit_bytes, self.shared.allow_udf, namespace, self.shared)

    def create_matrix(
        self, matrix: int, spec: MatrixSpec, partitions: Sequence[Partition], copies: bool = False
    ) -> None:
        """Allocate shards of a matrix, or copies of another server's shards, all or none. Existing shards stay."""
        shards: dict[tuple[int, int], Shard] = {}
        if spec.key_policy is not None:
            load_managed()  # before any lock is taken
        with self._lock:
            present = [shard.partition for (owner, _), shard in self._shards.items() if owner == matrix]
            absent = [partition for partition in partitions if partition not in present]
            _check_partitions(matrix, spec, present + absent)
            try:
                for partition in absent:
                    shards[matrix, partition.index] = new_shard(spec, partition, self.memory, copies)
            except Exception:
                for shard in shards.values():
                    shard.free()
                raise
            self._shards.update(shards)
            self._update_copies()
        if self.replicator is not None and not copies:
            try:
                self.replicator.send_now(shards)
            except PS2Error as error:
                log.warning("copies of matrix %x are sent later: %s", matrix, error)

    def update_rows(
        self,
        matrix: int,
        rows: int,
        freed: Sequence[int],
        reused: Sequence[int],
        order: tuple[int, int] | None = None,
    ) -> None:
        """Grow a matrix to ``rows`` rows (0: unchanged), retire the freed rows, and reuse retired rows as zeros.

        ``order``: (route version, number) of the call. A delayed or repeated call changes nothing, because its rows may
        be in use again. None: the call cannot be delayed. Raises OutOfRangeError before any change.
        """
        shards = self._matrix_shards(matrix)
        end = max(rows, *(shard.rows for shard in shards))
        # Check before any shard grows, so that all shards grow or none.
        if missing := [row_id for row_id in (*freed, *reused) if row_id >= end]:
            raise OutOfRangeError(f"row {missing[0]} is outside [0, {end})")
        for shard in shards:
            with shard.lock:
                if order is not None and order <= shard.rows_changed:
                    continue
                shard.grow_rows(rows)
                # If this copy was sent after the primary had retired the rows, they are retired here already.
                retired = shard.unused if shard.copy else frozenset()
                shard.retire_rows([row_id for row_id in freed if row_id not in retired])
                shard.reuse_rows(list(reused))
                if order is not None:
                    shard.rows_changed = order

    def free_matrix(self, matrix: int) -> None:
        with self._lock:
            removed = [self._shards.pop(key) for key in list(self._shards) if key[0] == matrix]
            self._update_copies()
        for shard in removed:
            with shard.lock:
                shard.free()
        self.keys.forget(matrix)

    def replace_shards(self, shards: Mapping[tuple[int, int], Shard]) -> None:
        """Replace all shards atomically, including copies of other servers' shards; free the old shards."""
        with self._lock:
            replaced, self._shards = self._shards, dict(shards)
            self._update_copies()
        self.replies.replace(reply for shard in shards.values() for reply in shard.restored_replies)
        for shard in replaced.values():
            with shard.lock:
                shard.free()
        for matrix in {matrix for matrix, _ in replaced}:
            self.keys.forget(matrix)

    def close(self) -> None:
        """Free all shards, and drop unfinished pieces of requests."""
        self.replace_shards({})
        self._pieces.close()

    def end_stages(self, series: str, below: int, live: Sequence[int]) -> None:
        """Forget the ids of a series' stages below ``below``, except ``live``, and refuse their late mutations."""
        self._ended_stages.add(series, below, live)
        self.replies.end(self._ended_stages)
        for shard in self.shards().values():
            # A request checks under the shard's lock whether its stage is over, so none adds an id after this line.
            with shard.lock:
                shard.applied.end(self._ended_stages)

    def shards(self) -> dict[tuple[int, int], Shard]:
        """Return the shards by matrix and partition, including copies of other servers' shards."""
        with self._lock:
            return dict(self._shards)

    def shard(self, shard_id: ShardId) -> Shard | None:
        """Return the shard or copy with this id; None if there is none."""
        with self._lock:
            return self._shards.get(shard_id)

    def own_shards(self, matrix: int, partitions: Sequence[int]) -> dict[ShardId, Shard]:
        """Return shards of a matrix by id; raises StaleRouteError if one is absent or a copy."""
        present = self.shards()
        shards: dict[ShardId, Shard] = {}
        for index in partitions:
            shard = present.get((matrix, index))
            if shard is None or shard.copy:
                raise StaleRouteError(f"this server does not hold partition {index} of matrix {matrix:x}")
            shards[matrix, index] = shard
        return shards

    def check_call(self, route_version: int, id: RequestId | None = None) -> None:
        """Raise StaleRouteError or StoppedError unless a client's call may run now; ``id``: the id of its mutation."""
        self.fence.check(route_version)
        self.fence.check_active()
        self._check_stage(id)

    def reserve(self, draft: RequestDraft, copies: int = 0) -> int:
        """Wait until memory for a request and its reply is free, and reserve the memory; return the reserved bytes.

        ``copies``: the number of additional copies of the arrays. The thread that runs the request must pass the
        returned bytes to ``release`` after the reply is sent. Raises LimitError if the request can never fit, and
        BusyError if it does not fit in time.
        """
        max_reply_bytes = reply_bytes(draft, self._shards, copies)
        reserved_bytes = draft.memory_bytes + copies * draft.nbytes + max_reply_bytes
        try:
            self.memory.admit(reserved_bytes, f"a request with its reply of {max_reply_bytes:,} bytes", draft.forwarded)
        except (LimitError, BusyError) as error:
            self.meter.refuse(error)
            raise
        return reserved_bytes

    def release(self, nbytes: int) -> None:
        self.memory.release(nbytes)

    def open_fast_path(self, request: Request) -> CompiledFastPath | None:
        return self.fast_paths.open(request, self.fence, self.shard)

    def execute(self, request: Request) -> Reply:
        """Run a request's operations in order, under the locks of all their shards.

        A shard that has applied the request's id does not apply it again; reads run each time. If an operation fails,
        the operations before it stay applied, and a retry of the request continues after them.
        """
        if is_piece(request):
            self.fence.check(request.route_version)
            self._pieces.run(request, self.execute)
            return Reply((NO_RESULT,))
        return self._execute(request)

    def _execute(self, request: Request) -> Reply:
        self.meter.begin(sum(op.nbytes for op in request.operations))
        try:
            self.fence.check(request.route_version)
            if not request.forwarded:
                self.fence.check_active()
            keys = self.keys.resolve(request.operations)
            with self._locked(request) as shards:
                # Check again: a rollback may have replaced the shards while this request waited for the locks.
                self.fence.check(request.route_version)
                self._check_stage(request.id)
                if request.forwarded:
                    reply = self._copies.apply(request, shards, keys)
                else:
                    self.fence.check_active()
                    reply = self._runner.run(request, shards, keys, self.replicator)
            # While this process was suspended, another server may have replaced it.
            self.fence.check_lease()
            for key_set in keys:
                if key_set is not None:
                    self.keys.store(key_set)
        except BaseException as error:
            self.meter.end(0, error)
            raise
        changed = request.id is not None and not reply.replayed and not request.forwarded
        self.meter.end(sum(result.nbytes for result in reply.results), changed=changed)
        return reply

    def matrices(self, limit: int | None = None) -> list[MatrixStatus]:
        """Return the status of the ``limit`` largest matrices (None: all), without copies of other servers' shards."""
        by_matrix: dict[int, list[Shard]] = {}
        for (matrix, _), shard in sorted(self.shards().items()):
            if not shard.copy:
                by_matrix.setdefault(matrix, []).append(shard)
        if limit is not None and len(by_matrix) > limit:
            sizes = {matrix: sum(shard.nbytes for shard in group) for matrix, group in by_matrix.items()}
            by_matrix = {matrix: by_matrix[matrix] for matrix in sorted(nlargest(limit, sizes, key=sizes.__getitem__))}
        names = names_by_matrix([self.catalog])
        owner = (self.namespace, self.fence.coordinator)
        return [_matrix_status(matrix, group, owner, names.get(matrix, {})) for matrix, group in by_matrix.items()]

    def _update_copies(self) -> None:
        self.memory.set_copies(self, any(shard.copy for shard in self._shards.values()))

    def _matrix_shards(self, matrix: int) -> list[Shard]:
        with self._lock:
            shards = [shard for (owner, _), shard in self._shards.items() if owner == matrix]
        if not shards:
            raise StaleRouteError(f"this server has no shard of matrix {matrix:x}")
        return shards

    @contextmanager
    def _locked(self, request: Request) -> Iterator[list[tuple[Shard, ...]]]:
        """Hold the locks of the request's shards, in one order to avoid deadlocks; yield each operation's shards."""
        shard_ids = [op.shard_ids for op in request.operations]
        all_ids = [shard_id for ids in shard_ids for shard_id in ids]
        with self._lock:
            shards = {shard_id: self._shards[shard_id] for shard_id in all_ids if shard_id in self._shards}
        for shard_id in all_ids:
            if shard_id not in shards or not self._serves(shards[shard_id], request):
                raise StaleRouteError(f"this server does not hold partition {shard_id[1]} of matrix {shard_id[0]:x}")
        acquired: list[ShardLock] = []
        try:
            for shard_id in sorted(shards):
                self.meter.acquire(shards[shard_id].lock)
                acquired.append(shards[shard_id].lock)
            by_operation = [tuple(map(shards.__getitem__, ids)) for ids in shard_ids]
            for operation_shards in by_operation:
                if len(operation_shards) > 1:
                    check_colocated(operation_shards)
            yield by_operation
        finally:
            for lock in acquired:
                lock.release()

    def _serves(self, shard: Shard, request: Request) -> bool:
        if not request.forwarded:
            return not shard.copy
        # Before its activation, a replacement server receives its shards from their copies, in a transfer.
        is_restoring = request.id is not None and request.id.scope == TRANSFER and self.fence.route_version == 0
        return shard.copy or is_restoring

    def _check_stage(self, id: RequestId | None) -> None:
        if id is not None and self._ended_stages.has(id.series, id.stage):
            raise StoppedError(f"stage {id.stage} of {id.series} is over: its mutations are no longer applied")


def _matrix_status(
    matrix: int, shards: Sequence[Shard], owner: tuple[str, str], names: Mapping[str, int]
) -> MatrixStatus:
    """Return the status of a matrix; ``owner``: its namespace and coordinator; ``names``: rows of its named vectors."""
    managed = [shard.managed for shard in shards if shard.managed is not None]
    sparse = [shard for shard in shards if shard.index is not None]
    return MatrixStatus(
        matrix=matrix,
        spec=shards[0].spec,
        rows=shards[0].rows,
        bytes=sum(shard.nbytes for shard in shards),
        active_keys=sum(shard.live for shard in sparse),
        partitions=tuple(shard.partition for shard in shards),
        slots=sum(int(shard.array.shape[1]) for shard in sparse),
        waiting_keys=sum(len(keys.waiting) for keys in managed),
        admitted_keys=sum(keys.counts.admitted for keys in managed),
        expired_keys=sum(keys.counts.expired for keys in managed),
        evicted_keys=sum(keys.counts.evicted for keys in managed),
        namespace=owner[0],
        coordinator=owner[1],
        names=names,
    )


def _check_partitions(matrix: int, spec: MatrixSpec, partitions: Sequence[Partition]) -> None:
    """Raise ProtocolError unless the partitions are distinct, disjoint and inside the matrix."""
    previous_end = 0
    for partition in sorted(partitions, key=lambda partition: partition.begin):
        text = f"partition {partition.index} of matrix {matrix:x} is [{partition.begin}, {partition.end})"
        if partition.end > spec.space:
            raise ProtocolError(f"{text}, but the matrix ends at {spec.space}")
        if partition.begin < previous_end:
            raise ProtocolError(f"{text}, but the previous partition ends at {previous_end}")
        previous_end = partition.end
    if len({partition.index for partition in partitions}) < len(partitions):
        raise ProtocolError(f"two partitions of matrix {matrix:x} have the same index")
