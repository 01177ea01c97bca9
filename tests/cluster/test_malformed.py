"""Whatever bytes come, a live server refuses them as what they are, keeps its data and memory, and serves others."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ps2 import PS2Context
from ps2.errors import PS2Error, UsageError
from ps2.protocol import framing
from ps2.protocol.binary import MAX_HEADER_BYTES
from ps2.protocol.pb import server_pb2 as pb
from tests.cluster.victim import DIM, REFUSED, WAYS, ask, attacked, message, requests, unharmed


@pytest.fixture(scope="module")
def victim(leaves_nothing):
    """A server of no other module: an attack may leave traces."""
    with PS2Context.getOrCreate(servers=1) as ps, attacked(ps) as created:
        yield created


def assert_refused_or_done(answers):
    for answer in answers:
        assert isinstance(answer, (pb.ReplyHeader, *REFUSED)), repr(answer)


# -- nearly right: bytes changed, cut off, put in --------------------------------------------------------------------


@st.composite
def damage(draw):
    """A function that damages a message: up to four bytes changed, a piece cut out or put in, the end cut off."""
    positions = draw(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=4))
    cut, length, put = draw(st.floats(0, 1)), draw(st.integers(0, 12)), draw(st.binary(max_size=12))
    end = draw(st.sampled_from([1.0, 1.0, 1.0]) | st.floats(0, 1))
    # Most of a message is numbers, in which any change is as good as what was there: change the front more often.
    front = draw(st.sampled_from([1.0, 0.3, 0.1]))

    def apply(data):
        data = bytearray(data)
        for where, byte in positions:
            data[int(where * front * (len(data) - 1))] = byte
        at = int(cut * front * len(data))
        data[at : at + length] = put
        return bytes(data[: int(end * len(data))])

    return apply


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", [0, 1, 2], ids=["dense", "rows", "sparse"])
@settings(max_examples=40)
@given(data=st.data())
def test_message_when_damaged_then_nothing_else_is_touched(victim, until, way, form, data):
    with unharmed(victim, until) as matrix:
        good = message(way, requests(matrix)[form])
        assert_refused_or_done(ask(victim, way, data.draw(damage())(good)))


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=40)
@given(data=st.binary(max_size=200))
def test_message_when_garbage_then_refused_and_nothing_changes(victim, until, way, data):
    with unharmed(victim, until):
        assert_refused_or_done(ask(victim, way, data))


HEADERS = st.sampled_from([0, 2, 40, 1 << 16, MAX_HEADER_BYTES, MAX_HEADER_BYTES + 1, 2**31, 2**32 - 1])
SIZES = st.sampled_from([0, 1, 160, (64 << 20) + 1, 64 << 20, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1])


@pytest.mark.parametrize("way", ["tcp", "unix"])
@settings(max_examples=40)
@given(length=HEADERS, size=SIZES, rest=st.integers(0, 300))
def test_header_when_sizes_lie_then_refused_or_closed(victim, until, way, length, size, rest):
    with unharmed(victim, until) as matrix:
        good = message(way, requests(matrix)[0])[framing.HEAD.size :]
        assert_refused_or_done(ask(victim, way, framing.HEAD.pack(length, size) + good[:rest]))


# -- control calls ---------------------------------------------------------------------------------------------------


def control(victim, method, data):
    """Send bytes as the message of a control call; return its error, or None."""
    try:
        victim.channel.call(f"Server/{method}", data, 20)
    except PS2Error as error:
        return error
    return None


def new_matrix(*partitions, **spec):
    fields = {"dim": DIM, "rows": 1, "dtype": pb.FLOAT64, "align": 1, "partitions_per_server": 1} | spec
    cut = [pb.Partition(index=index, begin=begin, end=end) for index, begin, end in partitions]
    return pb.CreateMatrixRequest(matrix=5, spec=pb.MatrixSpec(**fields), partitions=cut)


@pytest.mark.parametrize(
    "request_",
    [
        new_matrix((0, 0, 60), (1, 50, DIM)),
        new_matrix((0, 0, DIM), (1, 0, DIM)),
        new_matrix((0, 0, DIM), (0, 0, DIM)),
        new_matrix((0, 0, 50), (0, 50, DIM)),
        new_matrix((0, 50, 50)),
        new_matrix((0, 60, 50)),
        new_matrix((0, 0, DIM + 1)),
        new_matrix((0, 0, 2**64 - 1)),
        new_matrix((0, 0, 2**64 - 1), dim=2**64 - 1),
        new_matrix((0, 0, 2**40), dim=2**40),
        new_matrix((0, 0, DIM), rows=2**31 - 1),
        new_matrix((0, 0, DIM), rows=2**32 - 1),
        new_matrix((0, 0, DIM), rows=0),
        new_matrix((0, 0, DIM), dtype=pb.UINT8),
        new_matrix((0, 0, DIM), dtype=pb.BFLOAT16),
        new_matrix((0, 0, DIM), dtype=99),
        new_matrix((0, 0, DIM), wire=pb.FLOAT64),
        new_matrix((0, 0, DIM), dtype=pb.INT64, wire=pb.FLOAT16),
        new_matrix((0, 0, DIM), sparse=True, align=7),
        new_matrix((0, 0, DIM), dim=0),
        new_matrix(),
    ],
)  # fmt: skip
def test_matrix_when_it_cannot_be_then_refused_and_there_is_none(victim, until, request_):
    with unharmed(victim, until):
        error = control(victim, "CreateMatrix", request_.SerializeToString())
        assert isinstance(error, UsageError) or not request_.partitions, repr(error)
        assert 5 not in [matrix.matrix for matrix in victim.status().matrices]


@pytest.mark.parametrize(
    "fields",
    [
        {"rows": 2**32 - 1},
        {"freed": [9]},
        {"rows": 5, "freed": [2**32 - 1]},
        {"reused": [3]},
        {"rows": 4, "reused": [4]},
    ],
)
def test_rows_when_impossible_then_refused_and_row_count_stays(victim, until, fields):
    with unharmed(victim, until) as matrix:
        error = control(victim, "UpdateRows", pb.UpdateRowsRequest(matrix=matrix, **fields).SerializeToString())
        assert isinstance(error, UsageError), repr(error)
        assert {m.matrix: m.rows for m in victim.status().matrices}[matrix] == 3


@pytest.mark.parametrize("method", ["Hello", "CreateMatrix", "UpdateRows"])
@settings(max_examples=40)
@given(data=st.binary(min_size=1, max_size=60))
def test_control_call_when_its_message_is_garbage_then_refused(victim, until, method, data):
    with unharmed(victim, until):
        error = control(victim, method, data)
        assert error is None or isinstance(error, REFUSED), repr(error)
