"""``ps2 launch``, ``status`` and ``stop`` with real processes, as a shell runs them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import socket
import stat
import struct
import subprocess
import sys
import termios
import urllib.request

import psutil
import pytest

from ps2.config import write_token
from ps2.coordinator.fleet_status import SERVER_COLUMNS
from tests.ports import free_port

PS2 = [sys.executable, "-m", "ps2.cli.main"]
START_TIMEOUT_S = 60.0
GONE_WITHIN_S = 5.0
OPS = """
from ps2.ops.table import Row, op

@op(reduce="sum")
def answer(u: Row) -> float:
    return {value}
"""


class Shell:
    """Runs ``ps2`` with a state folder of its own."""

    def __init__(self, home):
        self.folder = home / "ps2"
        self.environment = {**os.environ, "XDG_STATE_HOME": str(home), "COLUMNS": "80"}
        self.environment.pop("PS2_TOKEN_FILE", None)

    def run(self, *arguments, **variables):
        environment = {**self.environment, **variables}
        return subprocess.run(
            [*PS2, *map(str, arguments)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            check=False,
        )

    def python(self, script, **variables):
        return subprocess.run(
            [sys.executable, "-c", script],
            env={**self.environment, **variables},
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            check=False,
        )

    @contextlib.contextmanager
    def background(self, *arguments):
        process = subprocess.Popen(
            [*PS2, *map(str, arguments)],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def state(self, name="default"):
        return json.loads((self.folder / name / "fleet.json").read_text())

    def processes(self, name="default"):
        return [psutil.Process(server["process"]["pid"]) for server in self.state(name)["servers"]]


def with_operations(folder, value):
    """Write a module ``answers``; return a PYTHONPATH that has it."""
    folder.mkdir()
    (folder / "answers.py").write_text(OPS.format(value=value))
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


def ended(process):
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def mentioned_by_a_process(text):
    """Tell whether any command line of this user has the text."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if text in " ".join(process.cmdline()):
                return True
    return False


@pytest.fixture
def shell(tmp_path):
    shell = Shell(tmp_path)
    yield shell
    for folder in shell.folder.glob("*/fleet.json"):
        shell.run("stop", "--name", folder.parent.name)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def launched(home):
    """Two detached servers, with a module of operations, that live as long as this module; tests only look at them."""
    shell = Shell(home)
    shell.modules = with_operations(home / "modules", 21)
    # The one before is free too.
    shell.port = free_port(3) + 1
    try:
        shell.launch = shell.run(
            *("launch", "--servers", 2, "--detach", "--port", shell.port, "--memory-limit", "1g", "--ops", "answers"),
            PYTHONPATH=shell.modules,
        )
        assert shell.launch.returncode == 0, shell.launch.stderr
        shell.addresses = [f"127.0.0.1:{shell.port}", f"127.0.0.1:{shell.port + 1}"]
        shell.fleet = ",".join(shell.addresses)
        shell.token_file = shell.folder / "default" / "token"
        yield shell
    finally:
        shell.run("stop")


def test_launch_when_detached_then_tells_how_to_attach(launched):
    line = f'PS2Context.getOrCreate(spark, fleet="{launched.fleet}", tokenFile="{launched.token_file}")'
    assert line in launched.launch.stdout


def test_launch_when_no_token_is_given_then_writes_private_one(launched):
    assert stat.S_IMODE(launched.token_file.stat().st_mode) == 0o600


def test_launch_when_detached_then_each_server_has_own_session(launched):
    pids = [process.pid for process in launched.processes()]
    assert [os.getsid(pid) for pid in pids] == pids


def test_launch_when_token_is_made_then_not_on_command_lines(launched):
    token = launched.token_file.read_text().strip()
    assert not any(token in " ".join(process.cmdline()) for process in launched.processes())


def test_launch_when_the_name_is_taken_then_names_ps2_stop(launched):
    again = launched.run("launch", "--port", free_port(), "--servers", 1)
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr == "ps2: fleet 'default' is running; end it with 'ps2 stop', or choose another --name\n"


def test_launch_when_port_is_taken_then_fails_with_log(launched):
    result = launched.run("launch", "--name", "other", "--servers", 2, "--port", launched.port - 1)
    first, *tail = result.stderr.splitlines()
    assert result.returncode == 1
    assert first.startswith(f"ps2: server 1 ({launched.addresses[0]}) did not start: cannot listen on")
    assert any("in use" in line for line in tail)
    assert not (launched.folder / "other").exists()
    assert not mentioned_by_a_process(str(launched.folder / "other"))


