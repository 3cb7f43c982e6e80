"""Super-blocks of 256 whose groups have small integer scales."""

import numpy as np

from phaseline.files.quant.base import Bytes, Floats, f16, nibbles, runs


def q2_k(b: Bytes) -> Floats:  # 16 pairs of 4-bit scale and minimum, 64 bytes of two bits, two f16 factors
    scale: Floats = f16(b[:, 80:82]) * (b[:, :16] & 15)  # (blocks, 16)
    minimum: Floats = f16(b[:, 82:]) * (b[:, :16] >> 4)
    q = runs(b[:, 16:80], 2).reshape(-1, 16, 16)
    w: Floats = scale[:, :, None] * q - minimum[:, :, None]
    return w.reshape(-1, 256)


def q3_k(b: Bytes) -> Floats:  # 32 bytes of high bits, 64 of two low bits, 16 6-bit scales in 12 bytes, f16 factor
    low = nibbles(b[:, 96:104]).reshape(-1, 16)
    high = (b[:, None, 104:108] >> np.array([[0], [2], [4], [6]], np.uint8) & 3).reshape(-1, 16)
    scale = f16(b[:, 108:]) * ((low | high << 4).view(np.int8) - np.int8(32))  # (blocks, 16)
    q = (runs(b[:, 32:96], 2) | runs(b[:, :32], 1) << 2).view(np.int8) - np.int8(4)
    w: Floats = scale[:, :, None] * q.reshape(-1, 16, 16)
    return w.reshape(-1, 256)


def _k_scales(b: Bytes) -> tuple[Floats, Floats]:
    """Scale and minimum of each group of 32: two f16 factors, then eight pairs of 6-bit numbers in 12 bytes."""
    first, second, low = b[:, 4:8], b[:, 8:12], b[:, 12:16]
    scale = np.hstack((first & 63, low & 15 | first >> 6 << 4))  # (blocks, 8)
    minimum = np.hstack((second & 63, low >> 4 | second >> 6 << 4))  # (blocks, 8)
    return (f16(b[:, :2]) * scale)[:, :, None], (f16(b[:, 2:4]) * minimum)[:, :, None]


def q4_k(b: Bytes) -> Floats:  # factors and 6-bit scales (16), 4 runs of 32 packed nibbles
    scale, minimum = _k_scales(b)
    q = nibbles(b[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return (scale * q - minimum).reshape(-1, 256)


def q5_k(b: Bytes) -> Floats:  # as Q4_K, with 32 bytes of high bits before the nibbles
    scale, minimum = _k_scales(b)
    # Bit g of high byte i belongs to element i of group g.
    high = np.unpackbits(b[:, 16:48, None], axis=2, bitorder="little").transpose(0, 2, 1)  # (blocks, 8, 32)
    q = nibbles(b[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32) | high << np.uint8(4)
    return (scale * q - minimum).reshape(-1, 256)


def q6_k(b: Bytes) -> Floats:  # 128 packed nibbles, 64 bytes of high bit pairs, 16 signed scales, factor
    low = nibbles(b[:, :128].reshape(-1, 2, 64)).reshape(-1, 16, 16)
    pairs = b[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([[0], [2], [4], [6]], np.uint8) & 3  # (blocks, 2, 4, 32)
    q = (low | pairs.reshape(-1, 16, 16) << 4).view(np.int8) - np.int8(32)
    scale = f16(b[:, 208:]) * b[:, 192:208].view(np.int8)  # (blocks, 16)
    return (scale[:, :, None] * q).reshape(-1, 256)
