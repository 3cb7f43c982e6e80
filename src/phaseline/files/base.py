"""What every weight file offers, whatever its format."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from phaseline.files.quant import Format


@dataclass(frozen=True)
class TensorInfo:
    """One tensor as the file describes it.

    `shape` is in numpy order, outermost first: a linear weight is (outputs, inputs).
    The last axis is the one cut into quantisation blocks.
    """

    name: str
    shape: tuple[int, ...]
    format: Format
    nbytes: int


class ModelFile(Protocol):
    """Metadata and tensors of one model on disk, in GGUF's terms whatever the format.

    `path` is what was opened; `parts` are the files that hold the tensors.
    """

    path: Path
    parts: Sequence[Path]
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Encoded bytes of a tensor, shape (rows, bytes per row), read-only; rows = product of the leading axes."""

    def float32(self, name: str) -> NDArray[np.float32]:
        """Decoded values in the tensor's numpy shape."""

    def release(self, name: str) -> None:
        """Tell the kernel that this tensor's mapped pages are no longer needed."""

    def close(self) -> None:
        """Unmap the file."""
