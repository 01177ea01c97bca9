"""``scripts/cycles``: what counts as an import, and what as a circle."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "cycles"


@pytest.fixture
def cycles(tmp_path, monkeypatch):
    """The script, looking at files that a test writes."""
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    loader = SourceFileLoader("cycles", str(SCRIPT))
    module = module_from_spec(spec_from_loader("cycles", loader))
    loader.exec_module(module)
    module.ROOT, module.KNOWN = tmp_path, ()
    monkeypatch.setattr("sys.argv", ["cycles"])
    return module


def write(cycles, **files):
    """Write modules, named by their paths with ``__`` for each slash, and make packages of their folders."""
    for name, text in files.items():
        path = cycles.ROOT.joinpath("ps2", *name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(text)


TYPE_ONLY = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ps2.b.two import Two\n"


@pytest.mark.parametrize("text", [TYPE_ONLY, "def f():\n    import ps2.b.two\n", "from ps2.b import two\n"])
def test_cycles_when_two_modules_import_each_other_then_named(cycles, capsys, text):
    write(cycles, a__one=text, b__two="from ps2.a.one import One\n")
    assert cycles.main() == 1
    assert "a circle of modules: ps2.a.one, ps2.b.two" in capsys.readouterr().out


def test_cycles_when_only_rooms_import_each_other_then_named(cycles, capsys):
    write(cycles, a__one="import ps2.b.two\n", b__two="", b__three="import ps2.a.four\n", a__four="")
    assert cycles.main() == 1
    assert "a circle of rooms: a, b" in capsys.readouterr().out


def test_cycles_when_imports_run_one_way_then_says_nothing(cycles, capsys):
    write(cycles, a__one="import ps2.b.two\n", b__two="import ps2.c\n", c="")
    assert (cycles.main(), capsys.readouterr().out) == (0, "")


def test_cycles_when_a_known_circle_is_gone_then_says_so(cycles, capsys):
    write(cycles, a__one="import ps2.b.two\n", b__two="")
    cycles.KNOWN = (frozenset({"a", "b"}),)
    assert cycles.main() == 1
    assert "take it out of KNOWN" in capsys.readouterr().out


@pytest.mark.parametrize("own", ["linear", "training"])
def test_cycles_when_a_family_is_imported_by_another_then_named(cycles, capsys, own):
    write(cycles, **{f"algorithms__{own}__one": "import ps2.algorithms.trees.two\n", "algorithms__trees__two": ""})
    assert cycles.main() == 1
    assert f"ps2.algorithms.{own}.one imports ps2.algorithms.trees.two: families do not" in capsys.readouterr().out
