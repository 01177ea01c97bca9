"""Fleets whose processes talk over TLS: local ones, launched ones, and what is said when certificates will not do."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from ps2 import DCV, PS2Conf, PS2Context
from ps2.certificates import TlsFiles
from ps2.config import new_token, tls_warning, write_token
from ps2.errors import ConfigError
from ps2.transport.tls import check_serving
from tests.certificates import write
from tests.ports import free_port
from tests.shell import Shell

DIM = 1000


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write(tmp_path_factory.mktemp("fleet"))


def given(files):
    """Settings of a driver with certificates."""
    return {"tlsCert": files.cert, "tlsKey": files.key, "tlsCa": files.ca}


def test_local_tls_fleet_when_server_dies_then_copies_use_tls(files, leaves_nothing, monkeypatch, until):
    monkeypatch.setenv("PS2_UNIX_SOCKETS", "0")
    values = np.arange(DIM, dtype=np.float64)
    with PS2Context.getOrCreate(servers=2, replicas=1, conf=PS2Conf(**given(files))) as ps:
        weight = DCV.dense(DIM, dtype="float64")
        weight.push(values)
        os.kill(ps._coordinator.fleet.launcher.pids()[0], 9)
        until(lambda: len(ps.recoveries) == 1, "the server is back", 60)
        weight.add(values)
        np.testing.assert_array_equal(weight.pull(), 2 * values)


def test_fleet_when_ipv6_literal_has_tls_then_it_recovers(tmp_path, leaves_nothing, monkeypatch, until):
    monkeypatch.setenv("PS2_UNIX_SOCKETS", "0")
    files = write(tmp_path, names=("::1",))
    with PS2Context.getOrCreate(servers=2, replicas=1, conf=PS2Conf(bindAddress="[::1]", **given(files))) as ps:
        addresses = (*ps.servers, ps._coordinator.fleet.address)
        weight = DCV.dense(DIM).fill(1.0)
        os.kill(ps._coordinator.fleet.launcher.pids()[0], 9)
        until(lambda: len(ps.recoveries) == 1, "the server is back", 60)
        assert weight.sum() == DIM
    assert all(address.startswith("[::1]:") for address in addresses)


def test_fleet_when_no_san_has_its_ipv6_literal_then_error(tmp_path, leaves_nothing):
    with pytest.raises(ConfigError, match="would reject ::1: IP address mismatch"):
        PS2Context.getOrCreate(servers=1, conf=PS2Conf(bindAddress="[::1]", **given(write(tmp_path))))


def test_local_fleet_when_environ_names_certificates_then_unused(files, leaves_nothing, monkeypatch):
    for variable, path in {"PS2_TLS_CERT": files.cert, "PS2_TLS_KEY": files.key, "PS2_TLS_CA": files.ca}.items():
        monkeypatch.setenv(variable, path)
    with PS2Context.getOrCreate(servers=1):
        assert DCV.dense(3).fill(1.0).sum() == 3


def test_driver_when_certificate_is_of_other_host_then_no_start(tmp_path, leaves_nothing):
    files = write(tmp_path, names=("driver.example",))
    with pytest.raises(ConfigError, match=r"peers that trust .* would reject 127\.0\.0\.1: IP address mismatch"):
        PS2Context.getOrCreate(servers=1, conf=PS2Conf(**given(files)))


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["tlsCa"], "give tlsCert and tlsKey as well"),
        (["tlsCert", "tlsKey"], "give tlsCa as well"),
        (["tlsCert", "tlsCa"], "needs its private key; give --tls-key"),
    ],
)
def test_a_driver_when_files_are_missing_then_they_are_named(files, names, text):
    with pytest.raises(ConfigError, match=text):
        PS2Context.getOrCreate(servers=1, conf=PS2Conf(**{name: given(files)[name] for name in names}))


def test_launch_when_given_certificates_then_commands_need_them(files, tmp_path, until):
    shell = Shell(tmp_path)
    address = f"127.0.0.1:{(port := free_port())}"
    try:
        launched = shell.launch("--servers", 1, "--port", port, *files.arguments())
        assert launched.returncode == 0, launched.stderr
        token = shell.folder / "default" / "token"
        attach = f'tokenFile="{token}", conf=PS2Conf(tlsCert="{files.cert}", tlsKey="{files.key}", tlsCa="{files.ca}"))'
        assert attach in launched.stdout
        assert shell.run("status").returncode == 0
        named = ("status", "--fleet", address, "--token-file", token)
        variables = {"PS2_TLS_CERT": files.cert, "PS2_TLS_KEY": files.key, "PS2_TLS_CA": files.ca}
        assert shell.run(*named, **variables).returncode == 0
        began_s = time.monotonic()
        plain = shell.run(*named)
        assert plain.returncode == 2
        assert plain.stderr.startswith(f"ps2: {address}: it speaks TLS"), plain.stderr
        other = write(tmp_path / "other", signed_by="another's", believed="another's")
        wrong = shell.run(*named, *other.arguments())
        assert wrong.returncode == 6
        assert wrong.stderr.startswith(f"ps2: {address}: its certificate is not trusted"), wrong.stderr
        without = shell.run(*named, "--tls-ca", files.ca)
        assert (without.returncode, "it has none; give --tls-cert" in without.stderr) == (6, True), without.stderr
        assert time.monotonic() - began_s < 30
        before = tmp_path / "before"
        write_token(before, token.read_text().strip())
        assert shell.run("token", "rotate", token).returncode == 0
        old = ("status", "--fleet", address, "--token-file", before, *files.arguments())
        assert [shell.run("status").returncode, shell.run(*old).returncode] == [0, 0]
        assert shell.run("token", "retire", token).returncode == 0
        until(lambda: shell.run(*old).returncode == 6, "the old token counts no more", 30)
        assert shell.run("status").returncode == 0
    finally:
        assert shell.run("stop").returncode == 0


def test_launch_when_certificate_has_expired_then_says_so(tmp_path):
    shell = Shell(tmp_path)
    files = write(tmp_path / "old", expired=True)
    result = shell.run("launch", "--servers", 1, "--port", free_port(), *files.arguments())
    assert (result.returncode, result.stdout) == (2, "")
    assert "certificate has expired" in result.stderr
    assert files.cert in result.stderr
    assert not (shell.folder / "default").exists()


def test_security_page_when_run_then_its_certificates_work(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    (commands,) = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    subprocess.run(["bash", "-euo", "pipefail", "-c", commands], cwd=tmp_path, check=True, capture_output=True)
    for host, others in (("localhost", "127.0.0.1"), ("driver1", "driver1")):
        files = TlsFiles(*(str(tmp_path / name) for name in (f"{host}.pem", f"{host}.key", "ca.pem")))
        check_serving(files, host, others)
    with pytest.raises(ConfigError, match="Hostname mismatch"):
        check_serving(files, "localhost")


def test_server_beyond_loopback_when_no_certificates_then_warns(tmp_path, forked, until):
    write_token(tmp_path / "token", new_token())
    log = tmp_path / "log"
    options = ("--listen", "0.0.0.0:0", "--memory-limit", "64m", "--token-file", tmp_path / "token")
    process = forked(["server", *options], log)
    try:
        until(lambda: "WARNING" in log.read_text(), "it warns", 60)
    finally:
        process.terminate()
        process.wait(20)
    warning = next(line for line in log.read_text().splitlines() if "WARNING" in line)
    assert "connections to it are not encrypted; --tls-cert, --tls-key and --tls-ca" in warning
    assert tls_warning(None, "127.0.0.1:1", "localhost:2", "[::1]:3") is None
    assert tls_warning(TlsFiles(ca="ca.pem"), "host1:7070") is None
