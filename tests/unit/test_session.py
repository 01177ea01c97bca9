"""A session over transports that fail: every mutation counts once, and an error comes in time and says where."""

from __future__ import annotations

import signal
import threading
import time

import numpy as np
import pytest

from ps2.client import async_writer, dispatch, plans, sessions, task
from ps2.client import requests as client_requests
from ps2.client.declared import declared
from ps2.client.fleet import Access, FleetRef, derived_token, seal, token_id, unseal
from ps2.client.plans import Target
from ps2.client.task import MutationIds
from ps2.client.zipped import map_partitions
from ps2.config import RetryConfig, WireConfig
from ps2.errors import (
    BusyError,
    LimitError,
    LostError,
    NotFoundError,
    ShapeError,
    StaleRouteError,
    StoppedError,
    UnavailableError,
    UsageError,
)
from ps2.matrix.partition import MatrixSpec
from ps2.matrix.route import Route
from tests.fakes import (
    MASTER,
    BringsCallsAgain,
    DriverStandsStill,
    DropsTheAck,
    FailsBeforeSending,
    FleetInProcess,
    IsFull,
    MasterGone,
    MovesThePartitions,
    RefusesForGood,
    session_over,
)

SPEC = MatrixSpec(10, 2, dtype="float64")
ONES = np.ones(10)
SHORT = RetryConfig(total_s=0.5, first_pause_s=0.01, longest_pause_s=0.02)


@pytest.fixture
def fleet():
    return FleetInProcess(servers=2)


@pytest.fixture
def target(fleet):
    """Row 0 of a matrix of 10 columns on two servers."""
    info = session_over(fleet).new_matrix(SPEC)
    return Target(info.id, info.spec, info.route, (0,))


@pytest.mark.parametrize(("tries", "waits_s"), [(0, RetryConfig.first_contact_s), (1, RetryConfig.later_contact_s)])
def test_session_when_a_task_is_tried_again_then_it_waits_less(fleet, in_task, tries, waits_s):
    in_task(tries=tries)
    assert session_over(fleet, RetryConfig()).retry.first_contact_s == waits_s


def add_ones(target):
    return plans.push(target, "push_add", ONES, 0, 10)


def values(fleet, target):
    return session_over(fleet).dispatch.run([plans.pull(target, 0, 10)])[0].tolist()


def requests(fleet):
    return [request for _, request in fleet.sent]


# -- exactly once ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [DropsTheAck, FailsBeforeSending])
@pytest.mark.parametrize("times", [1, 2, 5])
def test_push_when_attempts_fail_before_or_after_apply_then_once(fleet, target, fault, times):
    session_over(fault(fleet, times)).dispatch.run([add_ones(target)])
    assert values(fleet, target) == [1.0] * 10


@pytest.fixture
def small_blocks(monkeypatch):
    """Two columns in an operation, two operations in a request: a push of ten is several requests a server."""
    monkeypatch.setattr(plans, "BLOCK_BYTES", 16)
    monkeypatch.setattr(client_requests, "HEADER_BYTES", 0)
    return WireConfig(block_bytes=16)


@pytest.mark.parametrize("fault", [DropsTheAck, FailsBeforeSending])
@pytest.mark.parametrize("times", [1, 2, 5])
def test_push_when_some_requests_fail_then_each_counts_once(fleet, target, small_blocks, fault, times):
    faulty = fault(fleet, times)
    over = session_over(faulty)
    over.dispatch.wire = small_blocks
    for _ in range(3):
        over.dispatch.run([add_ones(target)])
    assert len({(address, request.id) for address, request in fleet.sent}) == 3 * 6
    assert values(fleet, target) == [3.0] * 10


def test_batch_when_split_then_later_calls_see_earlier_ones(fleet, target, small_blocks):
    over = session_over(fleet)
    over.dispatch.wire = small_blocks
    doubled = declared(target, "mul_scalar", {"value": 2})
    answer = over.dispatch.run([add_ones(target), doubled, add_ones(target), plans.pull(target, 0, 10)])[-1]
    assert answer.tolist() == [3.0] * 10


def test_push_when_sent_again_then_under_the_same_id(fleet, target):
    faulty = FailsBeforeSending(fleet, times=3)
    session_over(faulty).dispatch.run([add_ones(target)])
    sent = {request.id for request in [*faulty.tried, *requests(fleet)]}
    assert (len(faulty.tried), len(sent)) == (3, 1)
    assert None not in sent


