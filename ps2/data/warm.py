"""Compile the kernels of hashing in advance (``python -m ps2.data.warm``)."""

from __future__ import annotations

import pyarrow as pa

from ps2.data.hashing import Field, FieldHasher


def warm() -> None:
    """Compile by hashing one row of each type that has its own kernel."""
    texts = {"short": pa.array(["a"]), "large": pa.array(["a"], pa.large_string())}
    batch = pa.RecordBatch.from_pydict(texts | {"number": pa.array([1]), "list": pa.array([["a"]])})
    fields = map(Field.categorical, batch.schema.names)
    FieldHasher((*fields, Field.cross("short", "number"))).rows(batch)


if __name__ == "__main__":
    warm()
