"""Rows are handed out, taken back and handed out again, and the servers are asked for just what that takes."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps2.config import FleetConfig
from ps2.coordinator.catalog import Caller, Catalog, Entry
from ps2.coordinator.master import Master
from ps2.errors import ConfigError, LimitError, NotFoundError, RecoveringError, StoppedError, UnavailableError
from ps2.matrix.partition import MAX_ROWS, MatrixSpec, Partition
from ps2.matrix.route import Route
from ps2.protocol.messages import RequestId
from ps2.storage.manifest import SavedMatrix
from tests.fakes import ServerHangs, ServerRefuses


def an_entry(rows=4):
    return Entry(1, MatrixSpec(10, rows), Route(1, (0, 5, 10), ("a:1", "b:2")), (0, 1))


def take(entry, count):
    grant = entry.grant(count)
    entry.allocate(grant, 0)
    return grant


# -- the catalog -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("repartition", "reused"), [(True, (1,)), (False, (1, 3, 4))])
def test_adopt_when_servers_hold_unknown_rows_then_zeroes_them(repartition, reused):
    """The driver before had handed out row 3, without a name; files hold nothing of the kind."""
    saved = SavedMatrix(7, MatrixSpec(10, 5), (0, 5, 10), {0: 0, 2: 1}, {"weight": 0}, 3, (1,), ())
    catalog = Catalog(0)
    catalog.adopt([saved], ["a:1", "b:2"], 1, repartition)
    grant = catalog.get(7).grant(3)
    assert (grant.rows, grant.reused) == ((1, 3, 4), reused)


def test_grant_when_rows_are_reserved_then_does_not_grow():
    entry = an_entry(rows=4)
    assert [[*take(entry, 1).rows], [*take(entry, 2).rows]] == [[0], [1, 2]]
    assert entry.spec.rows == 4


def test_grant_when_none_is_left_then_the_matrix_doubles():
    entry = an_entry(rows=4)
    take(entry, 4)
    assert take(entry, 1).total == entry.spec.rows == 8


def test_grant_when_more_than_double_is_asked_then_grows_to_that():
    assert an_entry(rows=4).grant(100).total == 100


def test_grant_when_rows_were_freed_then_reused_first_and_zeroed():
    entry = an_entry(rows=4)
    take(entry, 3)
    entry.retire([1])
    grant = entry.grant(2)
    assert (grant.rows, grant.reused) == ((1, 3), (1,))


def test_grant_when_not_handed_out_then_nothing_has_changed():
    """The servers may have refused."""
    entry = an_entry()
    assert entry.grant(9) == entry.grant(9)
    assert (entry.used, entry.spec.rows) == (set(), 4)


def test_grant_when_over_maximum_rows_then_limit_error():
    entry = an_entry()
    take(entry, 2)
    with pytest.raises(LimitError, match=f"at most {MAX_ROWS} rows: {2**32 - 1} cannot be added to 2 in use"):
        entry.grant(2**32 - 1)


def test_grant_when_a_call_takes_too_many_then_limit_error():
    with pytest.raises(LimitError, match="allocates at most 10,000,000 rows, got 1,000,000,000"):
        an_entry().grant(10**9)
    with pytest.raises(LimitError, match="layout='column'"):
        an_entry(rows=10**9).grant_reserved()


def test_reserved_when_granted_then_exists_but_is_unused():
    entry = an_entry(rows=5)
    take(entry, 3)
    entry.retire([0])
    grant = entry.grant_reserved()
    assert (sorted(grant.rows), grant.reused, grant.total) == ([0, 3, 4], (0,), 5)


def test_reserved_when_none_is_left_then_no_rows():
    entry = an_entry(rows=2)
    take(entry, 2)
    entry.allocate(entry.grant_reserved(), 0)
    assert entry.used == {0, 1}


def test_retire_when_rows_are_not_in_use_then_left_alone():
    entry = an_entry()
    take(entry, 2)
    assert entry.retire([1, 3, 1, 99]) == [1]
    assert entry.retire([1]) == []


@given(st.lists(st.one_of(st.integers(1, 5), st.lists(st.integers(0, 30)), st.none())))
def test_rows_when_taken_and_freed_then_none_is_granted_twice(events):
    """A number takes so many rows, a list frees those, None takes all that are reserved."""
    entry, used, ever = an_entry(), set(), set()
    for event in events:
        if isinstance(event, list):
            assert set(entry.retire(event)) == used.intersection(event)
            used.difference_update(event)
            continue
        grant = entry.grant_reserved() if event is None else entry.grant(event)
        assert used.isdisjoint(grant.rows)
        assert set(grant.reused) == ever.intersection(grant.rows)
        assert len(set(grant.rows)) == len(grant.rows) == (event or len(grant.rows))
        assert max(grant.rows, default=0) < grant.total
        entry.allocate(grant, 0)
        used.update(grant.rows)
        ever.update(grant.rows)
    assert entry.used == used


def test_partitions_of_when_asked_then_are_of_that_server():
    assert an_entry().partitions_of(1) == [Partition(1, 5, 10)]


def test_plan_when_made_then_partitions_are_spread_and_ids_grow():
    catalog = Catalog(100)
    first, second = (catalog.plan(MatrixSpec(10, 1, partitions_per_server=2), ["a:1", "b:2"], 7) for _ in range(2))
    assert (first.id, second.id) == (101, 102)
    assert first.route == Route(7, (0, 2, 5, 7, 10), ("a:1", "a:1", "b:2", "b:2"))


@pytest.mark.parametrize("when", ["never there", "removed"])
def test_get_when_it_is_not_there_then_not_found_names_it(when):
    catalog = Catalog(0)
    entry = catalog.plan(MatrixSpec(10, 1), ["a:1"])
    if when == "removed":
        catalog.add(entry)
        catalog.remove(entry.id)
    with pytest.raises(NotFoundError, match=f"matrix {entry.id:x} does not exist"):
        catalog.get(entry.id)


def test_born_when_row_is_reused_then_generation_is_later():
    catalog = Catalog(0)
    entry = catalog.plan(MatrixSpec(10, 4), ["a:1"])
    for count in (1, 2):
        catalog.allocate(entry, entry.grant(count))
    assert entry.generations == {0: 0, 1: 1, 2: 2}
    catalog.retire(entry, [1])
    catalog.allocate(entry, entry.grant(1))
    assert entry.generations == {0: 0, 1: 3, 2: 2}


def test_names_when_their_rows_are_freed_then_free_again():
    catalog = Catalog(0)
    entry = catalog.plan(MatrixSpec(10, 4), ["a:1"])
    catalog.allocate(entry, entry.grant(1), "weight")
    catalog.allocate(entry, entry.grant(1), "bias")
    catalog.retire(entry, [1])
    assert catalog.names == {"weight": (entry.id, 0)}
    catalog.remove(entry.id)
    assert catalog.names == {}


def test_names_when_one_is_taken_then_config_error_names_it():
    catalog = Catalog(0)
    entry = catalog.plan(MatrixSpec(10, 4), ["a:1"])
    catalog.allocate(entry, entry.grant(1), "weight")
    with pytest.raises(ConfigError, match="name 'weight' belongs to row 0 of matrix 1 already"):
        catalog.allocate(entry, entry.grant(1), "weight")
    assert entry.used == {0}


# -- the master ------------------------------------------------------------------------------------------------------


def a_master(servers, count=2):
    master = Master(servers, FleetConfig())
    for index in range(count):
        master.registry.register(index, f"id{index}", f"server{index}:1")
    return master


def asked(servers, method):
    return [call[1:] for call in servers.calls if call[0] == method]


def test_new_matrix_when_made_then_partitions_held_row_0_granted():
    servers = ServerRefuses()
    entry = a_master(servers).new_matrix(MatrixSpec(10, 4))
    assert asked(servers, "create_matrix") == [
        ("server0:1", entry.id, MatrixSpec(10, 4), [Partition(0, 0, 5)]),
        ("server1:1", entry.id, MatrixSpec(10, 4), [Partition(1, 5, 10)]),
    ]
    assert entry.used == {0}


def test_new_matrix_when_one_server_refuses_then_all_are_freed():
    full = LimitError("no memory")
    servers = ServerRefuses(create_matrix=lambda address, *_: full if address == "server1:1" else None)
    master = a_master(servers)
    with pytest.raises(LimitError):
        master.new_matrix(MatrixSpec(10, 1))
    freed = asked(servers, "free_matrix")
    assert [address for address, *_ in freed] == ["server0:1", "server1:1"]
    with pytest.raises(NotFoundError):
        master.matrix(freed[0][1])


def test_new_matrix_when_server_is_lost_then_error_names_it():
    servers = ServerRefuses()
    master = a_master(servers)
    master.registry.mark_ended(1, "ended by SIGKILL")
    with pytest.raises(UnavailableError, match=r"server 1 \(server1:1\): ended by SIGKILL"):
        master.new_matrix(MatrixSpec(10, 1))
    assert servers.calls == []


def test_take_rows_when_rows_are_reserved_then_asks_no_server():
    servers = ServerRefuses()
    master = a_master(servers)
    entry = master.new_matrix(MatrixSpec(10, 4))
    assert list(master.take_rows(entry.id, 2)) == [1, 2]
    assert asked(servers, "update_rows") == []


def test_take_rows_when_doubling_fails_then_grows_by_need():
    servers = ServerRefuses(update_rows=lambda _a, _id, rows, *_: LimitError("full") if rows > 5 else None)
    master = a_master(servers)
    entry = master.new_matrix(MatrixSpec(10, 4))
    master.take_rows(entry.id, 3)
    assert list(master.take_rows(entry.id, 1)) == [4]
    assert entry.spec.rows == 5


def test_take_rows_when_no_server_can_grow_then_limit_error():
    master = a_master(ServerRefuses(update_rows=lambda *_: LimitError("full")))
    entry = master.new_matrix(MatrixSpec(10, 1))
    with pytest.raises(LimitError):
        master.take_rows(entry.id, 1)
    assert (entry.used, entry.spec.rows) == ({0}, 1)


def test_free_rows_when_last_one_then_matrix_is_dropped():
    servers = ServerRefuses()
    master = a_master(servers)
    entry = master.new_matrix(MatrixSpec(10, 2))
    master.free_rows(entry.id, [0])
    freed = [(address, matrix) for address, matrix, _ in asked(servers, "free_matrix")]
    assert freed == [("server0:1", entry.id), ("server1:1", entry.id)]


def test_free_rows_when_freed_before_then_no_server_is_asked():
    servers = ServerRefuses()
    master = a_master(servers)
    entry = master.new_matrix(MatrixSpec(10, 2))
    master.take_rows(entry.id, 1)
    master.free_rows(entry.id, [1])
    master.free_rows(entry.id, [1])
    assert [freed for *_, freed, _, _ in asked(servers, "update_rows")] == [[1], [1]]


def test_free_rows_when_the_matrix_is_gone_then_nothing_happens():
    a_master(ServerRefuses()).free_rows(7, [0])


def test_free_matrix_when_server_is_gone_then_others_are_told():
    servers = ServerRefuses(
        free_matrix=lambda address, *_: UnavailableError("gone") if address == "server0:1" else None
    )
    master = a_master(servers)
    master.new_matrix(MatrixSpec(10, 1))
    master.free_all()
    assert [address for address, *_ in asked(servers, "free_matrix")] == ["server0:1", "server1:1"]


def test_matrix_when_a_server_of_it_is_lost_then_it_says_why():
    master = a_master(ServerRefuses(), count=3)
    entry = master.new_matrix(MatrixSpec(2, 1))
    master.registry.mark_ended(1, "exit code 1")
    master.registry.mark_ended(2, "holds nothing of it")
    assert master.matrix(entry.id).lost == ("server 1 (server1:1): exit code 1",)


def test_master_when_server_hangs_in_call_then_still_answers():
    """Else the silence of one server would make all others look lost."""
    servers = ServerHangs()
    master = a_master(servers)
    entry = master.new_matrix(MatrixSpec(10, 1))
    growing = threading.Thread(target=master.take_rows, args=(entry.id, 1))
    growing.start()
    assert servers.reached.wait(10)
    answered = threading.Event()

    def ask():
        master.registry.heartbeat(1, "id1", 0)
        master.registry.declare_lost()
        master.matrix(entry.id)
        answered.set()

    threading.Thread(target=ask).start()
    in_time = answered.wait(5)
    servers.release.set()
    growing.join()
    assert in_time
    assert entry.used == {0, 1}


def test_take_rows_when_callers_race_then_none_is_granted_twice():
    master = a_master(ServerRefuses())
    entry = master.new_matrix(MatrixSpec(10, 1))
    rows = []
    threads = [
        threading.Thread(target=lambda: [rows.extend(master.take_rows(entry.id, 2)) for _ in range(20)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(rows) == list(range(1, 161))


# -- calls that come again, and rows of tasks ------------------------------------------------------------------------

STAGE = 3


def of_task(attempt, number=0, stage=STAGE):
    """A call of a task; its attempts send the same id."""
    return Caller(RequestId(f"app/{stage}/0", number, series="app", stage=stage), f"app/attempt/{attempt}")


def of_driver(number, settled=0):
    return Caller(RequestId("session/a", number, settled), "session/a")


@pytest.fixture
def master():
    return a_master(ServerRefuses())


@pytest.fixture
def entry(master):
    return master.new_matrix(MatrixSpec(10, 8))


def end(master):
    master.end_stages("app", STAGE + 1, [])


def test_new_matrix_when_second_attempt_asks_then_gets_same(master):
    first, second = (master.new_matrix(MatrixSpec(10, 1), caller=of_task(attempt)) for attempt in (1, 2))
    assert first is second


def test_new_matrix_when_name_is_taken_then_config_error():
    servers = ServerRefuses()
    master = a_master(servers)
    master.new_matrix(MatrixSpec(10, 1), "weight")
    with pytest.raises(ConfigError, match="name 'weight'"):
        master.new_matrix(MatrixSpec(10, 1), "weight")
    assert len(asked(servers, "create_matrix")) == 2


def test_take_rows_when_second_attempt_asks_then_gets_same(master, entry):
    assert [list(master.take_rows(entry.id, 2, caller=of_task(attempt))) for attempt in (1, 2)] == [[1, 2]] * 2
    assert entry.used == {0, 1, 2}


def test_take_rows_when_session_asks_again_then_gets_same(master, entry):
    assert [list(master.take_rows(entry.id, 1, caller=of_driver(0))) for _ in range(2)] == [[1]] * 2


def test_free_rows_when_task_asks_then_freed_at_stage_end(master, entry):
    master.take_rows(entry.id, 1, caller=of_task(1))
    for _ in range(2):
        master.free_rows(entry.id, [1], of_task(1).id)
    assert entry.used == {0, 1}
    end(master)
    assert entry.used == {0}


def test_free_rows_when_its_stage_is_over_then_stopped_error(master, entry):
    end(master)
    with pytest.raises(StoppedError, match="stage 3 of app is over"):
        master.free_rows(entry.id, [0], of_task(1).id)


def test_free_rows_when_row_has_new_owner_by_then_it_stays(master, entry):
    """The driver freed it, and it was handed out again."""
    master.take_rows(entry.id, 1, caller=of_driver(0))
    master.free_rows(entry.id, [1], of_task(1).id)
    master.free_rows(entry.id, [1], of_driver(1).id)
    assert list(master.take_rows(entry.id, 1, caller=of_driver(2))) == [1]
    end(master)
    assert entry.used == {0, 1}


def test_free_rows_when_resent_late_then_next_owner_keeps_row(master, entry):
    master.take_rows(entry.id, 1, caller=of_driver(0))
    master.free_rows(entry.id, [1], of_driver(1).id)
    master.take_rows(entry.id, 1, caller=of_driver(2))
    master.free_rows(entry.id, [1], of_driver(1).id)
    assert entry.used == {0, 1}


def test_free_rows_when_lost_and_resent_late_then_owner_keeps_it():
    refused = [UnavailableError("gone")]
    servers = ServerRefuses(update_rows=lambda *_: refused.pop() if refused else None)
    master = a_master(servers)
    entry = master.new_matrix(MatrixSpec(10, 2))
    master.take_rows(entry.id, 1, caller=of_driver(0))
    master.free_rows(entry.id, [1], of_driver(1).id)
    assert [address for address, *_ in asked(servers, "update_rows")] == ["server0:1", "server1:1"]
    master.take_rows(entry.id, 1, caller=of_driver(2))
    master.free_rows(entry.id, [1], of_driver(1).id)
    assert entry.used == {0, 1}


def test_drop_rows_when_resent_late_then_next_handle_keeps_row(master, entry):
    master.take_rows(entry.id, 1, caller=of_driver(0))
    master.drop_rows(entry.id, [1], "session/a", of_driver(1).id)
    master.take_rows(entry.id, 1, caller=of_driver(2))
    master.drop_rows(entry.id, [1], "session/a", of_driver(1).id)
    assert entry.used == {0, 1}


def test_drop_rows_when_it_failed_then_asking_again_does_it(master, entry, monkeypatch):
    monkeypatch.setattr("ps2.coordinator.master.CHANGE_TIMEOUT_S", 0.01)
    master.take_rows(entry.id, 1, caller=of_driver(0))
    with master.block_changes(), pytest.raises(RecoveringError):
        master.drop_rows(entry.id, [1], "session/a", of_driver(1).id)
    master.drop_rows(entry.id, [1], "session/a", of_driver(1).id)
    assert entry.used == {0}


def test_drop_rows_when_session_dropped_handle_then_freed_now(master, entry):
    master.take_rows(entry.id, 1, caller=of_driver(0))
    master.drop_rows(entry.id, [1], "session/a")
    assert entry.used == {0}


def test_drop_rows_when_another_attempt_has_row_then_stays(master, entry):
    """The first attempt failed; the second has returned its handle to the driver."""
    for attempt in (1, 2):
        master.take_rows(entry.id, 1, caller=of_task(attempt))
    for _ in range(2):
        master.drop_rows(entry.id, [1], of_task(1).holder)
    end(master)
    assert entry.used == {0, 1}


def test_drop_rows_when_another_attempt_gets_row_then_stays(master, entry):
    master.take_rows(entry.id, 1, caller=of_task(1))
    master.drop_rows(entry.id, [1], of_task(1).holder)
    master.take_rows(entry.id, 1, caller=of_task(2))
    end(master)
    assert entry.used == {0, 1}


@pytest.mark.parametrize("late", [False, True])
def test_drop_rows_when_all_attempts_drop_then_freed_with_stage(master, entry, late):
    """A worker tells of its last handles with its next call for rows, perhaps in a later stage."""
    for attempt in (1, 2):
        master.take_rows(entry.id, 1, caller=of_task(attempt))
    master.drop_rows(entry.id, [1], of_task(1).holder)
    if late:
        end(master)
    master.drop_rows(entry.id, [1], of_task(2).holder)
    assert entry.used == ({0} if late else {0, 1})
    end(master)
    assert entry.used == {0}


def test_drop_rows_when_holder_never_had_row_then_stays(master, entry):
    """Its own was freed, and the number was handed out again."""
    master.take_rows(entry.id, 1, caller=of_driver(0))
    master.drop_rows(entry.id, [0, 1, 99], of_task(1).holder)
    assert entry.used == {0, 1}


def test_end_stages_when_one_reclaim_fails_then_others_still_run():
    refuses = {}
    master = a_master(ServerRefuses(update_rows=lambda _, id, *__: refuses.get(id)))
    entries = [master.new_matrix(MatrixSpec(10, 2)) for _ in range(2)]
    for entry in entries:
        master.take_rows(entry.id, 1)
        master.free_rows(entry.id, [1], of_task(1).id)
    refuses[entries[0].id] = LimitError("no")
    end(master)
    assert [entry.used for entry in entries] == [{0}] * 2


def test_calls_when_many_stages_ask_for_rows_then_last_are_kept(master, entry):
    for stage in range(50):
        for number in range(4):
            caller = of_task(stage, number, stage)
            (row,) = master.take_rows(entry.id, 1, caller=caller)
            master.drop_rows(entry.id, [row], caller.holder)
        master.end_stages("app", stage + 1, [])
    assert (len(master._calls), len(master._deferred_frees), entry.used, set(entry.row_holders)) == (0, 0, {0}, set())
