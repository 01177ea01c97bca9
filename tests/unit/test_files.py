"""Places of files: what is no place is refused before anything is written."""

from __future__ import annotations

import pytest

from ps2.errors import ConfigError
from ps2.storage.files import place


@pytest.mark.parametrize("url", ["", "  ", "a\0b"])
def test_place_when_it_is_none_then_config_error(url):
    with pytest.raises(ConfigError, match="checkpointDir: expected a path or a URL"):
        place(url, "checkpointDir")


def test_place_when_the_current_folder_then_that(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert place(".")[1] == str(tmp_path)
