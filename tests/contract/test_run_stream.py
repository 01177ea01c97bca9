"""A run's server and its workers, over real connections."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from faults.proxy import PROXY_HOST, SERVER_HOST, Network, Proxy

from ps2.config import Binding, WireConfig, split_address
from ps2.errors import (
    AuthError,
    LimitError,
    OutOfRangeError,
    RolledBack,
    StoppedError,
    UnavailableError,
    WorkerError,
)
from ps2.protocol.pb import run_pb2 as pb
from ps2.rpc import run_control
from ps2.rpc.run_control import ClockTimes, Logged, LogLine, LogLines, Report, RunControl
from ps2.run.clocks import Clocks
from ps2.run.run_server import RunServer
from ps2.run.state import RunState
from ps2.run.worker_log import WORKERS
from ps2.transport.worker_channel import LENGTH, WorkerChannel
from tests.certificates import write
from tests.ports import free_port

TOKEN = "token"
# For what comes at once, on a machine that others use too.
ANSWER_S = 60.0
NO_TIME = ClockTimes(0, 0, 0, 0, 0, 0)

# Joins as rank 0, says so, and asks for the value of a point; then it holds its rank until it is killed.
CLIENT = """
import sys
from ps2.rpc.run_control import RunControl

control = RunControl(sys.argv[1], "token")
control.join(0, 100, "host", 1)
print(control.once(0, 0), flush=True)
sys.stdin.read()
"""


class Ignores:
    """A listener of a run that nobody drives."""

    def clock_due(self): ...
    def logged(self, rank, metric): ...
    def failed(self): ...


@pytest.fixture
def stack():
    with ExitStack() as created:
        yield created


@pytest.fixture
def start(stack):
    """``start(workers, staleness, host)``: a run, and the address of its server."""

    def make(workers, staleness=0, host="127.0.0.1", calls=False):
        run = RunState(workers, Clocks(workers, staleness, calls=calls), Ignores())
        server = RunServer(run, Binding(host, host), TOKEN, WireConfig())
        stack.callback(server.stop)
        stack.callback(run.fail, StoppedError("the test is over"))
        return run, server.address

    return make


@pytest.fixture
def join(stack):
    """``join(address, rank, attempt)``: a worker that holds its rank."""

    def make(address, rank, attempt=None):
        control = controlled(stack, address)
        control.join(rank, rank if attempt is None else attempt, "host", 1)
        return control

    return make


@pytest.fixture
def pool():
    with ThreadPoolExecutor(64) as created:
        yield created


def controlled(stack, address, token=TOKEN):
    control = RunControl(address, token)
    stack.callback(control.close)
    return control


def conversation(stack, address):
    created = WorkerChannel(address, TOKEN, run_control.NAME, pb.CoordinatorMessage, WireConfig())
    stack.callback(created.close)
    return created


def test_join_when_the_token_is_wrong_then_is_refused(start, stack):
    _, address = start(1)
    with pytest.raises(AuthError, match="does not know the fleet's token"):
        controlled(stack, address, "wrong").join(0, 1, "host", 1)


def test_join_when_the_rank_does_not_exist_then_is_refused(start, join):
    _, address = start(2)
    with pytest.raises(OutOfRangeError, match="rank 2: this run has 2 workers"):
        join(address, 2)


def test_stream_when_first_message_is_not_join_then_refused(start, stack):
    _, address = start(1)
    answer = conversation(stack, address).ask(pb.WorkerMessage(note=pb.Note()))
    assert answer.error.type == "ProtocolError"
    assert "first message: expected Join, got note" in answer.error.message


def test_stream_when_join_comes_twice_then_is_refused(start, stack):
    _, address = start(1)
    channel = conversation(stack, address)
    channel.ask(pb.WorkerMessage(join=pb.Join()))
    answer = channel.ask(pb.WorkerMessage(join=pb.Join()))
    assert answer.error.type == "ProtocolError"
    assert "message after Join: expected a request, got join" in answer.error.message


def test_workers_when_many_then_all_finish_their_clocks(start, join, pool):
    run, address = start(64, staleness=1)

    def work(rank):
        control = join(address, rank)
        for clock in range(1, 6):
            assert control.arrive(clock, clock, 0, None).clock == clock
            control.barrier(2 * clock + 1, 0)
            value = control.once(2 * clock + 1, 1)
            if value is None:
                value = control.send_once(2 * clock + 1, 1, b"%d" % clock)
            assert value == b"%d" % clock
        control.leave(b"%d" % rank)

    for finished in [pool.submit(work, rank) for rank in range(64)]:
        finished.result(ANSWER_S)
    assert run.results == {rank: b"%d" % rank for rank in range(64)}


def test_client_when_killed_then_next_attempt_makes_the_value(start, join, pool, until):
    run, address = start(2)
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert client.stdout.readline() == "None\n"
        other = join(address, 1)
        value = pool.submit(other.once, 0, 0)
        waiting = pool.submit(join, address, 0, 101)
        until(lambda: run.leases.waiting and run.blocked, "both wait")
    finally:
        client.kill()
        client.communicate()
    control = waiting.result(ANSWER_S)
    assert control.once(0, 0) is None
    control.send_once(0, 0, b"value")
    assert value.result(ANSWER_S) == b"value"


def test_join_when_the_rank_is_done_then_says_so(start, stack, join, pool, until):
    run, address = start(1)
    join(address, 0).leave(b"result")
    assert controlled(stack, address).join(0, 7, "host", 1).done
    assert run.results == {0: b"result"}


def test_leave_when_result_is_too_large_then_can_report_failure(start, join):
    run, address = start(1)
    control = join(address, 0)
    with pytest.raises(LimitError, match=r"the worker's result takes 67108865 bytes, pickled"):
        control.leave(bytes((64 << 20) + 1))
    control.fail("LimitError", NO_TIME, fatal=False)
    assert run.failures == {0: (0, "LimitError")}


def test_leave_when_result_is_at_limit_then_arrives_whole(start, join):
    run, address = start(1)
    result = bytes(64 << 20)
    join(address, 0).leave(result)
    assert run.results[0] == result


def test_leave_when_fleet_rolled_back_then_attempt_fails(start, join, pool, until):
    run, address = start(2)
    run.add_cut("checkpoint", run.cut())
    control = join(address, 0)
    ask = pool.submit(control.leave, b"")
    until(lambda: run.results, "rank 0 has returned")
    run.roll_back(1, "checkpoint")
    with pytest.raises(RolledBack, match="its next attempt continues from there"):
        ask.result(ANSWER_S)
    control.fail("RolledBack", NO_TIME, fatal=False)
    assert run.failures == {0: (0, "RolledBack")}


def test_ask_when_the_run_has_ended_then_it_is_refused_for_good(start, join):
    run, address = start(1)
    control = join(address, 0)
    run.fail(WorkerError("rank 3 failed"))
    for _ in range(2):
        with pytest.raises(StoppedError, match="the run has ended: rank 3 failed"):
            control.arrive(1, 1, 0, None)


def test_ask_when_others_returned_too_early_then_says_so(start, join, pool):
    _, address = start(2)
    controls = [join(address, rank) for rank in range(2)]
    leaving = pool.submit(controls[0].leave, b"")
    with pytest.raises((WorkerError, StoppedError), match="rank 0 returned in clock 0"):
        controls[1].arrive(1, 1, 0, None)
    with pytest.raises((WorkerError, StoppedError), match="rank 0 returned in clock 0"):
        leaving.result(ANSWER_S)


# -- connections that are cut --------------------------------------------------------------------------------------


@pytest.fixture
def proxied(start, stack):
    """A run of two workers, a proxy before it, and the proxy's address."""
    run, address = start(2, host=SERVER_HOST)
    port = int(address.rpartition(":")[2])
    proxy = Proxy(Network(), 0, (port, free_port()))
    stack.callback(proxy.close)
    return run, proxy, f"{PROXY_HOST}:{port}"