def test_launch_when_metrics_are_on_then_servers_get_next_ports(shell):
    port = free_port(4)
    result = shell.run("launch", "--servers", 2, "--detach", "--port", port, "--metrics-port", port + 2)
    assert result.returncode == 0, result.stderr
    found = json.loads(shell.run("status", "-o", "json").stdout)["servers"]
    for index, server in enumerate(found):
        assert f"{server['address']}  pid {server['pid']}  metrics on port {port + 2 + index}\n" in result.stdout
        with urllib.request.urlopen(f"http://127.0.0.1:{port + 2 + index}/metrics", timeout=10) as answer:
            assert f'server_id="{server["server_id"]}"' in answer.read().decode()


def test_launch_when_metrics_port_is_taken_then_names_option(shell):
    port = free_port(4)
    with socket.create_server(("127.0.0.1", port + 3)):
        result = shell.run("launch", "--servers", 2, "--detach", "--port", port, "--metrics-port", port + 2)
    assert result.returncode == 1
    said = f"did not start: cannot serve metrics on port {port + 3} of 127.0.0.1 (--metrics-port)"
    assert result.stderr.startswith(f"ps2: server 1 (127.0.0.1:{port + 1}) {said}")
    assert not (shell.folder / "default").exists()


@pytest.mark.parametrize("first", [7069, 7071, 65535])
def test_launch_when_metrics_ports_overlap_then_exits_2(shell, first):
    result = shell.run("launch", "--servers", 2, "--port", 7070, "--metrics-port", first)
    assert (result.returncode, result.stderr.startswith("ps2: --metrics-port: ")) == (2, True)
    assert not (shell.folder / "default").exists()


def test_status_when_all_answer_then_has_one_plain_row_each(launched):
    result = launched.run("status")
    header, *rows = result.stdout.splitlines()
    assert (result.returncode, result.stderr) == (0, "")
    assert header.split()[:3] == ["server", "state", "up"]
    assert [row.split()[:2] for row in rows] == [[address, "running"] for address in launched.addresses]
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize("width", [60, 80, 200])
def test_status_when_terminal_is_narrow_then_shows_all_columns(launched, width):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    environment = {name: value for name, value in launched.environment.items() if name != "COLUMNS"}
    process = subprocess.Popen([*PS2, "status"], env={**environment, "TERM": "xterm"}, stdin=theirs, stdout=theirs)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the terminal is gone when nobody has it
        while part := os.read(ours, 1 << 16):
            shown += part
    os.close(ours)
    assert process.wait(START_TIMEOUT_S) == 0
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in shown.decode().splitlines()]
    assert max(map(len, lines)) <= width
    titles = [title for line in lines if line.startswith("server") for title in re.split(r"  +", line.strip())]
    assert [title for title in titles if title != "server"] == [column.title for column in SERVER_COLUMNS[1:]]
    assert "…" not in shown.decode()


def test_status_when_json_then_is_one_object(launched):
    found = json.loads(launched.run("status", "-o", "json").stdout)
    assert [server["address"] for server in found["servers"]] == launched.addresses
    assert [server["memory_limit_bytes"] for server in found["servers"]] == [1 << 30] * 2
    assert found["matrices"] == []


def test_status_when_fleet_is_addressed_then_uses_token_variable(launched):
    result = launched.run("status", "--fleet", launched.fleet, PS2_TOKEN_FILE=str(launched.token_file))
    assert result.returncode == 0, result.stderr


def test_status_when_the_token_is_not_the_fleets_then_exits_6(launched, tmp_path):
    write_token(tmp_path / "token", "not-the-token-of-this-fleet")
    result = launched.run("status", "--fleet", launched.fleet, "--token-file", tmp_path / "token")
    assert (result.returncode, result.stdout) == (6, "")
    assert result.stderr.startswith(f"ps2: {launched.addresses[0]}: this is not the fleet's token")
    assert result.stderr.count("\n") == 1


def test_status_when_no_token_is_given_then_exits_6_and_says_how(launched):
    result = launched.run("status", "--fleet", launched.fleet)
    assert result.returncode == 6
    assert "--token-file" in result.stderr


