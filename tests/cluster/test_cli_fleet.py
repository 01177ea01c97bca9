"""``ps2 launch``, ``status`` and ``stop`` with real servers.

A launch of servers that stay is a process, as a shell runs it; other commands run in this one.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import socket
import stat
import subprocess
import sys
import urllib.request

import psutil
import pytest

from ps2.config import write_token
from ps2.coordinator.fleet_status import SERVER_COLUMNS
from tests.ports import free_port
from tests.shell import START_TIMEOUT_S, Shell, ended

GONE_WITHIN_S = 5.0
OPS = """
from ps2.ops.table import Row, op

@op(reduce="sum")
def answer(u: Row) -> float:
    return {value}
"""


# Three commands as three terminals see them: a process for each would take a second of imports.
ON_TERMINALS = """
import fcntl, struct, termios
from ps2.cli.main import cli
for width in (60, 80, 200):
    fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    print(f"--- {width}", flush=True)
    cli(["status"], standalone_mode=False)
"""


def with_operations(folder, value):
    """Write a module ``answers``; return a PYTHONPATH that has it."""
    folder.mkdir()
    (folder / "answers.py").write_text(OPS.format(value=value))
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


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
    """Two detached servers, with metrics and a module of operations; the last test stops them, and others only look."""
    shell = Shell(home)
    shell.modules = with_operations(home / "modules", 21)
    # The one before is free too.
    shell.port = free_port(5) + 1
    shell.metrics_port = shell.port + 2
    options = {"--servers": 2, "--port": shell.port, "--metrics-port": shell.metrics_port, "--ops": "answers"}
    try:
        shell.launching = shell.launch(
            *(word for option in options.items() for word in option), "--memory-limit", "1g", PYTHONPATH=shell.modules
        )
        assert shell.launching.returncode == 0, shell.launching.stderr
        shell.addresses = [f"127.0.0.1:{shell.port}", f"127.0.0.1:{shell.port + 1}"]
        shell.fleet = ",".join(shell.addresses)
        shell.token_file = shell.folder / "default" / "token"
        yield shell
    finally:
        shell.run("stop")


def test_launch_when_detached_then_tells_how_to_attach(launched):
    line = f'PS2Context.getOrCreate(spark, fleet="{launched.fleet}", tokenFile="{launched.token_file}")'
    assert line in launched.launching.stdout


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


def test_launch_when_metrics_are_on_then_servers_get_next_ports(launched):
    result = json.loads(launched.run("status", "-o", "json").stdout)["servers"]
    for port, server in enumerate(result, launched.metrics_port):
        line = f"{server['address']}  pid {server['pid']}  metrics on port {port}\n"
        assert line in launched.launching.stdout
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert f'server_id="{server["server_id"]}"' in answer.read().decode()


def test_launch_when_metrics_port_is_taken_then_names_option(shell):
    port = free_port(4)
    with socket.create_server(("127.0.0.1", port + 3)):
        result = shell.run("launch", "--servers", 2, "--port", port, "--metrics-port", port + 2)
    assert result.returncode == 1
    message = f"did not start: cannot serve metrics on port {port + 3} of 127.0.0.1 (--metrics-port)"
    assert result.stderr.startswith(f"ps2: server 1 (127.0.0.1:{port + 1}) {message}")
    assert not (shell.folder / "default").exists()


@pytest.mark.parametrize("first", [7069, 7071, 65535])
def test_launch_when_metrics_ports_overlap_then_exits_2(shell, first):
    result = shell.run("launch", "--servers", 2, "--port", 7070, "--metrics-port", first)
    assert (result.returncode, result.stderr.startswith("ps2: --metrics-port: ")) == (2, True)
    assert not (shell.folder / "default").exists()


def test_status_when_all_answer_then_has_one_plain_row_each(launched):
    result = launched.run("status")
    header, *rows = result.stdout.partition("\n\n")[0].splitlines()
    assert (result.returncode, result.stderr) == (0, "")
    assert header.split()[:3] == ["server", "state", "up"]
    assert [row.split()[:2] for row in rows] == [[address, "running"] for address in launched.addresses]
    assert "\x1b" not in result.stdout


def test_status_when_terminals_are_narrow_then_shows_all_columns(launched):
    ours, theirs = pty.openpty()
    environment = {name: value for name, value in launched.environment.items() if name != "COLUMNS"}
    command = [sys.executable, "-c", ON_TERMINALS]
    process = subprocess.Popen(command, env={**environment, "TERM": "xterm"}, stdin=theirs, stdout=theirs)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the terminal is gone when nobody has it
        while part := os.read(ours, 1 << 16):
            shown += part
    os.close(ours)
    assert process.wait(START_TIMEOUT_S) == 0
    assert "…" not in shown.decode()
    parts = re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()).split("--- ")[1:]
    assert len(parts) == 3
    for part in parts:
        width, *lines = part.splitlines()
        assert max(map(len, lines)) <= int(width)
        titles = [title for line in lines if line.startswith("server") for title in re.split(r"  +", line.strip())]
        assert [title for title in titles if title != "server"] == [column.title for column in SERVER_COLUMNS[1:]]


def test_status_when_json_then_is_one_object(launched):
    result = json.loads(launched.run("status", "-o", "json").stdout)
    assert [server["address"] for server in result["servers"]] == launched.addresses
    assert [server["memory_limit_bytes"] for server in result["servers"]] == [1 << 30] * 2
    assert result["matrices"] == []


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


ATTACH = """
from ps2 import DCV, PS2Context, PS2Error
try:
    with PS2Context.getOrCreate(fleet={fleet!r}, tokenFile={token!r}, ops=["answers"]):
        print(DCV.dense(10).zip().apply("answer"), flush=True)
        weight = DCV.dense(1000, 2, name="weight").fill(2.0)
        assert weight.sum() == 2000.0
        clicks = DCV.sparse(2**63 - 1, 1, layout="column").add([1.0, 2.0], [7, 2**40])
        print("attached", flush=True)
        input()
