"""Plain types, and blocks of 32 with a scale or a scale and a minimum."""

import numpy as np

from phaseline.files.quant.base import Bytes, Floats, f16, nibbles


def f32(b: Bytes) -> Floats:
    return b.view("<f4").astype(np.float32)


def bf16(b: Bytes) -> Floats:
    return (b.view("<u2").astype(np.uint32) << 16).view(np.float32)


def q8_0(b: Bytes) -> Floats:  # scale, 32 signed bytes
    return f16(b[:, :2]) * b[:, 2:].view(np.int8)


def _five_bits(b: Bytes) -> Bytes:  # 32 high bits, 16 packed nibbles -> (blocks, 32)
    high = np.unpackbits(b[:, :4], axis=1, bitorder="little")
    return nibbles(b[:, 4:]).reshape(-1, 32) | high << np.uint8(4)


def q4_0(b: Bytes) -> Floats:  # scale, 16 packed nibbles
    return f16(b[:, :2]) * (nibbles(b[:, 2:]).reshape(-1, 32).view(np.int8) - np.int8(8))


def q4_1(b: Bytes) -> Floats:  # scale, minimum, 16 packed nibbles
    return f16(b[:, :2]) * nibbles(b[:, 4:]).reshape(-1, 32) + f16(b[:, 2:4])


def q5_0(b: Bytes) -> Floats:  # scale, 32 high bits, 16 packed nibbles
    return f16(b[:, :2]) * (_five_bits(b[:, 2:]).view(np.int8) - np.int8(16))


def q5_1(b: Bytes) -> Floats:  # scale, minimum, 32 high bits, 16 packed nibbles
    return f16(b[:, :2]) * _five_bits(b[:, 4:]) + f16(b[:, 2:4])
