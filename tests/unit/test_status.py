"""Every error of the tree crosses the wire and comes back as itself."""

from __future__ import annotations

import grpc
import pytest

from ps2.errors import AuthError, DeadlineError, OpError, PS2Error, UnavailableError
from ps2.rpc.status import CODE_BY_ERROR, ERROR_BY_CODE, MAX_METADATA_BYTES, from_rpc, to_status


def tree(cls=PS2Error):
    """All classes of ps2.errors; other modules may have private ones, which never travel as themselves."""
    children = [child for child in cls.__subclasses__() if child.__module__ == cls.__module__]
    return [cls, *(result for child in children for result in tree(child))]


class Failed:
    """A call that ended with a status and trailing metadata."""

    def __init__(self, code, details="", trailing=()):
        self._code, self._details, self._trailing = code, details, trailing

    def code(self):
        return self._code

    def details(self):
        return self._details

    def trailing_metadata(self):
        return self._trailing


def there_and_back(error):
    return from_rpc(Failed(*to_status(error)), "host:1")


def header_bytes(error):
    """The size of an error's trailing header block: binary values travel as base64, others percent-encoded."""
    _, details, trailing = to_status(error)
    return sum(len(value) * 4 // 3 for _, value in trailing) + 3 * len(details.encode())


@pytest.mark.parametrize("cls", tree())
def test_error_when_sent_then_it_comes_back_as_itself(cls):
    back = there_and_back(cls("row 7: expected 3, got 4"))
    assert (type(back), str(back)) == (cls, "row 7: expected 3, got 4")


def test_table_when_compared_with_error_tree_then_maps_all():
    assert set(CODE_BY_ERROR) == set(tree())


@pytest.mark.parametrize("cls", tree())
def test_error_when_sent_then_its_status_is_not_ok(cls):
    assert to_status(cls("x"))[0] not in (grpc.StatusCode.OK, grpc.StatusCode.UNKNOWN)


def test_error_when_class_is_foreign_then_decodes_as_base():
    class Private(OpError):
        pass

    assert type(there_and_back(Private("x"))) is OpError


def test_message_when_long_then_its_end_stays():
    back = there_and_back(OpError("first line\n" + "x" * 100_000 + "\nValueError: the end"))
    assert str(back).startswith("...x")
    assert str(back).endswith("x\nValueError: the end")


@pytest.mark.parametrize("letter", ["x", "ü", "漢", "😀"])
def test_message_when_long_then_fits_metadata_in_any_alphabet(letter):
    assert header_bytes(OpError(letter * 100_000)) < MAX_METADATA_BYTES


def test_message_when_not_encodable_then_it_comes_escaped():
    """Names of files that are not UTF-8 hold lone surrogates."""
    assert str(there_and_back(OpError("no such file: \udcff"))) == "no such file: \\udcff"


@pytest.mark.parametrize("message", ["", "\n"])
def test_message_when_empty_then_it_comes_back(message):
    assert str(there_and_back(OpError(message))) == message


def test_status_when_message_has_lines_then_details_are_last_one():
    assert to_status(OpError("a\nb\nc"))[1] == "c"


@pytest.mark.parametrize(
    ("code", "cls"),
    [
        (grpc.StatusCode.UNAVAILABLE, UnavailableError),
        (grpc.StatusCode.CANCELLED, UnavailableError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, DeadlineError),
        (grpc.StatusCode.UNAUTHENTICATED, AuthError),
        *((code, PS2Error) for code in grpc.StatusCode if code not in ERROR_BY_CODE),
    ],
)
def test_failure_when_not_from_our_server_then_status_decides(code, cls):
    error = from_rpc(Failed(code, "why", (("other", "x"),)), "host:1")
    assert isinstance(error, cls)
    assert "host:1" in str(error)
    assert "why" in str(error)


def test_error_when_class_is_unknown_then_decodes_as_root():
    code, details, ((key, value),) = to_status(OpError("text"))
    later = Failed(code, details, ((key, value.replace(b"OpError", b"NwError")),))
    assert type(from_rpc(later, "host:1")) is PS2Error
