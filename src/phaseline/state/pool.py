"""The sole owner of the memory behind the pages."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from phaseline.errors import CapacityError
from phaseline.program.state import StateSpec

_LINE = 64  # bytes


class Pool:
    """The memory of each state group, `groups[g]`: the arrays of its spec by name, each of shape (pages, ...).

    An executor may use another order inside a page; a page's elements stay together. Memory is touched, and so
    taken, only as pages are first written: a page of all layers lies together, so that few pages touch little.
    """

    def __init__(
        self, state: Sequence[StateSpec], pages: Sequence[int], page_size: int, types: Sequence[DTypeLike]
    ) -> None:
        """`pages` and `types` of elements: of each group."""
        shapes = [
            {name: (count, *page) for name, page in spec.arrays(page_size).items()}
            for spec, count in zip(state, pages, strict=True)
        ]
        try:
            self.groups: list[Mapping[str, NDArray[Any]]] = [
                {name: _zeros(shape, np.dtype(dtype)) for name, shape in group.items()}
                for group, dtype in zip(shapes, types, strict=True)
            ]
        except MemoryError:
            sizes = [sum(map(math.prod, group.values())) for group in shapes]
            need = sum(n * np.dtype(dtype).itemsize for n, dtype in zip(sizes, types, strict=True)) / 2**30
            raise CapacityError(f"{need:.1f} GiB of state cannot be allocated; lower --context") from None

    def copy_pages(self, copies: Iterable[tuple[int, int, int]]) -> None:
        """Copy whole pages: (group, source, destination)."""
        for group, source, destination in copies:
            for array in self.groups[group].values():
                array[destination] = array[source]


def _zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """An array that begins on a cache line, so that no vector of a page lies across two."""
    need = math.prod(shape) * dtype.itemsize
    memory = np.zeros(need + _LINE, np.uint8)
    at = -memory.ctypes.data % _LINE
    return memory[at : at + need].view(dtype).reshape(shape)
