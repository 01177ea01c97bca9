"""The wheel, installed in an environment of its own: what is in it, and that it works without the sources."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ps2 import __version__

REPO = Path(__file__).parents[2]
PROGRAM = """
from ps2 import DCV, PS2Context

with PS2Context.getOrCreate(servers=1):
    print(DCV.dense(100).fill(2.0).sum())
"""


def run(*command):
    """Run to the end, away from the sources; return what it printed."""
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    finished = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, env=outside, cwd="/", timeout=60, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    build = ("wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", folder, REPO)
    run(sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *build)
    [result] = folder.iterdir()
    return result


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The folder of commands of a new environment: the wheel's own files, and of this environment what it needs."""
    home = tmp_path_factory.mktemp("fresh") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", home)
    [packages] = home.glob("lib/python*/site-packages")
    # Comes after the environment's own packages; that a folder is named here runs none of its .pth files, such as the
    # one that leads to the sources.
    (packages / "needed.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    pip = (sys.executable, "-m", "pip", "--python", home / "bin/python", "-q", "--disable-pip-version-check")
    run(*pip, "install", "--no-deps", "--no-index", "--no-warn-script-location", wheel)
    return home / "bin"


def test_wheel_when_built_then_the_distribution_is_ps2_spark(wheel):
    assert wheel.name == f"ps2_spark-{__version__}-py3-none-any.whl"


def test_wheel_when_built_then_it_holds_the_contract(wheel):
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".proto")}
    assert inside == {f"ps2/{path.relative_to(REPO)}" for path in REPO.glob("proto/**/*.proto")}


def test_wheel_when_installed_then_sources_are_not_imported(installed):
    assert run(installed / "python", "-c", "import ps2; print(ps2.__file__)").startswith(str(installed.parent))


def test_wheel_when_installed_then_the_command_tells_its_version(installed):
    assert run(installed / "ps2", "--version") == f"ps2, version {__version__}\n"


def test_wheel_when_installed_then_command_lists_operations(installed):
    assert "adam" in run(installed / "ps2", "ops")


def test_wheel_when_installed_then_a_server_of_it_computes(installed):
    assert float(run(installed / "python", "-c", PROGRAM)) == 200.0
