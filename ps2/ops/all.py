"""Finds operations by name.

The import of this module registers the operations that all families share. ``lookup`` of a family's operation imports
the family's module.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module

from ps2.errors import ConfigError, NotFoundError
from ps2.ops import (  # noqa: F401 - each module adds its operations to the table
    access,
    blocks,
    draws,
    elementwise,
    embedding_steps,
    factors,
    matrix,
    optimizers,
    orthants,
    reductions,
)
from ps2.ops.table import TABLE, Op, families

# Operations on managed keys (``ps2.server.key_operations``): those that only read, and those that change keys.
KEY_READS = ("keys_state", "keys_changed", "keys_removed")
KEY_CHANGES = ("keys_advance", "keys_mark", "keys_expire", "keys_evict", "keys_remove")
# Operations that the server implements outside of the table: "map" runs a user's function that may write, "look" runs a
# user's function that only reads, "keys" returns the keys of a sparse shard.
SERVER_OPERATIONS = ("map", "look", "keys", *KEY_READS, *KEY_CHANGES)
# An error for an unknown operation lists at most MAX_SIMILAR names whose similarity (``difflib``) is at least
# MIN_SIMILARITY. Only the first MAX_CHARS characters are compared.
MAX_SIMILAR, MIN_SIMILARITY, MAX_CHARS = 4, 0.5, 64

# Families whose import is complete. During the import, the table has operations whose kernels are not defined yet.
_LOADED: set[str] = set()

__all__ = [
    "KEY_CHANGES",
    "KEY_READS",
    "SERVER_OPERATIONS",
    "TABLE",
    "has_answer",
    "lookup",
    "lookup_at",
    "optimizer_steps",
    "writes",
]


def lookup(name: str) -> Op:
    """Return the operation with this name. If it does not exist, raise NotFoundError with the most similar names."""
    family, dot, _ = str(name).partition(".")
    if dot and family not in _LOADED and (module := families().get(family)) is not None:
        import_module(module)  # waits if another thread imports the module
        _LOADED.add(family)
    if name not in TABLE:
        similar = get_close_matches(str(name)[:MAX_CHARS].lower(), sorted(TABLE), n=MAX_SIMILAR, cutoff=MIN_SIMILARITY)
        names = f"the most similar names: {', '.join(similar)}" if similar else "no name is similar"
        raise NotFoundError(f"there is no operation {name!r}; {names}; 'ps2 ops' lists all")
    return TABLE[name]


def lookup_at(name: str) -> Op:
    """Return the variant ``name_at`` of an operation, which processes only some slots."""
    lookup(name)
    if f"{name}_at" not in TABLE:
        known = ", ".join(sorted(known_name for known_name in TABLE if f"{known_name}_at" in TABLE))
        raise ConfigError(f"operation {name!r} takes no indices; these do: {known}")
    return TABLE[f"{name}_at"]


def optimizer_steps() -> dict[str, Op]:
    """Return all optimizer steps by name, including those that users' modules declare."""
    return {name: op for name, op in TABLE.items() if op.optimizer is not None}


def writes(name: str) -> bool:
    """Return True if an operation changes data."""
    return name == "map" or name in KEY_CHANGES or (name not in SERVER_OPERATIONS and bool(lookup(name).writes))


def has_answer(name: str) -> bool:
    """Return True if an operation returns arrays or a number."""
    return name in SERVER_OPERATIONS or bool(lookup(name).answers or lookup(name).reduce)
