"""Safetensors files, memory-mapped: the length of a header, the header in JSON, then the tensors' bytes.

Read as the public format describes them: the tensors fill the data without a gap and without overlap. The header is
untrusted and bounded.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phaseline.errors import FileFormatError, UnsupportedError
from phaseline.files.mapping import MappedFile
from phaseline.files.strict_json import parse_object

MAX_HEADER = 16 << 20  # bytes; a hundred thousand tensors take about as much
MAX_RANK = 8
_LENGTH = 8  # bytes of the header's length

# Bytes of an element. Types of less than a byte are not among them.
_SIZES: Mapping[str, int] = MappingProxyType(
    {
        **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
        **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
        **dict.fromkeys(("U32", "I32", "F32"), 4),
        **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
    }
)


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor as the file describes it: `shape` outermost first, `start` in bytes from the file's begin."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


class SafetensorsFile:
    """The tensors of one file. FileFormatError for a malformed file, UnsupportedError for an unknown element type."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map = MappedFile(path)
        size = len(self._map)
        header = int.from_bytes(self._map.view()[:_LENGTH], "little")
        if size < _LENGTH:
            raise FileFormatError(f"{path}: it ends within the length of its header")
        if header > min(size - _LENGTH, MAX_HEADER):
            raise FileFormatError(
                f"{path}: its header would have {header} bytes; the file has {size - _LENGTH} more, and at most "
                f"{MAX_HEADER} are read"
            )
        raw = bytes(self._map.view()[_LENGTH : _LENGTH + header])
        if not raw.startswith(b"{"):
            raise FileFormatError(f"{path}: this is not a safetensors file: its header begins with {raw[:4]!r}")
        described = parse_object(raw, f"{path}: its header")
        described.pop("__metadata__", None)
        tensors = {name: self._stored(name, value, _LENGTH + header) for name, value in described.items()}
        self.tensors: Mapping[str, Stored] = MappingProxyType(tensors)
        self._check_cover(_LENGTH + header, size)

    def array(self, name: str) -> NDArray[np.uint8]:
        """A tensor's bytes, shape (bytes,), read-only."""
        stored = self.tensors[name]
        return self._map.array(stored.start, stored.nbytes)

    def release(self, name: str) -> None:
        """Drop the pages that hold nothing but this tensor; reading it again maps them again."""
        self._map.release(self.tensors[name].start, self.tensors[name].nbytes)

    def close(self) -> None:
        """Unmap the file now, or when the last array that was given out is dropped."""
        self._map.close()

    def _error(self, name: str, reason: str) -> FileFormatError:
        return FileFormatError(f"{self.path}: tensor {name!r:.200}: {reason}")

    def _stored(self, name: str, value: Any, data: int) -> Stored:
        """A tensor's entry of the header, whose offsets count from where the data begins."""
        if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
            raise self._error(name, "its entry must hold dtype, shape and data_offsets, and nothing else")
        dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
        if not isinstance(dtype, str) or dtype not in _SIZES:
            raise UnsupportedError(
                f"{self.path}: tensor {name!r:.200}: dtype {dtype!r:.80} is not supported (known: {', '.join(_SIZES)})"
            )
        if not _counts(shape) or len(shape) > MAX_RANK:
            raise self._error(name, f"shape {shape!r:.80} is not one of at most {MAX_RANK} whole numbers")
        if not _counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
            raise self._error(name, f"data_offsets {offsets!r:.80} are no begin and end")
        nbytes = _SIZES[dtype] * math.prod(shape)
        if offsets[1] - offsets[0] != nbytes:
            raise self._error(name, f"{dtype} of shape {shape!r:.80} has {nbytes} bytes, not {offsets!r:.80}")
        return Stored(dtype, tuple(shape), data + offsets[0], nbytes)

    def _check_cover(self, data: int, size: int) -> None:
        """Refuse tensors that overlap, leave bytes out or run past the file's end."""
        end = data
        for name, stored in sorted(self.tensors.items(), key=lambda item: (item[1].start, item[1].nbytes)):
            if stored.start != end:
                what = "overlaps another" if stored.start < end else "leaves a gap"
                raise self._error(
                    name, f"at offset {stored.start - data} it {what}; the one before ends at {end - data}"
                )
            end += stored.nbytes
            if end > size:
                raise self._error(name, f"it would end at {end}, past the file's end at {size}")
        if end != size:
            raise FileFormatError(f"{self.path}: {size - end} bytes at its end belong to no tensor")


def _counts(value: Any) -> bool:
    """Whether this is a list of whole numbers from 0 on."""
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
