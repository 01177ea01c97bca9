"""The memory account never exceeds its limit, lets in who waits in order, and says what was wanted and what is left."""

from __future__ import annotations

import random
import threading
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps2.errors import BusyError, LimitError
from ps2.server import memory
from ps2.server.memory import MemoryAccount


@given(st.lists(st.integers(-50, 80)))
def test_account_when_taken_from_then_never_exceeds_limit(changes):
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
        assert account.used_bytes == taken


def test_take_when_it_does_not_fit_then_error_has_all_sizes():
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
    assert sum(won) == account.used_bytes == 994


# -- what passes -----------------------------------------------------------------------------------------------------


@contextmanager
def elsewhere(act):
    """Do something in another thread; it has been done after the block."""
    thread = threading.Thread(target=act)
    thread.start()
    yield thread
    thread.join(10)
    assert not thread.is_alive()


def waiting(account):
    return sum(map(len, account._queues))


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(memory, "PATIENCE_S", 0.05)


def test_take_when_transient_usage_blocks_it_then_busy_error():
    account = MemoryAccount(1000)
    account.take_transient(700, "a")
    with pytest.raises(BusyError, match=r"^b needs 500 bytes, and 300 are left .* of 1,000; 700 are used by requests"):
        account.take(500, "b")


def test_take_when_only_own_request_blocks_it_then_limit_error():
    """It would not pass before."""
    account = MemoryAccount(1000)
    account.admit(700, "a")
    with pytest.raises(LimitError):
        account.take(500, "b")
    account.release(700)
    account.take(500, "b")


def test_take_when_refused_for_transient_use_then_room_is_held(impatient, monkeypatch):
    monkeypatch.setattr(memory, "RESERVE_S", 1000.0)
    account = MemoryAccount(1000)
    account.take_transient(300, "a")
    with pytest.raises(BusyError):
        account.take(800, "b")
    with pytest.raises(BusyError):
        account.admit(100, "c")
    account.give_transient(300)
    account.take(800, "b")
    account.admit(100, "c")
    assert account.used_bytes == 900


def test_admit_when_no_room_then_waits_until_there_is(until):
    account = MemoryAccount(1000)
    account.take_transient(700, "a")
    with elsewhere(lambda: account.admit(500, "b")):
        until(lambda: waiting(account), "it waits")
        account.give_transient(700)
    assert account.used_bytes == 500


def test_admit_when_large_one_waits_then_small_ones_queue_behind(until):
    account, order = MemoryAccount(1000), []

    def admit(size):
        account.admit(size, "it")
        order.append(size)
        account.release(size)

    account.take_transient(700, "a")
    with elsewhere(lambda: admit(1000)):
        until(lambda: waiting(account) == 1, "the large one waits")
        with elsewhere(lambda: admit(100)):
            until(lambda: waiting(account) == 2, "the small one waits")
            account.give_transient(700)
    assert (order, account.used_bytes) == ([1000, 100], 0)


def test_admit_when_no_room_for_long_then_busy_and_next_enters(until, monkeypatch):
    monkeypatch.setattr(memory, "PATIENCE_S", 0.3)
    account, failed = MemoryAccount(1000), []

    def admit_much():
        try:
            account.admit(900, "much")
        except BusyError as error:
            failed.append(str(error))

    account.take_transient(300, "a")
    with elsewhere(admit_much):
        until(lambda: waiting(account), "it waits")
        monkeypatch.setattr(memory, "PATIENCE_S", 10.0)
        account.admit(100, "little")
    assert failed[0].startswith("much needs 900 bytes, and 700 are left")
    assert account.used_bytes == 400


def test_admit_when_it_never_fits_then_limit_error_at_once():
    account = MemoryAccount(1000)
    account.take(600, "a")
    with pytest.raises(LimitError, match="b needs 401 bytes, and 400 are left"):
        account.admit(401, "b")


def test_admit_when_clients_fill_half_then_copies_get_the_rest(impatient):
    account = MemoryAccount(1000)
    account.set_copies("an engine", True)
    account.admit(500, "a client's")
    with pytest.raises(BusyError):
        account.admit(1, "a client's")
    with pytest.raises(LimitError, match=r"half of it for changes of copies$"):
        account.admit(501, "a client's")
    account.admit(500, "a copy's", for_copies=True)
    assert account.used_bytes == 1000


def test_admit_when_threads_come_and_go_then_all_enter_in_bounds():
    account, over = MemoryAccount(1000), []

    def come_and_go(seed):
        sizes = random.Random(seed)
        for _ in range(200):
            size = sizes.randrange(1001)
            account.admit(size, "it")
            over.append(account.used_bytes > 1000)
            account.release(size)

    threads = [threading.Thread(target=come_and_go, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(over), any(over), account.used_bytes) == (1600, False, 0)


def test_spare_when_others_need_its_room_then_it_is_shed():
    account = MemoryAccount(1000)
    account.cache_releasers.append(account.give_cache)
    assert account.take_cache(900)
    account.take(300, "a")
    account.admit(400, "b")
    account.take_transient(300, "c")
    assert (account.used_bytes, account.take_cache(1)) == (1000, False)
