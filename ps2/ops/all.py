"""Every operation there is, by name: who imports this has them in the table, save those of families, which come when
they are first asked for."""

from __future__ import annotations

from importlib import import_module

from ps2.errors import ConfigError, NotFoundError
from ps2.ops import (  # noqa: F401 - each puts its own into the table
    access,
    blocks,
    boxes,
    draws,
    elementwise,
    factors,
    matrix,
    optimizers,
    orthants,
    reductions,
)
from ps2.ops.table import FAMILIES, TABLE, Op

# A user's function that may write, one that only reads, and the keys of a sparse shard.
SERVERS = ("map", "look", "keys")

__all__ = ["SERVERS", "TABLE", "has_answer", "lookup", "lookup_at", "writes"]


def lookup(name: str) -> Op:
    """Return the operation of that name, or raise NotFoundError with the names that look like it."""
    if name not in TABLE and (family := FAMILIES.get(str(name).partition(".")[0])) is not None:
        import_module(family)
    if name not in TABLE:
        raise NotFoundError(f"no operation {name!r}; known: {', '.join(sorted(TABLE))}")
    return TABLE[name]


def lookup_at(name: str) -> Op:
    """Return the form of an operation that runs at slots only: the one called ``name_at``."""
    lookup(name)
    if f"{name}_at" not in TABLE:
        known = ", ".join(sorted(at for at in TABLE if f"{at}_at" in TABLE))
        raise ConfigError(f"operation {name!r} takes no indices; these do: {known}")
    return TABLE[f"{name}_at"]


def writes(name: str) -> bool:
    """Tell whether an operation changes data; those of ``SERVERS`` are the server's own."""
    return name == "map" or (name not in SERVERS and bool(lookup(name).writes))


def has_answer(name: str) -> bool:
    """Tell whether an operation returns something."""
    return name in SERVERS or bool(lookup(name).answers or lookup(name).reduce)
