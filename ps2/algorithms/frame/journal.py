"""The journal of a durable program: the answers to its questions, in the order in which it asked them.

A page holds the answers between two clocks; the first page holds those before all clocks. Pages travel in the messages
to the workers. Checkpoints contain these messages, so another driver can run the program again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.errors import ConfigError, PS2Error
from ps2.protocol.plain_data import decode, encode

# The field of a message with the journal, and the journal's fields: the training's name, and pages.
JOURNAL, TRAINING, PAGES = "journal", "training", "pages"
# The fields of a page: its number; the clock of the workers that follows it; its answers; the lines of the answers that
# are settings; and the parts of the program that end in it, each as the page and line of its first answer, the line
# after its last answer, and its result.
PAGE, CLOCK, ANSWERS, SETTING_LINES, PARTS = "page", "clock", "answers", "setting_lines", "parts"
# Other fields of the journal with the first page: the settings as JSON, and the program's number.
SETTINGS, PROGRAM = "settings", "program"


class ReplayError(PS2Error):
    """A program behaved differently when it was run again, so it depends on more than its settings and answers."""


class Answer(NamedTuple):
    """The answer to a question.

    Attributes:
        encoded: the answer as encoded plain data.
        is_setting: True if the answer of another driver can be different.
    """

    encoded: bytes
    is_setting: bool = False


class Part(NamedTuple):
    """A finished part of a program, which a replay jumps over.

    Attributes:
        end_page, end_line: the position of the first answer after the part.
        result: the part's result as encoded plain data.
    """

    end_page: int
    end_line: int
    result: bytes


class Journal:
    """The pages, and the program's position in them.

    Attributes:
        pages: the answers of each page.
        page, line: the position of the next answer; in a replay, it has been written before.
        clocks: for each page, the clock of the workers that follows it.
        parts: the finished parts by the page and line of their first answer.
        unsent: the pages without a message of their own; they are sent with the next page.
    """

    def __init__(self) -> None:
        self.pages: list[list[Answer]] = [[]]
        self.page = self.line = 0
        self.clocks, self.unsent = [0], set[int]()
        self.parts: dict[tuple[int, int], Part] = {}
        self._num_complete = 0  # the number of pages to which no answer may be added

    @property
    def is_replaying(self) -> bool:
        """True if the next answer has been written."""
        return self.line < len(self.pages[self.page])

    @property
    def ends_with_setting(self) -> bool:
        """True if no answer of the last page follows its last setting."""
        return bool(self.pages[-1]) and self.pages[-1][-1].is_setting

    def rewind(self, pages: int) -> None:
        """Go back to the first answer, and keep only the first ``pages`` pages, which are complete."""
        del self.pages[pages:], self.clocks[pages:]
        self._drop_parts(pages, 0)
        self.page, self.line, self._num_complete = 0, 0, pages

    def _drop_parts(self, page: int, line: int) -> None:
        """Forget the parts that end after a line."""
        self.parts = {
            begin: part for begin, part in self.parts.items() if (part.end_page, part.end_line) <= (page, line)
        }

    def finish_part(self, begin: tuple[int, int], result: Any) -> Any:
        """Record the end of a part and the page and line where it began; return its result as a replay will."""
        part = Part(self.page, self.line, encode("the result of a part", result))
        self.parts[begin] = part
        return decode(part.result)

    def jump(self, part: Part) -> Any:
        """Go to the end of a finished part; return its result."""
        self.page, self.line = part.end_page, part.end_line
        return decode(part.result)

    def turn_page(self) -> None:
        """Go to the next page."""
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

        Another driver then asks for the setting again. ``clock`` is the workers' clock that then follows the page.
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
        first = self.page
        while first - 1 in self.unsent:
            first -= 1
        entry = {TRAINING: name, PAGES: [self._encoded(page) for page in range(first, self.page + 1)]}
        return entry if first else {**entry, SETTINGS: json.dumps(settings), PROGRAM: program}

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
        if not names.prefix or not names.called:
            return journal
        messages, opening = opened(names)
        begun, own = json.loads(opening[SETTINGS]), json.loads(json.dumps(settings))
        if changed := [key for key in {**begun, **own} if begun.get(key) != own.get(key)]:
            words = "; ".join(f"{key} was {begun.get(key)!r}, and is {own.get(key)!r}" for key in changed)
            raise ConfigError(f"the training {names.prefix!r} in the checkpoint is another one: {words}")
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
    """Return the settings of an earlier driver's training, decoded from JSON; raises like ``opened``."""
    settings: dict[str, Any] = json.loads(opened(names)[1][SETTINGS])
    return settings


def opened(names: CheckpointNames) -> tuple[list[Any], Any]:
    """Return the messages with the journal of an earlier driver, and its first entry that has the settings.

    Raise ConfigError if there is no such entry: the earlier training was of another algorithm.
    """
    with_journal = [message for message in names.messages if isinstance(message, dict) and JOURNAL in message]
    messages = [message for message in with_journal if message[JOURNAL][TRAINING] == names.prefix]
    opening = next((message[JOURNAL] for message in messages if SETTINGS in message[JOURNAL]), None)
    if opening is None:
        raise ConfigError(f"the training {names.prefix!r} in the checkpoint is of another algorithm")
    return messages, opening