def test_push_when_one_server_fails_then_only_its_part_is_resent(fleet, target):
    session_over(DropsTheAck(fleet, times=1, address=fleet.addresses[1])).dispatch.run([add_ones(target)])
    assert [address for address, _ in fleet.sent] == [*fleet.addresses, fleet.addresses[1]]


def test_pushes_when_sent_then_their_ids_differ(fleet, target):
    over = session_over(fleet)
    for _ in range(3):
        over.dispatch.run([add_ones(target)])
    assert len({request.id for request in requests(fleet)}) == 3


def test_pull_when_sent_then_it_carries_no_id(fleet, target):
    session_over(fleet).dispatch.run([plans.pull(target, 0, 10)])
    assert [request.id for request in requests(fleet)] == [None, None]


def test_pull_when_one_server_fails_then_answer_has_both_parts(fleet, target):
    session_over(fleet).dispatch.run([plans.push(target, "push", np.arange(10.0), 0, 10)])
    over = session_over(FailsBeforeSending(fleet, times=2, address=fleet.addresses[0]))
    assert over.dispatch.run([plans.pull(target, 0, 10)])[0].tolist() == list(range(10))


def test_map_when_ack_is_lost_then_result_is_of_first_run(fleet, target):
    def grow(row):
        row += 1
        return row.sum()

    over = session_over(DropsTheAck(fleet, times=1, address=fleet.addresses[0]))
    (results,) = over.dispatch.run([map_partitions(target, grow, with_index=False)])
    assert results.collect() == [5.0, 5.0]
    assert values(fleet, target) == [1.0] * 10


def test_plans_when_run_together_then_one_request_per_server(fleet, target):
    over = session_over(fleet)
    tripled, summed = declared(target, "mul_scalar", {"value": 3}), declared(target, "sum", {})
    *_, total = over.dispatch.run([add_ones(target), tripled, summed])
    assert total == 30
    assert [[op.name for op in request.operations] for request in requests(fleet)] == [
        ["push_add", "mul_scalar", "sum"]
    ] * 2


def test_plans_when_none_then_nothing_is_sent(fleet):
    assert session_over(fleet).dispatch.run([]) == []
    assert fleet.sent == []


# -- rows ------------------------------------------------------------------------------------------------------------


def test_row_when_its_drop_is_repeated_then_next_owner_keeps_it(fleet, target):
    network = BringsCallsAgain(fleet)
    over = session_over(network)
    (row,) = over.take_rows(target.matrix, 1)
    over.drop(target.matrix, [row], over.holder)
    assert over.take_rows(target.matrix, 1) == [row]
    with pytest.raises(StoppedError, match="received the answer or given up"):
        network.again("Master/FreeRows")
    assert fleet.master.matrix(target.matrix).entry.used == {0, row}


# -- routes and lost servers -----------------------------------------------------------------------------------------


def test_request_when_route_is_stale_then_asks_master(fleet, target):
    """The caller's route swaps the servers; the master's is right."""
    wrong = Target(target.matrix, SPEC, Route(0, target.route.bounds, target.route.addresses[::-1]), (0,))
    session_over(fleet).dispatch.run([plans.push(wrong, "push", np.arange(10.0), 0, 10)])
    assert values(fleet, target) == list(range(10))


def test_request_when_partitions_move_then_follows_under_same_id(fleet, target):
    first, second = fleet.addresses

    def move():
        entry = fleet.master.matrix(target.matrix).entry
        entry.route = Route(2, target.route.bounds, (second, second))
        fleet.engines[second].create_matrix(target.matrix, SPEC, entry.route.partitions)
        fleet.engines[first].free_matrix(target.matrix)

    session_over(MovesThePartitions(fleet, move, address=first)).dispatch.run([add_ones(target)])
    assert [address for address, _ in fleet.sent] == [second, second]
    assert len({request.id for request in requests(fleet)}) == 1
    assert values(fleet, target) == [1.0] * 10


def test_route_when_newer_is_known_then_old_handle_uses_it(fleet, target):
    over = session_over(fleet)
    old = Target(target.matrix, SPEC, Route(0, target.route.bounds, target.route.addresses[::-1]), (0,))
    over.matrix(target.matrix)
    over.dispatch.run([add_ones(old)])
    assert len(fleet.sent) == 2