def test_stop_when_token_is_wrong_then_exits_6_and_stops_nothing(launched, tmp_path):
    write_token(tmp_path / "token", "not-the-token-of-this-fleet")
    result = launched.run("stop", "--token-file", tmp_path / "token")
    assert result.returncode == 6
    assert not any(ended(process) for process in launched.processes())


def test_status_when_one_server_is_silent_then_exits_4(launched):
    nowhere = f"127.0.0.1:{free_port()}"
    result = launched.run(
        "status", "--fleet", f"{launched.addresses[0]},{nowhere}", "--token-file", launched.token_file
    )
    assert result.returncode == 4
    assert [row.split()[:2] for row in result.stdout.splitlines()[1:]] == [
        [launched.addresses[0], "running"],
        [nowhere, "unreachable"],
    ]
    assert nowhere in result.stderr


def test_attach_when_another_process_leaves_then_fleet_runs_on(launched):
    script = f"""
import subprocess, sys
from ps2 import DCV, PS2Context
with PS2Context.getOrCreate(fleet={launched.fleet!r}, tokenFile={str(launched.token_file)!r}):
    weight = DCV.dense(1000, 2, name="weight").fill(2.0)
    assert weight.sum() == 2000.0
    clicks = DCV.sparse(2**63 - 1, 1, layout="column").add([1.0, 2.0], [7, 2**40])
    subprocess.run([*{PS2!r}, "status", "-o", "json"], check=True)
    print("---", flush=True)
    subprocess.run([*{PS2!r}, "status"], check=True)
"""
    result = launched.python(script)
    assert result.returncode == 0, result.stderr
    text, table = result.stdout.split("---\n")
    found = json.loads(text)
    dense, sparse = found["matrices"]
    assert {"kind": "dense", "dim": 1000, "rows": 2, "active_keys": None, "servers": 2}.items() <= dense.items()
    assert {"kind": "sparse", "dim": 2**63 - 1, "rows": 1, "active_keys": 2}.items() <= sparse.items()
    assert (dense["layout"], sparse["layout"]) == ("row", "column")
    columns = [line.split()[1:3] for line in table.split("\n\n")[1].splitlines()]
    assert columns == [["kind", "layout"], ["dense", "row"], ["sparse", "column"]]
    assert (dense["names"], sparse["names"]) == (["weight"], [])
    done = {operation["name"]: operation for operation in found["operations"]}
    assert (done["fill"]["count"], done["sum"]["count"], done["scatter_add"]["keys"]) == (2, 2, 2)
    after = json.loads(launched.run("status", "-o", "json").stdout)
    assert [server["matrices"] for server in after["servers"]] == [0, 0]


ATTACH = """
from ps2 import DCV, PS2Context, PS2Error
try:
    with PS2Context.getOrCreate(fleet={fleet!r}, tokenFile={token!r}, ops=["answers"]):
        print(DCV.dense(10).zip().apply("answer"))
except PS2Error as error:
    print(f"{{type(error).__name__}}: {{error}}")
"""


def test_launch_when_ops_module_is_named_then_drivers_call_it(launched):
    script = ATTACH.format(fleet=launched.fleet, token=str(launched.token_file))
    result = launched.python(script, PYTHONPATH=launched.modules)
    assert result.stdout == "42.0\n", result.stderr


def test_attach_when_ops_modules_differ_then_error_names_both(launched, tmp_path):
    script = ATTACH.format(fleet=launched.fleet, token=str(launched.token_file))
    result = launched.python(script, PYTHONPATH=with_operations(tmp_path / "other", 7))
    said = rf"ConfigError: .*'answer' of module 'answers' differs between the two sides.* on .*{launched.addresses[0]}"
    assert re.match(said, result.stdout), result.stderr


def test_launch_when_ops_module_import_fails_then_gives_reason(shell):
    result = shell.run("launch", "--servers", 1, "--port", free_port(), "--ops", "nowhere_to_be_found")
    assert result.returncode == 1
    assert "ops: module 'nowhere_to_be_found' cannot be imported: ModuleNotFoundError" in result.stderr
    assert not (shell.folder / "default").exists()


