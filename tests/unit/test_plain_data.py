"""Plain data come back as they were encoded, or as an error that names the part that is none."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ps2.errors import LimitError, ProtocolError, UsageError
from ps2.protocol import plain_data
from ps2.protocol.pb import run_pb2 as pb
from ps2.protocol.plain_data import DTYPES, decode, encode
from ps2.run.message import Message

VALUES = [None, True, False, 0, -1, 2**63 - 1, -(2**63), 0.1, -0.0, math.inf, "", "Gödel\0", [], {}, [1, [2.5, {}]]]


@pytest.mark.parametrize("value", [*VALUES, {"": None, "b": 1, "a": {"c": [True]}}], ids=repr)
def test_plain_data_when_decoded_then_are_equal(value):
    back = decode(encode("x", value))
    assert repr(back) == repr(value)
    assert type(back) is type(value)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)])
def test_array_when_decoded_then_has_dtype_shape_and_bits(dtype, shape):
    array = np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    for inputs in (array, array.T, array.astype(array.dtype.newbyteorder(">"))):
        back = decode(encode("x", inputs))
        assert (back.dtype, back.shape) == (array.dtype, inputs.shape)
        assert np.array_equal(back, inputs)


def test_nan_when_decoded_then_keeps_its_bits():
    array = np.array([0x7FF8000000000123], np.uint64).view(np.float64)
    assert decode(encode("x", array)).view(np.uint64)[0] == 0x7FF8000000000123


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (object(), r"x: expected None, a bool.* got object"),
        ({"a": [1, {2}]}, r"x\['a'\]\[1\]: expected .* got set"),
        (b"bytes", "got bytes"),
        (1j, "got complex"),
        (2**63, "expected a signed 64-bit integer"),
        (np.uint64(2**63), "expected a signed 64-bit integer"),
        ({1: 2}, "expected dict keys that are strings"),
        ("\ud800", "Unicode"),
        (np.array([None]), "got ndarray of object"),
        (np.array(["a"]), "got ndarray of <U1"),
        (np.array([1j]), "complex128"),
        (np.ma.array([1]), "got MaskedArray"),
        (np.zeros(1, "datetime64[s]"), "datetime64"),
        (np.zeros(1, [("a", "i4")]), "an array of one of"),
    ],
)
def test_message_when_a_part_is_no_plain_data_then_names_it(value, says):
    with pytest.raises(UsageError, match=says.replace("x", "Message", 1) if says.startswith("x") else says):
        Message(value)


def test_message_when_it_contains_itself_then_is_refused():
    value = []
    value.append(value)
    with pytest.raises(UsageError, match="nested lists and dicts"):
        Message(value)


def test_message_when_it_is_nested_deeply_then_is_decoded():
    value = 1
    for _ in range(plain_data.MAX_LEVELS):
        value = {"a": value}
    assert decode(Message(value).encoded) == value


@pytest.mark.parametrize("value", [np.zeros(1001, np.int8), "a" * 1001, [np.zeros(600, np.int8)] * 2], ids=type)
def test_message_when_it_is_too_large_then_is_refused(value, monkeypatch):
    monkeypatch.setattr(plain_data, "LIMIT_BYTES", 1000)
    with pytest.raises(LimitError, match="at most 1,000 bytes"):
        Message(value)


def test_message_when_values_have_names_then_is_a_dict():
    assert decode(Message(a=1, b=[2]).encoded) == {"a": 1, "b": [2]}
    for inputs, named in (((), {}), ((1, 2), {}), ((1,), {"a": 1})):
        with pytest.raises(UsageError, match="expected one value, or values by name"):
            Message(*inputs, **named)


def test_message_when_its_array_changes_later_then_stays():
    array = np.zeros(2)
    message = Message(array)
    array += 1
    assert decode(message.encoded).tolist() == [0, 0]


@pytest.mark.parametrize(
    "array",
    [
        pb.PlainData.Array(dtype="object", shape=[1], data=bytes(8)),
        pb.PlainData.Array(dtype="float64", shape=[2], data=bytes(8)),
        pb.PlainData.Array(dtype="float64", shape=[2**63, 2], data=b""),
        pb.PlainData.Array(dtype="float64", shape=[0, 2**64 - 1], data=b""),
        pb.PlainData.Array(dtype="int8", shape=[1] * 100, data=b"1"),
        pb.PlainData.Array(dtype="", data=b""),
    ],
    ids=range(6),
)
def test_array_when_dtype_or_shape_lie_then_is_refused(array):
    with pytest.raises(ProtocolError, match="array of"):
        decode(pb.PlainData(array=array).SerializeToString())


@pytest.mark.parametrize(
    "encoded", [b"", b"\xff\xff", pb.PlainData(list=pb.PlainData.List(items=[{}])).SerializeToString()]
)
def test_bytes_when_they_are_no_plain_data_then_are_refused(encoded):
    with pytest.raises(ProtocolError, match="plain data"):
        decode(encoded)
