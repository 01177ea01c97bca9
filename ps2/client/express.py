"""The plain calls on one vector of floats, with as little around each as there can be.

A call is one request to each server, which is written to a connection that waits already, and a reply that is read into
place (``ps2.wire.quick``). It is for what mostly happens: the route is known and new, no addition of this process is
under way, the fleet has not gone back to a checkpoint. In all other cases, and whenever anything is not as expected,
the call goes the ordinary way (``Session.run``), under the id that it had: what was done already is not done again.
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
from ps2.wire import quick
from ps2.wire.messages import PLAIN, PLAIN_FLOATS, Keys, Operation, RequestId
from ps2.wire.quick import Form
from ps2.wire.sockets import PlainSocket

if TYPE_CHECKING:
    from ps2.client.session import Session

# Vectors whose places are remembered.
MOST_LINES = 4096
# With their values about half a block.
MOST_KEYS = 1 << 17
# Of a set that servers remember: on a link of 1 Gbit/s, keys that take more are named sooner than sent anew.
MOST_KNOWN_BYTES = 20_000
# Stands for keys in a form that waits for them.
SOME_KEYS = Keys(1, np.zeros(1, np.int64))


@dataclass(frozen=True, slots=True)
class Stop:
    """Where columns ``[begin, end)`` of a matrix are."""

    partition: int
    address: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Line:
    """All places of a matrix, as they are at a route version; none if it is not for this.

    Attributes:
        fits: a row's part of each place fits into one request.
    """

    version: int
    stops: tuple[Stop, ...]
    fits: bool = False


@dataclass(slots=True)
class Call:
    """What all requests of a call have: which operation on which row, at which route version; an id if it changes."""

    kind: str
    target: Target
    version: int
    id: RequestId | None = None


@dataclass(slots=True)
class Trip:
    """A request to be made: with values, with keys, and with a place for what it brings, if there are any."""

    stop: Stop
    values: Array | None = None
    keys: Array | None = None
    out: Array | None = None


class Express:
    """Of one session. Safe for threads."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lines: dict[int, Line] = {}

    @shielded
    def pull(self, target: Target, indices: Any, out: Array | None) -> Array | None:
        """Return a vector, or what it is at indices; None if it has to be read the ordinary way."""
        line = self._line(target, changes=False)
        if line is None:
            return None
        if indices is not None:
            return self._gather(target, line, indices, out)
        spec = target.spec
        if not line.fits:
            return None
        out = np.empty(spec.dim, spec.np_dtype) if out is None else as_target(out, spec.np_dtype, (spec.dim,))
        if not out.flags.c_contiguous:
            return None
        trips = [Trip(stop, out=out[stop.begin : stop.end]) for stop in line.stops]
        return out if self._make(Call("pull", target, line.version), trips) else None

    def _gather(self, target: Target, line: Line, indices: Any, out: Array | None) -> Array | None:
        columns, dtype = as_indices(indices), target.spec.np_dtype
        if not 0 < columns.size <= MOST_KEYS:
            return None
        given = None if out is None else as_target(out, dtype, columns.shape)
        parts = _plain_parts(target, columns) if given is None or given.flags.c_contiguous else None
        if parts is None:
            return None
        found = given if given is not None and parts.order is None else np.empty(parts.columns.size, dtype)
        trips = [
            Trip(line.stops[index], keys=keys.columns, out=found[where]) for index, where, keys in parts.key_sets()
        ]
        return parts.spread(found, given) if self._make(Call("gather", target, line.version), trips) else None

    @shielded
    def change(
        self, verb: str, target: Target, values: Any, indices: Any, otherwise: Callable[[RequestId | None], Any]
    ) -> None:
        """Change a vector, or what it is at indices.

        Args:
            verb: "push", "push_add", "scatter"...
            otherwise: does it the ordinary way, under that id if there is one.
        """
        line = self._line(target, changes=True) if verb in PLAIN else None
        trips = [] if line is None else self._changes(verb, target, line, values, indices)
        if line is None or not trips:
            otherwise(None)
            return
        ids = self._session.ids
        id = ids.next()
        try:
            done = self._make(Call(verb, target, line.version, id), trips)
        except BaseException:
            ids.done(id)
            raise
        if done:
            ids.done(id)
        else:
            otherwise(id)

    def _changes(self, verb: str, target: Target, line: Line, values: Any, indices: Any) -> list[Trip]:
        spec = target.spec
        if indices is None:
            if not line.fits:
                return []
            array = as_sent(values, spec, (spec.dim,))
            return [Trip(stop, values=array[stop.begin : stop.end]) for stop in line.stops]
        columns = as_indices(indices)
        if not 0 < columns.size <= MOST_KEYS:
            return []
        array = as_sent(values, spec, columns.shape)
        parts = _plain_parts(target, columns)
        if parts is None:
            return []
        distinct = parts.last(array) if verb == "scatter" else parts.summed(array)
        return [
            Trip(line.stops[index], values=distinct[where], keys=keys.columns)
            for index, where, keys in parts.key_sets()
        ]

    def _line(self, target: Target, changes: bool) -> Line | None:
        """Return the places of a vector's partitions; None if a call has to go the ordinary way."""
        session = self._session
        if not session.outbox_is_idle or not session.age.is_settled(changes):
            return None
        line = self._lines.get(target.matrix)
        if line is None or line.version != session.routes.version:
            line = self._look(target)
        return line if line.stops else None

    def _look(self, target: Target) -> Line:
        """Find out where a matrix is, and whether it is one for this."""
        spec, version = target.spec, self._session.routes.version
        route = self._session.routes.of([target.matrix]).get(target.matrix)
        if route is None:
            return Line(version, ())
        stops = tuple(
            Stop(part.index, address, part.begin, part.end)
            for part, address in zip(route.partitions, route.addresses, strict=True)
        )
        widths, wire = [stop.end - stop.begin for stop in stops], self._session.wire
        is_of_plain_floats = spec.np_dtype in PLAIN_FLOATS and spec.wire is None
        # With several partitions on a server, one request brings them all.
        is_one_a_server = len(route.servers) == len(stops)
        fits = spec.kind == "dense" and min(widths) > 0 and max(widths) * spec.np_dtype.itemsize <= wire.block_bytes
        if len(self._lines) >= MOST_LINES:
            self._lines.clear()
        is_for_this = wire.lanes and is_of_plain_floats and is_one_a_server
        line = self._lines[target.matrix] = Line(version, stops if is_for_this else (), fits)
        return line

    def _make(self, call: Call, trips: Sequence[Trip]) -> bool:
        """Make trips to servers that all work at once; False if not all went as expected."""
        watch, transport = self._session.stopwatch, self._session.transport
        begun: list[tuple[Trip, PlainSocket, Form]] = []
        with watch.running("pull" if call.id is None else "push") if watch.is_mine else nullcontext():
            try:
                fine = all(self._begin(call, trip, begun) for trip in trips)
                while begun:
                    trip, connection, form = begun[0]
                    came = quick.receive(connection, form, trip.out)
                    del begun[0]
                    transport.give(trip.stop.address, connection, fine=came is not None)
                    fine = fine and bool(came)
                return fine
            finally:
                for trip, connection, _ in begun:  # interrupted: their replies are still to come
                    transport.give(trip.stop.address, connection, fine=False)

    def _begin(self, call: Call, trip: Trip, begun: list[tuple[Trip, PlainSocket, Form]]) -> bool:
        """Send a request; False if it cannot be."""
        transport, target, stop = self._session.transport, call.target, trip.stop
        connection = transport.take(stop.address)
        if connection is None:
            return False
        scope = "" if call.id is None else call.id.scope
        key = (call.kind, call.version, target.matrix, stop.partition, target.rows[0], scope)
        form = connection.forms.get(key)
        if form is None:
            form = quick.make_form(connection, key, _operation(call.kind, target, trip), call.id, call.version)
        begun.append((trip, connection, form))
        arrays = form.fill(call.id, trip.values, trip.keys)
        if quick.send(connection, form, arrays, self._session.wire.keepalive_s):
            return True
        begun.pop()
        transport.give(stop.address, connection, fine=False)
        return False


def _operation(kind: str, target: Target, trip: Trip) -> Operation:
    """Return what a form is made of: with arrays that stand for those of each request."""
    params = {"start": 0, "stop": trip.stop.end - trip.stop.begin} if kind == "pull" else {}
    keys = None if trip.keys is None else SOME_KEYS
    arrays = () if trip.values is None else (trip.values[:0],)
    return Operation(kind, target.matrix, trip.stop.partition, target.rows[:1], params, arrays, keys)


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
