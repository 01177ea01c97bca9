"""Trainings on a launched fleet whose servers die in turn: its supervisor starts them anew, and the driver goes on."""

from __future__ import annotations

import pytest
import trainings
from faults import while_training
from pyspark import cloudpickle
from trainings import TRAININGS

from ps2 import PS2Context
from tests.supervised import SupervisedFleet

KILLS = 3

# A checkpoint that is under way as a server dies fails.
pytestmark = pytest.mark.filterwarnings("ignore::ps2.errors.CheckpointWarning")


@pytest.fixture(scope="module", autouse=True)
def helpers_by_value():
    """Tasks cannot import them: they are pickled with their code."""
    for module in (trainings, while_training):
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in (trainings, while_training):
        cloudpickle.unregister_pickle_by_value(module)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    fleet = SupervisedFleet(tmp_path_factory.mktemp("state"))
    yield fleet
    fleet.run("stop")


@pytest.mark.usefixtures("no_fleet")
@pytest.mark.parametrize(("name", "replicas"), [("trees/level", 0), ("linear/minibatch", 1)])
def test_training_when_servers_die_in_turn_then_result_is_same(spark, fleet, tmp_path, until, name, replicas):
    training, killed = TRAININGS[name], []
    addresses = [server["address"] for server in fleet.state()["servers"]]
    settings = {"replicas": 1} if replicas else {"checkpointDir": str(tmp_path), "checkpointEverySteps": 2}
    before = [row["restarts"] for row in fleet.rows()]
    token = str(fleet.folder / "default" / "token")
    with PS2Context.getOrCreate(spark, fleet=addresses, tokenFile=token, **settings) as ps:
        fit = training.on(ps, spark)
        expected = fit()

        def whole():
            statuses = [ps._coordinator.fleet.control.status(address) for address in addresses]
            return len(ps.recoveries) == len(killed) and not any(status.behind for status in statuses)

        def kill_next(report):
            if len(killed) < KILLS and whole():
                killed.append(fleet.kill(len(killed) % 2))

        result = fit(on_step=kill_next)
        until(lambda: len(ps.recoveries) == len(killed), "the last server is back", 60)
        sources = {recovery.source for recovery in ps.recoveries}
    assert len(killed) == KILLS
    assert sources == {"replica" if replicas else "checkpoint"}
    assert sum(row["restarts"] for row in fleet.rows()) == sum(before) + KILLS
    training.check(result, expected, training.rtol)
