"""GGUF files, memory-mapped: a header of metadata and tensor descriptions, then aligned tensor data.

Versions 2 and 3, little-endian, as the public GGUF specification describes them. The header is untrusted:
a count, a length or an offset is compared with the bytes that are really there before it is used, and the
header as a whole is bounded, so a hostile file costs little time and memory before it is refused.
"""

import math
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from phaseline.errors import FileFormatError, PhaselineError, UnsupportedError
from phaseline.files.base import TensorInfo
from phaseline.files.mapping import MappedFile
from phaseline.files.quant import format_of_id

# Real headers stay far below these: 262k tokens with their merges take about 16 MiB, the largest models
# have a few thousand tensors and a few dozen keys.
MAX_HEADER = 48 << 20  # bytes
MAX_ENTRIES = 1 << 16  # keys, and tensors
MAX_NAME = (1 << 16) - 1  # bytes of a key or a tensor's name
MAX_DIMS = 4

# Value type -> struct code. The native codes serve, since every machine Phaseline runs on is little-endian.
_SCALARS: Mapping[int, Any] = MappingProxyType(
    {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
)
_BOOL, _STRING, _ARRAY = 7, 8, 9
_U64 = struct.Struct("<Q")

_T = TypeVar("_T")


def get(meta: Mapping[str, Any], key: str, kind: type[_T], default: _T | None = None) -> _T:
    """The metadata value of `key`, checked to be of `kind` (an int serves as a float, a bool never as a number).

    A missing key gives `default`, or FileFormatError if there is none; a wrong type is always an error.
    """
    if key not in meta:
        if default is None:
            raise FileFormatError(f"metadata key {key!r} is missing")
        return default
    value = meta[key]
    if kind is float and type(value) is int:
        value = float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise FileFormatError(f"metadata key {key!r} is of type {type(value).__name__}; {kind.__name__} is needed")
    return value


class StringArray(Sequence[str]):
    """Strings of one metadata array, kept as the file stores them and decoded when read."""

    def __init__(self, key: str, blob: bytes, starts: Sequence[int]) -> None:
        self._key, self._blob, self._starts = key, blob, starts  # starts: where each length field begins, and the end

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        wanted = range(len(self))[index]
        return self._decode(wanted) if isinstance(wanted, int) else [self._decode(i) for i in wanted]

    def __iter__(self) -> Iterator[str]:
        return map(self._decode, range(len(self)))

    def _decode(self, i: int) -> str:
        try:
            return str(self._blob[self._starts[i] + _U64.size : self._starts[i + 1]], "utf-8")
        except UnicodeDecodeError as error:
            raise FileFormatError(f"string {i} of metadata key {self._key!r} is not UTF-8: {error.reason}") from None


class _Header:
    """A cursor over the header; every read is checked against what the file still holds."""

    def __init__(self, view: memoryview, path: Path) -> None:
        self.view, self.path, self.at = view[:MAX_HEADER], path, 0
        self._end = f"the file's end at {len(view)}" if len(view) <= MAX_HEADER else f"the header limit of {MAX_HEADER}"

    def error(self, reason: str, kind: type[PhaselineError] = FileFormatError) -> PhaselineError:
        return kind(f"{self.path}: {reason} (at byte {self.at})")

    def need(self, count: int, what: str) -> None:
        """Check that `count` more bytes exist."""
        if count > len(self.view) - self.at:
            raise self.error(f"{what} needs {count} bytes and would run past {self._end}")

    def take(self, count: int, what: str) -> memoryview:
        self.need(count, what)
        self.at += count
        return self.view[self.at - count : self.at]

    def number(self, code: str, what: str) -> Any:
        """One little-endian scalar of the given struct code."""
        return struct.unpack(code, self.take(struct.calcsize(code), what))[0]

    def count(self, limit: int, what: str) -> int:
        value: int = self.number("Q", what)
        if value > limit:
            raise self.error(f"{what} is {value}; at most {limit} are possible here")
        return value

    def string(self, what: str, limit: int = MAX_HEADER) -> str:
        raw = self.take(self.count(limit, f"length of {what}"), what)
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"{what} is not UTF-8: {error.reason}") from None

    def metadata(self, count: int) -> Mapping[str, Any]:
        """`count` pairs of key and value."""
        found: dict[str, Any] = {}
        for i in range(count):
            key = self.string(f"metadata key {i}", MAX_NAME)
            if key in found:
                raise self.error(f"metadata key {key!r} appears twice")
            found[key] = self._value(key)
        return MappingProxyType(found)

    def tensor(self, index: int) -> tuple[TensorInfo, int]:
        """One tensor's description and its offset in the data."""
        name = self.string(f"name of tensor {index}", MAX_NAME)
        what = f"tensor {name!r}"
        rank = self.number("I", f"rank of {what}")
        if not 1 <= rank <= MAX_DIMS:
            raise self.error(f"{what} has {rank} dimensions; 1 to {MAX_DIMS} are possible")
        dims = [self.number("Q", f"dimension {d} of {what}") for d in range(rank)]  # innermost first
        if 0 in dims:
            raise self.error(f"{what} has a dimension of 0")
        kind, offset = self.number("I", f"type of {what}"), self.number("Q", f"offset of {what}")
        try:
            format = format_of_id(kind)
            nbytes = format.row_bytes(dims[0]) * math.prod(dims[1:])
        except PhaselineError as error:
            raise self.error(f"{what}: {error}", type(error)) from None
        return TensorInfo(name, tuple(reversed(dims)), format, nbytes), offset

    def _value(self, key: str) -> Any:
        """A metadata value: int, float, bool, str, StringArray, or a read-only memoryview of numbers."""
        what = f"metadata key {key!r}"
        kind = self.number("I", f"type of {what}")
        if kind == _STRING:
            return self.string(what)
        if kind == _ARRAY:
            return self._array(key, what)
        return self._scalars(kind, 1, what)[0]

    def _array(self, key: str, what: str) -> StringArray | memoryview:
        kind, count = self.number("I", f"element type of {what}"), self.number("Q", f"length of {what}")
        if kind == _ARRAY:
            raise self.error(f"{what} is an array of arrays, which is not supported", UnsupportedError)
        return self._strings(key, count, what) if kind == _STRING else self._scalars(kind, count, what)

    def _scalars(self, kind: int, count: int, what: str) -> memoryview:
        if kind not in _SCALARS:
            raise self.error(f"{what} has the unknown value type {kind}")
        code = _SCALARS[kind]
        raw = self.take(count * struct.calcsize(code), what).tobytes()
        if kind == _BOOL and raw.translate(None, b"\0\1"):
            raise self.error(f"{what} holds a boolean that is neither 0 nor 1")
        return memoryview(raw).cast(code)

    def _strings(self, key: str, count: int, what: str) -> StringArray:
        self.need(count * _U64.size, what)
        starts, at, last = array("I"), 0, len(self.view) - self.at - _U64.size
        field, length = self.view[self.at :], _U64.unpack_from
        for i in range(count):
            if at > last:
                raise self.error(f"string {i} of {what} would run past {self._end}")
            starts.append(at)
            at += _U64.size + length(field, at)[0]
        blob = self.take(at, what).tobytes()
        starts.append(at)
        return StringArray(key, blob, starts)


