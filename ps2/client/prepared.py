"""Plain calls on one vector of floats, sent with prepared headers.

A call sends one request to each server over a connection that is open already, and reads the reply into place
(``ps2.transport.prepared_header``). It covers the usual case: the route is known and current, this process has no
addition under way, and the fleet has not gone back to a checkpoint. In every other case, and whenever a reply is not as
expected, the call takes the ordinary way (``Session.run``) under the same id, so that nothing is applied twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ps2.client.arguments import as_indices, as_sent, as_target
from ps2.client.keysets import SPLITS, Split
from ps2.client.plans import Target
from ps2.interrupts import shielded
from ps2.ops.packing import narrowest
from ps2.ops.table import Array
from ps2.protocol.messages import PLAIN, PLAIN_FLOATS, Keys, Operation, RequestId
from ps2.transport import prepared_header
from ps2.transport.prepared_header import PreparedHeader
from ps2.transport.sockets import PlainSocket

if TYPE_CHECKING:
    from ps2.client.session import Session

# Matrices whose routes are cached.
MOST_ROUTES = 4096
# With their values about half a block.
MOST_KEYS = 1 << 17
# Of a set that servers remember: on a link of 1 Gbit/s, keys that take more are named sooner than sent anew.
MOST_KNOWN_BYTES = 20_000
# Stands for the keys of a request when its header is prepared.
SOME_KEYS = Keys(1, np.zeros(1, np.int64))


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where columns ``[begin, end)`` of a matrix are."""

    partition: int
    address: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class CachedRoute:
    """Where a matrix is at a route version; without endpoints if its calls take the ordinary way.

    Attributes:
        fits: a row's part at each endpoint fits into one request.
    """

    version: int
    endpoints: tuple[Endpoint, ...]
    fits: bool = False


@dataclass(slots=True)
class Call:
    """What all requests of a call share: operation, row, route version, and an id if the call changes data."""

    kind: str
    target: Target
    version: int
    id: RequestId | None = None


@dataclass(slots=True)
class PreparedRequest:
    """One request of a call, with its values, its keys, and the memory that its reply is read into, if any."""

    endpoint: Endpoint
    values: Array | None = None
    keys: Array | None = None
    out: Array | None = None


