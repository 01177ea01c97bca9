"""How Sphinx builds the site: ``make docs``. Pages lie where GitHub shows them, so their links work in both places."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT)]

from ps2.version import __version__  # noqa: E402

project = "PS2"
author = "the authors of PS2"
project_copyright = "the authors of PS2, Apache License 2.0"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "api_pages", "notebook_pages"]
root_doc = "docs/index"
include_patterns = ["README.md", "CHANGELOG.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/**.md", "examples/*.ipynb"]
# Folders that Sphinx does not walk through.
exclude_patterns = [path.name for path in ROOT.iterdir() if path.is_dir() and path.name not in ("docs", "examples")]
# Indented blocks are commands and output.
highlight_language = "none"

# `page.md#a-heading`, with the anchors that GitHub makes.
myst_heading_anchors = 4

# PyTorch takes 3 GB; ps2.torch is documented without it.
autodoc_mock_imports = ["torch"]
autodoc_member_order = "bysource"
autodoc_typehints = "both"
autodoc_typehints_description_target = "documented"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True, "inherited-members": True}
napoleon_numpy_docstring = False
napoleon_use_rtype = False
python_maximum_signature_line_length = 88
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"PS2 {__version__}"
html_copy_source = False
html_show_sourcelink = False
html_static_path = ["static"]
# The address of the folder leads to the front page.
html_extra_path = ["extra"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}
