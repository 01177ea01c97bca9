"""Keys and floats come back from their packed forms; what cannot have been packed is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ps2.errors import DTypeError, OutOfRangeError, ProtocolError, ShapeError
from ps2.ops import packing
from ps2.ops.packing import BFLOAT16, MAX_KEY

KEYS = st.lists(st.integers(0, MAX_KEY) | st.integers(0, 70_000), min_size=1, max_size=50, unique=True).map(
    lambda keys: np.array(sorted(keys), dtype=np.int64)
)
FLOAT32 = hnp.arrays(np.float32, st.integers(0, 50), elements=st.floats(width=32))
FLOAT64 = hnp.arrays(np.float64, st.integers(0, 50), elements=st.floats() | st.floats(-70_000, 70_000))
ALL_HALVES = np.arange(2**16, dtype=np.uint16)


@pytest.fixture(scope="module", autouse=True, params=[0, packing.FEW], ids=["many keys", "few keys"])
def few(request):
    """Up to so many keys go without kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "FEW", request.param)
        yield request.param


def ints(*values):
    return np.array(values, dtype=np.int64)


@given(KEYS)
def test_keys_when_packed_then_unpack_to_the_same(keys):
    np.testing.assert_array_equal(packing.unpack_keys(*packing.pack_keys(keys)), keys)


@pytest.mark.parametrize(
    ("largest", "dtype"),
    [
        (1, "uint8"),
        (2**8 - 1, "uint8"),
        (2**8, "uint16"),
        (2**16 - 1, "uint16"),
        (2**16, "uint32"),
        (2**32 - 1, "uint32"),
        (2**32, "uint64"),
        (2**63 - 1, "uint64"),
    ],
)
def test_pack_when_called_then_takes_the_narrowest_dtype(largest, dtype):
    first, deltas = packing.pack_keys(ints(0, largest))
    assert (first, deltas.tolist(), deltas.dtype) == (0, [largest], np.dtype(dtype))


def test_keys_when_they_are_few_then_no_kernel_is_called(monkeypatch):
    """The first call of one takes a new process longer than all else that it does to send them."""
    monkeypatch.setattr(packing, "FEW", 9)
    for name in ("_is_ascending", "_largest_delta", "_pack"):
        monkeypatch.setattr(packing, name, None)
    assert packing.is_ascending(np.arange(9))
    assert packing.pack_keys(np.arange(9))[1].tolist() == [1] * 8


def test_pack_when_given_one_key_then_has_no_deltas():
    first, deltas = packing.pack_keys(ints(MAX_KEY))
    assert (first, deltas.size) == (MAX_KEY, 0)
    assert packing.unpack_keys(first, deltas).tolist() == [MAX_KEY]


def test_pack_when_given_no_key_then_raises():
    with pytest.raises(ShapeError, match="expected at least one key"):
        packing.pack_keys(ints())


@given(st.lists(st.integers(0, 20), max_size=8))
def test_is_ascending_when_keys_are_sorted_distinct_then_true(keys):
    assert packing.is_ascending(ints(*keys)) == (keys == sorted(set(keys)))


@given(
    st.integers(MAX_KEY - 300, MAX_KEY) | st.integers(0, 300),
    st.sampled_from(packing.DELTA_DTYPES).flatmap(lambda dtype: hnp.arrays(dtype, st.integers(0, 6))),
)
def test_unpack_when_given_anything_then_sums_it_or_raises(first, deltas):
    expected = [first]
    for delta in deltas.tolist():
        expected.append(expected[-1] + delta)
    if 0 in deltas or expected[-1] > MAX_KEY:
        with pytest.raises(ProtocolError, match="position"):
            packing.unpack_keys(first, deltas)
    else:
        assert packing.unpack_keys(first, deltas).tolist() == expected


def test_unpack_when_a_delta_is_zero_then_names_its_position():
    with pytest.raises(ProtocolError, match="delta at position 1 is 0, and the key before it is 8"):
        packing.unpack_keys(3, np.array([5, 0, 1], np.uint8))


@pytest.mark.parametrize("delta", [8, 2**63, 2**64 - 1])
def test_unpack_when_key_would_exceed_int64_then_names_delta(delta):
    with pytest.raises(ProtocolError, match=f"position 0 is {delta}, .* expected a delta from 1 to 7"):
        packing.unpack_keys(MAX_KEY - 7, np.array([delta], np.uint64))


