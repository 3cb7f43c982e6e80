"""What a sequence must remember, as data: one spec for each group of layers that share a page list."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


class StateSpec(Protocol):
    """One state group. `layers` counts its own layers: an operation names its group and its layer within it."""

    @property
    def layers(self) -> int: ...

    def arrays(self, page_size: int) -> Mapping[str, tuple[int, ...]]:
        """The arrays that hold a page of so many positions: the shape of each, by name."""

    def elements(self, tokens: int) -> int:
        """Elements that a sequence of `tokens` positions must store to go on."""

    def oldest(self, length: int) -> int:
        """Oldest position that must be stored for a sequence to go on at `length`; `length` itself if none must."""


@dataclass(frozen=True)
class PagedKV:
    """Keys and values of `layers` attention layers, all of them kept: any full page is a point to resume from.

    A token costs layers * 2 * kv_heads * head_dim elements.
    """

    layers: int
    kv_heads: int
    head_dim: int

    def arrays(self, page_size: int) -> Mapping[str, tuple[int, ...]]:
        """Keys and values alike: (layers, page size, kv heads, head dim)."""
        return dict.fromkeys(("keys", "values"), (self.layers, page_size, self.kv_heads, self.head_dim))

    def elements(self, tokens: int) -> int:
        return self.layers * 2 * self.kv_heads * self.head_dim * tokens

    def oldest(self, length: int) -> int:
        return 0


@dataclass(frozen=True)
class SlidingKV(PagedKV):
    """Keys and values of layers whose rows read the `window` latest positions, their own included.

    A sequence resumes wherever the window before that place is still stored.
    """

    window: int

    def elements(self, tokens: int) -> int:
        return super().elements(tokens - self.oldest(tokens))

    def oldest(self, length: int) -> int:
        return max(0, length + 1 - self.window)


@dataclass(frozen=True)
class PagedLatent:
    """One row of `width` elements per token and layer, for all heads: any full page is a point to resume from."""

    layers: int
    width: int

    def arrays(self, page_size: int) -> Mapping[str, tuple[int, ...]]:
        """Rows: (layers, page size, width)."""
        return {"rows": (self.layers, page_size, self.width)}

    def elements(self, tokens: int) -> int:
        return self.layers * self.width * tokens

    def oldest(self, length: int) -> int:
        return 0


@dataclass(frozen=True)
class Recurrent:
    """What `layers` layers carry from one position to the next: arrays of fixed shapes, whatever the length.

    A page is a snapshot of all of it behind some position. A step reads the snapshot that it begins from (entry 0 of
    the sequence's page list; -1: all zeros) and writes another (entry 1), so that one given up halfway has changed
    nothing. A sequence resumes only where a snapshot is kept: those at multiples of `every` are, while there is room.
    """

    layers: int
    parts: tuple[tuple[str, tuple[int, ...]], ...]  # name and shape of each array of a layer
    every: int

    def arrays(self, page_size: int) -> Mapping[str, tuple[int, ...]]:
        """Each part with the layers before it."""
        return {name: (self.layers, *shape) for name, shape in self.parts}

    def elements(self, tokens: int) -> int:
        return self.layers * sum(math.prod(shape) for _, shape in self.parts) if tokens else 0

    def oldest(self, length: int) -> int:
        return length
