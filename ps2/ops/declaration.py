"""Checks of an operation's declaration."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from ps2.errors import ConfigError

# Kinds of positional parameters that are arrays of the shard; see ``ps2.ops.table``.
SHARD_KINDS = ("row", "block", "blocks")
# Kinds of arguments that the server has. Arguments of the other kinds are sent with the request.
LOCAL = (*SHARD_KINDS, "partition")
KINDS = (*LOCAL, "slots", "row_ids", "values", "unsigned", "floats", "integers")

# The method that combines the answers of all partitions. "best": in each row, the answer of the partition with the
# largest value in the first column (or in the first array, if there are several); among equal values, the answer of the
# lower partition. "concat": concatenate the answers. "list": a list of the answers. Both are in order of partitions.
Reduce = Literal["sum", "max", "min", "best", "concat", "list"]


def check_annotations(
    name: str, arrays: Sequence[inspect.Parameter], scalars: Sequence[inspect.Parameter], hints: Mapping[str, Any]
) -> None:
    """Raise ConfigError unless each parameter has an annotation that ``ps2.ops.table`` defines."""
    for parameter in arrays:
        hint = hints.get(parameter.name)
        if not any(annotation in KINDS for annotation in get_args(hint)[1:2]):
            raise ConfigError(
                f"operation {name!r}: {parameter.name}: expected an array of ps2.ops.table (Row, Block, Slots, "
                f"Values, ...), got {hint if parameter.name in hints else 'no annotation'}; scalars are keyword-only"
            )
    for parameter in scalars:
        if parameter.name not in hints:
            raise ConfigError(
                f"operation {name!r}: {parameter.name}: expected bool, int or float, or Annotated[float, Range(...)], "
                "got no annotation"
            )


def check_declared(
    name: str, operands: Sequence[str], writes: tuple[str, ...], reduce: str | None, hints: Mapping[str, Any]
) -> None:
    """Raise ConfigError if the arguments of ``@op`` contradict the function."""
    if unknown := [operand for operand in writes if operand not in operands]:
        raise ConfigError(
            f"operation {name!r}: writes: expected names of its vectors or matrices "
            f"({', '.join(operands) or 'it has none'}), got {', '.join(map(repr, unknown))}"
        )
    if reduce is not None and reduce not in get_args(Reduce):
        raise ConfigError(f"operation {name!r}: reduce: expected one of {', '.join(get_args(Reduce))}, got {reduce!r}")
    if reduce is None and hints.get("return") in (int, float):
        raise ConfigError(
            f"operation {name!r}: reduce: expected one of {', '.join(get_args(Reduce))}, because the function returns "
            "a number, got None"
        )
