"""Every operation there is, by name: who imports this has them in the table, save those of families, which come when
they are first asked for."""

from __future__ import annotations

from difflib import get_close_matches
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
from ps2.ops.table import TABLE, Op, families

# A user's function that may write, one that only reads, and the keys of a sparse shard.
SERVERS = ("map", "look", "keys")
# How many names are told of an operation that there is none of.
CLOSEST = 4
LIKENESS = 0.5
MATCHED_CHARS = 64

__all__ = ["SERVERS", "TABLE", "has_answer", "lookup", "lookup_at", "optimizer_steps", "writes"]


def lookup(name: str) -> Op:
    """Return the operation of that name, or raise NotFoundError with the names that are most like it."""
    if name not in TABLE and (family := families().get(str(name).partition(".")[0])) is not None:
        import_module(family)
    if name not in TABLE:
        like = get_close_matches(str(name)[:MATCHED_CHARS].lower(), sorted(TABLE), n=CLOSEST, cutoff=LIKENESS)
        nearest = f"the nearest names: {', '.join(like)}" if like else "no name is like it"
        raise NotFoundError(f"no operation {name!r}; {nearest}; 'ps2 ops' lists all")
    return TABLE[name]


def lookup_at(name: str) -> Op:
    """Return the form of an operation that runs at slots only: the one called ``name_at``."""
    lookup(name)
    if f"{name}_at" not in TABLE:
        known = ", ".join(sorted(at for at in TABLE if f"{at}_at" in TABLE))
        raise ConfigError(f"operation {name!r} takes no indices; these do: {known}")
    return TABLE[f"{name}_at"]


def optimizer_steps() -> dict[str, Op]:
    """Return the operations that are steps of optimisers, those of users' modules too, by name."""
    return {name: op for name, op in TABLE.items() if op.optimizer is not None}


def writes(name: str) -> bool:
    """Tell whether an operation changes data; those of ``SERVERS`` are the server's own."""
    return name == "map" or (name not in SERVERS and bool(lookup(name).writes))


def has_answer(name: str) -> bool:
    """Tell whether an operation returns something."""
    return name in SERVERS or bool(lookup(name).answers or lookup(name).reduce)
