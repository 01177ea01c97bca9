"""A launcher of an installed package is found by its entry point, and drives a fleet."""

from __future__ import annotations

import numpy as np
import pytest

from ps2 import DCV, PS2Conf, PS2Context
from ps2.errors import ConfigError


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """``installed(name, target)``: a package that names a launcher is installed."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(name, target):
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[ps2.launchers]\n{name} = {target}\n")

    return install


def test_launcher_when_a_package_brings_it_then_it_runs_a_fleet(installed, leaves_nothing, until):
    installed("plain", "tests.launchers.plain:PlainLauncher")
    with PS2Context.getOrCreate(servers=2, launcher="plain", replicas=1) as ps:
        weight = DCV.dense(1000, dtype="float64").push(np.arange(1000.0))
        ps._coordinator.fleet.launcher._processes[0].kill()
        until(lambda: ps.recoveries, "the server is replaced", 60)
        assert weight.sum() == 499500
        assert ps.recoveries[0].reason.endswith("ended with exit code -9")


def test_launcher_when_unknown_then_all_names_are_listed(installed):
    installed("plain", "tests.launchers.plain:PlainLauncher")
    with pytest.raises(ConfigError, match="expected one of 'attach', 'local', 'spark', 'plain', got 'yarn'"):
        PS2Conf(launcher="yarn")


@pytest.mark.parametrize(
    ("target", "message"),
    [("tests.launchers.absent:X", "cannot be imported: ModuleNotFoundError"), ("pathlib:Path", "a class of Launcher")],
)
def test_launcher_when_entry_point_is_wrong_then_config_error(installed, target, message):
    installed("broken", target)
    with pytest.raises(ConfigError, match=f"launcher: 'broken'.*{message}"):
        PS2Conf(launcher="broken")
