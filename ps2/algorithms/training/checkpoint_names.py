"""Name a training's vectors on the servers, so that another driver can find them to resume the training."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from ps2.client.dcv import DCV
from ps2.client.handle import free_all
from ps2.coordinator.training_host import training_host
from ps2.errors import NotFoundError


class CheckpointNames:
    """The names of a training's vectors, in the order in which the driver makes the vectors.

    Attributes:
        prefix: the prefix of all names; "": the vectors have no names.
        finished_clocks: the number of clocks that an earlier driver's workers have finished.
        handled_clocks: the number of these clocks for which ``onClock`` was called. If it is smaller, because workers
            were ahead, the next run calls ``onClock`` for the other clocks, with the reports of the earlier workers.
        messages: the values that the earlier driver's ``onClock`` returned, oldest first.
    """

    def __init__(
        self,
        prefix: str = "",
        find: Callable[[str], DCV] | None = None,
        clocks: tuple[int, int] = (0, 0),
        messages: Sequence[Any] = (),
    ) -> None:
        """Args:
        find: returns a vector by its name; None: the vectors are new.
        clocks: ``finished_clocks`` and ``handled_clocks``.
        """
        self.prefix, self.messages, self._find = prefix, messages, find
        self.finished_clocks, self.handled_clocks = clocks
        self._numbers = itertools.count()

    @staticmethod
    def of(prefix: str, ps: Any, first: int = 0) -> CheckpointNames:
        """Return names that find the vectors in a restored context, and name new vectors in another context.

        The training begins in clock ``first``. NotFoundError: the restored context has no vectors of this training.
        """
        if not prefix:
            return CheckpointNames()
        host = training_host(ps)
        present = host.names(f"{prefix}/")
        if (earlier := host.resumed(first)) is not None:
            if f"{prefix}/0" not in present:
                raise NotFoundError(
                    f"the checkpoint holds no training {prefix!r} that could go on: it was made after its end, or of "
                    "another program"
                )
            return CheckpointNames(prefix, ps.vector, (earlier.clocks, earlier.called), earlier.messages)
        free_all(map(ps.vector, present))  # a driver that was killed has left them on the fleet
        return CheckpointNames(prefix)

    def vector(self, make: Callable[[str | None], DCV], repair: Callable[[DCV, str], DCV] | None = None) -> DCV:
        """Make the next vector, or find it in a restored context; ``repair(vector, name)`` may then replace it."""
        if not self.prefix:
            return make(None)
        name = f"{self.prefix}/{next(self._numbers)}"
        if self._find is None:
            return make(name)
        vector = self._find(name)
        return vector if repair is None else repair(vector, name)


UNNAMED = CheckpointNames()
