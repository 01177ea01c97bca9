"""``scripts/words``: which words it finds, and where."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "words"


@pytest.fixture
def faults(tmp_path, monkeypatch):
    """``faults(file, text)``: what the script says of a file."""
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    loader = SourceFileLoader("words", str(SCRIPT))
    words = module_from_spec(spec_from_loader("words", loader))
    loader.exec_module(words)
    monkeypatch.setattr(words, "ROOT", tmp_path)

    def found(file, text):
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return [(line, word) for _, line, word, _ in words.faults(file)]

    return found


@pytest.mark.parametrize(
    "text", ["class RankSeat: pass\n", "rank_seat = 1\n", "def f(seat): pass\n", "self.seat = 1\n"]
)
def test_identifier_when_it_has_an_old_word_then_named(faults, text):
    ((line, word),) = faults("ps2/run/ranks.py", text)
    assert (line, word.split()[1]) == (1, "(seat)")


def test_told_when_a_variable_then_allowed_and_as_a_class_not(faults):
    assert faults("ps2/run/ranks.py", "told = 1\n") == []
    assert faults("ps2/run/ranks.py", "class Told: pass\n") == [(1, "Told (told)")]


def test_prose_when_in_docstring_comment_or_page_then_found(faults):
    text = '"""Lets a stranger in."""\n\n\ndef f():\n    return 1  # a guest\n'
    assert faults("ps2/rpc/a.py", text) == [(1, "stranger"), (5, "guest")]
    assert faults("docs/a.md", "# A page\n\nThe lookout.\n") == [(3, "lookout")]
    assert faults("docs/decisions/0001-a.md", "The lookout.\n") == []


def test_test_name_when_longer_than_sixty_then_found(faults):
    name = "test_" + "x" * 56
    assert faults("tests/unit/test_a.py", f"def {name}(): pass\n") == [(1, name)]
    assert faults("tests/unit/test_a.py", f"def {name[:60]}(): pass\n") == []
