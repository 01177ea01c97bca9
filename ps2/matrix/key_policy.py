"""``KeyPolicy``: when a managed key gets its slot, its initial values, and when it loses the slot. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from ps2.errors import ConfigError
from ps2.number_checks import is_number, is_whole

InitialKind = Literal["zeros", "normal", "uniform"]
Clock = Literal["wall", "event"]

# The maximum of ``admit_after``: a waiting key's touches are counted in one byte.
MAX_TOUCHES = 255
# The value of ``Initial.end`` that means all rows.
ALL_ROWS = 2**31 - 1

# The maximum of ``scale``: normal random numbers with this standard deviation fit float32.
MAX_SCALE = 1e37


@dataclass(frozen=True)
class Initial:
    """The initial values of a key: reads return them while the key has no slot, and its slot begins with them.

    A value depends only on the seed, the key and the row of the matrix, so every fleet computes the same values.

    Attributes:
        kind: "zeros"; "normal" with mean 0 and standard deviation ``scale``; or "uniform" on ``[-scale, scale)``.
        scale: from 0 to ``MAX_SCALE``; see ``kind``.
        seed: any int64.
        begin, end: rows of the matrix outside ``[begin, end)``, such as an optimizer's state, begin at 0.
    """

    kind: InitialKind = "zeros"
    scale: float = 0.01
    seed: int = 0
    begin: int = 0
    end: int = ALL_ROWS

    def __post_init__(self) -> None:
        if self.kind not in get_args(InitialKind):
            raise ConfigError(f"init: expected {_choices(InitialKind)}, got {self.kind!r}")
        object.__setattr__(self, "scale", _number("initScale", self.scale))
        if self.scale > MAX_SCALE:
            raise ConfigError(f"initScale: expected at most {MAX_SCALE:g}, got {self.scale:g}")
        for name, low, high in (
            ("seed", -(2**63), 2**63 - 1),
            ("begin", 0, ALL_ROWS),
            ("end", 0, ALL_ROWS),
        ):
            object.__setattr__(self, name, _integer(name, getattr(self, name), low, high))
        if self.begin > self.end:
            raise ConfigError(f"begin and end: expected begin <= end, got {self.begin} and {self.end}")

    @property
    def is_zero(self) -> bool:
        return self.kind == "zeros" or self.scale == 0 or self.begin == self.end

    def is_random(self, row: int) -> bool:
        """Return True if the initial values of a row are random."""
        return not self.is_zero and self.begin <= row < self.end


@dataclass(frozen=True)
class KeyPolicy:
    """The rules by which a sparse matrix admits and removes its managed keys, and their initial values.

    Attributes:
        admit_after: a key gets its slot at its ``admit_after``-th touch. A touch is a change that names the key and
            would create it. The values of earlier touches are dropped, and reads return the initial values.
        expire_after_s: a key is removed this many seconds after its last touch, by the matrix's time; None: never.
        max_keys: the maximum number of keys; the least recently touched keys are removed first; None: no limit.
        initial: the initial values of keys.
        clock: "wall": the driver advances the matrix's time; "event": the program does.
    """

    admit_after: int = 1
    expire_after_s: float | None = None
    max_keys: int | None = None
    initial: Initial = field(default_factory=Initial)
    clock: Clock = "wall"

    def __post_init__(self) -> None:
        object.__setattr__(self, "admit_after", _integer("admitAfter", self.admit_after, 1, MAX_TOUCHES))
        if self.expire_after_s is not None:
            seconds = _number("expireAfterS", self.expire_after_s)
            if seconds <= 0:
                raise ConfigError(f"expireAfterS: expected a number of seconds above 0, got {seconds:g}")
            object.__setattr__(self, "expire_after_s", seconds)
        if self.max_keys is not None:
            object.__setattr__(self, "max_keys", _integer("maxKeys", self.max_keys, 1, 2**62))
        if self.clock not in get_args(Clock):
            raise ConfigError(f"clock: expected {_choices(Clock)}, got {self.clock!r}")


def make_policy(
    admit_after: int, expire_after_s: float | None, max_keys: int | None, initial: Initial, clock: Clock
) -> KeyPolicy | None:
    """Return the ``KeyPolicy`` of a new matrix; None if its keys are never removed and begin at 0."""
    policy = KeyPolicy(admit_after, expire_after_s, max_keys, initial, clock)
    return None if policy == KeyPolicy(initial=initial, clock=clock) and initial.kind == "zeros" else policy


def _integer(name: str, value: Any, low: int, high: int) -> int:
    if not is_whole(value) or not low <= value <= high:
        raise ConfigError(f"{name}: expected an integer from {low} to {high}, got {value!r}")
    return int(value)


def _number(name: str, value: Any) -> float:
    if not is_number(value) or not math.isfinite(value) or value < 0:
        raise ConfigError(f"{name}: expected a finite number that is not negative, got {value!r}")
    return float(value)


def _choices(kind: Any) -> str:
    return " or ".join(map(repr, get_args(kind)))
