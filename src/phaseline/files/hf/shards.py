"""The safetensors files of a folder, as one: a single model.safetensors, or several under an index."""

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from phaseline.errors import FileFormatError, UnsupportedError
from phaseline.files.safetensors import MAX_HEADER, SafetensorsFile, Stored
from phaseline.files.strict_json import read_object

_ONE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_SHARD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.safetensors")  # no separator, no leading dot
_MOST = 1000


class Shards:
    """Tensors by name, whichever file holds them. FileFormatError names what is missing or foreign."""

    def __init__(self, folder: Path) -> None:
        one, index = folder / _ONE, folder / _INDEX
        if one.is_file() and index.is_file():
            raise FileFormatError(f"{folder} holds both {_ONE} and {_INDEX}: one of them must go")
        expected = None if one.is_file() else _read_index(folder, index)
        names = [_ONE] if expected is None else sorted(set(expected.values()))
        self.parts = tuple(folder / name for name in names)
        if missing := [part.name for part in self.parts if not part.is_file()]:
            more = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
            raise FileFormatError(f"{folder}: {missing[0]} is missing{more}, which {_INDEX} names")
        self._files = [SafetensorsFile(part) for part in self.parts]
        self._of: dict[str, SafetensorsFile] = {}
        for file in self._files:
            for name in file.tensors:
                if expected is not None and expected.get(name) != file.path.name:
                    raise FileFormatError(f"{file.path}: by {_INDEX}, tensor {name!r:.200} does not belong here")
                self._of[name] = file
        if absent := sorted((expected or {}).keys() - self._of.keys()):
            raise FileFormatError(f"{folder}: tensor {absent[0]!r:.200} is not in the file that {_INDEX} names")
        self.tensors: Mapping[str, Stored] = MappingProxyType(
            {name: stored for file in self._files for name, stored in file.tensors.items()}
        )

    def array(self, name: str) -> NDArray[np.uint8]:
        """A tensor's bytes, shape (bytes,), read-only."""
        return self._of[name].array(name)

    def release(self, name: str) -> None:
        """Drop the pages that hold nothing but this tensor; reading it again maps them again."""
        self._of[name].release(name)

    def close(self) -> None:
        """Unmap the files now, or when the last array that was given out is dropped."""
        for file in self._files:
            file.close()


def _read_index(folder: Path, index: Path) -> dict[str, str]:
    """The file that holds each tensor, by the index. It may name files of its own folder only."""
    if not index.is_file():
        other = next((path.name for path in folder.glob("*.bin")), None)
        also = f"; {other} is not read, for such files can run code: save the model as safetensors" if other else ""
        raise UnsupportedError(f"{folder} holds neither {_ONE} nor {_INDEX}{also}")
    files = read_object(index, limit=MAX_HEADER).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise FileFormatError(f"{index}: weight_map must be an object that names a file for each tensor")
    for name, file in files.items():
        if not isinstance(file, str) or not _SHARD.fullmatch(file):
            raise FileFormatError(
                f"{index}: tensor {name!r:.200} would be in {file!r:.200}, which is no file of the folder"
            )
    if len(set(files.values())) > _MOST:
        raise FileFormatError(f"{index} names {len(set(files.values()))} files; at most {_MOST} are read")
    return files
