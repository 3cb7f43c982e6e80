"""Four-bit codes that number sixteen values, unevenly spread."""

import numpy as np
from numpy.typing import NDArray

from phaseline.files.quant.base import Bytes, Floats, f16, low_first, nibbles

_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
_FP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)  # twice the values of e2m1


def iq4_nl(b: Bytes) -> Floats:  # f16 scale, 16 packed nibbles
    return f16(b[:, :2]) * _IQ4[nibbles(b[:, 2:]).reshape(-1, 32)]


def iq4_xs(b: Bytes) -> Floats:  # f16 factor, 8 6-bit scales (high pairs, then low nibbles), 16 packed nibbles for each
    scale = (low_first(b[:, 4:8], 4) | low_first(b[:, 2:4], 2) << 4).view(np.int8) - np.int8(32)  # (blocks, 8)
    q = _IQ4[nibbles(b[:, 8:].reshape(-1, 8, 16)).reshape(-1, 8, 32)]
    return ((f16(b[:, :2]) * scale)[:, :, None] * q).reshape(-1, 256)


def mxfp4(b: Bytes) -> Floats:  # exponent of two (bias 127), 16 packed nibbles
    return _half_power(b[:, :1]) * _FP4[nibbles(b[:, 1:]).reshape(-1, 32)]


def _half_power(exponent: Bytes) -> NDArray[np.float32]:
    """2^(exponent - 128), exactly; every exponent is a number here."""
    return np.ldexp(np.float32(1), exponent.astype(np.int32) - 128).astype(np.float32)
