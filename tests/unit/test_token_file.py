"""A token file that others can read, or that is none, is refused with the reason."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from unittest import mock

import pytest

from ps2.cli.main import main
from ps2.config import new_token, read_token, replace_token, write_token
from ps2.errors import AuthError, ConfigError
from ps2.server import tokens


@pytest.fixture
def path(tmp_path):
    write_token(tmp_path / "token", new_token())
    return tmp_path / "token"


def test_token_file_when_only_owner_reads_it_then_returns_token(path):
    assert [read_token(path), read_token(str(path))] == [path.read_text().strip()] * 2


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644, 0o666])
def test_token_file_when_others_have_access_then_says_remedy(path, mode):
    path.chmod(mode)
    with pytest.raises(ConfigError) as caught:
        read_token(path)
    assert f"token file {path}: expected a file that other users cannot access, got mode {mode:04o}" in str(
        caught.value
    )
    assert f"chmod 600 {path}" in str(caught.value)


@pytest.mark.parametrize("content", [b"\xff\xfe" * 20, "zwölf Zeichen und mehr".encode()])
def test_token_file_when_not_ascii_then_config_error_names_it(path, content):
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"token file {path}: expected a line of ASCII text"):
        read_token(path)


@pytest.mark.parametrize("end", ["\r\n", "\r", " \n", "\t\r\n"])
@pytest.mark.parametrize("count", [1, 2])
def test_token_file_when_lines_end_otherwise_then_same_tokens(path, end, count):
    """As an editor on Windows ends them."""
    tokens = [new_token() for _ in range(count)]
    path.write_bytes("".join(token + end for token in tokens).encode())
    assert read_token(path) == "\n".join(tokens)


@pytest.mark.parametrize("content", ["", "\r\n", f"{'a' * 20} {'b' * 20}", f"{'a' * 20}\r\n\r\n{'b' * 20}"])
def test_token_file_when_line_is_no_token_then_error_names_it(path, content):
    path.write_text(content)
    with pytest.raises(AuthError, match=f"token file {path}: expected "):
        read_token(path)


def test_token_file_when_over_two_lines_then_auth_error(path):
    path.write_text("\n".join(new_token() for _ in range(3)))
    with pytest.raises(AuthError, match="expected one token, or two while it is being replaced, got 3 lines"):
        read_token(path)


@pytest.fixture
def ps2():
    """``ps2(*words)``: run a command in this process; its exit code, stdout and stderr."""

    def run(*words):
        out, err = io.StringIO(), io.StringIO()
        with (
            mock.patch.object(sys, "argv", ["ps2", *map(str, words)]),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            pytest.raises(SystemExit) as ended,
        ):
            main()
        return ended.value.code, out.getvalue(), err.getvalue()

    return run


def test_ps2_token_when_rotating_then_two_until_old_is_retired(ps2, tmp_path):
    path, link = tmp_path / "made", tmp_path / "link"
    assert ps2("token", "new", path)[0] == 0
    link.symlink_to(path)
    (old,) = read_token(path).split()
    path.chmod(0o400)
    assert ps2("token", "rotate", link)[0] == 0
    new, before = read_token(path).split()
    assert (before, link.is_symlink(), path.stat().st_mode & 0o777) == (old, True, 0o400)
    code, out, _ = ps2("token", "show", path, "-o", "json")
    shown = json.loads(out)
    assert (code, len(shown["fingerprints"])) == (0, 2)
    assert old not in out
    assert ps2("token", "retire", path)[0] == 0
    assert read_token(path) == new
    assert ps2("token", "retire", path)[0] == 0
    assert json.loads(ps2("token", "show", path, "-o", "json")[1])["fingerprints"] == shown["fingerprints"][:1]
    assert sorted(tmp_path.iterdir()) == [link, path]


def test_ps2_token_when_file_is_unusable_then_changes_nothing(ps2, path, tmp_path):
    before = path.read_text()
    assert ps2("token", "new", path) == (
        2,
        "",
        f"ps2: {path} exists; 'ps2 token rotate {path}' adds a new token to it\n",
    )
    assert path.read_text() == before
    assert ps2("token", "rotate", path)[0] == 0
    both = path.read_text()
    code, _, err = ps2("token", "rotate", path)
    assert (code, "has two tokens already" in err, path.read_text()) == (2, True, both)
    path.chmod(0o644)
    code, _, err = ps2("token", "retire", path)
    assert (code, "chmod 600" in err) == (2, True)
    code, _, err = ps2("token", "rotate", tmp_path / "nothing")
    assert (code, "No such file" in err) == (6, True)


def test_server_token_when_file_breaks_then_keeps_last_tokens(path, monkeypatch, caplog, until):
    monkeypatch.setattr(tokens, "POLL_S", 0.01)
    old = path.read_text().strip()
    kept = tokens.watch_token_file(str(path))
    assert kept.all == (old,)
    new = new_token()
    replace_token(path, f"{new}\n{old}")
    until(lambda: kept.all == (new, old), "both are accepted")
    with caplog.at_level("WARNING"):
        replace_token(path, "short")
        until(lambda: "the previous tokens stay valid" in caplog.text, "it says so")
    path.unlink()
    assert kept.all == (new, old)
    write_token(path, new)
    until(lambda: kept.all == (new,), "the new one alone is")