def test_connection_when_cut_between_questions_then_continues(proxied, join, until):
    run, proxy, address = proxied
    control = join(address, 0)
    proxy.cut()
    until(lambda: not run.leases._by_rank, "the rank is free")
    assert control.arrive(0, 0, 0, None).clock == 0


def test_connection_when_cut_while_worker_waits_then_is_answered(proxied, join, pool, until):
    run, proxy, address = proxied
    first, second = join(address, 0), join(address, 1)
    asks = [
        (lambda control: control.arrive(1, 1, 0, None), lambda: run.clocks.waiting),
        (lambda control: control.barrier(3, 0), lambda: run.blocked),
        (lambda control: control.leave(b"result"), lambda: run.results),
    ]
    for ask, waits in asks:
        answer = pool.submit(ask, first)
        until(waits, "the first one waits")
        lease = run.leases._by_rank[0]
        proxy.cut()
        until(lambda lease=lease: lease.revoked, "the rank is free")
        ask(second)
        answer.result(ANSWER_S)
    assert run.results == {0: b"result", 1: b"result"}


def test_connection_when_cut_as_value_is_made_then_maker_stays(proxied, join, pool, until):
    run, proxy, address = proxied
    first, second = join(address, 0), join(address, 1)
    assert first.once(0, 0) is None
    answer = pool.submit(second.once, 0, 0)
    until(lambda: run.blocked, "the second one waits")
    proxy.cut()
    assert first.send_once(0, 0, b"value") == b"value"
    assert answer.result(ANSWER_S) == b"value"


