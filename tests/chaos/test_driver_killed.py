"""A driver that is killed (-9) or stopped: its own fleet ends with it, another's waits for the next driver."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
from faults import driver_app, processes
from faults.programs import running

from ps2 import PS2Context
from ps2.config import new_token, write_token
from tests.ports import free_port

APP = driver_app.__file__
START_S = 60
# A server looks for its parent twice a second, and gives requests under way two more.
ORPHAN_S = 20

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("leaves_nothing")]


@contextmanager
def external_fleet(folder, until):
    """Two servers of nobody's: their addresses and their token file."""
    token_file = folder / "token"
    write_token(token_file, new_token())
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    with ExitStack() as servers:
        for index, address in enumerate(addresses):
            command = ("-m", "ps2.cli.main", "server", "--listen", address, "--token-file", token_file)
            server = servers.enter_context(running(folder / f"server-{index}.log", *command))
            until(lambda server=server: any("listening" in line for line in server.lines()), "it listens", START_S)
        yield ",".join(addresses), token_file


def steps_of(program):
    return [int(line) for line in program.lines() if line.isdecimal()]


def test_loop_when_driver_is_killed_then_next_one_completes_it(tmp_path, until):
    checkpoints = tmp_path / "checkpoints"
    with running(tmp_path / "out.txt", APP, "local", checkpoints) as driver:
        until(lambda: len(steps_of(driver)) >= 5, "it has done five steps", START_S)
        servers = driver.children()
        processes.kill(driver.pid)
        driver.process.wait()
        finished = len(steps_of(driver))
    until(lambda: all(map(processes.is_dead, servers)), "its servers have ended", ORPHAN_S)
    assert len(servers) >= 2
    with PS2Context.getOrCreate(servers=3, restore=str(checkpoints)) as ps:
        assert finished - 2 <= ps.nextStep <= finished + 1
        weight = ps.vector("weight")
        driver_app.train(ps, weight)
        assert np.unique(weight.pull()).tolist() == [driver_app.undisturbed()]


def test_external_fleet_when_driver_dies_then_next_finds_vectors(tmp_path, until):
    with external_fleet(tmp_path, until) as (fleet, token_file):
        with running(tmp_path / "out.txt", APP, fleet, token_file) as driver:
            until(lambda: len(steps_of(driver)) >= 3, "it has done three steps", START_S)
            processes.kill(driver.pid)
            finished = len(steps_of(driver))
        with PS2Context.getOrCreate(fleet=fleet, tokenFile=str(token_file)) as ps:
            (value,) = np.unique(ps.vector("weight").pull()).tolist()
        # The step that it was in may have been done, or half of it.
        halfway = 0.5 * driver_app.undisturbed(finished)
        assert value in (driver_app.undisturbed(finished), halfway, driver_app.undisturbed(finished + 1))


def test_stopped_driver_when_resumed_after_takeover_then_refused(tmp_path, until):
    with (
        external_fleet(tmp_path, until) as (fleet, token_file),
        running(tmp_path / "out.txt", APP, fleet, token_file) as old,
    ):
        until(lambda: len(steps_of(old)) >= 3, "it has done three steps", START_S)
        with processes.stopped(old.pid):
            ps = PS2Context.getOrCreate(fleet=fleet, tokenFile=str(token_file))
            weight = ps.vector("weight").fill(7.0)
            finished = steps_of(old)
        with ps:
            until(lambda: any(line.endswith("Error") for line in old.lines()), "it gives up", START_S)
            assert np.unique(weight.pull()).tolist() == [7.0]
            assert len(steps_of(old)) <= len(finished) + 1