@pytest.mark.parametrize("first", [-1, 2**63, 2**64])
def test_unpack_when_the_first_key_is_out_of_range_then_raises(first):
    with pytest.raises(ProtocolError, match=f"first key is {first}"):
        packing.unpack_keys(first, np.zeros(0, np.uint8))


@given(st.lists(st.integers(0, MAX_KEY), min_size=1))
def test_keys_when_packed_in_any_order_then_unpack_to_the_same(keys):
    assert packing.unpack_keys(*packing.pack_keys(ints(*keys))).tolist() == keys


@pytest.mark.parametrize("delta", [-8, MAX_KEY])
def test_unpack_when_signed_delta_leaves_range_then_raises(delta):
    with pytest.raises(ProtocolError, match=r"key -\d+ is outside"):
        packing.unpack_keys(7, ints(delta))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_unpack_when_the_deltas_have_another_dtype_then_raises(dtype):
    with pytest.raises(ProtocolError, match=dtype):
        packing.unpack_keys(0, np.ones(1, dtype))


def test_unpack_when_deltas_are_misaligned_then_unpacks():
    deltas = np.frombuffer(b"x" + np.array([5, 6], np.uint16).tobytes(), np.uint16, 2, 1)
    assert packing.unpack_keys(1, deltas).tolist() == [1, 6, 12]


@pytest.mark.parametrize(
    ("dtype", "ends", "narrow"),
    [
        ("int64", (-(2**7), 2**7 - 1), "int8"),
        ("int64", (0, 2**7), "int16"),
        ("int64", (-(2**15) - 1, 0), "int32"),
        ("int64", (0, 2**31 - 1), "int32"),
        ("int64", (-(2**31) - 1, 0), "int64"),
        ("int32", (-(2**7), 0), "int8"),
        ("int32", (0, 2**15 - 1), "int16"),
        ("int32", (0, 2**15), "int32"),
    ],
)
def test_integers_when_narrowed_then_use_narrowest_width(dtype, ends, narrow):
    """Those that need the width come last."""
    array = np.zeros((3, 1000), dtype)
    array[2, -2:] = ends
    result = packing.narrow_integers(array)
    assert result.dtype == narrow
    assert np.array_equal(result, array)


@pytest.mark.parametrize("array", [np.zeros(511, np.int64), np.zeros(0, np.int32), np.arange(2**40, 2**40 + 2000)])
def test_integers_when_few_or_large_then_as_they_are(array):
    assert packing.narrow_integers(array) is array


def bfloat16_by_numpy(array):
    """Round to nearest even on uint32, by remainder: written apart from the kernel."""
    bits = array.astype(np.float32).view(np.uint32).astype(np.int64)
    kept, rest = bits >> 16, bits & 0xFFFF
    kept += (rest > 0x8000) | ((rest == 0x8000) & (kept % 2 == 1))
    return kept.astype(np.uint16)


def values_of_bfloat16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def assert_same_bits(ours, theirs, numbers):
    """Compare bits, save those of NaN, of which only that it stays NaN."""
    nan = np.isnan(numbers)
    np.testing.assert_array_equal(ours[~nan], theirs[~nan])


@given(FLOAT32)
def test_bfloat16_when_rounded_from_float32_then_matches_oracle(array):
    ours = packing.to_bfloat16(array)
    assert ours.dtype == BFLOAT16
    assert_same_bits(ours.view(np.uint16), bfloat16_by_numpy(array), array)
    np.testing.assert_array_equal(np.isnan(packing.from_bfloat16(ours, np.float32)), np.isnan(array))


@given(FLOAT64)
def test_bfloat16_of_float64_when_rounded_then_is_the_nearest(array):
    """Of the bfloat16 and its neighbours none is nearer: float64 is not rounded twice."""
    with np.errstate(all="ignore"):
        bits = packing.to_bfloat16(array).view(np.uint16)
        finite = np.isfinite(values_of_bfloat16(bits))
        bits, array = bits[finite], array[finite]
        error = np.abs(values_of_bfloat16(bits).astype(np.float64) - array)
        for step in (-1, 1):
            other = values_of_bfloat16((bits.astype(np.int64) + step).astype(np.uint16)).astype(np.float64)
            farther = ~(np.abs(other - array) <= error)
            assert (farther | ((np.abs(other - array) == error) & (bits % 2 == 0)) | (array == 0)).all()


