"""Random requests of every kind that changes something, good and bad ones, and what servers hold after them."""

from __future__ import annotations

from dataclasses import replace

import cloudpickle
import numpy as np

from ps2.matrix.key_policy import Initial, KeyPolicy
from ps2.matrix.partition import HASH_SPACE, MatrixSpec, Partition
from ps2.ops.all import KEY_CHANGES, TABLE
from ps2.protocol.messages import Keys, Operation, Request, RequestId, key_digest

# As many as an operation takes at most.
ROWS = 5
WIDE = 1 << 17  # wide enough for sets of touched columns
POLICY = KeyPolicy(2, 20.0, 300, Initial("normal", seed=7, end=3))
MANAGED = (11, 12)
MATRICES = {
    1: (MatrixSpec(600, ROWS, dtype="float32"), [Partition(0, 0, 300), Partition(1, 300, 600)]),
    2: (MatrixSpec(2**40, ROWS, dtype="float64", kind="sparse"), [Partition(0, 0, HASH_SPACE)]),
    3: (MatrixSpec(200, 4, dtype="int64"), [Partition(0, 0, 200)]),
    4: (MatrixSpec(WIDE, ROWS, dtype="float32"), [Partition(0, 0, WIDE)]),
    5: (MatrixSpec(2**40, ROWS, dtype="float32", kind="sparse"), [Partition(0, 0, HASH_SPACE)]),
    6: (MatrixSpec(300, ROWS, dtype="float64"), [Partition(0, 0, 300)]),
    7: (MatrixSpec(200, ROWS, dtype="float32", layout="column"), [Partition(0, 0, 80), Partition(1, 80, 200)]),
    8: (MatrixSpec(2**40, ROWS, dtype="int64", kind="sparse", layout="column"), [Partition(0, 0, HASH_SPACE)]),
    9: (MatrixSpec(600, ROWS, dtype="float32", layout="column"), [Partition(0, 0, 300), Partition(1, 300, 600)]),
    10: (MatrixSpec(WIDE, ROWS, dtype="float32"), [Partition(0, 0, WIDE)]),
    11: (MatrixSpec(2**40, ROWS, kind="sparse", key_policy=POLICY), [Partition(0, 0, HASH_SPACE)]),
    12: (MatrixSpec(2**40, ROWS, kind="sparse", layout="column", key_policy=POLICY), [Partition(0, 0, HASH_SPACE)]),
}
# Co-located, and of one dtype.
TOGETHER = {1: (1, 9), 9: (1, 9), 4: (4, 10), 10: (4, 10)}
# Those of families take arrays that fit together; other tests may have loaded some.
WRITING = sorted(op.name for op in TABLE.values() if op.writes and op.module.startswith("ps2.ops."))
SCALARS = {"seed": 5, "step": 3, "lazy": 1, "alpha": 0.3, "value": 2.0, "lr": 0.1, "t": 0.5, "width": 1}
PENALTIES = {"l1": 0.01, "l2": 0.1}


def scale(*rows):
    for row in rows:
        row *= 3
    return float(sum(row.sum() for row in rows))


def spoil(*rows):
    for row in rows:
        row += 1
    raise ValueError("spoilt")


FUNCTIONS = [np.frombuffer(cloudpickle.dumps(fn), np.uint8) for fn in (scale, spoil)]


