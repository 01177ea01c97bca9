"""Imports users' modules with operations. Processes compare digests of operations to detect different versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module

import xxhash

from ps2.errors import ConfigError
from ps2.ops.all import TABLE
from ps2.ops.table import Op, is_builtin
from ps2.programs import installed_entry_points

# Group of entry points by which installed packages add operations.
GROUP = "ps2.ops"


def load_modules(names: Iterable[str]) -> None:
    """Import the named modules that declare operations, and the modules of entry points "ps2.ops"."""
    for name in names:
        _load(name, f"ops: module {name!r}")
    for entry in installed_entry_points(GROUP):
        _load(entry.module, f"the entry point {entry.name!r} of {GROUP!r}: module {entry.module!r}")


def digests() -> dict[str, str]:
    """Return a digest of each operation of users' modules, by the operation's name."""
    return {op.name: _digest(op) for ops in user_operations().values() for op in ops}


def user_operations() -> dict[str, list[Op]]:
    """Return the operations of users' modules, by module."""
    by_module: dict[str, list[Op]] = {}
    for op in TABLE.values():
        if not is_builtin(op.module):
            by_module.setdefault(op.module, []).append(op)
    return by_module


def check_same(remote_digests: Mapping[str, str], process: str) -> None:
    """Raise ConfigError if an operation differs from the same operation in another process, named ``process``."""
    for name, local_digest in digests().items():
        if remote_digests.get(name, local_digest) != local_digest:
            raise ConfigError(
                f"operation {name!r} of module {TABLE[name].module!r} differs between the two sides, which need "
                f"the same source: its digest is {local_digest} here, and {remote_digests[name]} on {process}"
            )


def check_loaded(names: Iterable[str], remote_digests: Mapping[str, str], process: str) -> None:
    """Raise ConfigError unless another process has loaded the same operations of these modules."""
    check_same(remote_digests, process)
    for module in names:
        missing = [op.name for op in TABLE.values() if op.module == module and op.name not in remote_digests]
        if missing:
            raise ConfigError(
                f"operation {missing[0]!r} of module {module!r} is loaded here, but not on {process}: start that "
                f"server with --ops {module}"
            )


def _load(name: str, source: str) -> None:
    try:
        import_module(name)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error
    except Exception as error:  # importing runs users' code
        raise ConfigError(f"{source} cannot be imported: {type(error).__name__}: {error}") from error
    if not any(op.module == name for op in TABLE.values()):
        raise ConfigError(f"{source} declares no operations: expected a function with @ps2.op")


def _digest(op: Op) -> str:
    declaration = (op.names, op.operands, op.axes, op.answers, op.writes, op.reduce, op.blocks, dict(op.params))
    return xxhash.xxh3_128_hexdigest(f"{op.name}{declaration}{op.source}".encode())
