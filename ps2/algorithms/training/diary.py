"""What the driver has heard from workers and servers, kept on the servers.

Where a driver decides by nothing else, another one that hears the same comes to where it was, and goes on from there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.training.names import Names
from ps2.client.dcv import DCV
from ps2.errors import ConfigError

Array = npt.NDArray[Any]
Int64s = npt.NDArray[np.int64]

DIM = 2**63
# Keys of a clock's page: those of another clock are far away.
CLOCK_BITS = 32
# Where the settings are: no page is of this clock.
SETTINGS = 0


class Diary:
    """A page for each clock: the arrays that the driver has heard in it, in their order.

    A training without a name keeps none.
    """

    def __init__(self, vector: DCV | None, pages: dict[int, list[Array]] | None = None) -> None:
        """Args:
        vector: sparse, int64; None: nothing is kept.
        pages: of a driver before, by clock.
        """
        self._vector, self._pages = vector, pages or {}
        self._heard: list[Array] = []
        self._before: Iterator[Array] | None = None

    @staticmethod
    def of(names: Names, settings: Mapping[str, Any]) -> Diary:
        """Begin a diary, or open that of a driver before.

        Args:
            settings: what makes the training what it is; as JSON has it.

        Raises:
            ConfigError: the driver before has trained something else; says what differs.
        """
        if not names.prefix:
            return Diary(None)
        vector = names.give(lambda name: DCV.sparse(DIM, 1, "int64", name=name))
        wanted = json.loads(json.dumps(settings))
        if not names.begun:
            vector.push(*_page([np.frombuffer(json.dumps(wanted).encode(), np.uint8).astype(np.int64)], SETTINGS))
            return Diary(vector)
        if not vector.isSparse or vector.dim != DIM or vector.dtype != np.int64:
            raise ConfigError(f"the training {names.prefix!r} in the checkpoint is of another algorithm")
        pages = _pages(*vector.pull())
        begun = json.loads(pages.pop(SETTINGS)[0].astype(np.uint8).tobytes())
        if differing := _differing(begun, wanted):
            raise ConfigError(f"the training {names.prefix!r} in the checkpoint is another one: {differing}")
        return Diary(vector, pages)

    @property
    def is_read(self) -> bool:
        """Whether the page is one of a driver before: what it did then, it need not do again."""
        return self._before is not None

    @contextmanager
    def page(self, clock: int) -> Iterator[None]:
        """Let what is heard be that of a clock, above 0; of a clock that a driver before has been through, once."""
        kept = self._pages.pop(clock, None)
        self._heard, self._before = [], None if kept is None else iter(kept)
        try:
            yield
        finally:
            self._before = None
        if kept is None and self._vector is not None:
            self._vector.push(*_page(self._heard, clock))

    def hear(self, ask: Callable[[], Sequence[Array]]) -> list[Array]:
        """Return what is heard: float64 or int64, always as many arrays at this place of the clock.

        Args:
            ask: is called if no driver before has.
        """
        if self._before is not None:
            (count,) = next(self._before)
            return [next(self._before) for _ in range(count)]
        heard = list(ask())
        if self._vector is not None:
            self._heard += [np.array([len(heard)]), *heard]
        return heard

    def free(self) -> None:
        if self._vector is not None:
            self._vector.free()


def as_numbers(arrays: Sequence[Array]) -> Int64s:
    """Return arrays of float64 and int64 as int64: how many; of each whether it is float64, its shape and its bits."""
    parts: list[Any] = [[len(arrays)]]
    for array in arrays:
        assert array.dtype in (np.int64, np.float64)
        bits = np.ascontiguousarray(array).reshape(-1).view(np.int64)
        parts += [[array.dtype == np.float64, array.ndim, *array.shape], bits]
    return np.concatenate(parts).astype(np.int64)


def as_arrays(numbers: Int64s) -> list[Array]:
    """Undo ``as_numbers``."""
    arrays, at = [], 1
    for _ in range(int(numbers[0])):
        is_float, ndim = map(int, numbers[at : at + 2])
        begin = at + 2 + ndim
        shape = numbers[at + 2 : begin].tolist()
        at = begin + int(np.prod(shape, dtype=np.int64))
        arrays.append(numbers[begin:at].view(np.float64 if is_float else np.int64).reshape(shape))
    return arrays


def _page(arrays: Sequence[Array], clock: int) -> tuple[Int64s, Int64s]:
    """Return values and keys."""
    numbers = as_numbers(arrays)
    return numbers, (clock << CLOCK_BITS) + np.arange(len(numbers))


def _pages(keys: Int64s, numbers: Int64s) -> dict[int, list[Array]]:
    clocks, begins = np.unique(keys >> CLOCK_BITS, return_index=True)
    parts = np.split(numbers, begins[1:])
    return {int(clock): as_arrays(part) for clock, part in zip(clocks, parts, strict=True)}


def _differing(begun: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    names = [name for name in {**begun, **wanted} if begun.get(name) != wanted.get(name)]
    return "; ".join(f"{name} was {begun.get(name)!r}, and is {wanted.get(name)!r}" for name in names)
