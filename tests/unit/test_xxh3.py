"""Our XXH3 has the values of the xxhash package."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash

from ps2.data import hashing_kernels
from ps2.ops.kernels import kernel

xxh3 = kernel(hashing_kernels.xxh3)

TEXT = np.random.default_rng(0).integers(0, 256, 5000).astype(np.uint8)
# Around the ends of the blocks of 1024 bytes.
LONG = [1023, 1024, 1025, 2047, 2048, 2049, 3072, 3073, 4900]


@pytest.mark.parametrize("seed", [0, 1, 0x123456789ABCDEF0, 2**64 - 1])
def test_xxh3_when_any_length_then_equals_xxhash(seed):
    for length in [*range(400), *LONG]:
        expected = xxhash.xxh3_64_intdigest(TEXT[7 : 7 + length].tobytes(), seed)
        assert int(xxh3(TEXT, 7, length, np.uint64(seed))) == expected, length
