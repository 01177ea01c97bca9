"""Fleets that cannot be started, reached or used any more: each says why, and leaves nothing behind."""

from __future__ import annotations

import socket
import sys

import numpy as np
import pytest

from ps2 import DCV, PS2Conf, PS2Context
from ps2.config import new_token, write_token
from ps2.coordinator.launchers import local
from ps2.coordinator.launchers.local import LocalLauncher
from ps2.coordinator.launchers.processes.child import ForkServer
from ps2.errors import AuthError, LaunchError, LimitError, NotColocatedError, StoppedError, UnavailableError, UsageError
from tests.ports import free_port

pytestmark = pytest.mark.usefixtures("leaves_nothing")


@pytest.fixture(scope="module")
def left_over(leaves_nothing):
    """A context that was stopped, and a vector of it."""
    with PS2Context.getOrCreate(servers=1) as ps:
        return ps, DCV.dense(3)


@pytest.fixture(scope="module")
def running(leaves_nothing):
    """(addresses, token file) of two servers that wait for somebody to attach."""
    with PS2Context.getOrCreate(servers=2) as launcher:
        # Any server answers whoever has its token, so a local fleet will do, once its coordinator has let it go.
        PS2Context._active = None
        launcher._coordinator.fleet.fleet_control.release()
        yield launcher.servers, str(launcher._coordinator.fleet.launcher._token_file)


@pytest.fixture
def wrong_token(tmp_path):
    write_token(tmp_path / "wrong", new_token())
    return str(tmp_path / "wrong")


@pytest.mark.parametrize(
    "use",
    [
        lambda u: u.pull(),
        lambda u: u.pull([]),
        lambda u: u.push([1, 2, 3]),
        lambda u: u.sum(),
        lambda u: u + u,
        lambda u: u.derive(),
        lambda u: u.free(),
        lambda u: u.matrix(),
        lambda u: u.zip().mapPartitions(len),
    ],
    ids=["pull", "pull_nothing", "push", "sum", "operator", "derive", "free", "matrix", "map"],
)
def test_vector_when_its_context_was_stopped_then_stopped_error(left_over, use):
    _, u = left_over
    with pytest.raises(StoppedError, match=rf"PS2Context of this vector \(fleet {u._fleet.id}\) was stopped"):
        use(u)


@pytest.mark.parametrize(
    "use",
    [lambda ps: DCV.dense(3), lambda ps: DCV.sparse(3), lambda ps: ps.batch(), lambda ps: ps.waitForSlots()],
    ids=["dense", "sparse", "batch", "slots"],
)
def test_context_when_stopped_then_stopped_error(left_over, use):
    ps, _ = left_over
    with pytest.raises(StoppedError, match=r"there is no PS2Context here|this PS2Context was stopped"):
        use(ps)


def test_vectors_when_of_two_contexts_then_refused():
    with PS2Context.getOrCreate(servers=1):
        old = DCV.dense(3)
    with PS2Context.getOrCreate(servers=1):
        new = DCV.dense(3)
        for use in (lambda: new.add(old), lambda: new.dot(old), lambda: new.zip(old).apply("add"), lambda: new + old):
            with pytest.raises(UsageError, match=r"belongs to another PS2Context"):
                use()
        assert not new.isColocated(old)


def test_operation_when_not_colocated_and_strict_then_error():
    with PS2Context.getOrCreate(servers=2, conf=PS2Conf(strict=True)):
        u, v = DCV.dense(3), DCV.dense(3, partitionsPerServer=2)
        for use in (lambda: u.add(v), lambda: u.dot(v), lambda: u.zip(v).apply("add"), lambda: u * v):
            with pytest.raises(
                NotColocatedError, match=r"DCV.* and DCV.* are not co-located \(.*partitioned differently, .*; create"
            ):
                use()
        assert u.add(u.derive()).sum() == 0


def test_memory_limit_when_given_then_servers_keep_to_it():
    with PS2Context.getOrCreate(servers=2, memoryLimit=1 << 20):
        u = DCV.dense(200_000, 1)
        with pytest.raises(
            LimitError, match=r"needs 2,000,000 bytes, and [\d,]+ are left of the server's limit of 1,048,576"
        ):
            DCV.dense(1_000_000, 1)
        assert u.fill(1).sum() == 200_000


def test_derive_when_matrix_cannot_grow_then_limit_error():
    with PS2Context.getOrCreate(servers=2, memoryLimit=1 << 20):
        vectors = [DCV.dense(50_000, 1)]
        with pytest.raises(LimitError, match=r"growing to \d+ rows of 25,000 columns"):
            vectors.extend(vectors[0].derive().fill(number) for number in range(1, 100))
        assert [vector.max() for vector in vectors] == list(range(len(vectors)))
        assert len(vectors) > 3
        vectors.pop(1).free()
        assert vectors[0].derive().nnz() == 0


