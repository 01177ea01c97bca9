"""``scripts/private``: which accesses to private parts it finds."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "private"
CONTEXT = """
class PS2Context:
    def __init__(self):
        self._steps, self.conf = 1, 2

    def _check(self): ...
"""


@pytest.fixture
def private(monkeypatch):
    """The script as a module."""
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    loader = SourceFileLoader("private", str(SCRIPT))
    module = module_from_spec(spec_from_loader("private", loader))
    loader.exec_module(module)
    return module


def test_private_part_when_of_another_object_then_found(private):
    text = "ps._steps.next\nself._ps._check()\nself._steps\nps.conf\nframe._jdf\n"
    names = private.private_names(CONTEXT)
    assert list(private.accesses(text, names)) == [(1, "ps._steps"), (2, "self._ps._check")]


def test_private_name_when_it_is_gone_then_tests_are_told(private):
    text = "ps._steps\nps._fleet\nserver._process\nserver._fleet\nserver._child\nserver.__dict__\n"
    known = private.defined(["class Server:\n    def __init__(self):\n        self._process = self._fleet = 1\n"])
    gone = list(private.missing(text, private.private_names(CONTEXT), known))
    assert gone == [(2, "ps._fleet"), (5, "server._child")]
