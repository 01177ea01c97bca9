"""Modules that declare operations, loaded by name. Digests of operations show whether two processes have the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module

import xxhash

from ps2.errors import ConfigError
from ps2.ops.all import TABLE
from ps2.ops.table import Op, is_own
from ps2.programs import installed_entry_points

GROUP = "ps2.ops"


def load_modules(names: Iterable[str]) -> None:
    """Import the named modules that declare operations, and the modules of entry points "ps2.ops"."""
    for name in names:
        _load(name, f"ops: module {name!r}")
    for entry in installed_entry_points(GROUP):
        _load(entry.module, f"the entry point {entry.name!r} of {GROUP!r}: module {entry.module!r}")


def digests() -> dict[str, str]:
    """Return a digest for each operation of users' modules, by name."""
    return {op.name: _digest(op) for ops in user_operations().values() for op in ops}


def user_operations() -> dict[str, list[Op]]:
    """Return the operations of users' modules, by module."""
    by_module: dict[str, list[Op]] = {}
    for op in TABLE.values():
        if not is_own(op.module):
            by_module.setdefault(op.module, []).append(op)
    return by_module


def check_same(theirs: Mapping[str, str], where: str) -> None:
    """Raise ConfigError if an operation differs between this process and another; ``where`` names the other."""
    for name, ours in digests().items():
        if theirs.get(name, ours) != ours:
            raise ConfigError(
                f"operation {name!r} of module {TABLE[name].module!r} differs between the two sides, which need "
                f"the same source: its digest is {ours} here, and {theirs[name]} on {where}"
            )


def check_loaded(names: Iterable[str], theirs: Mapping[str, str], where: str) -> None:
    """Raise ConfigError unless the other process has loaded the same operations of these modules."""
    check_same(theirs, where)
    for module in names:
        missing = [op.name for op in TABLE.values() if op.module == module and op.name not in theirs]
        if missing:
            raise ConfigError(
                f"operation {missing[0]!r} of module {module!r} is loaded here, but not on {where}: start that server "
                f"with --ops {module}"
            )


def _load(name: str, where: str) -> None:
    try:
        import_module(name)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    except Exception as error:  # importing runs users' code
        raise ConfigError(f"{where} cannot be imported: {type(error).__name__}: {error}") from error
    if not any(op.module == name for op in TABLE.values()):
        raise ConfigError(f"{where} declares no operations: expected a function with @ps2.op")


def _digest(op: Op) -> str:
    declaration = (op.names, op.operands, op.axes, op.answers, op.writes, op.reduce, op.blocks, dict(op.params))
    return xxhash.xxh3_128_hexdigest(f"{op.name}{declaration}{op.source}".encode())