def test_sparse_when_keys_exceed_memory_then_limit_error():
    with PS2Context.getOrCreate(servers=2, memoryLimit=1 << 20):
        u = DCV.sparse(2**63, 1).push([1, 2], [3, 4])
        with pytest.raises(LimitError, match="growing to 1 rows"):
            u.push(np.ones(100_000), np.arange(100_000))
        assert u.pull([3, 4]).tolist() == [1, 2]
        assert u.add([1], [2**62]).sum() == 4


def test_push_when_larger_than_memory_left_then_limit_error():
    with PS2Context.getOrCreate(servers=1, memoryLimit=1 << 20):
        u = DCV.dense(200_000, 1)
        with pytest.raises(LimitError, match="left of the server's limit"):
            u.push(np.ones(200_000))
        assert u.push(np.ones(1000), np.arange(1000)).sum() == 1000


def test_start_when_server_fails_then_launch_error_has_log_tail(tmp_path, monkeypatch):
    (tmp_path / "psutil.py").write_text("raise ImportError('psutil is broken here')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(local, "ForkServer", ForkServer)
    with pytest.raises(LaunchError, match=r"(?s)server 0 cannot be started: .*psutil is broken here"):
        PS2Context.getOrCreate(servers=2)
    monkeypatch.undo()
    with PS2Context.getOrCreate(servers=1):
        assert DCV.dense(3).sum() == 0


def test_start_when_port_is_in_use_then_launch_error_names_it(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        arguments = LocalLauncher._arguments
        monkeypatch.setattr(
            LocalLauncher, "_arguments", lambda *of: [word.replace(":0", f":{port}") for word in arguments(*of)]
        )
        with pytest.raises(LaunchError, match=rf"cannot listen on 127.0.0.1:{port}: the port is in use"):
            PS2Context.getOrCreate(servers=1)


def test_start_when_python_is_missing_then_launch_error(monkeypatch):
    monkeypatch.setattr(local, "ForkServer", ForkServer)
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(
        LaunchError, match=r"server 0 cannot be started: .*No such file or directory: '/nonexistent/python'"
    ):
        PS2Context.getOrCreate(servers=1)


@pytest.mark.parametrize("bind", ["nonsense.invalid", "192.0.2.1"])
def test_start_when_address_is_not_local_then_launch_error(bind):
    with pytest.raises(LaunchError, match=rf"cannot listen on {bind}:0"):
        PS2Context.getOrCreate(servers=1, conf=PS2Conf(bindAddress=bind))


def test_attach_when_token_matches_then_leaves_servers_empty(running):
    addresses, token = running
    with PS2Context.getOrCreate(fleet=",".join(addresses), tokenFile=token) as ps:
        assert ps.servers == addresses
        u = DCV.dense(10).fill(2)
        assert u.sum() == 20
        assert PS2Context.getOrCreate(fleet=addresses, tokenFile=token) is ps
    with PS2Context.getOrCreate(fleet=addresses, tokenFile=token) as ps:
        assert all(not ps._coordinator.fleet.master._servers.status(address).matrices for address in addresses)


@pytest.mark.parametrize(
    ("name", "text"),
    [(None, "no token given; pass the token file"), ("wrong", "this is not the fleet's token; pass the token file")],
)
def test_attach_when_token_is_not_the_fleets_then_auth_error(running, wrong_token, name, text):
    with pytest.raises(AuthError, match=text):
        PS2Context.getOrCreate(fleet=running[0], tokenFile=wrong_token if name else None)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, r"token file .*/nothing: No such file or directory"),
        ("", r"expected a line of at least 16 printable ASCII characters"),
        ("short\n", r"expected a line of at least 16 printable ASCII characters, got 5 characters"),
        ("nul\0" * 8, r"expected a line of at least 16 printable ASCII characters, got 32 characters"),
        ("two words that are long enough\n", r"expected a line of at least 16 printable ASCII characters"),
    ],
)
def test_attach_when_token_file_is_wrong_then_auth_error(tmp_path, content, text):
    path = tmp_path / "nothing"
    if content is not None:
        path.write_text(content)
        path.chmod(0o600)
    with pytest.raises(AuthError, match=text):
        PS2Context.getOrCreate(fleet="127.0.0.1:7070", tokenFile=str(path))


def test_attach_when_nobody_answers_then_error_names_address(wrong_token):
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(UnavailableError, match=f"no server answers at {address}"):
        PS2Context.getOrCreate(fleet=address, tokenFile=wrong_token)


def test_attach_when_a_server_is_named_twice_then_launch_error(running):
    addresses, token = running
    with pytest.raises(LaunchError, match=f"{addresses[0]}: this server is named twice in the fleet"):
        PS2Context.getOrCreate(fleet=[addresses[0], addresses[0]], tokenFile=token)
