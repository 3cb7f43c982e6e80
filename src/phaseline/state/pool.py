"""The sole owner of the memory behind the pages."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from phaseline.errors import CapacityError
from phaseline.program.state import PagedKV


class Pool:
    """Keys and values, each of shape (pages, layers, page size, kv heads, head dim).

    An executor may use another order inside a page; a page's elements stay together. Memory is touched, and so
    taken, only as pages are first written: a page of all layers lies together, so that few pages touch little.
    """

    def __init__(self, spec: PagedKV, pages: int, page_size: int, dtype: DTypeLike) -> None:
        shape = (pages, spec.layers, page_size, spec.kv_heads, spec.head_dim)
        try:
            self.keys: NDArray[Any] = np.zeros(shape, dtype)
            self.values: NDArray[Any] = np.zeros(shape, dtype)
        except MemoryError:
            need = spec.elements(pages * page_size) * np.dtype(dtype).itemsize / 2**30
            raise CapacityError(f"{need:.1f} GiB of key-value pages cannot be allocated; lower --context") from None

    def copy_pages(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy whole pages: (source, destination)."""
        for source, destination in pairs:
            self.keys[destination] = self.keys[source]
            self.values[destination] = self.values[source]