def test_routes_when_many_matrices_come_and_go_then_few_are_kept(fleet, monkeypatch):
    monkeypatch.setattr(dispatch, "MAX_ROUTES", 3)
    over = session_over(fleet)
    created = [over.new_matrix(SPEC) for _ in range(9)]
    for info in created:
        over.dispatch.run([plans.pull(Target(info.id, SPEC, info.route, (0,)), 0, 10)])
    assert over.routes.by_matrix.keys() == {info.id for info in created[-3:]}


def test_batch_when_matrices_exceed_cache_then_asks_master(fleet, monkeypatch):
    monkeypatch.setattr(dispatch, "MAX_ROUTES", 3)
    over = session_over(fleet)
    targets = [Target(info.id, SPEC, info.route, (0,)) for info in [over.new_matrix(SPEC) for _ in range(5)]]
    over.dispatch.run([add_ones(target) for target in targets])
    assert [values(fleet, target) for target in targets] == [[1.0] * 10] * 5


def test_request_when_master_says_lost_then_names_server_at_once(fleet, target):
    fleet.master.registry.mark_ended(1, "ended by SIGKILL")
    over = session_over(FailsBeforeSending(fleet, times=-1, address=fleet.addresses[1]), RetryConfig(total_s=60))
    started_s = time.monotonic()
    with pytest.raises(UnavailableError, match=r"server 1 \(server1:1\): ended by SIGKILL.*connection refused"):
        over.dispatch.run([add_ones(target)])
    assert time.monotonic() - started_s < 5


def test_request_when_master_is_silent_too_then_error_says_both(fleet, target):
    with pytest.raises(
        UnavailableError, match="server0:1: connection refused; the master does not answer either: master:1"
    ):
        session_over(MasterGone(fleet, times=-1, address=fleet.addresses[0]), SHORT).dispatch.run([add_ones(target)])


def test_request_when_server_and_master_are_silent_then_waits(fleet, target):
    over = session_over(DriverStandsStill(fleet, 3, fleet.addresses[0]), SHORT)
    over.dispatch.run([add_ones(target)])
    assert values(fleet, target) == [1.0] * 10


def test_request_when_the_matrix_was_freed_then_not_found(fleet, target):
    session_over(fleet).free_rows(target.matrix, [0])
    with pytest.raises(NotFoundError, match=f"matrix {target.matrix:x} does not exist"):
        session_over(fleet).dispatch.run([add_ones(target)])


def test_request_when_failing_then_error_comes_after_retry_time(fleet, target):
    faulty = FailsBeforeSending(fleet, times=-1)
    over = session_over(faulty, RetryConfig(total_s=0.2, first_pause_s=0.01, longest_pause_s=0.05))
    started_s = time.monotonic()
    with pytest.raises(UnavailableError, match="connection refused"):
        over.dispatch.run([add_ones(target)])
    assert 0.1 < time.monotonic() - started_s < 2
    assert len(faulty.tried) > 4


@pytest.mark.parametrize("times", [1, 5])
def test_request_when_server_is_full_then_resends_without_master(fleet, target, times):
    full = IsFull(fleet, times)
    session_over(full).dispatch.run([add_ones(target)])
    assert values(fleet, target) == [1] * 10
    assert full.asked == []


def test_request_when_server_stays_full_then_busy_error_names_it(fleet, target):
    over = session_over(IsFull(fleet, times=-1, address=fleet.addresses[1]), RetryConfig(total_s=0.1))
    with pytest.raises(BusyError, match=f"^{fleet.addresses[1]}: a request needs 5 bytes, and 3 are left"):
        over.dispatch.run([add_ones(target)])


def test_request_when_one_full_and_one_stale_then_reaches_both(fleet, target):
    moved = MovesThePartitions(fleet, lambda: None, times=1, address=fleet.addresses[0])
    session_over(IsFull(moved, times=3, address=fleet.addresses[1])).dispatch.run([add_ones(target)])
    assert values(fleet, target) == [1] * 10


def test_request_when_it_can_never_fit_then_limit_error(fleet, target):
    over = session_over(RefusesForGood(fleet, LimitError("9 bytes"), times=-1, address=fleet.addresses[0]))
    with pytest.raises(LimitError, match=f"^{fleet.addresses[0]}: 9 bytes"):
        over.dispatch.run([add_ones(target)])


