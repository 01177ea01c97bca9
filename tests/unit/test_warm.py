"""One command compiles the kernels of all families."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from ps2.cli.warm import ROOT, compile_all, warmers


def test_warmers_when_listed_then_are_all_that_compile():
    files = {ROOT.parent / Path(*module.split(".")).with_suffix(".py") for module in warmers()}
    fast_path = ROOT / "server/fast_path_compiled.py"
    assert files == {file for file in ROOT.rglob("warm.py") if file.parent.name != "cli"} | {fast_path}


def test_warmers_when_imported_then_each_can_compile():
    assert all(hasattr(import_module(name), "warm") or hasattr(import_module(name), "load") for name in warmers())


def test_compiling_when_a_module_fails_then_so_does_the_command():
    with pytest.raises(ModuleNotFoundError):
        compile_all(["ps2.no_such_family"], 1)
