"""A token file that others can read, or that is none, is refused with the reason."""

from __future__ import annotations

import pytest

from ps2.config import new_token, read_token, write_token
from ps2.errors import ConfigError


@pytest.fixture
def path(tmp_path):
    write_token(tmp_path / "token", new_token())
    return tmp_path / "token"


def test_token_file_when_only_its_owner_reads_it_then_its_token_is_returned(path):
    assert [read_token(path), read_token(str(path))] == [path.read_text().strip()] * 2


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644, 0o666])
def test_token_file_when_others_have_rights_to_it_then_the_error_names_file_mode_and_remedy(path, mode):
    path.chmod(mode)
    with pytest.raises(ConfigError) as caught:
        read_token(path)
    assert f"token file {path}: its mode {mode:04o}" in str(caught.value)
    assert f"chmod 600 {path}" in str(caught.value)


@pytest.mark.parametrize("content", [b"\xff\xfe" * 20, "zwölf Zeichen und mehr".encode()])
def test_token_file_when_it_is_no_ascii_text_then_config_error_names_it(path, content):
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"token file {path}: expected a line of ASCII text"):
        read_token(path)
