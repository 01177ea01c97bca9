"""Pages name files that exist, and import names that exist."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

from ps2 import DCV, DCVMatrix

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs" / "architecture").glob("*.md"))]
FILES = [f"/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "ps2").rglob("*.py")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_when_it_names_files_then_they_exist(page):
    named = set(re.findall(r"`([a-z_0-9/]+\.py)\b", page.read_text()))
    assert [name for name in named if not any(file.endswith(f"/{name}") for file in FILES)] == []


# Of these pages nothing runs the code: it needs files, hosts or PyTorch. Those of other pages fail where they run.
NOT_RUN = (
    "clusters",
    "deploy",
    "fleet",
    "recovery",
    "security",
    "torch",
    "contributing/command",
    "contributing/operation",
)


@pytest.mark.parametrize("page", NOT_RUN)
def test_page_when_its_code_imports_names_then_they_exist(page):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / f"{page}.md").read_text(), re.DOTALL)
    assert blocks
    nodes = [node for block in blocks for node in ast.walk(ast.parse(block)) if isinstance(node, ast.ImportFrom)]
    imports = [(node.module, alias.name) for node in nodes if node.module.startswith("ps2") for alias in node.names]
    assert [each for each in imports if each[1] not in names_of(each[0])] == []


@pytest.mark.parametrize("kind", [DCV, DCVMatrix])
def test_page_of_vectors_when_class_has_a_method_then_lists_it(kind):
    words = set(re.findall(r"\w+", (ROOT / "docs" / "dcv.md").read_text()))
    assert [name for name in dir(kind) if not name.startswith("_") and name not in words] == []


def names_of(module):
    result = import_module(module)
    return getattr(result, "__all__", dir(result))
