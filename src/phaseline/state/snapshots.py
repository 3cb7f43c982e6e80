"""Snapshots of one recurrent state group: which page holds what an open sequence carries on from."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phaseline.program.state import Recurrent
from phaseline.state.ids import PageIds
from phaseline.state.lists import GONE

HELD = 2  # pages of a sequence while a step runs


@dataclass(slots=True)
class _Pair:
    """The snapshot that the next step reads, GONE for all zeros, and the one it writes, GONE until it is planned."""

    read: int
    write: int = GONE

    @property
    def held(self) -> list[int]:
        return [page for page in (self.read, self.write) if page != GONE]


class Snapshots:
    """The snapshots of every open sequence in one group; `matrix` (slots, at least 2) shows what to read and write.

    Nothing is ever written in place: a snapshot that is read may be another sequence's as well, or be cached.
    """

    keeps_all = False

    def __init__(self, spec: Recurrent, pages: int, page_size: int, matrix: NDArray[np.int32]) -> None:
        self.ids = PageIds(pages)
        self.every = spec.every
        self._size, self._matrix = page_size, matrix
        self._pairs: dict[int, _Pair] = {}

    def capacity(self, step: int) -> int:
        """Pages' worth of positions of the longest sequence that fits alone: any, if its two snapshots do."""
        return int(self._matrix.shape[1]) if self.ids.count >= HELD else 0

    def most_held(self, length: int, step: int) -> int:
        return HELD

    def resumes(self, digests: Sequence[bytes]) -> bool:
        """Whether the snapshot behind the full pages of these hashes is kept."""
        return self.ids.find(digests[-1]) is not None

    def open(self, slot: int, digests: Sequence[bytes]) -> None:
        """Begin a sequence behind the full pages of these hashes, or from zeros."""
        found = self.ids.find(digests[-1]) if digests else None
        self._seat(slot, _Pair(GONE if found is None else found))

    def fork(self, slot: int, child: int, stored: int) -> None:
        """Begin `child` from where `slot` is."""
        self._seat(child, _Pair(self._pairs[slot].read))

    def forget(self, slot: int, stored: int) -> None:
        """Nothing: what was read last is let go of as soon as a step has written what follows it."""

    def takes(self, length: int, ahead: int) -> int:
        return length

    def missing(self, slot: int, stored: int, length: int) -> int:
        """One page, unless a step that was given up has left it."""
        return int(self._pairs[slot].write == GONE)

    def grow(self, slot: int, stored: int, length: int) -> Iterator[tuple[int, int]]:
        """Take a page to write to; there is never anything to copy."""
        pair = self._pairs[slot]
        if pair.write == GONE:
            pair.write = self._matrix[slot, 1] = self.ids.take()
        return iter(())

    def fill(self, slot: int, stored: int, digests: Sequence[bytes]) -> None:
        """The step up to `stored` has run: go on from what it wrote. `digests`: of the pages that became full."""
        pair = self._pairs[slot]
        if pair.read != GONE:
            self.ids.release(pair.read)
        pair.read, pair.write = pair.write, GONE
        self._matrix[slot, :2] = pair.read, pair.write
        if stored % self.every == 0:
            self.ids.register(pair.read, digests[-1])

    def close(self, slot: int) -> None:
        for page in self._pairs.pop(slot).held:
            self.ids.release(page)
        self._matrix[slot, :2] = GONE

    def check(self, stored: dict[int, int]) -> None:
        """Raise AssertionError unless exactly these slots are open and have what so many stored positions need."""
        self.ids.check(Counter(page for pair in self._pairs.values() for page in pair.held))
        assert self._pairs.keys() == stored.keys(), "a group's sequences are not the table's"
        expected = np.full_like(self._matrix, GONE)
        for slot, pair in self._pairs.items():
            expected[slot, :2] = pair.read, pair.write
            assert (pair.read == GONE) == (stored[slot] == 0), f"slot {slot} has lost its snapshot"
            assert pair.write == GONE or not self.ids.shared(pair.write), f"slot {slot} shares what it will write"
        assert np.array_equal(self._matrix, expected), "the matrix differs from the sequences' snapshots"

    def _seat(self, slot: int, pair: _Pair) -> None:
        self._pairs[slot] = pair
        self._matrix[slot, 0] = pair.read
        if pair.read != GONE:
            self.ids.hold(pair.read)
