"""A driver replays what an earlier one heard: the pages of its messages, and the settings that it compares."""

from __future__ import annotations

import numpy as np
import pytest

from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.replay_journal import ReplayJournal
from ps2.errors import ConfigError
from ps2.protocol.plain_data import decode

SETTINGS = {"depth": 5, "seed": 1}


def asked():
    raise AssertionError("the earlier driver heard it")


@pytest.fixture
def messages():
    """What a driver's ``onClock`` returned in three clocks: there was nothing to hear in the second one."""
    journal = ReplayJournal.of(CheckpointNames("trees"), SETTINGS)
    journal.hear(lambda: 0.5)
    sent = [journal.message(opening=True, rate=0.1), journal.message()]
    with journal.page(2):
        journal.hear(lambda: [np.array([[1.5, -np.inf]]), np.arange(3)])
        journal.hear(lambda: 7)
    sent.append(journal.message())
    return [decode(one.encoded) for one in sent if one is not None]


def journal_of(messages, settings=SETTINGS, name="trees"):
    return ReplayJournal.of(CheckpointNames(name, clocks=(3, 3), messages=messages), settings)


def test_journal_when_another_driver_opens_it_then_it_replays(messages):
    journal = journal_of([None, {"other": 1}, *messages])
    assert journal.hear(asked) == 0.5
    with journal.page(2):
        assert journal.is_replaying
        reals, integers = journal.hear(asked)
        assert journal.hear(asked) == 7
    np.testing.assert_array_equal(reals, [[1.5, -np.inf]])
    np.testing.assert_array_equal(integers, np.arange(3))
    assert (reals.dtype, integers.dtype) == (np.float64, np.int64)


def test_page_when_the_fleet_has_rolled_back_then_is_heard_anew(messages):
    journal = journal_of(messages)
    with journal.page(2):
        pass
    with journal.page(2):
        assert not journal.is_replaying
        assert journal.hear(lambda: 8) == 8
    assert decode(journal.message().encoded)["journal"]["heard"] == [8]


def test_page_when_its_clock_fails_then_no_message_has_it(messages):
    journal = journal_of(messages)
    with pytest.raises(ZeroDivisionError), journal.page(3):
        journal.hear(lambda: 1 / 0)
    assert journal.message() is None


def test_message_when_it_has_data_then_they_are_beside_the_page(messages):
    assert messages[0]["rate"] == 0.1
    assert len(messages) == 2


def test_journal_when_training_has_no_name_then_keeps_nothing():
    journal = ReplayJournal.of(CheckpointNames(), SETTINGS)
    with journal.page(0):
        assert journal.hear(lambda: 3) == 3
    assert journal.message(opening=True) is None
    assert decode(journal.message(rate=0.5).encoded) == {"rate": 0.5}


def test_journal_when_settings_differ_then_those_are_named(messages):
    wanted = {"depth": 6, "seed": 1, "leaves": 31}
    with pytest.raises(ConfigError, match=r"another one: depth was 5, and is 6; leaves was None, and is 31$"):
        journal_of(messages, wanted)


def test_journal_when_it_is_of_another_training_then_says_so(messages):
    with pytest.raises(ConfigError, match="'topics' in the checkpoint is of another algorithm"):
        journal_of(messages, name="topics")
