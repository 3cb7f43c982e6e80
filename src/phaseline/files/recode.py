"""A model file whose matrices are held in another format: the same model, with more or fewer bytes to read."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phaseline.errors import UnsupportedError
from phaseline.files.base import ModelFile, TensorInfo
from phaseline.files.quant import FORMATS, Bytes, Floats


class RecodedFile:
    """Presents `file` with every matrix in `format`; vectors, and rows that do not divide into its blocks, stay.

    A matrix is encoded each time it is read, so nothing is held twice. Encoding rounds: to the nearest bf16, or, in
    q8_0, to the nearest of 255 steps of each 32 weights. Raises UnsupportedError for a format without an encoder.
    """

    def __init__(self, file: ModelFile, format: str) -> None:
        name = format.upper()
        if name not in _ENCODERS:
            raise UnsupportedError(f"weights cannot be held as {format!r} (supported: {', '.join(WEIGHT_TYPES)})")
        self._file, self._target, self._encode = file, FORMATS[name], _ENCODERS[name]
        self.path: Path = file.path
        self.parts: Sequence[Path] = file.parts
        self.metadata: Mapping[str, Any] = file.metadata
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType({n: self._info(i) for n, i in file.tensors.items()})

    def raw(self, name: str) -> NDArray[np.uint8]:
        info = self.tensors[name]
        if info is self._file.tensors[name]:
            return self._file.raw(name)
        return self._encode(self._file.float32(name).reshape(-1, info.shape[-1]))

    def float32(self, name: str) -> NDArray[np.float32]:
        info = self.tensors[name]
        if info is self._file.tensors[name]:
            return self._file.float32(name)
        return info.format.decode_rows(self.raw(name)).reshape(info.shape)

    def release(self, name: str) -> None:
        self._file.release(name)

    def close(self) -> None:
        self._file.close()

    def _info(self, info: TensorInfo) -> TensorInfo:
        *rows, cols = info.shape
        if not rows or info.format is self._target or cols % self._target.block:
            return info
        nbytes = int(np.prod(rows)) * self._target.row_bytes(cols)
        return TensorInfo(info.name, info.shape, self._target, nbytes)


def _bf16(values: Floats) -> Bytes:
    """Nearest bf16, ties to even: (rows, cols) -> (rows, 2 * cols). Values are finite."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + (bits >> 16 & 1) + 0x7FFF) >> 16).astype("<u2").view(np.uint8)


def _q8_0(values: Floats) -> Bytes:
    """A half-precision scale and 32 signed bytes for each block: (rows, cols) -> (rows, cols / 32 * 34)."""
    blocks = values.reshape(len(values), -1, 32)  # (rows, blocks, 32)
    scale = (np.abs(blocks).max(axis=2, keepdims=True) / 127).astype("<f2")
    with np.errstate(divide="ignore"):
        steps = np.where(scale == 0, np.float32(0), 1 / scale.astype(np.float32))
    codes = np.clip(np.rint(blocks * steps), -127, 127).astype(np.int8)
    return np.concatenate([scale.view(np.uint8), codes.view(np.uint8)], axis=2).reshape(len(values), -1)


_ENCODERS: Mapping[str, Callable[[Floats], Bytes]] = MappingProxyType({"BF16": _bf16, "Q8_0": _q8_0})
WEIGHT_TYPES = tuple(name.lower() for name in _ENCODERS)
