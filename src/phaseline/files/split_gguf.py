"""A model split over several GGUF files, as llama.cpp's gguf-split writes them."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phaseline.errors import FileFormatError
from phaseline.files.base import TensorInfo
from phaseline.files.gguf import GGUFFile, get, split_parts

MAX_PARTS = 1000
_NAME = re.compile(r"(?P<stem>.*)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf", re.DOTALL)


class SplitGGUF:
    """All parts of a model, found beside any one of them; see `phaseline.files.base.ModelFile`.

    The first part's metadata is the model's. FileFormatError names the part that is missing or belongs elsewhere.
    """

    def __init__(self, part: Path) -> None:
        self.path = part
        self.parts: Sequence[Path] = _siblings(part)
        self._files = [GGUFFile(path) for path in self.parts]
        first = self._files[0]
        self.metadata: Mapping[str, Any] = first.metadata
        self._of: dict[str, GGUFFile] = {}
        for number, file in enumerate(self._files):
            _check_part(file, number, first, len(self._files))
            if twice := file.tensors.keys() & self._of.keys():
                name = min(twice)
                raise FileFormatError(f"{file.path}: tensor {name!r} is also in {self._of[name].path}")
            self._of |= dict.fromkeys(file.tensors, file)
        expected = get(self.metadata, "split.tensors.count", int, len(self._of))
        if expected != len(self._of):
            raise FileFormatError(
                f"{part}: its parts hold {len(self._of)} tensors, split.tensors.count says {expected}"
            )
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
            {name: info for file in self._files for name, info in file.tensors.items()}
        )

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Encoded bytes of a tensor, shape (rows, bytes per row), read-only; FileFormatError if it is missing."""
        return self._file(name).raw(name)

    def float32(self, name: str) -> NDArray[np.float32]:
        """Decoded values in the tensor's numpy shape; FileFormatError if it is missing."""
        return self._file(name).float32(name)

    def release(self, name: str) -> None:
        """Drop the pages that hold nothing but this tensor; reading it again maps them again."""
        self._file(name).release(name)

    def close(self) -> None:
        """Unmap the parts now, or when the last array that `raw` gave out is dropped."""
        for file in self._files:
            file.close()

    def _file(self, name: str) -> GGUFFile:
        if name not in self._of:
            raise FileFormatError(f"{self.path}: tensor {name!r} is missing")
        return self._of[name]


def _siblings(part: Path) -> tuple[Path, ...]:
    """The paths of all parts, in order. FileFormatError for a name that does not tell, and for a part not there."""
    match = _NAME.fullmatch(part.name)
    if not match:
        raise FileFormatError(f"{part}: it is one part of a model, so its name must end like -00001-of-00003.gguf")
    parts = int(match["parts"])
    if not 1 <= int(match["part"]) <= parts <= MAX_PARTS:
        raise FileFormatError(f"{part}: its name must count from 1 to at most {MAX_PARTS} parts")
    paths = tuple(part.with_name(f"{match['stem']}-{i:05}-of-{parts:05}.gguf") for i in range(1, parts + 1))
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        more = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
        raise FileFormatError(f"{part}: of its {parts} parts {missing[0]} is missing{more}")
    return paths


def _check_part(file: GGUFFile, number: int, first: GGUFFile, parts: int) -> None:
    """Refuse a file that is not part `number` (from 0) of the model that `first` begins."""
    said = get(file.metadata, "split.no", int), split_parts(file)
    if said != (number, parts):
        raise FileFormatError(
            f"{file.path}: it says to be part {said[0] + 1} of {said[1]}, not {number + 1} of {parts}"
        )
    for key in ("general.architecture", "general.name", "split.tensors.count"):
        if file.metadata.get(key, first.metadata.get(key)) != first.metadata.get(key):
            raise FileFormatError(f"{file.path}: its {key} is not that of {first.path}: they are of two models")
