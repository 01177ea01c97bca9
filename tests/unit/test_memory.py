"""The memory account never exceeds its limit, and says what was wanted, what is left and of how much."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps2.errors import LimitError
from ps2.server import memory
from ps2.server.memory import MemoryAccount


@given(st.lists(st.integers(-50, 80)))
def test_account_when_taken_from_then_it_is_never_above_its_limit(changes):
    account, taken = MemoryAccount(100), 0
    for change in changes:
        if change < 0:
            given_back = min(-change, taken)
            account.give(given_back)
            taken -= given_back
        elif taken + change <= 100:
            account.take(change, "it")
            taken += change
        else:
            with pytest.raises(LimitError):
                account.take(change, "it")
        assert account.taken_bytes == taken


def test_take_when_it_does_not_fit_then_the_error_names_purpose_size_rest_and_limit():
    account = MemoryAccount(1000)
    account.take(400, "a")
    with pytest.raises(LimitError, match=r"^b needs 5,000 bytes\b.*\b600\b.*\b1,000$"):
        account.take(5000, "b")


def test_take_when_threads_race_then_exactly_what_fits_is_taken():
    account, won = MemoryAccount(1000), []

    def take():
        for _ in range(100):
            try:
                account.take(7, "it")
            except LimitError:
                continue
            won.append(7)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(won) == account.taken_bytes == 994


@pytest.mark.parametrize(("content", "expected"), [("4096\n", 4096), ("max\n", None), (None, None)])
def test_available_when_a_container_sets_a_limit_then_that_counts(tmp_path, monkeypatch, content, expected):
    limit = tmp_path / "memory.max"
    if content is not None:
        limit.write_text(content)
    monkeypatch.setattr(memory, "CGROUP_LIMIT", limit)
    assert memory.available_bytes() == (expected or memory.psutil.virtual_memory().total)
