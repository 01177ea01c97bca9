"""Headers of .npy files: as NumPy has them, read by many threads at once, and refused when they are others."""

import io
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ps2.errors import CheckpointCorruptError
from ps2.storage.arrays import NpyHeader, npy_bytes, npy_header, read_npy_header


@pytest.mark.parametrize("shape", [(), (3,), (2, 2855), (0, 4), (1, 2, 3)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8", "bool"])
def test_npy_header_then_numpy_and_reader_agree(shape: tuple[int, ...], dtype: str) -> None:
    header = npy_header(np.dtype(dtype), shape)
    assert read_npy_header("x", io.BytesIO(header)) == NpyHeader(np.dtype(dtype), shape)
    array = np.ones(shape, dtype)
    np.testing.assert_array_equal(np.load(io.BytesIO(header + array.tobytes())), array)


def test_npy_header_when_numpy_wrote_the_file_then_it_is_read() -> None:
    file = io.BytesIO()
    np.save(file, np.zeros((7, 5), np.float32))
    assert file.getvalue() == b"".join(npy_bytes(np.zeros((7, 5), np.float32)))
    file.seek(0)
    assert read_npy_header("x", file) == NpyHeader(np.dtype("float32"), (7, 5))


def test_npy_header_when_many_threads_read_then_all_succeed() -> None:
    header = npy_header(np.dtype("float32"), (2, 2855))
    with ThreadPoolExecutor(8) as pool:
        result = list(pool.map(lambda _: read_npy_header("x", io.BytesIO(header)), range(4000)))
    assert set(result) == {NpyHeader(np.dtype("float32"), (2, 2855))}


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (b"\x93NUMPY", b"\x93NUMPX", "magic"),
        (b"\x01\x00", b"\x02\x00", "version 1.0"),
        (b"<f4", b"<x4", "data type"),
        (b"<f4", b"f4,", "type, order and shape"),
        (b"(2, 3)", b"(2; 3)", "type, order and shape"),
        (b"(2, 3)", b"(-2,3)", "type, order and shape"),
        (b"\n", b" ", "type, order and shape"),
    ],
)
def test_npy_header_when_unexpected_then_corrupt_error_says_why(old: bytes, new: bytes, why: str) -> None:
    header = npy_header(np.dtype("float32"), (2, 3))
    changed = header.replace(old, new, 1)
    with pytest.raises(CheckpointCorruptError, match=f"x: .*{why}"):
        read_npy_header("x", io.BytesIO(changed))


def test_npy_header_when_column_major_then_corrupt_error_says_so() -> None:
    file = io.BytesIO()
    np.save(file, np.asfortranarray(np.zeros((7, 5), np.float32)))
    file.seek(0)
    with pytest.raises(CheckpointCorruptError, match="expected C order, got Fortran"):
        read_npy_header("x", file)


@pytest.mark.parametrize("kept", [0, 3, 7, 9, 30, 127])
def test_npy_header_when_file_ends_within_it_then_corrupt_error(kept: int) -> None:
    header = npy_header(np.dtype("float32"), (2, 3))
    assert len(header) == 128
    with pytest.raises(CheckpointCorruptError, match="x: not a NumPy file"):
        read_npy_header("x", io.BytesIO(header[:kept]))
