"""A journal of the answers and reports on which a driver's decisions depend, kept with the messages of its run.

The same answers lead to the same decisions. So a new driver reaches the state of an earlier one by replaying its
journal, and continues from there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.errors import ConfigError
from ps2.run.message import Message

T = TypeVar("T")

# The journal's field in a message to the workers, and the fields of a journal entry.
JOURNAL = "journal"
TRAINING, SETTINGS, BEFORE, CLOCK, HEARD = "training", "settings", "before", "clock", "heard"


class ReplayJournal:
    """A page for each clock: the answers that the driver heard in the clock, in order, as plain data (``ps2.Message``).

    The journal of a training without a name keeps nothing.
    """

    def __init__(
        self,
        name: str = "",
        settings: str = "",
        before: list[Any] | None = None,
        pages: Mapping[int, Any] | None = None,
    ) -> None:
        """Args:
        before, pages: the answers that an earlier driver heard before the first clock, and in each clock.
        """
        self._name, self._settings, self._pages = name, settings, dict(pages or {})
        self._before: list[Any] = []
        self._heard = self._before  # of the open page
        self._replayed: Iterator[Any] | None = None if before is None else iter(before)
        self._page: dict[str, Any] = {}  # the finished page that no message has taken

    @staticmethod
    def of(names: CheckpointNames, settings: Mapping[str, Any]) -> ReplayJournal:
        """Begin a journal, or open that of an earlier driver.

        Args:
            settings: the values that the training depends on; JSON must be able to hold them.

        Raises:
            ConfigError: the earlier driver's settings differ; the message names the differences.
        """
        if not names.prefix:
            return ReplayJournal()
        wanted = json.dumps(settings)
        if not names.called:  # perhaps workers have finished the first clock, whose message this driver sends
            return ReplayJournal(names.prefix, wanted)
        messages, opening = opened(names)
        check_settings(names.prefix, json.loads(opening[SETTINGS]), json.loads(wanted))
        pages = {one[JOURNAL][CLOCK]: one[JOURNAL][HEARD] for one in messages if CLOCK in one[JOURNAL]}
        return ReplayJournal(names.prefix, wanted, opening[BEFORE], pages)

    @staticmethod
    def settings_of(names: CheckpointNames) -> dict[str, Any]:
        """Return the settings of an earlier driver's training, as decoded from JSON.

        Raises:
            ConfigError: the earlier training was of another algorithm.
        """
        settings: dict[str, Any] = json.loads(opened(names)[1][SETTINGS])
        return settings

    @property
    def is_replaying(self) -> bool:
        """True if the open page is an earlier driver's, whose effects need not be repeated."""
        return self._replayed is not None

    def has_page(self, clock: int) -> bool:
        """Return True if an earlier driver's page of a clock has not been replayed yet."""
        return clock in self._pages

    @contextmanager
    def page(self, clock: int) -> Iterator[None]:
        """Open the page of a clock, counted from 0. An earlier driver's page is replayed once."""
        earlier = self._pages.pop(clock, None)
        self._heard, self._page = [], {}
        self._replayed = None if earlier is None else iter(earlier)
        try:
            yield
            self._page = {CLOCK: clock, HEARD: self._heard}
        finally:
            self._replayed = None

    def hear(self, ask: Callable[[], T]) -> T:
        """Return the answer of ``ask``, or, in a replay, the answer that an earlier driver heard at the same place.

        The number of calls must be the same in each attempt of a clock. Calls outside pages are for answers before the
        first clock.

        Args:
            ask: returns plain data; not called in a replay. In a replayed answer tuples have become lists.
        """
        if self._replayed is not None:
            heard: T = next(self._replayed)
        else:
            heard = ask()
        self._heard.append(heard)
        return heard

    def message(self, opening: bool = False, **data: Any) -> Message | None:
        """Return the message for ``onClock`` to return: data for the workers, and the clock's page for a later driver.

        Args:
            opening: True in the run's first clock.
            data: the data for the workers, by name.
        """
        kept, self._page = self._page, {}
        if opening:
            kept = {SETTINGS: self._settings, BEFORE: self._before, **kept}
        if self._name and kept:
            data[JOURNAL] = {TRAINING: self._name, **kept}
        return Message(data) if data else None


def opened(names: CheckpointNames) -> tuple[list[Any], Any]:
    """Return the messages with an earlier driver's journal, and the first entry of this with settings.

    Raises:
        ConfigError: there is none: the earlier training was of another algorithm.
    """
    kept = [one for one in names.messages if isinstance(one, dict) and JOURNAL in one]
    mine = [one for one in kept if one[JOURNAL][TRAINING] == names.prefix]
    opening = next((one[JOURNAL] for one in mine if SETTINGS in one[JOURNAL]), None)
    if opening is None:
        raise ConfigError(f"the training {names.prefix!r} in the checkpoint is of another algorithm")
    return mine, opening


def check_settings(name: str, begun: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise ConfigError if a training was begun with other settings."""
    differing = [key for key in {**begun, **wanted} if begun.get(key) != wanted.get(key)]
    if differing:
        words = "; ".join(f"{key} was {begun.get(key)!r}, and is {wanted.get(key)!r}" for key in differing)
        raise ConfigError(f"the training {name!r} in the checkpoint is another one: {words}")
