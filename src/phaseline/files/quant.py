"""Block formats of tensor data: one row per format with its size and its reference decode.

The layouts and formulas are those of ggml. A row of a tensor is cut into blocks along the last axis;
each block holds its own scales. Decoding is written for clarity and runs vectorised over blocks;
it is the specification that the kernels are tested against.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from phaseline.errors import FileFormatError, UnsupportedError

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

# Rows are decoded in batches of about this many elements, so that temporaries stay small and in cache.
_BATCH_ELEMENTS = 1 << 18


@dataclass(frozen=True)
class Format:
    """A block format: `id` is ggml's type number, `block` elements are stored in `bytes` bytes."""

    name: str
    id: int
    block: int
    bytes: int
    decode: Callable[[Bytes], Floats]  # (blocks, bytes) -> (blocks, block)

    def row_bytes(self, cols: int) -> int:
        """Bytes of one row of `cols` elements; FileFormatError unless `cols` is a multiple of the block."""
        if cols % self.block:
            raise FileFormatError(f"a row of {cols} elements does not divide into {self.name} blocks of {self.block}")
        return cols // self.block * self.bytes

    def decode_rows(self, raw: Bytes) -> Floats:
        """Decode encoded rows, (rows, row bytes) uint8 -> (rows, cols) float32."""
        rows, row_bytes = raw.shape
        blocks = row_bytes // self.bytes
        out = np.empty((rows, blocks * self.block), np.float32)
        batch = max(1, _BATCH_ELEMENTS // max(1, out.shape[1]))
        with np.errstate(invalid="ignore"):  # an infinite scale times zero is NaN, as the format defines
            for start in range(0, rows, batch):
                part = np.ascontiguousarray(raw[start : start + batch]).reshape(-1, self.bytes)
                out[start : start + batch] = self.decode(part).reshape(-1, out.shape[1])
        return out


def _f16(raw: Bytes) -> Floats:
    return raw.view("<f2").astype(np.float32)  # (blocks, 2 * n) -> (blocks, n)


def _nibbles(packed: Bytes) -> Bytes:
    return np.stack((packed & 15, packed >> 4), axis=-2)  # (..., n) -> (..., 2, n): all low halves, then all high


def _f32(b: Bytes) -> Floats:
    return b.view("<f4").astype(np.float32)


def _bf16(b: Bytes) -> Floats:
    return (b.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q8_0(b: Bytes) -> Floats:  # scale, 32 signed bytes
    return _f16(b[:, :2]) * b[:, 2:].view(np.int8)


def _five_bits(b: Bytes) -> Bytes:  # 32 high bits, 16 packed nibbles -> (blocks, 32)
    high = np.unpackbits(b[:, :4], axis=1, bitorder="little")
    return _nibbles(b[:, 4:]).reshape(-1, 32) | high << np.uint8(4)


def _q4_0(b: Bytes) -> Floats:  # scale, 16 packed nibbles
    return _f16(b[:, :2]) * (_nibbles(b[:, 2:]).reshape(-1, 32).view(np.int8) - np.int8(8))


def _q4_1(b: Bytes) -> Floats:  # scale, minimum, 16 packed nibbles
    return _f16(b[:, :2]) * _nibbles(b[:, 4:]).reshape(-1, 32) + _f16(b[:, 2:4])


def _q5_0(b: Bytes) -> Floats:  # scale, 32 high bits, 16 packed nibbles
    return _f16(b[:, :2]) * (_five_bits(b[:, 2:]).view(np.int8) - np.int8(16))


def _q5_1(b: Bytes) -> Floats:  # scale, minimum, 32 high bits, 16 packed nibbles
    return _f16(b[:, :2]) * _five_bits(b[:, 4:]) + _f16(b[:, 2:4])


def _k_scales(b: Bytes) -> tuple[Floats, Floats]:
    """Scale and minimum of each group of 32: two f16 factors, then eight pairs of 6-bit numbers in 12 bytes."""
    first, second, low = b[:, 4:8], b[:, 8:12], b[:, 12:16]
    scale = np.hstack((first & 63, low & 15 | first >> 6 << 4))  # (blocks, 8)
    minimum = np.hstack((second & 63, low >> 4 | second >> 6 << 4))  # (blocks, 8)
    return (_f16(b[:, :2]) * scale)[:, :, None], (_f16(b[:, 2:4]) * minimum)[:, :, None]


def _q4_k(b: Bytes) -> Floats:  # factors and 6-bit scales (16), 4 runs of 32 packed nibbles
    scale, minimum = _k_scales(b)
    q = _nibbles(b[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return (scale * q - minimum).reshape(-1, 256)


def _q5_k(b: Bytes) -> Floats:  # as Q4_K, with 32 bytes of high bits before the nibbles
    scale, minimum = _k_scales(b)
    # Bit g of high byte i belongs to element i of group g.
    high = np.unpackbits(b[:, 16:48, None], axis=2, bitorder="little").transpose(0, 2, 1)  # (blocks, 8, 32)
    q = _nibbles(b[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32) | high << np.uint8(4)
    return (scale * q - minimum).reshape(-1, 256)


def _q6_k(b: Bytes) -> Floats:  # 128 packed nibbles, 64 bytes of high bit pairs, 16 signed scales, factor
    low = _nibbles(b[:, :128].reshape(-1, 2, 64)).reshape(-1, 16, 16)
    pairs = b[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([[0], [2], [4], [6]], np.uint8) & 3  # (blocks, 2, 4, 32)
    q = (low | pairs.reshape(-1, 16, 16) << 4).view(np.int8) - np.int8(32)
    scale = _f16(b[:, 208:]) * b[:, 192:208].view(np.int8)  # (blocks, 16)
    return (scale[:, :, None] * q).reshape(-1, 256)


_TABLE = (
    Format("F32", 0, 1, 4, _f32),
    Format("F16", 1, 1, 2, _f16),
    Format("Q4_0", 2, 32, 18, _q4_0),
    Format("Q4_1", 3, 32, 20, _q4_1),
    Format("Q5_0", 6, 32, 22, _q5_0),
    Format("Q5_1", 7, 32, 24, _q5_1),
    Format("Q8_0", 8, 32, 34, _q8_0),
    Format("Q4_K", 12, 256, 144, _q4_k),
    Format("Q5_K", 13, 256, 176, _q5_k),
    Format("Q6_K", 14, 256, 210, _q6_k),
    Format("BF16", 30, 1, 2, _bf16),
)
_BY_ID = MappingProxyType({f.id: f for f in _TABLE})

FORMATS: Mapping[str, Format] = MappingProxyType({f.name: f for f in _TABLE})

# Names of ggml types without a decode here, for the refusal.
_OTHER_TYPES = MappingProxyType(
    {
        9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
        20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
        29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
    }
)  # fmt: skip


def format_of_id(id: int) -> Format:
    """The format with ggml type number `id`; UnsupportedError names any other type and lists these."""
    if id not in _BY_ID:
        name = _OTHER_TYPES.get(id, "unknown")
        raise UnsupportedError(f"tensor type {name} (type {id}) is not supported; supported: {', '.join(FORMATS)}")
    return _BY_ID[id]
