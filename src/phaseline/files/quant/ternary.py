"""Weights of -1, 0 and 1 with one scale for 256."""

import numpy as np

from phaseline.files.quant.base import Bytes, Floats, f16, runs


def tq2_0(b: Bytes) -> Floats:  # 64 bytes of two bits, f16 scale
    return f16(b[:, 64:]) * (runs(b[:, :64], 2).reshape(-1, 256).view(np.int8) - np.int8(1))


def tq1_0(b: Bytes) -> Floats:
    """Five digits of base three in each of 32 and then 16 bytes, four in each of four more; f16 scale.

    A byte is the number with those digits after the point, in units of 1/256 rounded up: times three, the digit that
    stands before the point is the next one.
    """
    parts = (_digits(b[:, :32], 5), _digits(b[:, 32:48], 5), _digits(b[:, 48:52], 4))
    return f16(b[:, 52:]) * (np.hstack(parts).view(np.int8) - np.int8(1))


def _digits(packed: Bytes, count: int) -> Bytes:
    """(blocks, n) -> (blocks, count * n): all first digits, all second digits ..."""
    powers = 3 ** np.arange(count, dtype=np.uint8)[:, None]
    rest = packed[:, None, :] * powers  # modulo 256: what is left after the digits before
    return (rest.astype(np.uint16) * 3 >> 8).astype(np.uint8).reshape(len(packed), -1)