class GGUFFile:
    """A mapped GGUF file; see `phaseline.files.base.ModelFile`. Arrays it gave out keep the mapping alive.

    Errors while opening: FileFormatError for a malformed file, UnsupportedError for a well-formed one that this
    version does not read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.parts: Sequence[Path] = (path,)
        self._map = MappedFile(path)
        header = _Header(self._map.view(), path)
        _check_version(header)
        tensors = header.count(MAX_ENTRIES, "the number of tensors")
        keys = header.count(MAX_ENTRIES, "the number of metadata keys")
        self.metadata: Mapping[str, Any] = header.metadata(keys)
        described = [header.tensor(i) for i in range(tensors)]
        self._offsets = _place(header, described, get(self.metadata, "general.alignment", int, 32), len(self._map))
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType({info.name: info for info, _ in described})

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Encoded bytes of a tensor, shape (rows, bytes per row), read-only; FileFormatError if it is missing."""
        info = self._info(name)
        return self._map.array(self._offsets[name], info.nbytes).reshape(-1, info.format.row_bytes(info.shape[-1]))

    def float32(self, name: str) -> NDArray[np.float32]:
        """Decoded values in the tensor's numpy shape; FileFormatError if it is missing."""
        info = self._info(name)
        return info.format.decode_rows(self.raw(name)).reshape(info.shape)

    def release(self, name: str) -> None:
        """Drop the pages that hold nothing but this tensor; reading it again maps them again."""
        info = self._info(name)
        self._map.release(self._offsets[name], info.nbytes)

    def close(self) -> None:
        """Unmap the file now, or when the last array that `raw` gave out is dropped."""
        self._map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _info(self, name: str) -> TensorInfo:
        if name not in self.tensors:
            raise FileFormatError(f"{self.path}: tensor {name!r} is missing")
        return self.tensors[name]


def _check_version(header: _Header) -> None:
    magic = bytes(header.take(4, "the magic number"))
    if magic != b"GGUF":
        raise header.error(f"this is not a GGUF file: it begins with {magic!r}")
    version = header.number("I", "the version")
    if version & 0xFFFF == 0:
        raise header.error("a big-endian GGUF file is not supported; convert it to little-endian", UnsupportedError)
    if version not in (2, 3):
        raise header.error(f"GGUF version {version} is not supported; versions 2 and 3 are", UnsupportedError)


def _place(header: _Header, described: list[tuple[TensorInfo, int]], alignment: int, size: int) -> dict[str, int]:
    """Where each tensor begins in the file, once all are aligned, inside it, distinct and disjoint."""
    if alignment < 8 or alignment & (alignment - 1):
        raise header.error(f"general.alignment is {alignment}; a power of two from 8 on is needed")
    data = -(-header.at // alignment) * alignment
    places: dict[str, int] = {}
    end = data
    for info, offset in sorted(described, key=lambda one: one[1]):
        what = f"tensor {info.name!r} at offset {offset}"
        if info.name in places:
            raise header.error(f"{what}: a tensor of this name appears twice")
        if offset % alignment:
            raise header.error(f"{what} is not aligned to {alignment} bytes")
        if data + offset < end:
            raise header.error(f"{what} overlaps the tensor before it")
        places[info.name], end = data + offset, data + offset + info.nbytes
        if end > size:
            raise header.error(f"{what} needs {info.nbytes} bytes and would run past the file's end at {size}")
    return places


def open_gguf(path: str | Path) -> GGUFFile:
    """Open a GGUF file that holds a whole model; usable as a context manager."""
    file = GGUFFile(Path(path))
    if (parts := split_parts(file)) > 1:
        file.close()
        raise UnsupportedError(f"{path}: this is one of {parts} parts of a model; a single file is needed here")
    return file


def split_parts(file: GGUFFile) -> int:
    """How many files the model is split over."""
    return get(file.metadata, "split.count", int, 1)
