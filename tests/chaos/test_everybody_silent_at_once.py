"""The driver stands still, alone or with all servers, as in a virtual machine that moves: nobody has died of it."""

from __future__ import annotations

import random

import pytest
from faults import adding_app, processes
from faults.programs import running

START_S = 60
GOES_ON_S = 60

pytestmark = pytest.mark.usefixtures("leaves_nothing")


def additions(driver):
    return sum(line.isdecimal() for line in driver.lines())


def going_on(driver, until, more=20):
    """Wait until so many additions more have come to an end."""
    before = additions(driver)
    until(lambda: additions(driver) > before + more or not alive(driver), "it goes on", GOES_ON_S)
    assert alive(driver), driver.lines()[-20:]


def alive(driver):
    return driver.process.poll() is None


def disturbed(tmp_path, until, spare, lost_after_s, pauses):
    """Run additions, and stop the driver alone and with its servers for each of the pauses; check what comes out."""
    chance = random.Random(len(pauses))
    with running(tmp_path / "out.txt", adding_app.__file__, spare, tmp_path, lost_after_s) as driver:
        until(lambda: additions(driver) > 20, "it adds", START_S)
        servers = driver.children()
        for pause_s in pauses:
            for who in ([driver.pid], [driver.pid, *servers]):
                processes.stop_all_for(pause_s, who, chance)
                going_on(driver, until)
        assert driver.children() == servers
        (tmp_path / "enough").touch()
        assert driver.process.wait(GOES_ON_S) == 0
        assert driver.lines()[-1] == f"end [{additions(driver)}] []"


@pytest.mark.parametrize("spare", ["replicas", "checkpoint"])
def test_fleet_when_all_are_silent_then_nothing_replaced_or_lost(tmp_path, until, spare):
    disturbed(tmp_path, until, spare, 1.0, [2.0])


@pytest.mark.nightly
@pytest.mark.parametrize(("spare", "pauses"), [("replicas", [9.0, 20.0]), ("checkpoint", [9.0, 70.0])])
def test_fleet_when_often_silent_for_long_then_nothing_is_lost(tmp_path, until, spare, pauses):
    """Longer than gRPC keeps a connection whose other side does not answer, and than a server waits for its master."""
    disturbed(tmp_path, until, spare, 5.0, pauses)
