"""Pages that explain the code name files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs" / "architecture").glob("*.md"))]
FILES = [f"/{path.relative_to(ROOT).as_posix()}" for path in ROOT.rglob("ps2/**/*.py")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_when_it_names_files_then_they_exist(page):
    named = set(re.findall(r"`([a-z_0-9/]+\.py)\b", page.read_text()))
    assert [name for name in named if not any(file.endswith(f"/{name}") for file in FILES)] == []
