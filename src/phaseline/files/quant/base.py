"""What a block format is, and the pieces that decoders share."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from phaseline.errors import FileFormatError

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
    # (entries, width) digits that its blocks refer to, for whoever packs them.
    codebook: Bytes | None = field(default=None, compare=False, repr=False)

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
        with np.errstate(invalid="ignore", over="ignore"):  # scales may be infinite, or nearly so
            for start in range(0, rows, batch):
                part = np.ascontiguousarray(raw[start : start + batch]).reshape(-1, self.bytes)
                out[start : start + batch] = self.decode(part).reshape(-1, out.shape[1])
        return out


def f16(raw: Bytes) -> Floats:
    """(blocks, 2 * n) -> (blocks, n)."""
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


def nibbles(packed: Bytes) -> Bytes:
    """(..., n) -> (..., 2, n): all low halves, then all high."""
    return np.stack((packed & 15, packed >> 4), axis=-2)


def low_first(packed: Bytes, bits: int) -> Bytes:
    """(blocks, n) -> (blocks, n * 8 / bits): the numbers of so many bits in each byte, the lowest first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return (packed[..., None] >> shifts & np.uint8((1 << bits) - 1)).reshape(len(packed), -1)


def runs(packed: Bytes, bits: int) -> Bytes:
    """(blocks, m * 32) -> (blocks, m * 8 / bits, 32): each 32 bytes hold runs of 32 numbers, the first lowest."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    parts = packed.reshape(len(packed), -1, 1, 32) >> shifts & np.uint8((1 << bits) - 1)
    return parts.reshape(len(packed), -1, 32)
