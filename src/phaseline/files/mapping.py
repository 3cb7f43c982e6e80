"""Read-only mappings of files: bytes that the kernel pages in when they are read."""

import contextlib
import mmap
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from phaseline.errors import FileFormatError


class MappedFile:
    """A whole file, mapped. Arrays it gave out keep the mapping alive.

    FileFormatError if the file cannot be read or is empty.
    """

    def __init__(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise FileFormatError(f"{path}: cannot be read: {error.strerror}") from None
        except ValueError:
            raise FileFormatError(f"{path}: the file is empty") from None

    def __len__(self) -> int:
        return len(self._map)

    def view(self) -> memoryview:
        return memoryview(self._map)

    def array(self, start: int, nbytes: int) -> NDArray[np.uint8]:
        """Shape (nbytes,), read-only."""
        return np.frombuffer(self._map, np.uint8, nbytes, start)

    def release(self, start: int, nbytes: int) -> None:
        """Drop the pages that hold nothing but these bytes; reading them again maps them again."""
        page = mmap.PAGESIZE
        first = -(-start // page) * page
        length = (start + nbytes) // page * page - first
        if length > 0:
            self._map.madvise(mmap.MADV_DONTNEED, first, length)

    def close(self) -> None:
        """Unmap the file now, or when the last array that was given out is dropped."""
        with contextlib.suppress(BufferError):
            self._map.close()
