"""The pages name each benchmark, and name no command that does not exist."""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "decisions")]
TEXT = "\n".join(page.read_text() for page in PAGES)
BENCHMARKS = sorted(file.stem for file in (ROOT / "benchmarks").glob("*.py") if "\nBENCHMARK = " in file.read_text())
COMMAND = re.compile(r"(?:make bench BENCH=|python -m benchmarks\.)(\w+)(?: ARGS='([^']*)'|( -[^`#\n]*))?")
COMMANDS = sorted({(name, (quoted or plain).strip()) for name, quoted, plain in COMMAND.findall(TEXT)})


@pytest.mark.parametrize("name", BENCHMARKS)
def test_benchmark_when_it_has_a_main_then_a_page_names_it(name: str) -> None:
    assert name in {command for command, _ in COMMANDS}


@pytest.mark.parametrize(("name", "arguments"), COMMANDS)
def test_command_when_a_page_names_it_then_it_parses(name: str, arguments: str) -> None:
    command = import_module(f"benchmarks.{name}").BENCHMARK.command()
    command.make_context(name, shlex.split(arguments))


def test_file_of_benchmarks_when_a_page_names_it_then_exists() -> None:
    files = set(re.findall(r"benchmarks/\w+\.\w+", TEXT))
    assert [file for file in sorted(files) if not (ROOT / file).is_file()] == []