def test_request_when_no_retry_time_is_left_then_is_sent_once(fleet, target):
    faulty = FailsBeforeSending(fleet, times=-1, address=fleet.addresses[0])
    with pytest.raises(UnavailableError):
        session_over(faulty, RetryConfig(total_s=0)).dispatch.run([add_ones(target)])
    assert len(faulty.tried) == 1


def test_request_when_error_is_final_then_raises_at_once(fleet, target):
    unreachable = FailsBeforeSending(fleet, times=-1, address=fleet.addresses[0])
    both = RefusesForGood(unreachable, ShapeError("wrong"), times=-1, address=fleet.addresses[1])
    with pytest.raises(ShapeError, match="wrong"):
        session_over(both).dispatch.run([add_ones(target)])
    assert len(unreachable.tried) == 1


def test_request_when_always_stale_then_error_is_about_route(fleet, target):
    lost = RefusesForGood(fleet, StaleRouteError("this server holds nothing"), times=-1)
    with pytest.raises(StaleRouteError, match="holds nothing"):
        session_over(lost, RetryConfig(total_s=0.01, first_pause_s=0.001)).dispatch.run([add_ones(target)])


# -- rows of handles that are gone -----------------------------------------------------------------------------------


def test_rows_when_dropped_then_are_freed_with_next_rows_call(fleet, target):
    over = session_over(fleet)
    (row,) = over.take_rows(target.matrix, 1)
    over.drop(target.matrix, [row], over.holder)
    assert over.take_rows(target.matrix, 1) == [row]