@pytest.mark.parametrize("verb", ["status", "stop"])
def test_command_when_nothing_was_launched_then_exits_4(shell, verb):
    result = shell.run(verb)
    assert result.returncode == 4
    assert result.stderr == (
        "ps2: no fleet named 'default' was launched here; start one with 'ps2 launch', or name one with --fleet\n"
    )


def test_stop_when_nobody_is_there_then_exits_4(shell):
    nowhere = f"127.0.0.1:{free_port()}"
    result = shell.run("stop", "--fleet", nowhere)
    assert result.returncode == 4
    assert nowhere in result.stderr


def test_stop_when_fleet_runs_then_no_process_or_folder_is_left(shell):
    shell.run("launch", "--servers", 1, "--detach", "--name", "ads", "--port", free_port())
    processes = shell.processes("ads")
    result = shell.run("stop", "--name", "ads")
    assert result.returncode == 0, result.stderr
    assert all(ended(process) for process in processes)
    assert not (shell.folder / "ads").exists()


def test_stop_when_servers_are_addressed_then_waits_for_exit(shell):
    port = free_port()
    shell.run("launch", "--servers", 1, "--detach", "--port", port)
    processes = shell.processes()
    result = shell.run("stop", "--fleet", f"127.0.0.1:{port}", "--token-file", shell.folder / "default" / "token")
    assert (result.returncode, result.stdout) == (0, f"stopped 127.0.0.1:{port}\n")
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
    for process in processes:
        process.wait(GONE_WITHIN_S)


def test_stop_when_servers_were_killed_then_cleans_up(shell, until):
    shell.run("launch", "--servers", 1, "--detach", "--port", free_port())
    (server,) = shell.processes()
    server.kill()
    until(lambda: ended(server), "the server ended")
    result = shell.run("stop")
    assert (result.returncode, "had ended before" in result.stdout) == (0, True)
    assert not (shell.folder / "default").exists()


@contextlib.contextmanager
def foreground(shell, servers):
    """``ps2 launch`` in the foreground, once it has said that its servers answer, and their processes."""
    with shell.background("launch", "--servers", servers, "--port", free_port(servers)) as launcher:
        line = launcher.stdout.readline()
        assert "until Ctrl-C" in line, launcher.communicate()[1]
        processes = shell.processes()
        try:
            yield launcher, processes
        finally:
            launcher.kill()
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()


@pytest.mark.parametrize(("number", "servers", "code"), [(signal.SIGINT, 2, 130), (signal.SIGTERM, 1, 0)])
def test_foreground_launch_when_interrupted_then_stops_servers(shell, number, servers, code):
    with foreground(shell, servers) as (launcher, processes):
        launcher.send_signal(number)
        _, errors = launcher.communicate(timeout=10)
        assert (launcher.returncode, errors.strip()) == (code, "")
        assert all(ended(process) for process in processes)
        assert not (shell.folder / "default").exists()


def test_foreground_launch_when_killed_then_servers_end(shell, until):
    with foreground(shell, 2) as (launcher, processes):
        launcher.kill()
        until(lambda: all(ended(process) for process in processes), "the servers ended", GONE_WITHIN_S)


def test_launch_when_server_dies_then_shows_log_and_exits_1(shell):
    with foreground(shell, 2) as (launcher, processes):
        processes[1].kill()
        _, errors = launcher.communicate(timeout=10)
        assert launcher.returncode == 1
        assert "server 1 (127.0.0.1:" in errors.splitlines()[0]
        assert "died: ended by SIGKILL" in errors.splitlines()[0]
        assert "listening on" in errors
        assert ended(processes[0])


def test_launch_when_stopped_by_ps2_stop_then_exits_0(shell):
    with foreground(shell, 1) as (launcher, _):
        result = shell.run("stop")
        _, errors = launcher.communicate(timeout=10)
        assert (result.returncode, launcher.returncode, errors) == (0, 0, "")


def test_launch_when_interrupted_at_start_then_exits_130(shell, until):
    with shell.background("launch", "--servers", 1, "--detach", "--port", free_port()) as launcher:
        until((shell.folder / "default" / "server-0.log").exists, "the server was started")
        launcher.send_signal(signal.SIGINT)
        _, errors = launcher.communicate(timeout=60)  # what the server needs is being imported
        assert (launcher.returncode, errors.strip()) == (130, "")
        assert not (shell.folder / "default").exists()
