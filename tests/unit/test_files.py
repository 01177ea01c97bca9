"""Places of files: what is no place is refused before anything is written, and what was there stays until all is."""

from __future__ import annotations

import errno
import os

import pytest

from ps2.errors import ConfigError, RecoveryError
from ps2.storage.files import place, write_whole


@pytest.mark.parametrize("url", ["", "  ", "a\0b"])
def test_place_when_it_is_none_then_config_error(url):
    with pytest.raises(ConfigError, match="checkpointDir: expected a path or a URL"):
        place(url, "checkpointDir")


def test_place_when_the_current_folder_then_that(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert place(".")[1] == str(tmp_path)


def test_write_whole_when_disk_is_full_then_old_file_stays(tmp_path):
    def filling():
        yield b"new"
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    fs, path = place(str(tmp_path / "file"))
    write_whole(fs, path, [b"old"])
    with pytest.raises(RecoveryError, match=r"/file: writing failed: No space left on device"):
        write_whole(fs, path, filling())
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("file", b"old")]


def test_write_whole_when_path_is_folder_then_says_so(tmp_path):
    fs, path = place(str(tmp_path))
    with pytest.raises(RecoveryError, match="expected a file or no file, got a folder"):
        write_whole(fs, path, [b"new"])
    assert (list(tmp_path.iterdir()), list(tmp_path.parent.glob(f"{tmp_path.name}.*"))) == ([], [])
