"""``scripts/private``: which accesses to private parts of the context it finds."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "private"
CONTEXT = """
class PS2Context:
    def __init__(self):
        self._steps, self.conf = 1, 2

    def _check(self): ...
"""


def test_private_part_when_of_another_object_then_found(monkeypatch):
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    loader = SourceFileLoader("private", str(SCRIPT))
    private = module_from_spec(spec_from_loader("private", loader))
    loader.exec_module(private)
    text = "ps._steps.next\nself._ps._check()\nself._steps\nps.conf\nframe._jdf\n"
    names = private.private_names(CONTEXT)
    assert list(private.accesses(text, names)) == [(1, "ps._steps"), (2, "self._ps._check")]