class History:
    """Requests one after the other, from a seed; now and then one that has been sent before."""

    def __init__(self, seed):
        self._rng = np.random.default_rng(seed)
        self._seed = seed
        self._sent = []
        self._scopes = {}
        self._time_s = 0

    def requests(self, count):
        for _ in range(count):
            if self._sent and self._rng.random() < 0.1:
                yield self._sent[self._rng.integers(len(self._sent))]
                continue
            operations = []
            for _ in range(self._rng.integers(1, 5)):
                operations.append(self._operation(operations[-1] if operations else None))
            self._sent.append(Request(tuple(operations), self._id()))
            yield self._sent[-1]

    def _id(self):
        rng = self._rng
        position = int(rng.integers(4))
        # Of this history alone: an id never comes with another number of parts.
        scope = f"scope {position} of {self._seed}"
        number = self._scopes[scope] = self._scopes.get(scope, -1) + 1
        parts = int(rng.integers(1, 3))
        return RequestId(scope, number, max(0, number - 5), parts - 1, parts, "series" if position > 1 else "", 1)

    def _operation(self, before):
        rng = self._rng
        matrix = int(rng.choice(list(MATRICES)))
        spec, partitions = MATRICES[matrix]
        partition = partitions[rng.integers(len(partitions))]
        if before is not None and rng.random() < 0.3:
            matrix, partition = before.matrix, MATRICES[before.matrix][1][before.partition]
            spec = MATRICES[matrix][0]
        if matrix in MANAGED and rng.random() < 0.3:
            return self._of_keys(matrix)
        if rng.random() < 0.15:
            rows = tuple(int(row) for row in rng.choice(4, 2, replace=False))
            fn, others = FUNCTIONS[rng.random() < 0.3], self._others(matrix, 1)
            return Operation("map", matrix, partition.index, rows, arrays=(fn,), others=others)
        if rng.random() < 0.1:
            return Operation("sum", matrix, partition.index, (0,))
        expected = [name for name in WRITING if spec.dtype in TABLE[name].dtypes]
        op = TABLE[rng.choice(expected)]
        return self._call(op, matrix, partition, before)

    def _of_keys(self, matrix):
        name = str(self._rng.choice([*KEY_CHANGES, "keys_advance"]))
        columns = np.sort(self._rng.choice(5000, 50, replace=False))
        self._time_s += 1
        params = {
            "keys_advance": {
                "now_s": float(self._time_s),
                "tick": int(self._rng.integers(2)),
                "touched": self._time_s % 2,
            },
            "keys_mark": {"tick": 0},
            "keys_expire": {"older_s": 20.0, "begin": -1},
            "keys_evict": {"keep": int(self._rng.integers(50, 300))},
        }
        keys = Keys(columns.size, columns) if name == "keys_remove" else None
        return Operation(name, matrix, 0, params=params.get(name, {}), keys=keys)

    def _call(self, op, matrix, partition, before):
        rng = self._rng
        spec, _ = MATRICES[matrix]
        rows = tuple(int(row) for row in rng.choice(spec.rows + int(rng.random() < 0.1), op.rows, replace=False))
        columns = self._columns(spec, partition)
        if "blocks" in op.operands:
            columns = rng.choice(columns, columns.size)  # in any order, and some of them more than once
        ids = rng.integers(0, 4, 3)
        width = partition.width if spec.kind == "dense" else 64  # room for that many keys at first
        sizes = {"push": 10, "rows_push": 3 * width, "rows_add": 3 * width}
        count = sizes.get(op.name, (3 if "row_ids" in op.arrays else 1) * columns.size)
        count += int(rng.random() < 0.1)  # one too many
        shape = (count, spec.rows) if "blocks" in op.operands else (count,)
        inputs = {
            "slots": columns,
            "row_ids": ids,
            "values": (rng.standard_normal(shape) * 5).astype(spec.np_dtype),
            "floats": rng.standard_normal(3),
            "unsigned": np.ones(columns.size, np.uint8),
        }
        lengths = {"slots": columns.size, "samples": 2, "width": 1}
        operands = [
            (
                kind,
                np.resize(inputs[kind], [lengths[a] for a in message.axes])
                if "samples" in message.axes
                else inputs[kind],
            )
            for _, kind, message in op.request_operands
        ]
        keys = None
        if "slots" in op.arrays and rng.random() < 0.7:
            operands = [operand for operand in operands if operand[0] != "slots"]
            keys = self._keys(columns, before, (matrix, partition.index))
            if keys.count != columns.size:
                cut = [(kind, array[: keys.count] if len(array) == columns.size else array) for kind, array in operands]
                operands = cut
        arrays = [array for _, array in operands]
        wire = (
            rng.choice([None, "bfloat16", "float16"])
            if spec.np_dtype.kind == "f" and "floats" not in op.arrays
            else None
        )
        # A lazy step takes no penalties.
        scalars = SCALARS if "lazy" in op.params else SCALARS | PENALTIES
        params = {name: scalars[name] for name in op.params if name in scalars}
        others = self._others(matrix, op.rows - 1) if op.rows == len(op.reads) else ()
        return Operation(op.name, matrix, partition.index, rows, params, tuple(arrays), keys, wire, others=others)

    def _others(self, matrix, count):
        """Matrices of the rows after the first, now and then of others than that one."""
        if count < 1 or self._rng.random() < 0.5:
            return ()
        return tuple(int(other) for other in self._rng.choice(TOGETHER.get(matrix, (matrix,)), count))

    def _columns(self, spec, partition):
        end = 5000 if spec.kind == "sparse" else partition.width
        begin = 0 if spec.kind == "sparse" else partition.begin
        return np.sort(self._rng.choice(end, self._rng.integers(2, 60), replace=False)) + begin

    def _keys(self, columns, before, place):
        how = self._rng.random()
        if before is not None and before.keys is not None and (before.matrix, before.partition) == place and how < 0.5:
            return Keys(before.keys.count)
        if how < 0.6:
            return Keys(columns.size, columns)
        digest = key_digest(columns)
        return Keys(columns.size, columns, digest)


def remembered(request):
    """The same request with another id, its key sets by their hashes alone; None if it has none of these."""
    if not any(op.keys is not None and op.keys.digest is not None for op in request.operations):
        return None
    operations = []
    for op in request.operations:
        keys = op.keys
        if keys is not None and keys.digest is not None:
            keys = Keys(keys.count, None, keys.digest)
        operations.append(replace(op, keys=keys))
    return Request(tuple(operations), RequestId("again", request.id.number, part=hash(request.id.scope) % 1000))


def held(engine, copies):
    """Everything that an engine holds of its shards, or of copies, to the bit."""
    return {
        position: {
            "rows": [shard.row(n).tobytes() for n in range(shard.rows) if n not in shard.unused],
            "unused": shard.unused,
            "keys": None if shard.index is None else shard.index.keys.tolist(),
            "managed": None if shard.managed is None else {n: a.tobytes() for n, a in shard.managed.arrays().items()},
            "applied": shard.applied.to_json(),
            "kept": {(k.id, k.position): k.to_json() for k in engine.replies.shard_replies(position)},
        }
        for position, shard in engine.shards().items()
        if shard.copy is copies
    }