def test_connection_when_cut_repeatedly_then_all_counts_once(proxied, join, pool, caplog):
    run, proxy, address = proxied
    clocks = 60

    def work(rank):
        control = join(address, rank)
        for clock in range(clocks):
            # At some moment of this clock; the one before has come to its end, so that each meets a connection.
            cut = pool.submit(proxy.cut) if rank == 0 and clock % 5 == 0 else None
            times = ClockTimes(clock, 0, 0, 0, 0, 0)
            reports = [Report(clock, "sum", b"%d" % clock)]
            lines = LogLines((LogLine(logging.WARNING, "users", "a line", clock),), left_out=1)
            control.take_lines = iter([lines]).__next__
            entry = control.arrive(clock + 1, clock + 1, 0, times, [Logged("loss", clock, clock)], reports=reports)
            assert entry.clock == clock + 1
            if cut is not None:
                cut.result(ANSWER_S)
        control.take_lines = LogLines
        control.leave(b"")

    for finished in [pool.submit(work, rank) for rank in range(2)]:
        finished.result(ANSWER_S)
    assert run.leases.new(0, 0, lambda: None).number > 10, "streams were cut"
    run.lines.log()
    assert run.lines.left_out == 2 * clocks
    for rank in range(2):
        assert [line.clock for line in caplog.records if line.name == WORKERS and line.rank == rank] == list(
            range(clocks)
        )
        inside = [times.clock for times in run.timeline[rank] if not times.outside]
        assert inside == list(range(clocks))
        assert [metric.clock for of, metric in run.metrics if of == rank] == list(range(clocks))
        assert [[int(one.value) for one in run.reports(clock)[rank]] for clock in range(clocks)] == [
            [clock] for clock in range(clocks)
        ]


def test_connection_when_driver_is_gone_then_attempt_gives_up(proxied, join, monkeypatch):
    _, proxy, address = proxied
    control = join(address, 0)
    monkeypatch.setattr(run_control, "GIVE_UP_S", 0.3)
    proxy.close()
    for _ in range(2):
        with pytest.raises(UnavailableError, match=f"driver of this run cannot be reached at {address}"):
            control.arrive(1, 1, 0, None)


def test_progress_when_two_poll_then_each_learns_the_others(start, join, pool):
    run, address = start(2, staleness=1)
    controls = [join(address, rank) for rank in range(2)]
    for control in controls:
        control.arrive(1, 0, 0, None)
    waiting = [pool.submit(control.arrive, 2, 1, 0, None) for control in controls[:1]]
    seen = [pool.submit(control.poll_progress, 1, 2, 0) for control in controls]
    assert [each.result(ANSWER_S).horizon for each in seen] == [2, 2]
    assert [each.result(ANSWER_S).clock for each in waiting] == [2]
    assert run.applied() == [1, 1]


def test_progress_when_the_rank_is_not_held_then_refused(start, join, stack):
    _, address = start(1)
    with pytest.raises(StoppedError, match="attempt 0 of rank 0 does not hold that rank"):
        controlled(stack, address).poll_progress(0, 1, 0)


def test_workers_when_tls_is_on_then_long_results_get_through(stack, pool, tmp_path):
    wire = WireConfig(tls=write(tmp_path))
    run = RunState(2, Clocks(2, 0), Ignores())
    server = RunServer(run, Binding(), TOKEN, wire)
    stack.callback(server.stop)
    stack.callback(run.fail, StoppedError("the test is over"))

    def work(rank):
        control = RunControl(server.address, TOKEN, wire)
        stack.callback(control.close)
        control.join(rank, rank, "host", 1)
        for clock in range(1, 20):
            assert control.arrive(clock, clock, 0, None).clock == clock
        control.leave(bytes(3 << 20))

    for finished in [pool.submit(work, rank) for rank in range(2)]:
        finished.result(ANSWER_S)
    assert [len(result) for result in run.results.values()] == [3 << 20] * 2


def test_message_when_worker_restarts_then_it_hears_all(start, join):
    run, address = start(1, calls=True)

    def told(control, clock, known):
        with ThreadPoolExecutor(1) as pool:
            entered = pool.submit(control.arrive, clock, clock, 0, None, (), known)
            while run.call_due() is None:
                assert not entered.done()
            run.publish(clock - 1, 0, b"message %d" % clock)
            run.called_back(clock - 1)
            return entered.result(5)

    first = join(address, 0, attempt=1)
    assert first.arrive(0, 0, 0, None).message == b""
    entries = [told(first, clock, clock - 1) for clock in (1, 2, 3)]
    assert [(entry.messages, entry.message) for entry in entries] == [(n, b"message %d" % n) for n in (1, 2, 3)]
    first.close()
    again = join(address, 0, attempt=2)
    entry = again.arrive(3, 3, 0, None)
    assert (entry.messages, entry.message) == (3, b"message 3")
    assert again.arrive(3, 3, 0, None, messages=3).message == b""
    assert again.messages(0, 3) == [b"message 1", b"message 2", b"message 3"]


def test_listener_when_peer_is_silent_then_serves_workers(start, join):
    _, address = start(1)
    with socket.create_connection(split_address(address)):
        assert join(address, 0).arrive(1, 1, 0, None).clock == 1


def test_listener_when_message_is_too_long_then_refused(start, stack, join):
    _, address = start(2)
    channel = conversation(stack, address)
    channel.ask(pb.WorkerMessage(join=pb.Join()))
    channel._connection.sendall(LENGTH.pack(1 << 31))
    control = join(address, 1)
    assert channel.ask(pb.WorkerMessage(note=pb.Note())).error.type == "LimitError"
    control.send_metrics([])
