"""By which names another driver finds the vectors of a training that goes on."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from ps2.client.dcv import DCV
from ps2.client.handle import free_all
from ps2.errors import NotFoundError


class Names:
    """Names of a training's vectors, in the order in which they are made: by these a later driver finds them.

    Attributes:
        prefix: of all names; "": the vectors have none.
        begun: clocks that a driver before has been through.
    """

    def __init__(self, prefix: str = "", find: Callable[[str], DCV] | None = None, begun: int = 0) -> None:
        """Args:
        find: gives the vectors of a training that goes on; None: they are made.
        """
        self.prefix, self.begun, self._find = prefix, begun, find
        self._numbers = itertools.count()

    def give(self, make: Callable[[str | None], DCV], mend: Callable[[DCV, str], DCV] | None = None) -> DCV:
        """Make the next vector, or find it.

        Args:
            mend: called with what was found, and its name; returns what takes its place.
        """
        if not self.prefix:
            return make(None)
        name = f"{self.prefix}/{next(self._numbers)}"
        if self._find is None:
            return make(name)
        found = self._find(name)
        return found if mend is None else mend(found, name)


UNNAMED = Names()


def names_of(prefix: str, ps: Any, first: int = 0) -> Names:
    """Return names of vectors that are found if the context was restored, and else made in the place of older ones.

    Args:
        first: clock of the context that the training begins with.

    Raises:
        NotFoundError: what was restored has none of them.
    """
    there = [name for name in ps._fleet.master.names() if prefix and name.startswith(f"{prefix}/")]
    if prefix and ps.nextStep > first and ps.conf.restore is not None:
        if f"{prefix}/0" not in there:
            raise NotFoundError(
                f"the checkpoint holds no training {prefix!r} that could go on: it was made after its end, or is of "
                "something else"
            )
        return Names(prefix, ps.vector, ps.nextStep - first)
    free_all(map(ps.vector, there))  # a driver that was killed has left them on an attached fleet
    return Names(prefix)
