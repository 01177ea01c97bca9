"""``scripts/words``: which words it finds, and where."""

from __future__ import annotations

import subprocess
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "words"


@pytest.fixture
def words(tmp_path, monkeypatch):
    """The script as a module, for files in ``tmp_path``."""
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    loader = SourceFileLoader("words", str(SCRIPT))
    words = module_from_spec(spec_from_loader("words", loader))
    loader.exec_module(words)
    monkeypatch.setattr(words, "ROOT", tmp_path)

    return words


@pytest.fixture
def faults(words):
    """A function of a file's name and text that returns lines and words of its faults."""
    return lambda file, text: [(line, word) for _, line, word, _ in words.faults(write(words.ROOT, file, text))]


@pytest.fixture
def dialect(words):
    """A function of a text that returns the words of the dialect in it."""
    return lambda text: list(words.dialect(write(words.ROOT, "ps2/a.py", text)))


def write(root, file, text):
    """Write a file; return its name."""
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return file


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


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("found = 1\n", "found"),
        ("self.rows_of = 1\n", "of"),
        ("def f(most_bytes): pass\n", "most"),
        ("class DealtRows: pass\n", "dealt"),
    ],
)
def test_name_when_it_begins_or_ends_in_dialect_then_counted(dialect, text, word):
    assert dialect(text) == [word]


@pytest.mark.parametrize(
    "text", ["set_at_once = 1\n", "of.found(given)\n", "def f(at_least): pass\n", "placement = 1\n"]
)
def test_name_when_plain_or_only_used_then_not_counted(dialect, text):
    assert dialect(text) == []


def test_docstring_when_a_description_is_a_fragment_then_counted(dialect):
    text = '"""What it is.\n\n    rows (n, k): of a table.\n    seed, key: the two\n"""\n'
    assert dialect(text) == ['"what ..."', '"of ..."']


@pytest.mark.parametrize(("ceiling", "code"), [(2, 0), (1, 1)])
def test_main_when_dialect_exceeds_the_ceiling_then_fails(words, monkeypatch, capsys, ceiling, code):
    write(words.ROOT, "ps2/a.py", "found = given = 1\n")
    subprocess.run("git init -q && git add .", cwd=words.ROOT, shell=True, check=True)
    monkeypatch.setattr(words, "CEILING", ceiling)
    monkeypatch.setattr("sys.argv", ["words"])
    assert words.main() == code
    assert ("at most 1" in capsys.readouterr().out) == bool(code)