class PreparedCalls:
    """Of one session. Safe for threads."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._routes: dict[int, CachedRoute] = {}

    @shielded
    def pull(self, target: Target, indices: Any, out: Array | None) -> Array | None:
        """Return a vector, or what it is at indices; None if it has to be read the ordinary way."""
        cached = self._route(target, changes=False)
        if cached is None:
            return None
        if indices is not None:
            return self._gather(target, cached, indices, out)
        spec = target.spec
        if not cached.fits:
            return None
        out = np.empty(spec.dim, spec.np_dtype) if out is None else as_target(out, spec.np_dtype, (spec.dim,))
        if not out.flags.c_contiguous:
            return None
        requests = [PreparedRequest(endpoint, out=out[endpoint.begin : endpoint.end]) for endpoint in cached.endpoints]
        return out if self._make(Call("pull", target, cached.version), requests) else None

    def _gather(self, target: Target, cached: CachedRoute, indices: Any, out: Array | None) -> Array | None:
        columns, dtype = as_indices(indices), target.spec.np_dtype
        if not 0 < columns.size <= MOST_KEYS:
            return None
        given = None if out is None else as_target(out, dtype, columns.shape)
        parts = _plain_parts(target, columns) if given is None or given.flags.c_contiguous else None
        if parts is None:
            return None
        found = given if given is not None and parts.order is None else np.empty(parts.columns.size, dtype)
        requests = [
            PreparedRequest(cached.endpoints[index], keys=keys.columns, out=found[where])
            for index, where, keys in parts.key_sets()
        ]
        return parts.spread(found, given) if self._make(Call("gather", target, cached.version), requests) else None

    @shielded
    def change(
        self, verb: str, target: Target, values: Any, indices: Any, otherwise: Callable[[RequestId | None], Any]
    ) -> None:
        """Change a vector, or what it is at indices.

        Args:
            verb: "push", "push_add", "scatter"...
            otherwise: does it the ordinary way, under that id if there is one.
        """
        cached = self._route(target, changes=True) if verb in PLAIN else None
        requests = [] if cached is None else self._changes(verb, target, cached, values, indices)
        if cached is None or not requests:
            otherwise(None)
            return
        ids = self._session.ids
        id = ids.next()
        try:
            done = self._make(Call(verb, target, cached.version, id), requests)
        except BaseException:
            ids.done(id)
            raise
        if done:
            ids.done(id)
        else:
            otherwise(id)

    def _changes(
        self, verb: str, target: Target, cached: CachedRoute, values: Any, indices: Any
    ) -> list[PreparedRequest]:
        spec = target.spec
        if indices is None:
            if not cached.fits:
                return []
            array = as_sent(values, spec, (spec.dim,))
            return [
                PreparedRequest(endpoint, values=array[endpoint.begin : endpoint.end]) for endpoint in cached.endpoints
            ]
        columns = as_indices(indices)
        if not 0 < columns.size <= MOST_KEYS:
            return []
        array = as_sent(values, spec, columns.shape)
        parts = _plain_parts(target, columns)
        if parts is None:
            return []
        distinct = parts.last(array) if verb == "scatter" else parts.summed(array)
        return [
            PreparedRequest(cached.endpoints[index], values=distinct[where], keys=keys.columns)
            for index, where, keys in parts.key_sets()
        ]

    def _route(self, target: Target, changes: bool) -> CachedRoute | None:
        """Return the places of a vector's partitions; None if a call has to go the ordinary way."""
        session = self._session
        if not session.writer_is_idle or not session.rollbacks.is_settled(changes):
            return None
        cached = self._routes.get(target.matrix)
        if cached is None or cached.version != session.routes.version:
            cached = self._look(target)
        return cached if cached.endpoints else None

    def _look(self, target: Target) -> CachedRoute:
        """Find out where a matrix is, and whether it is one for this."""
        spec, version = target.spec, self._session.routes.version
        route = self._session.routes.of([target.matrix]).get(target.matrix)
        if route is None:
            return CachedRoute(version, ())
        endpoints = tuple(
            Endpoint(part.index, address, part.begin, part.end)
            for part, address in zip(route.partitions, route.addresses, strict=True)
        )
        widths, wire = [endpoint.end - endpoint.begin for endpoint in endpoints], self._session.wire
        is_of_plain_floats = spec.np_dtype in PLAIN_FLOATS and spec.wire is None
        # With several partitions on a server, one request brings them all.
        is_one_a_server = len(route.servers) == len(endpoints)
        fits = spec.kind == "dense" and min(widths) > 0 and max(widths) * spec.np_dtype.itemsize <= wire.block_bytes
        if len(self._routes) >= MOST_ROUTES:
            self._routes.clear()
        is_for_this = wire.fast_path and is_of_plain_floats and is_one_a_server
        cached = self._routes[target.matrix] = CachedRoute(version, endpoints if is_for_this else (), fits)
        return cached

    def _make(self, call: Call, requests: Sequence[PreparedRequest]) -> bool:
        """Make requests to servers that all work at once; False if not all went as expected."""
        watch, transport = self._session.stopwatch, self._session.transport
        begun: list[tuple[PreparedRequest, PlainSocket, PreparedHeader]] = []
        with watch.running("pull" if call.id is None else "push") if watch.is_mine else nullcontext():
            try:
                fine = all(self._begin(call, request, begun) for request in requests)
                while begun:
                    request, connection, form = begun[0]
                    came = prepared_header.receive(connection, form, request.out)
                    del begun[0]
                    transport.give(request.endpoint.address, connection, fine=came is not None)
                    fine = fine and bool(came)
                return fine
            finally:
                for request, connection, _ in begun:  # interrupted: their replies are still to come
                    transport.give(request.endpoint.address, connection, fine=False)

    def _begin(
        self, call: Call, request: PreparedRequest, begun: list[tuple[PreparedRequest, PlainSocket, PreparedHeader]]
    ) -> bool:
        """Send a request; False if it cannot be."""
        transport, target, endpoint = self._session.transport, call.target, request.endpoint
        connection = transport.take(endpoint.address)
        if connection is None:
            return False
        scope = "" if call.id is None else call.id.scope
        key = (call.kind, call.version, target.matrix, endpoint.partition, target.rows[0], scope)
        form = connection.forms.get(key)
        if form is None:
            form = prepared_header.make_header(
                connection, key, _operation(call.kind, target, request), call.id, call.version
            )
        begun.append((request, connection, form))
        arrays = form.fill(call.id, request.values, request.keys)
        if prepared_header.send(connection, form, arrays, self._session.wire.keepalive_s):
            return True
        begun.pop()
        transport.give(endpoint.address, connection, fine=False)
        return False


def _operation(kind: str, target: Target, request: PreparedRequest) -> Operation:
    """Return what a form is made of: with arrays that stand for those of each request."""
    params = {"start": 0, "stop": request.endpoint.end - request.endpoint.begin} if kind == "pull" else {}
    keys = None if request.keys is None else SOME_KEYS
    arrays = () if request.values is None else (request.values[:0],)
    return Operation(kind, target.matrix, request.endpoint.partition, target.rows[:1], params, arrays, keys)


def _plain_parts(target: Target, columns: Array) -> Split | None:
    """Return columns by partition, if each has one set of not too many that is to travel as it is."""
    parts = SPLITS.split(target.spec, target.route, columns)
    groups = parts.groups
    if len({group.partition for group in groups}) < len(groups):
        return None
    for group in groups:
        if group.digest is not None and _sent_bytes(parts.columns[group.begin : group.end]) > MOST_KNOWN_BYTES:
            return None
    return parts


def _sent_bytes(keys: Array) -> int:
    """Return about what ascending keys take on the way: of random ones, some gap is eight times the mean."""
    gap = int(keys[-1] - keys[0]) // keys.size
    return keys.size * narrowest(8 * gap).itemsize
