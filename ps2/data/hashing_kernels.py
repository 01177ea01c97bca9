"""Kernels of hashing: XXH3, a 64-bit hash of bytes, and the keys of texts, integers and crosses.

The hashes equal those of the ``xxhash`` package for all lengths. The names of constants and steps are those of the
specification (https://github.com/Cyan4973/xxHash).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ps2.array_types import Float32s, Int32s, Int64s
from ps2.ops.kernels import inline, kernel

Bytes = npt.NDArray[np.uint8]
UInt64s = npt.NDArray[np.uint64]

SECRET = np.frombuffer(
    bytes.fromhex(
        "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
        "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
        "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
        "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
        "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
        "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
    ),
    np.uint8,
)
PRIME32_1, PRIME32_2, PRIME32_3 = np.uint64(0x9E3779B1), np.uint64(0x85EBCA77), np.uint64(0xC2B2AE3D)
PRIME64_1, PRIME64_2 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F)
PRIME64_3, PRIME64_4 = np.uint64(0x165667B19E3779F9), np.uint64(0x85EBCA77C2B2AE63)
PRIME64_5 = np.uint64(0x27D4EB2F165667C5)
PRIME_MX1, PRIME_MX2 = np.uint64(0x165667919E3779F9), np.uint64(0x9FB21C651E98DF25)
LOW_HALF = np.uint64(0xFFFFFFFF)
STRIPE, BLOCK = 64, 1024
# Texts up to this number of bytes are hashed without stripes.
MAX_SHORT = 240
ONE = np.uint64(1)
# The maximum number of characters of an int64: 19 digits and the sign.
MAX_CHARS = 20


def _reader(bits: int) -> Any:
    """Return the implementation of an intrinsic that reads ``bits`` bits at an offset of a text."""

    def read(_: Any, text: Any, offset: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, arguments[0])
            address = builder.gep(builder.bitcast(array.data, cgutils.voidptr_t), [arguments[1]])
            word = builder.load(builder.bitcast(address, ir.IntType(bits).as_pointer()), align=1)
            return builder.zext(word, ir.IntType(64)) if bits < 64 else word

        return types.uint64(text, types.intp), generate

    return read


# Read the 8 or the 4 bytes at an offset as a little-endian number.
read64: Any = intrinsic(_reader(64))
read32: Any = intrinsic(_reader(32))


def _fold_product(_: Any, a: Any, b: Any) -> Any:
    """Return the exclusive or of the two halves of the 128-bit product of two uint64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide, word = ir.IntType(128), ir.IntType(64)
        product = builder.mul(*(builder.zext(factor, wide) for factor in arguments))
        high = builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), word)
        return builder.xor(builder.trunc(product, word), high)

    return types.uint64(types.uint64, types.uint64), generate


fold_product: Any = intrinsic(_fold_product)


