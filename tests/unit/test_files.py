"""URLs of files: an invalid one is refused before anything is written, and old content stays until the new is whole."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ps2.errors import ConfigError, RecoveryError
from ps2.storage.files import remove_folder, resolve_url, write_atomically


@pytest.mark.parametrize("url", ["", "  ", "a\0b"])
def test_url_when_it_is_none_then_config_error(url):
    with pytest.raises(ConfigError, match="checkpointDir: expected a path or a URL"):
        resolve_url(url, "checkpointDir")


def test_url_when_the_current_folder_then_that(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resolve_url(".")[1] == str(tmp_path)


@pytest.mark.parametrize("url", ["run::1", "a/::b/", "zip::1", "memory::x", "a:::b", "::"])
def test_url_when_a_path_has_colons_then_they_are_of_it(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for form, path in (
        ("{}", tmp_path / url),
        (f"{tmp_path}/{{}}", tmp_path / url),
        (f"file://{tmp_path}/{{}}", tmp_path / url),
        ("memory://folder/{}", Path("/folder", url)),
    ):
        assert resolve_url(form.format(url))[1] == str(path)


@pytest.mark.parametrize("url", ["simplecache::memory://m/w", "zip://m/w::memory://place.zip", "zip://m/w::{}/w.zip"])
def test_url_when_a_chain_of_file_systems_then_all_of_it(url, tmp_path):
    for file in (resolve_url("memory://place.zip"), resolve_url(f"{tmp_path}/w.zip")):
        with file[0].open(file[1], "wb") as opened, zipfile.ZipFile(opened, "w") as archive:
            archive.writestr("m/w", b"here")
    fs, path = resolve_url("memory://m/w")
    write_atomically(fs, path, [b"here"])
    fs, path = resolve_url(url.format(tmp_path))
    assert fs.cat_file(path) == b"here"


@pytest.mark.parametrize("url", ["file:", "file://", "local://"])
def test_url_when_a_url_has_no_path_then_error_says_so(url):
    with pytest.raises(ConfigError, match=f"^path: expected a path after {url}, got none"):
        resolve_url(url, "path")


@pytest.mark.parametrize("url", ["hdfs:/models/x", "dbfs:/x", "s3a:/bucket/x", "memory:/x"])
def test_url_when_a_scheme_has_one_slash_then_config_error(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=f"^path: expected {url.split(':')[0]}://..., or ./{url} for a local path"):
        resolve_url(url, "path")
    assert resolve_url(f"./{url}")[1] == str(tmp_path / url)
    assert resolve_url("file:/tmp/x")[1] == "/tmp/x"


def test_url_when_a_file_of_localhost_then_its_path():
    for url in ("file://localhost/tmp/x", "local://LOCALHOST/tmp/x/", "file:///tmp/x"):
        assert resolve_url(url)[1] == "/tmp/x"


@pytest.mark.parametrize("url", ["file://nas/tmp/x", "file://tmp", "run::memory://x", "nas://b"])
def test_url_when_url_is_of_nothing_known_then_config_error(url):
    with pytest.raises(ConfigError, match=f"path: expected a path.*got '{url}'"):
        resolve_url(url, "path")


def test_url_when_there_is_no_archive_then_recovery_error(tmp_path):
    with pytest.raises(RecoveryError, match=r"path: the file system of zip://.*/none.zip cannot be opened: .*No such"):
        resolve_url(f"zip://model::{tmp_path}/none.zip", "path")


def test_write_whole_when_disk_is_full_then_old_file_stays(tmp_path):
    def filling():
        yield b"new"
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    fs, path = resolve_url(str(tmp_path / "file"))
    write_atomically(fs, path, [b"old"])
    with pytest.raises(RecoveryError, match=r"/file: writing failed: No space left on device"):
        write_atomically(fs, path, filling())
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("file", b"old")]


def test_write_whole_when_path_is_folder_then_says_so(tmp_path):
    fs, path = resolve_url(str(tmp_path))
    with pytest.raises(RecoveryError, match="expected a file or no file, got a folder"):
        write_atomically(fs, path, [b"new"])
    assert (list(tmp_path.iterdir()), list(tmp_path.parent.glob(f"{tmp_path.name}.*"))) == ([], [])


NOT_ASCII = (
    "import sys; from ps2.storage.files import resolve_url; resolve_url(sys.argv[1] or '/tmp/mod\\xe8le', 'output')"
)


@pytest.mark.parametrize(("given", "got"), [("", r"'/tmp/mod\xe8le'"), ("/tmp/modèle", r"'/tmp/mod\udcc3\udca8le'")])
def test_url_when_the_locale_has_no_such_character_then_error(given, got):
    locale = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", NOT_ASCII, given]
    ended = subprocess.run(command, env=locale, capture_output=True, text=True, check=False)
    assert "ConfigError: output: expected a path in the locale's encoding, " in ended.stderr
    assert ended.stderr.strip().endswith(f"got {got}: set LC_ALL=C.UTF-8")


@pytest.mark.parametrize("scheme", ["memory://", ""])
def test_files_when_their_folder_is_a_pattern_then_others_stay(tmp_path, scheme):
    for name in ("m[1]", "m1", "m*"):
        fs, root = resolve_url(f"{scheme}{tmp_path}/{name}")
        fs.makedirs(f"{root}/deep", exist_ok=True)
        write_atomically(fs, f"{root}/deep/file", [b"old"])
        write_atomically(fs, f"{root}/deep/file", [b"new"])
    for name in ("m[1]", "m*"):
        remove_folder(fs, resolve_url(f"{scheme}{tmp_path}/{name}")[1])
    folder = resolve_url(f"{scheme}{tmp_path}")[1]
    assert fs.find(folder) == [f"{folder}/m1/deep/file"]