@pytest.mark.parametrize(
    ("number", "bits"),
    [
        (1.0, 0x3F80),
        (-0.0, 0x8000),
        (math.inf, 0x7F80),
        (-math.inf, 0xFF80),
        (float(np.finfo(np.float32).max), 0x7F80),
        (1 + 2**-8, 0x3F80),
        (1 + 3 * 2**-8, 0x3F82),
        (1 + 2**-8 + 2**-40, 0x3F81),
        (1e300, 0x7F80),
        (1e-300, 0x0000),
        (2.0**-133, 0x0001),
    ],
)
def test_bfloat16_of_float64_when_special_then_follows_ieee(number, bits):
    assert packing.to_bfloat16(np.array([number])).view(np.uint16).tolist() == [bits]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("wire", ["float16", "bfloat16"])
def test_halves_when_widened_and_narrowed_then_are_the_same(wire, dtype):
    halves = ALL_HALVES.view(np.float16 if wire == "float16" else BFLOAT16)
    wide = packing.widen(halves, dtype)
    assert wide.dtype == np.dtype(dtype)
    again = packing.narrow(wide, wire)
    assert again.dtype == halves.dtype
    assert_same_bits(again.view(np.uint16), ALL_HALVES, wide)
    assert np.isnan(packing.widen(again, dtype)[np.isnan(wide)]).all()


def test_bfloat16_when_widened_then_is_upper_float32_bits():
    np.testing.assert_array_equal(packing.widen(ALL_HALVES.view(BFLOAT16), "float32"), values_of_bfloat16(ALL_HALVES))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_float16_when_widened_then_equals_numpy(dtype):
    halves = ALL_HALVES.view(np.float16)
    np.testing.assert_array_equal(packing.widen(halves, dtype), halves.astype(dtype))


@given(FLOAT32 | FLOAT64)
def test_float16_when_rounded_then_has_the_bits_of_numpy(array):
    fits = ~np.isfinite(array) | (np.abs(array) < 65520)
    with np.errstate(all="ignore"):
        expected = array[fits].astype(np.float16)
    ours = packing.to_float16(array[fits])
    assert_same_bits(ours.view(np.uint16), expected.view(np.uint16), array[fits])
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(expected))
    if not fits.all():
        with pytest.raises(OutOfRangeError, match=rf"\(at position {np.argmin(fits)}\) does not fit float16"):
            packing.to_float16(array)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_float16_when_between_two_of_them_then_ties_go_to_even(dtype):
    halves = ALL_HALVES[:0x7C00].view(np.float16).astype(dtype)
    between = (halves[1:] + halves[:-1]) / 2
    np.testing.assert_array_equal(packing.to_float16(between), between.astype(np.float16))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("number", [65520, -65520, 3e38])
def test_float16_when_a_finite_number_does_not_fit_then_names_it(number, dtype):
    with pytest.raises(OutOfRangeError, match=r"\(at position 2\)"):
        packing.to_float16(np.array([math.inf, 1, number, number], dtype))


def test_float16_when_just_below_the_limit_then_is_the_largest():
    assert packing.to_float16(np.nextafter([65520.0], 0)).tolist() == [65504.0]


@pytest.mark.parametrize(("wire", "digits"), [("float16", 11), ("bfloat16", 8)])
def test_halves_when_in_normal_range_then_error_is_bounded(wire, digits):
    array = np.random.default_rng(3).uniform(2.0**-14, 65504, 10_000)
    np.testing.assert_allclose(packing.widen(packing.narrow(array, wire), "float64"), array, rtol=2.0**-digits)


def test_float16_when_below_normal_range_then_error_is_bounded():
    array = np.random.default_rng(3).uniform(-(2.0**-14), 2.0**-14, 10_000)
    np.testing.assert_allclose(packing.widen(packing.to_float16(array), "float64"), array, rtol=0, atol=2.0**-25)


@pytest.mark.parametrize("wire", ["float16", "bfloat16"])
def test_narrow_when_given_integers_then_raises(wire):
    with pytest.raises(DTypeError, match="got int64"):
        packing.narrow(ints(1), wire)


def test_widen_when_given_whole_floats_then_raises():
    with pytest.raises(DTypeError, match="got float32"):
        packing.widen(np.ones(1, np.float32), "float32")