def test_rows_when_threads_release_them_together_then_none_fails(fleet, target):
    over, failures = session_over(fleet), []

    def release():
        try:
            over._release_dropped()
        except Exception as error:
            failures.append(error)

    for _ in range(20):
        over.drop(target.matrix, range(100, 400), over.holder)
        threads = [threading.Thread(target=release) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []


# -- calls to the master ---------------------------------------------------------------------------------------------


class LosesTheMastersReply:
    """The master does what it is asked, but its first replies are lost."""

    def __init__(self, fleet, times=1):
        self.fleet = fleet
        self.left = times

    def call(self, address, method, message, reply, timeout_s):
        answer = self.fleet.call(address, method, message, reply, timeout_s)
        if self.left:
            self.left -= 1
            raise UnavailableError(f"{address}: connection reset")
        return answer


def test_take_rows_when_masters_reply_is_lost_then_takes_one(fleet, target):
    assert session_over(LosesTheMastersReply(fleet, times=3)).take_rows(target.matrix, 1) == [1]
    assert fleet.master.matrix(target.matrix).entry.used == {0, 1}


def test_new_matrix_when_masters_reply_is_lost_then_makes_one(fleet, target):
    session_over(LosesTheMastersReply(fleet)).new_matrix(SPEC)
    assert len(fleet.master._catalog.ids()) == 2


def test_free_rows_when_masters_reply_is_lost_then_frees_once(fleet, target):
    session_over(LosesTheMastersReply(fleet)).free_rows(target.matrix, [0])
    assert fleet.master._catalog.ids() == []


def test_take_rows_when_master_is_gone_then_fails_after_retries(fleet, target):
    over = session_over(MasterGone(fleet), RetryConfig(total_s=0.2, first_pause_s=0.01, longest_pause_s=0.05))
    started_s = time.monotonic()
    with pytest.raises(UnavailableError, match="master:1: connection refused"):
        over.take_rows(target.matrix, 1)
    assert 0.1 < time.monotonic() - started_s < 2


def test_new_matrix_when_server_is_lost_then_fails_at_once(fleet):
    fleet.master.registry.mark_ended(1, "ended by SIGKILL")
    started_s = time.monotonic()
    with pytest.raises(LostError, match="ended by SIGKILL"):
        session_over(fleet, RetryConfig(total_s=60)).new_matrix(SPEC)
    assert time.monotonic() - started_s < 5


def test_calls_when_answered_then_no_id_is_in_flight(fleet, target):
    over = session_over(fleet)
    over.free_rows(target.matrix, over.take_rows(target.matrix, 1))
    assert over.ids._in_flight == set()


def test_rows_when_freed_in_task_then_mutation_ids_are_unchanged(fleet, target, in_task):
    """The collector runs when it likes, so in another attempt a handle goes at another time."""
    over, numbers = session_over(fleet), []
    for attempt, gone in ((1, True), (2, False)):
        in_task(attempt=attempt)
        rows = over.take_rows(target.matrix, 2)
        if gone:
            over.drop(target.matrix, rows[:1], over.holder)
            over.free_rows(target.matrix, rows[1:])
        over.take_rows(target.matrix, 1)
        over.dispatch.run([add_ones(target)])
        numbers.append(over.ids.next().number)
    assert numbers == [3, 3]
    assert values(fleet, target) == [1.0] * 10


def test_session_when_closed_then_its_transport_is(fleet):
    session_over(fleet).close()
    assert fleet.closed


# -- the sessions of a process ---------------------------------------------------------------------------------------


@pytest.fixture
def installed(fleet):
    over = session_over(fleet)
    sessions.install(over)
    yield over
    sessions.uninstall("fleet")
    sessions._stopped.discard("fleet")


def test_session_of_when_installed_then_it_is_that_one(installed):
    assert sessions.session_of(installed.fleet) is sessions.current_session() is installed


def test_session_of_when_uninstalled_then_error_names_fleet(installed):
    sessions.uninstall("fleet")
    with pytest.raises(StoppedError, match="fleet fleet"):
        sessions.session_of(installed.fleet)


def test_current_session_when_no_context_then_error_says_remedy():
    with pytest.raises(StoppedError, match=r"PS2Context\.getOrCreate"):
        sessions.current_session()


def test_session_of_when_fleet_of_other_driver_then_usage_error(in_task):
    in_task(access=Access("secret", "app"))
    with pytest.raises(UsageError, match="token of this vector's fleet theirs"):
        sessions.session_of(FleetRef("theirs", MASTER, token_id=token_id("other", derived_token("other", "theirs"))))


def test_session_of_when_in_a_task_then_it_is_made_once(in_task):
    ref = _derived("tasks")
    in_task(access=Access("secret", "app"), fleet=ref)
    try:
        assert sessions.session_of(ref) is sessions.session_of(ref) is sessions.current_session()
    finally:
        sessions.uninstall("tasks")
        sessions._stopped.discard("tasks")


def test_session_of_when_task_knows_stop_then_stopped_error(in_task):
    ref = FleetRef("old", MASTER)
    in_task(access=Access("secret", "app"), stopped="older old")
    with pytest.raises(StoppedError, match="fleet old"):
        sessions.session_of(ref)


def test_session_of_when_task_meets_next_fleet_then_older_closes(in_task):
    """One daemon of Python workers serves all contexts of a driver."""
    in_task(access=Access("secret", "app"))
    try:
        older = sessions.session_of(_derived("first"))
        sessions.session_of(_derived("second"))
        assert older not in sessions._sessions.values()
    finally:
        sessions.uninstall("second")
        sessions._stopped.discard("second")


def test_current_session_when_closure_has_handle_then_its_fleet(in_task):
    in_task(access=Access("secret", "app"), fleet=_derived("of the thread"))
    task.record_use("copy", _derived("of the handle"))
    try:
        assert sessions.current_session().fleet.id == "of the handle"
    finally:
        sessions.uninstall("of the handle")
        sessions._stopped.discard("of the handle")


def _derived(id):
    return FleetRef(id, MASTER, token_id=token_id("secret", derived_token("secret", id)))


def test_access_when_sealed_then_it_is_unsealed():
    access = Access("secret", "app-1", "token of an attached fleet")
    assert unseal(seal(access)) == access


@pytest.mark.parametrize("token", [derived_token("secret", "f"), "given", None])
def test_token_of_when_fleet_names_it_by_id_then_it_is_found(token):
    access = Access("secret", "app", "given")
    assert access.fleet_token(FleetRef("f", MASTER, token_id=token_id("secret", token))) == token


def test_run_token_of_when_servers_have_none_then_it_is_derived():
    ref = FleetRef("f", MASTER, token_id=token_id("secret", None))
    assert Access("secret", "app").run_token(ref) == derived_token("secret", "f")


# -- ids of mutations ------------------------------------------------------------------------------------------------


def test_ids_when_a_task_is_tried_again_then_they_are_the_same(in_task):
    ids = MutationIds("f")
    in_task(attempt=10)
    before = [ids.next() for _ in range(3)]
    in_task(attempt=11)
    assert [ids.next() for _ in range(3)] == before


def test_ids_when_task_is_retried_in_another_process_then_same(in_task):
    in_task(attempt=10)
    before = MutationIds("f").next()
    in_task(attempt=11)
    assert MutationIds("f").next() == before


def test_ids_when_of_one_task_then_they_count_up(in_task):
    in_task()
    ids = MutationIds("f")
    assert [ids.next().number for _ in range(3)] == [0, 1, 2]


def test_ids_when_two_functions_run_in_one_task_then_they_differ(in_task, monkeypatch):
    """Each in a Python worker of its own, told apart by the handle that came with it."""
    in_task()
    created = []
    for copy in ("a", "b"):
        monkeypatch.setattr(task, "_function", task._Function())
        task.record_use(copy)
        created.append(MutationIds("f").next())
    assert created[0] != created[1]


def test_ids_when_more_handles_come_then_first_names_function(in_task):
    in_task()
    task.record_use("a")
    before = MutationIds("f").next()
    task.record_use("b")
    assert MutationIds("f").next() == before


@pytest.mark.parametrize("other", [{"stage": 2}, {"partition": 1}])
def test_ids_when_of_another_stage_or_partition_then_they_differ(in_task, other):
    """A Python worker runs one task after the other."""
    ids = MutationIds("f")
    in_task(attempt=1)
    mine = ids.next()
    in_task(**{"attempt": 2, **other})
    assert ids.next() != mine


def test_ids_when_in_a_task_then_they_name_application_and_stage(in_task):
    in_task(stage=7, access=Access("secret", "app-1"))
    id = MutationIds("f").next()
    assert (id.series, id.stage) == ("f/app-1", 7)
    assert id.scope.startswith("f/app-1/7/0/")


def test_ids_when_of_another_spark_application_then_they_differ(in_task):
    """Its stages begin at 0 again."""
    created = []
    for application in ("app-1", "app-2"):
        in_task(access=Access("secret", application))
        created.append(MutationIds("f").next())
    assert created[0] != created[1]


def test_ids_when_handle_is_unpickled_in_function_then_ignored(in_task):
    """Another attempt may have it from an earlier task, in a broadcast; the first that is used is the same in both."""
    in_task(attempt=1)
    task.record_unpickled("b")
    task.record_use("a")
    unpickled = MutationIds("f").next()
    in_task(attempt=2)
    task.record_use("a")
    assert MutationIds("f").next() == unpickled


def test_ids_when_of_another_fleet_then_they_differ(in_task):
    in_task()
    assert MutationIds("f").next() != MutationIds("g").next()


def test_ids_when_outside_task_then_count_in_session_scope():
    ids = MutationIds("f")
    created = [ids.next() for _ in range(3)]
    assert [id.number for id in created] == [0, 1, 2]
    assert {id.scope for id in created} == {ids.session}


def test_ids_when_earlier_ones_are_done_then_they_are_settled():
    ids = MutationIds("f")
    first, second = ids.next(), ids.next()
    ids.retire(second)
    while_first_is_under_way = ids.next()
    ids.retire(first)
    ids.retire(while_first_is_under_way)
    assert (while_first_is_under_way.settled, ids.next().settled) == (0, 3)


def test_ids_when_of_two_sessions_then_they_differ():
    assert MutationIds("f").next() != MutationIds("f").next()


def test_ids_when_threads_ask_together_then_none_comes_twice():
    ids, created = MutationIds("f"), []

    def ask():
        created.extend(ids.next() for _ in range(500))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(created)) == 2000


def test_ids_when_ctrl_c_interrupts_wait_then_later_ones_settle(fleet, target, monkeypatch):
    monkeypatch.setattr(async_writer, "WINDOW_PLANS", 1)
    over = session_over(fleet)
    interrupt = threading.Timer(0.2, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    with over.async_writer.hold_back([plans.pull(target, 0, 10)]) as reading:
        over.dispatch.run_later(add_ones(target))
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            over.dispatch.run_later(add_ones(target))
    over.async_writer.forget(reading)
    over.dispatch.flush()
    over.dispatch.run([add_ones(target)])
    last = requests(fleet)[-1].id
    assert last.settled == last.number
    assert values(fleet, target) == [2.0] * 10
