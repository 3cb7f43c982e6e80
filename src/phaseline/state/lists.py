"""Page lists of one state group: which page holds which positions of which open sequence."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phaseline.program.state import StateSpec
from phaseline.state.ids import PageIds

GONE = -1  # in a list or in the matrix: not there any more, or not yet


@dataclass(slots=True)
class _List:
    """Entry i holds positions i * page_size .. of its sequence; those before `first` are gone."""

    pages: list[int]
    first: int

    @property
    def held(self) -> list[int]:
        return self.pages[self.first :]


def most_held(spec: StateSpec, length: int, step: int, page_size: int) -> int:
    """Most pages that a sequence of up to `length` positions holds at once while it grows by at most `step` at once."""
    reach = length - spec.oldest(length) + step  # from the oldest position read to the last one written
    touched = (reach + page_size - 2) // page_size + 1
    return min(touched, -(-length // page_size))


class PageLists:
    """The pages of every open sequence in one group; `matrix` (slots, max pages) shows them, updated in place.

    Lengths are the caller's: `stored` is how many positions of a sequence are stored.
    """

    def __init__(
        self,
        spec: StateSpec,
        pages: int,
        page_size: int,
        matrix: NDArray[np.int32],
        evicted: Callable[[bytes], object],
    ) -> None:
        self.keeps_all = spec.oldest(matrix.shape[1] * page_size) == 0
        # Behind a page that is gone here no prefix can be resumed; elsewhere, one that reads later pages only.
        self.ids = PageIds(pages, evicted if self.keeps_all else None)
        self._spec, self._size, self._matrix = spec, page_size, matrix
        self._lists: dict[int, _List] = {}

    def capacity(self, step: int) -> int:
        """Pages of the longest sequence that fits alone when it grows by at most `step` positions at once."""
        most = int(self._matrix.shape[1])
        fits = self.most_held(most * self._size, step) <= self.ids.count
        return most if fits else self.ids.count

    def most_held(self, length: int, step: int) -> int:
        """Most pages that one sequence of up to `length` positions holds, growing by at most `step` at once."""
        return most_held(self._spec, length, step, self._size)

    def resumes(self, digests: Sequence[bytes]) -> bool:
        """Whether a sequence can go on behind the full pages of these hashes: all that it would read is registered."""
        needed = digests[self._first(len(digests) * self._size) :]
        return all(self.ids.find(digest) is not None for digest in reversed(needed))

    def open(self, slot: int, digests: Sequence[bytes]) -> None:
        """Begin a sequence behind the full pages of these hashes."""
        first = self._first(len(digests) * self._size)
        found = [self.ids.find(digest) for digest in digests[first:]]
        self._seat(slot, _List([GONE] * first + [page for page in found if page is not None], first))

    def fork(self, slot: int, child: int, stored: int) -> None:
        """Begin `child` with every page that holds stored positions of `slot`."""
        parent = self._lists[slot]
        self._seat(child, _List(parent.pages[: -(-stored // self._size)], parent.first))

    def forget(self, slot: int, stored: int) -> None:
        """Let go of pages that no row from `stored` on reads."""
        row = self._lists[slot]
        first = min(self._first(stored), len(row.pages))
        for i in range(row.first, first):
            self.ids.release(row.pages[i])
            row.pages[i] = self._matrix[slot, i] = GONE
        row.first = max(row.first, first)

    def takes(self, length: int, ahead: int) -> int:
        """Length to cover now for a step to `length` of a sequence that goes on to `ahead`: `ahead` if nothing
        before it will have been forgotten on the way."""
        return ahead if ahead > length and self._spec.oldest(ahead) == 0 else length

    def missing(self, slot: int, stored: int, length: int) -> int:
        """Pages to take before positions stored .. length - 1 can be written."""
        return max(0, -(-length // self._size) - len(self._lists[slot].pages)) + self._shares_last(slot, stored)

    def grow(self, slot: int, stored: int, length: int) -> list[tuple[int, int]]:
        """Take the missing pages; return (source, destination) of a shared, partly filled last page to copy."""
        row, copies = self._lists[slot], []
        if self._shares_last(slot, stored):
            last = stored // self._size
            source = row.pages[last]
            self.ids.release(source)
            row.pages[last] = self._matrix[slot, last] = self.ids.take()
            copies.append((source, row.pages[last]))
        while len(row.pages) * self._size < length:
            self._matrix[slot, len(row.pages)] = page = self.ids.take()
            row.pages.append(page)
        return copies

    def fill(self, slot: int, stored: int, digests: Sequence[bytes]) -> None:
        """Positions up to `stored` are stored; the last full pages among them have become so, and have these hashes."""
        full = stored // self._size
        for page, digest in zip(self._lists[slot].pages[full - len(digests) : full], digests, strict=True):
            self.ids.register(page, digest)

    def close(self, slot: int) -> None:
        row = self._lists.pop(slot)
        self._matrix[slot, : len(row.pages)] = GONE
        for page in reversed(row.held):  # a prefix is worth more than what follows it: evicted last
            self.ids.release(page)

    def check(self, stored: dict[int, int]) -> None:
        """Raise AssertionError unless exactly these slots are open and hold what so many stored positions need."""
        self.ids.check(Counter(page for row in self._lists.values() for page in row.held))
        assert self._lists.keys() == stored.keys(), "a group's sequences are not the table's"
        expected = np.full_like(self._matrix, GONE)
        for slot, row in self._lists.items():
            expected[slot, : len(row.pages)] = row.pages
            full, filled = stored[slot] // self._size, -(-stored[slot] // self._size)
            assert len(set(row.held)) == len(row.held), f"slot {slot} holds a page twice"
            assert GONE not in row.held, f"slot {slot} holds a page that is gone"
            assert all(page == GONE for page in row.pages[: row.first]), f"slot {slot} keeps what it let go of"
            assert row.first <= self._first(stored[slot]), f"slot {slot} let go of what it will read"
            assert filled <= len(row.pages), f"slot {slot} stores tokens beyond its pages"
            assert row.first <= full, f"slot {slot} has no place for its next token"
            unfilled = row.pages[filled:]
            assert not any(self.ids.shared(page) for page in unfilled), f"slot {slot} shares a page it has yet to write"
        assert np.array_equal(self._matrix, expected), "the matrix differs from the sequences' pages"

    def _first(self, length: int) -> int:
        """Entry of the oldest position that rows from `length` on read."""
        return self._spec.oldest(length) // self._size

    def _shares_last(self, slot: int, stored: int) -> bool:
        """Whether the partly filled last page belongs to another sequence as well."""
        return stored % self._size > 0 and self.ids.shared(self._lists[slot].pages[stored // self._size])

    def _seat(self, slot: int, row: _List) -> None:
        self._lists[slot] = row
        self._matrix[slot, : len(row.pages)] = row.pages
        for page in row.held:
            self.ids.hold(page)
