"""The journal of a durable program: the answers to its questions, in the order in which it asked them.

A page contains the answers between two clocks; the first page contains the answers before all clocks. Pages are sent to
the workers in messages. Checkpoints contain these messages, so another driver can run the program again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.errors import ConfigError, PS2Error
from ps2.protocol.plain_data import decode, encode

# JOURNAL is the field of a message with pages of the journal. Its fields are the training's name, and the pages.
JOURNAL, TRAINING, PAGES = "journal", "training", "pages"
# The fields of a page: its number; the clock of the workers that follows it; its answers; the lines (indices) of the
# answers that are settings; and the parts of the program that end in it, each as the page and line of its first answer,
# the line after its last answer, and its result.
PAGE, CLOCK, ANSWERS, SETTING_LINES, PARTS = "page", "clock", "answers", "setting_lines", "parts"
# Fields that only a journal with the first page has: the settings as JSON, and the program's version.
SETTINGS, PROGRAM = "settings", "program"


class ReplayError(PS2Error):
    """A program took other steps when it was run again, so it depends on more than its settings and answers."""


class Answer(NamedTuple):
    """An answer as encoded plain data; ``is_setting``: a driver that resumes the training may answer differently."""

    encoded: bytes
    is_setting: bool = False


class Part(NamedTuple):
    """A finished part, which a replay skips: the position of the first answer after it, and its encoded result."""

    end_page: int
    end_line: int
    result: bytes


class Journal:
    """The pages, and the program's position in them.

    Attributes:
        page, line: the position of the next answer. In a replay, the journal already contains this answer.
        clocks: for each page, the clock of the workers that follows it.
        parts: the finished parts by the page and line of their first answer.
        unsent: the numbers of pages that no message contains yet; they are sent with the next page.
    """

    def __init__(self) -> None:
        self.pages: list[list[Answer]] = [[]]
        self.page = self.line = 0
        self.clocks, self.unsent = [0], set[int]()
        self.parts: dict[tuple[int, int], Part] = {}
        self._num_complete = 0  # the number of pages to which no answer may be added

    @property
    def is_replaying(self) -> bool:
        """Whether the journal already contains the next answer."""
        return self.line < len(self.pages[self.page])

    @property
    def ends_with_setting(self) -> bool:
        """Whether the last answer of the last page is a setting."""
        return bool(self.pages[-1]) and self.pages[-1][-1].is_setting

    def rewind(self, pages: int) -> None:
        """Go back to the first answer, and keep only the first ``pages`` pages, which are complete."""
        del self.pages[pages:], self.clocks[pages:]
        self._drop_parts(pages, 0)
        self.page, self.line, self._num_complete = 0, 0, pages

    def _drop_parts(self, page: int, line: int) -> None:
        """Forget the parts that end after a position."""
        self.parts = {
            begin: part for begin, part in self.parts.items() if (part.end_page, part.end_line) <= (page, line)
        }

    def finish_part(self, begin: tuple[int, int], result: Any) -> Any:
        """Record a part that began at a page and line, and ends here; return its result as a replay decodes it."""
        part = Part(self.page, self.line, encode("the result of a part", result))
        self.parts[begin] = part
        return decode(part.result)

    def jump(self, part: Part) -> Any:
        """Go to the end of a finished part; return its result."""
        self.page, self.line = part.end_page, part.end_line
        return decode(part.result)

    def turn_page(self) -> None:
        if self.is_replaying:
            raise ReplayError(f"page {self.page}: the program asks less than before")
        self.page, self.line = self.page + 1, 0
        if self.page == len(self.pages):
            self.pages.append([])
            self.clocks.append(self.clocks[-1] + 1)

    def answer(self, question: Callable[[], Any], is_setting: bool = False) -> Any:
        """Return the answer as the journal stores it, so that it is the same in each replay."""
        answers = self.pages[self.page]
        if not self.is_replaying:
            if self.page < self._num_complete:
                raise ReplayError(f"page {self.page}: the program asks more than before")
            answers.append(Answer(encode("an answer", question()), is_setting))
        self.line += 1
        return decode(answers[self.line - 1].encoded)

    def reopen(self, clock: int) -> bool:
        """Remove the last setting of the last page and all answers after it; return False if there is no setting.

        The program then asks for the setting again. ``clock`` is the workers' clock that follows the shorter page.
        """
        lines = [line for line, answer in enumerate(self.pages[-1]) if answer.is_setting]
        if lines:
            del self.pages[-1][lines[-1] :]
            self._drop_parts(len(self.pages) - 1, lines[-1])
            self.clocks[-1] = clock
            self.unsent.add(len(self.pages) - 1)  # the earlier message has the old page
            self.page, self.line, self._num_complete = 0, 0, len(self.pages) - 1
        return bool(lines)

    def entry(self, name: str, settings: Mapping[str, Any], program: int) -> dict[str, Any]:
        """Return the newest page, and the unsent pages before it, as plain data for a message."""
        first_page = self.page
        while first_page - 1 in self.unsent:
            first_page -= 1
        entry = {TRAINING: name, PAGES: [self._encoded(page) for page in range(first_page, self.page + 1)]}
        return entry if first_page else {**entry, SETTINGS: json.dumps(settings), PROGRAM: program}

    def _encoded(self, page: int) -> dict[str, Any]:
        answers = self.pages[page]
        parts = [(*begin, part) for begin, part in self.parts.items() if part.end_page == page]
        return {
            PAGE: page,
            CLOCK: self.clocks[page],
            ANSWERS: [np.frombuffer(answer.encoded, np.uint8) for answer in answers],
            SETTING_LINES: [line for line, answer in enumerate(answers) if answer.is_setting],
            PARTS: [[*begin, part.end_line, np.frombuffer(part.result, np.uint8)] for *begin, part in parts],
        }

    @staticmethod
    def of(names: CheckpointNames, settings: Mapping[str, Any], program: int) -> Journal:
        """Return a new journal, or that of an earlier driver; raise ConfigError if its settings or program differ."""
        journal = Journal()
        if not names.prefix or not names.handled_clocks:
            return journal
        messages, opening = journal_messages(names)
        earlier, current = json.loads(opening[SETTINGS]), json.loads(json.dumps(settings))
        if changed_keys := [key for key in {**earlier, **current} if earlier.get(key) != current.get(key)]:
            changes = "; ".join(f"{key} was {earlier.get(key)!r}, and is {current.get(key)!r}" for key in changed_keys)
            raise ConfigError(f"the training {names.prefix!r} in the checkpoint is another one: {changes}")
        if opening.get(PROGRAM) != program:
            raise ConfigError(
                f"the training {names.prefix!r} in the checkpoint was begun by another version of ps2, whose program "
                "differs: finish it with that version, or start a new training"
            )
        for entry in (page for message in messages for page in message[JOURNAL][PAGES]):
            page, lines = entry[PAGE], entry[SETTING_LINES]
            answers = [Answer(answer.tobytes(), line in lines) for line, answer in enumerate(entry[ANSWERS])]
            journal.pages[page:], journal.clocks[page:] = [answers], [entry[CLOCK]]
            journal._drop_parts(page, -1)
            for begin_page, begin_line, end_line, result in entry[PARTS]:
                journal.parts[begin_page, begin_line] = Part(page, end_line, result.tobytes())
        journal.rewind(len(journal.pages))
        return journal


def earlier_settings(names: CheckpointNames) -> dict[str, Any]:
    """Return the settings of an earlier driver's training, decoded from JSON; raises like ``journal_messages``."""
    settings: dict[str, Any] = json.loads(journal_messages(names)[1][SETTINGS])
    return settings


def journal_messages(names: CheckpointNames) -> tuple[list[Any], Any]:
    """Return the messages with the journal of an earlier driver, and the first journal entry that has the settings.

    Raise ConfigError if no entry has settings: the earlier training was of another algorithm.
    """
    with_journal = [message for message in names.messages if isinstance(message, dict) and JOURNAL in message]
    messages = [message for message in with_journal if message[JOURNAL][TRAINING] == names.prefix]
    opening = next((message[JOURNAL] for message in messages if SETTINGS in message[JOURNAL]), None)
    if opening is None:
        raise ConfigError(f"the training {names.prefix!r} in the checkpoint is of another algorithm")
    return messages, opening