def _swap(_: Any, number: Any) -> Any:
    """Return a uint64 with its bytes in reverse order."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bswap(arguments[0])

    return types.uint64(types.uint64), generate


swap: Any = intrinsic(_swap)


@inline
def xxh3(text: Bytes, begin: int, length: int, seed: np.uint64) -> np.uint64:
    """Return XXH3_64bits_withSeed of ``text[begin : begin + length]``."""
    if length <= 16:
        return _up_to_16(text, begin, length, seed)
    if length <= 128:
        return _up_to_128(text, begin, length, seed)
    if length <= MAX_SHORT:
        return _up_to_240(text, begin, length, seed)
    return _over_240(text, begin, length, seed)


@inline
def _up_to_16(text: Bytes, begin: int, length: int, seed: np.uint64) -> np.uint64:
    if length > 8:
        flip_low = (read64(SECRET, 24) ^ read64(SECRET, 32)) + seed
        flip_high = (read64(SECRET, 40) ^ read64(SECRET, 48)) - seed
        low, high = read64(text, begin) ^ flip_low, read64(text, begin + length - 8) ^ flip_high
        return avalanche(np.uint64(length) + swap(low) + high + fold_product(low, high))
    if length >= 4:
        seed ^= swap(seed & LOW_HALF)
        flip = (read64(SECRET, 8) ^ read64(SECRET, 16)) - seed
        word = (read32(text, begin + length - 4) + (read32(text, begin) << np.uint64(32))) ^ flip
        word ^= (word << np.uint64(49) | word >> np.uint64(15)) ^ (word << np.uint64(24) | word >> np.uint64(40))
        word *= PRIME_MX2
        word ^= (word >> np.uint64(35)) + np.uint64(length)
        word *= PRIME_MX2
        return word ^ (word >> np.uint64(28))
    if length > 0:
        first, middle, last = text[begin], text[begin + (length >> 1)], text[begin + length - 1]
        combined = (
            np.uint64(first) << np.uint64(16)
            | np.uint64(middle) << np.uint64(24)
            | np.uint64(last)
            | np.uint64(length) << np.uint64(8)
        )
        return _avalanche_64(combined ^ ((read32(SECRET, 0) ^ read32(SECRET, 4)) + seed))
    return _avalanche_64(seed ^ read64(SECRET, 56) ^ read64(SECRET, 64))


@inline
def _up_to_128(text: Bytes, begin: int, length: int, seed: np.uint64) -> np.uint64:
    word = np.uint64(length) * PRIME64_1
    end = begin + length
    for pair in range((length - 1) // 32, -1, -1):
        word += _mix(text, begin + 16 * pair, 32 * pair, seed)
        word += _mix(text, end - 16 * (pair + 1), 32 * pair + 16, seed)
    return avalanche(word)


@inline
def _up_to_240(text: Bytes, begin: int, length: int, seed: np.uint64) -> np.uint64:
    word = np.uint64(length) * PRIME64_1
    for step in range(8):
        word += _mix(text, begin + 16 * step, 16 * step, seed)
    word = avalanche(word)
    for step in range(8, length // 16):
        word += _mix(text, begin + 16 * step, 16 * (step - 8) + 3, seed)
    return avalanche(word + _mix(text, begin + length - 16, 136 - 17, seed))


@inline
def _over_240(text: Bytes, begin: int, length: int, seed: np.uint64) -> np.uint64:
    words = np.empty(24, np.uint64)
    for pair in range(12):
        words[2 * pair] = read64(SECRET, 16 * pair) + seed
        words[2 * pair + 1] = read64(SECRET, 16 * pair + 8) - seed
    secret = words.view(np.uint8)
    sums = np.array([PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1], np.uint64)
    blocks = (length - 1) // BLOCK
    for block in range(blocks):
        for stripe in range(16):
            _accumulate(sums, text, begin + BLOCK * block + STRIPE * stripe, secret, 8 * stripe)
        for lane in range(8):
            mixed = sums[lane] ^ (sums[lane] >> np.uint64(47)) ^ read64(secret, 128 + 8 * lane)
            sums[lane] = mixed * PRIME32_1
    for stripe in range((length - 1 - BLOCK * blocks) // STRIPE):
        _accumulate(sums, text, begin + BLOCK * blocks + STRIPE * stripe, secret, 8 * stripe)
    _accumulate(sums, text, begin + length - STRIPE, secret, 128 - 7)
    word = np.uint64(length) * PRIME64_1
    for pair in range(4):
        low = sums[2 * pair] ^ read64(secret, 11 + 16 * pair)
        word += fold_product(low, sums[2 * pair + 1] ^ read64(secret, 19 + 16 * pair))
    return avalanche(word)


@inline
def _accumulate(sums: UInt64s, text: Bytes, offset: int, secret: Bytes, secret_offset: int) -> None:
    for lane in range(8):
        word = read64(text, offset + 8 * lane)
        keyed = word ^ read64(secret, secret_offset + 8 * lane)
        sums[lane ^ 1] += word
        sums[lane] += (keyed & LOW_HALF) * (keyed >> np.uint64(32))


@inline
def _mix(text: Bytes, offset: int, secret_offset: int, seed: np.uint64) -> np.uint64:
    low = read64(text, offset) ^ (read64(SECRET, secret_offset) + seed)
    return fold_product(low, read64(text, offset + 8) ^ (read64(SECRET, secret_offset + 8) - seed))


@inline
def avalanche(word: np.uint64) -> np.uint64:
    word ^= word >> np.uint64(37)
    word *= PRIME_MX1
    return word ^ (word >> np.uint64(32))


@inline
def _avalanche_64(word: np.uint64) -> np.uint64:
    word ^= word >> np.uint64(33)
    word *= PRIME64_2
    word ^= word >> np.uint64(29)
    word *= PRIME64_3
    return word ^ (word >> np.uint64(32))


@kernel
def keys_of_texts(text: Bytes, bounds: Any, seed: np.uint64) -> Int64s:
    """Return the key of each text; ``bounds``: the n + 1 bounds of the texts, int32 or int64."""
    keys = np.empty(bounds.size - 1, np.int64)
    for i in range(keys.size):
        keys[i] = np.int64(xxh3(text, int(bounds[i]), int(bounds[i + 1] - bounds[i]), seed) >> ONE)
    return keys


@kernel
def keys_of_integers(numbers: Int64s, seed: np.uint64) -> Int64s:
    """Return the key of each integer's decimal text, in ASCII."""
    keys = np.empty(numbers.size, np.int64)
    text = np.empty(MAX_CHARS, np.uint8)
    for i in range(keys.size):
        remaining = np.uint64(-numbers[i]) if numbers[i] < 0 else np.uint64(numbers[i])
        begin = MAX_CHARS
        while True:
            begin -= 1
            tenth = remaining // np.uint64(10)
            text[begin] = 48 + (remaining - tenth * np.uint64(10))  # 48: "0"
            remaining = tenth
            if remaining == 0:
                break
        if numbers[i] < 0:
            begin -= 1
            text[begin] = 45  # "-"
        keys[i] = np.int64(xxh3(text, begin, MAX_CHARS - begin, seed) >> ONE)
    return keys


@kernel
def keys_of_crosses(parts: Int64s, seed: np.uint64) -> Int64s:
    """Return the key of each cross. ``parts``: the keys of the crossed fields, shape (n, fields)."""
    keys = np.empty(parts.shape[0], np.int64)
    text = parts.view(np.uint8).reshape(-1)
    length = 8 * parts.shape[1]
    for i in range(keys.size):
        keys[i] = np.int64(xxh3(text, i * length, length, seed) >> ONE)
    return keys


@kernel
def write_pairs(
    keys: Int64s, values: Float32s, lengths: Int64s, field: int, next_pair: Int64s, out: tuple[Int64s, Float32s, Int32s]
) -> None:
    """Write a field's pairs into their rows, and advance ``next_pair``, the position of each row's next pair."""
    out_keys, out_values, out_fields = out
    pair = 0
    for row in range(lengths.size):
        begin = next_pair[row]
        for i in range(lengths[row]):
            out_keys[begin + i] = keys[pair]
            out_values[begin + i] = values[pair] if values.size else np.float32(1)
            out_fields[begin + i] = field
            pair += 1
        next_pair[row] = begin + lengths[row]
