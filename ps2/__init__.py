"""PS2: a parameter server for programs on Apache Spark.

Names load on first use, so that a server process never imports what only drivers need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps2.lazy_names import lazy_names as _lazy_names
from ps2.version import __version__

if TYPE_CHECKING:
    from ps2.client.batch import batch
    from ps2.client.dcv import DCV
    from ps2.client.embedding_table import EmbeddingTable
    from ps2.client.matrix import DCVMatrix
    from ps2.client.sessions import flush
    from ps2.client.zipped import PartitionResults
    from ps2.coordinator.conf import PS2Conf
    from ps2.coordinator.context import PS2Context
    from ps2.errors import NotColocatedWarning, PS2Error
    from ps2.matrix.partition import Partition
    from ps2.ops.table import op
    from ps2.run.message import STOP, Message
    from ps2.run.result import RunResult
    from ps2.run.worker import Worker
    from ps2.storage.saved_arrays import load_numpy

_MODULES = {
    "DCV": "ps2.client.dcv",
    "DCVMatrix": "ps2.client.matrix",
    "EmbeddingTable": "ps2.client.embedding_table",
    "Message": "ps2.run.message",
    "NotColocatedWarning": "ps2.errors",
    "PS2Conf": "ps2.coordinator.conf",
    "PS2Context": "ps2.coordinator.context",
    "PS2Error": "ps2.errors",
    "Partition": "ps2.matrix.partition",
    "PartitionResults": "ps2.client.zipped",
    "RunResult": "ps2.run.result",
    "STOP": "ps2.run.message",
    "Worker": "ps2.run.worker",
    "batch": "ps2.client.batch",
    "flush": "ps2.client.sessions",
    "load_numpy": "ps2.storage.saved_arrays",
    "op": "ps2.ops.table",
}

__all__ = [
    "DCV",
    "STOP",
    "DCVMatrix",
    "EmbeddingTable",
    "Message",
    "NotColocatedWarning",
    "PS2Conf",
    "PS2Context",
    "PS2Error",
    "Partition",
    "PartitionResults",
    "RunResult",
    "Worker",
    "__version__",
    "batch",
    "flush",
    "load_numpy",
    "op",
]

if not TYPE_CHECKING:  # a type checker would accept every name if it saw __getattr__
    __getattr__, __dir__ = _lazy_names(__name__, _MODULES)
