"""A model file in memory: the tensors of small programs, without a disk and without a family."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phaseline.files.base import TensorInfo
from phaseline.files.quant import FORMATS
from support.tiny import encode


class MemoryFile:
    """What an executor asks of a file. Norms and embeddings are added as float32, matrices in any format."""

    def __init__(self) -> None:
        self.path = Path("memory")
        self.parts = (self.path,)
        self.metadata: Mapping[str, Any] = {}
        self._infos: dict[str, TensorInfo] = {}
        self.tensors: Mapping[str, TensorInfo] = self._infos
        self._raw: dict[str, NDArray[np.uint8]] = {}

    def add(self, name: str, values: NDArray[Any]) -> TensorInfo:
        """A tensor kept as F32."""
        raw = np.ascontiguousarray(values, np.float32).reshape(-1, values.shape[-1]).view(np.uint8)
        return self._keep(name, "F32", raw, values.shape)

    def add_random(
        self, rng: np.random.Generator, name: str, format: str, rows: int, cols: int, std: float = 1.0
    ) -> TensorInfo:
        """A random matrix (rows, cols) of that standard deviation, encoded."""
        raw = np.ascontiguousarray(encode(rng, format, rows, cols, std)).view(np.uint8).reshape(rows, -1)
        return self._keep(name, format, raw, (rows, cols))

    def add_raw(self, name: str, format: str, raw: NDArray[np.uint8], shape: tuple[int, ...]) -> TensorInfo:
        """A tensor whose encoded rows are known."""
        return self._keep(name, format, raw, shape)

    def stack(self, name: str, parts: Sequence[TensorInfo]) -> TensorInfo:
        """Matrices of one shape and format, one below the other: (parts, rows, cols)."""
        raw = np.concatenate([self._raw[part.name] for part in parts])
        return self._keep(name, parts[0].format.name, raw, (len(parts), *parts[0].shape))

    def raw(self, name: str) -> NDArray[np.uint8]:
        return self._raw[name]

    def float32(self, name: str) -> NDArray[np.float32]:
        info = self.tensors[name]
        return info.format.decode_rows(self._raw[name]).reshape(info.shape)

    def release(self, name: str) -> None:
        """Nothing is mapped."""

    def close(self) -> None:
        """Nothing is open."""

    def _keep(self, name: str, format: str, raw: NDArray[np.uint8], shape: tuple[int, ...]) -> TensorInfo:
        self._raw[name] = raw
        self._infos[name] = TensorInfo(name, shape, FORMATS[format], raw.nbytes)
        return self._infos[name]
