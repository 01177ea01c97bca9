"""Checkpoints of engines in this process, without a coordinator."""

from __future__ import annotations

import threading

import numpy as np

from ps2.matrix.partition import partition_bounds, partition_of, partitions
from ps2.protocol.messages import Operation, Request, RequestId
from ps2.server.engine import Engine
from ps2.server.loading import CheckpointLoader
from ps2.server.snapshots import Snapshots
from ps2.storage import folders
from ps2.storage.manifest import LoadMatrix, Manifest, SavedMatrix

LIMIT_BYTES = 1 << 28
FREEZE_S = 30.0


def op(name, matrix, partition, *rows, arrays=(), **params):
    return Operation(name, matrix, partition, rows, params, tuple(np.asarray(array) for array in arrays))


def ids(scope="scope"):
    """Yield the ids of one scope, for as many mutations as come."""
    number = 0
    while True:
        yield RequestId(scope, number)
        number += 1


class Fleet:
    """Engines with all matrices that are made, spread over them as a coordinator would; ``specs`` are theirs by id."""

    def __init__(self, servers, limit_bytes=LIMIT_BYTES):
        self.engines = [Engine(limit_bytes, allow_udf=True) for _ in range(servers)]
        self.snapshots = [Snapshots(engine) for engine in self.engines]
        self.loadings = [CheckpointLoader(engine) for engine in self.engines]
        self.specs = {}
        self._ids = ids()

    def bounds(self, spec):
        return partition_bounds(spec, len(self.engines))

    def owned(self, spec, server):
        """Return a server's partitions: p is on server p modulo their number."""
        return [p for p in partitions(self.bounds(spec)) if p.index % len(self.engines) == server]

    def create(self, matrix, spec):
        self.specs[matrix] = spec
        for server, engine in enumerate(self.engines):
            if owned := self.owned(spec, server):
                engine.create_matrix(matrix, spec, owned)

    def push(self, matrix, row, columns, values):
        """Overwrite some columns, or keys, of a row."""
        spec = self.specs[matrix]
        owners = partition_of(spec, self.bounds(spec), columns)
        for partition in np.unique(owners):
            mine = owners == partition
            engine = self.engines[partition % len(self.engines)]
            scatter = op("scatter", matrix, int(partition), row, arrays=[columns[mine], values[mine]])
            engine.execute(Request((scatter,), next(self._ids)))

    def pull(self, matrix, row, columns):
        spec = self.specs[matrix]
        owners = partition_of(spec, self.bounds(spec), columns)
        values = np.zeros(columns.size, spec.np_dtype)
        for partition in np.unique(owners):
            mine = owners == partition
            engine = self.engines[partition % len(self.engines)]
            gather = op("gather", matrix, int(partition), row, arrays=[columns[mine]])
            values[mine] = engine.execute(Request((gather,))).results[0].arrays[0]
        return values

    def active(self, matrix):
        """Return how many keys a sparse matrix has."""
        return sum(shard.live for engine in self.engines for (id, _), shard in engine.shards().items() if id == matrix)

    def save(self, folder, name="c", number=1, step=None, rows=None):
        """Make a checkpoint with these rows, or all, in use of each matrix; return its manifest."""
        used = {matrix: range(spec.rows) if rows is None else rows for matrix, spec in self.specs.items()}
        for snapshots in self.snapshots:
            snapshots.freeze(name, FREEZE_S)
        for snapshots in self.snapshots:
            snapshots.copy(name, used)
        saved = [shard for snapshots in self.snapshots for shard in snapshots.write(name, str(folder))]
        matrices = tuple(
            SavedMatrix(
                id=matrix,
                spec=spec,
                bounds=self.bounds(spec),
                generations=dict.fromkeys(used[matrix], 0),
                names={},
                fresh=spec.rows,
                retired=(),
                shards=tuple(sorted((s for s in saved if s.matrix == matrix), key=lambda shard: shard.partition.index)),
            )
            for matrix, spec in self.specs.items()
        )
        manifest = Manifest(number, step, 1.5e9, 0.25, 1.5, "0.1.0", matrices)
        folders.write_manifest(str(folder), manifest)
        return manifest

    def load(self, folder, ids=False, take=True, **changes):
        """Read what ``folder`` holds on every server, and put it in place; ``changes`` are to each LoadMatrix."""
        manifest = folders.read_manifest(str(folder))
        self.specs = {matrix.id: changes.get("spec", matrix.spec) for matrix in manifest.matrices}
        for server, loading in enumerate(self.loadings):
            loading.load(str(folder), self.to_load(manifest, server, **changes), ids)
        for loading in self.loadings if take else ():
            loading.activate()

    def to_load(self, manifest, server, **changes):
        """Return what a server has to read."""
        created = []
        for matrix in manifest.matrices:
            owned = tuple(self.owned(matrix.spec, server))
            if owned:
                sources = matrix.sources(owned)
                fields = {"spec": matrix.spec, "saved": matrix.spec, "sources": sources, "rows": matrix.rows, **changes}
                created.append(LoadMatrix(matrix=matrix.id, partitions=owned, **fields))
        return created


class Writers:
    """Threads that call something again and again until the end of the block."""

    def __init__(self, *calls):
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._repeat, args=(call,)) for call in calls]
        self._errors = []

    def _repeat(self, call):
        try:
            while not self._stop.is_set():
                call()
        except Exception as error:
            self._errors.append(error)

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc):
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self._errors