except PS2Error as error:
    print(f"{{type(error).__name__}}: {{error}}")
"""


def attaching(launched, modules):
    script = ATTACH.format(fleet=launched.fleet, token=str(launched.token_file))
    return launched.driver(script, PYTHONPATH=modules)


@pytest.fixture(scope="module")
def attached(launched):
    """What a driver prints that attaches, and what ``ps2 status`` shows while it is there, as JSON and as tables."""
    with attaching(launched, launched.modules) as driver:
        message = [driver.stdout.readline(), driver.stdout.readline()]
        assert message[1] == "attached\n", driver.communicate()
        shown = launched.run("status", "-o", "json").stdout, launched.run("status").stdout
        _, errors = driver.communicate("\n", timeout=START_TIMEOUT_S)
        assert driver.returncode == 0, errors
    return message[0], json.loads(shown[0]), shown[1]


def test_status_when_a_driver_is_attached_then_shows_matrices(attached):
    _, result, table = attached
    matrices = {matrix["dim"]: matrix for matrix in result["matrices"]}
    dense, sparse = matrices[1000], matrices[2**63 - 1]
    assert {"kind": "dense", "rows": 2, "active_keys": None, "servers": 2}.items() <= dense.items()
    assert {"kind": "sparse", "rows": 1, "active_keys": 2}.items() <= sparse.items()
    assert (dense["layout"], sparse["layout"]) == ("row", "column")
    assert (dense["names"], sparse["names"]) == (["weight"], [])
    columns = [line.split()[1:3] for line in table.split("\n\n")[1].splitlines()]
    assert [columns[0], *columns[-2:]] == [["kind", "layout"], ["dense", "row"], ["sparse", "column"]]
    finished = {operation["name"]: operation for operation in result["operations"]}
    assert (finished["fill"]["count"], finished["sum"]["count"], finished["scatter_add"]["keys"]) == (2, 2, 2)


def test_attach_when_another_process_leaves_then_fleet_runs_on(launched, attached):
    after = json.loads(launched.run("status", "-o", "json").stdout)
    assert [server["matrices"] for server in after["servers"]] == [0, 0]


def test_launch_when_ops_module_is_named_then_drivers_call_it(attached):
    assert attached[0] == "42.0\n"


def test_attach_when_ops_modules_differ_then_error_names_both(launched, tmp_path):
    with attaching(launched, with_operations(tmp_path / "other", 7)) as driver:
        output, errors = driver.communicate("\n", timeout=START_TIMEOUT_S)
    message = (
        rf"ConfigError: .*'answer' of module 'answers' differs between the two sides.* on .*{launched.addresses[0]}"
    )
    assert re.match(message, output), errors


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
        "ps2: no fleet named 'default' was launched here; start one with 'ps2 launch', or give addresses\n"
    )


def test_stop_when_nobody_is_there_then_exits_4(shell):
    nowhere = f"127.0.0.1:{free_port()}"
    result = shell.run("stop", "--fleet", nowhere)
    assert result.returncode == 4
    assert nowhere in result.stderr


def test_stop_when_servers_end_otherwise_then_cleans_up(shell, until):
    port = free_port(2)
    shell.launch("--servers", 2, "--port", port, "--no-restart")
    processes = shell.processes()
    result = shell.run("stop", "--fleet", f"127.0.0.1:{port}", "--token-file", shell.folder / "default" / "token")
    assert (result.returncode, result.stdout) == (0, f"stopped 127.0.0.1:{port}\n")
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
    processes[0].wait(GONE_WITHIN_S)
    processes[1].kill()
    until(lambda: ended(processes[1]), "the server ended")
    result = shell.run("stop")
    assert (result.returncode, "had ended already" in result.stdout) == (0, True)
    assert not (shell.folder / "default").exists()


def test_fleet_when_server_was_started_anew_then_belongs_to_it(shell, until, tmp_path):
    """A server of another fleet with the same token, at the port of one that has ended, does not."""
    write_token(token := tmp_path / "token", "t" * 20)
    port, other = free_port(2), free_port()
    for arguments in (("--servers", 2, "--port", port), ("--name", "other", "--servers", 1, "--port", other)):
        assert shell.launch(*arguments, "--token-file", token, "--no-restart").returncode == 0
    file = shell.folder / "default" / "fleet.json"
    file.write_text(file.read_text().replace(f"127.0.0.1:{port + 1}", f"127.0.0.1:{other}"))
    for process in shell.processes():
        process.kill()
    with shell.background("server", "--listen", f"127.0.0.1:{port}", "--token-file", token) as server:
        listening = f"127.0.0.1:{port}  running"
        until(lambda: listening in shell.run("status").stdout, "the server is seen")
        result = shell.run("status")
        assert (result.returncode, result.stderr) == (
            4,
            f"ps2: 1 of 2 servers unreachable: 127.0.0.1:{other}: its process has ended\n",
        )
        again = shell.launch("--servers", 1, "--port", free_port())
        assert f"fleet 'default' is running at 127.0.0.1:{port}; end it with 'ps2 stop'" in again.stderr
        result = shell.run("stop")
        assert (result.returncode, result.stdout) == (0, f"stopped 127.0.0.1:{port}\n")
        assert server.wait(GONE_WITHIN_S) == 0
    assert not (shell.folder / "default").exists()
    result = shell.run("stop", "--name", "other")
    assert result.stdout == f"stopped fleet 'other': 127.0.0.1:{other}\n"


def test_stop_when_fleet_runs_then_no_process_or_folder_is_left(launched):
    processes = launched.processes()
    result = launched.run("stop")
    assert result.returncode == 0, result.stderr
    assert all(ended(process) for process in processes)
    assert not (launched.folder / "default").exists()
