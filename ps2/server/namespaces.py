"""The namespaces of one server: applications that share its memory and its ports, and nothing else.

Each namespace has an engine of its own, with its own shards, fence, applied ids, checkpoints and copies. So whatever
happens to one application (a rollback, a lost driver, a late request) cannot reach the shards of another one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from ps2.config import DEFAULT_NAMESPACE, WireConfig, read_namespace
from ps2.errors import LimitError, ProtocolError, StaleRouteError, UsageError
from ps2.protocol.drafts import RequestDraft
from ps2.protocol.messages import Operation, Reply, Request
from ps2.rpc.catalogs import names_by_matrix
from ps2.rpc.control import Network
from ps2.server.engine import Engine
from ps2.server.fast_path import CompiledFastPath
from ps2.server.loading import CheckpointLoader
from ps2.server.replication import Replication
from ps2.server.snapshots import Snapshots

log = logging.getLogger(__name__)

# Maximum number of namespaces of a server.
MAX_NAMESPACES = 1000
# A namespace without named vectors is removed when its coordinator has been silent for this long: nobody can find its
# matrices, except a driver that was suspended all the time.
ABANDONED_AFTER_S = 600.0
# Matrices of one catalog have the same prefix: their ids without the lower bits, which number them.
NUMBER_BITS = 32


def _no_network() -> Network:
    raise UsageError("this server cannot connect to other servers")


@dataclass(frozen=True, eq=False)
class Namespace:
    """One namespace: its engine, and what acts on the shards of this engine alone."""

    engine: Engine
    snapshots: Snapshots
    loader: CheckpointLoader
    replication: Replication

    @property
    def name(self) -> str:
        return self.engine.namespace

    @property
    def prefixes(self) -> set[int]:
        """The prefixes of the matrices that have shards here."""
        return {matrix >> NUMBER_BITS for matrix, _ in self.engine.shards()}

    @property
    def is_abandoned(self) -> bool:
        """True if its coordinator has been silent for ``ABANDONED_AFTER_S``, and no driver can find its matrices."""
        return self.engine.fence.silent_s > ABANDONED_AFTER_S and not names_by_matrix([self.engine.catalog])

    @property
    def has_ended(self) -> bool:
        """True if its last coordinator has left it, so that it holds nothing any more."""
        return self.engine.fence.route_version > 0 and not self.engine.fence.coordinator

    def close(self) -> None:
        """Abort a checkpoint in progress, stop replication, and free all shards."""
        self.snapshots.close()
        self.loader.close()
        self.replication.close()
        self.engine.close()


class Namespaces:
    """The namespaces of one server, by name; finds the engine of each data request. Thread-safe.

    Attributes:
        default: the namespace "default", which is never removed.
        leaving: True after the server was told to stop; coordinators learn it by their next call.
    """

    def __init__(
        self, engine: Engine, connect: Callable[[], Network] = _no_network, wire: WireConfig | None = None
    ) -> None:
        """Begin with ``engine`` as the engine of "default"; ``connect`` returns a network to other servers."""
        self._connect = connect
        self._limit_bytes = (wire or WireConfig()).request_limit_bytes
        self._lock = threading.Lock()  # guards changes of the dicts, which are replaced and never modified
        self.default = self._new(engine)
        self._by_name = {DEFAULT_NAMESPACE: self.default}
        self._by_prefix: dict[int, Engine] = {}
        self.leaving = False

    # -- data requests ---------------------------------------------------------------------------------------------

    def execute(self, request: Request) -> Reply:
        """Run a request on the engine of its matrices. Raises ProtocolError if they belong to several namespaces."""
        try:
            return self._engine(request.operations).execute(request)
        except StaleRouteError:  # an engine refuses the matrices of another one before it changes anything
            self._check_one_engine(request.operations)
            raise

    def reserve(self, draft: RequestDraft, copies: int = 0) -> int:
        """Reserve memory for a request; see ``Engine.reserve``."""
        return self._engine([part.operation for part in draft.operations[:1]]).reserve(draft, copies)

    def release(self, nbytes: int) -> None:
        self.default.engine.release(nbytes)

    def open_fast_path(self, request: Request) -> CompiledFastPath | None:
        return self._engine(request.operations).open_fast_path(request)

    def with_matrix(self, matrix: int) -> Namespace:
        """Return the namespace of a matrix; "default" if no namespace of this server has it."""
        engine = self._by_prefix.get(matrix >> NUMBER_BITS, self.default.engine)
        return self._by_name.get(engine.namespace, self.default)

    def _engine(self, operations: Sequence[Operation]) -> Engine:
        # The engine of "default" refuses requests for matrices that no engine has.
        if not operations:
            return self.default.engine
        return self._by_prefix.get(operations[0].matrix >> NUMBER_BITS, self.default.engine)

    def _check_one_engine(self, operations: Sequence[Operation]) -> None:
        matrices = {matrix for operation in operations for matrix, _ in operation.shard_ids}
        names = {self.with_matrix(matrix).name for matrix in matrices}
        if len(names) > 1:
            raise ProtocolError(
                f"a request has matrices of the namespaces {', '.join(sorted(names))}: expected one namespace"
            )

    # -- control calls ---------------------------------------------------------------------------------------------

    def all(self) -> list[Namespace]:
        return list(self._by_name.values())

    def find(self, name: str) -> Namespace | None:
        """Return a namespace (""; "default"); None if this server does not have it."""
        return self._by_name.get(name or DEFAULT_NAMESPACE)

    def get(self, name: str) -> Namespace:
        """Return a namespace; raises StaleRouteError if this server does not have it."""
        namespace = self.find(name)
        if namespace is None:
            raise StaleRouteError(f"this server has no namespace {name!r} (any more)")
        return namespace

    def open(self, name: str) -> Namespace:
        """Return a namespace; create it if it is new. Raises LimitError if there are ``MAX_NAMESPACES``."""
        namespace = self.find(name)
        if namespace is not None:
            return namespace
        read_namespace(name)
        self.remove_abandoned()
        if len(self._by_name) >= MAX_NAMESPACES:
            self._remove([namespace for namespace in self.all() if namespace.has_ended])
        with self._lock:
            if name not in self._by_name:
                if len(self._by_name) >= MAX_NAMESPACES:
                    raise LimitError(f"namespace {name!r}: this server has {MAX_NAMESPACES} namespaces already")
                namespace = self._new(self.default.engine.sibling(name))
                namespace.engine.fence.waits = True  # its coordinator may first restore shards
                self._by_name = {**self._by_name, name: namespace}
            return self._by_name[name]

    def check_ids(self, namespace: Namespace, matrices: Collection[int]) -> None:
        """Raise UsageError if another namespace has matrices with the prefix of one of these ids."""
        for matrix in matrices:
            owner = self._by_prefix.get(matrix >> NUMBER_BITS, namespace.engine)
            if owner is not namespace.engine:
                raise UsageError(
                    f"matrix {matrix:x} belongs to namespace {owner.namespace!r} of this fleet, got it for namespace "
                    f"{namespace.name!r}: a checkpoint is restored in its own namespace, or after its driver has ended"
                )

    def update_prefixes(self, namespace: Namespace) -> None:
        """Let the engine of a namespace get the requests for the matrices that have shards there, and for no other."""
        with self._lock:
            prefixes = namespace.prefixes
            others = {p: engine for p, engine in self._by_prefix.items() if engine is not namespace.engine}
            self._by_prefix = {**dict.fromkeys(prefixes, namespace.engine), **others}

    def remove_abandoned(self) -> None:
        """Remove namespaces whose drivers have been gone for ``ABANDONED_AFTER_S``, unless they have named vectors."""
        self._remove([namespace for namespace in self.all() if namespace.is_abandoned])

    @property
    def may_end(self) -> bool:
        """True if no coordinator needs the shards of this server any more."""
        return all(not namespace.engine.shards() or namespace.engine.fence.may_end for namespace in self.all())

    @property
    def ready(self) -> bool:
        """True if a coordinator has given this server its shards, and the server does not end."""
        return not self.leaving and any(namespace.engine.fence.ready for namespace in self.all())

    @property
    def coordinator(self) -> str:
        """The coordinator that this server follows; "" if there is none, or several."""
        coordinators = {namespace.engine.fence.coordinator for namespace in self.all()} - {""}
        return coordinators.pop() if len(coordinators) == 1 else ""

    def close(self) -> None:
        """Abort checkpoints in progress, and stop replication."""
        for namespace in self.all():
            namespace.snapshots.close()
            namespace.replication.close()

    def _new(self, engine: Engine) -> Namespace:
        replication = Replication(engine, self._connect, self._limit_bytes)
        return Namespace(engine, Snapshots(engine), CheckpointLoader(engine), replication)

    def _remove(self, namespaces: Sequence[Namespace]) -> None:
        for namespace in namespaces:
            if namespace is self.default:
                continue
            with self._lock:
                self._by_name = {name: other for name, other in self._by_name.items() if other is not namespace}
                self._by_prefix = {p: engine for p, engine in self._by_prefix.items() if engine is not namespace.engine}
            namespace.close()
            log.info("namespace %r is removed: its driver has ended", namespace.name)
