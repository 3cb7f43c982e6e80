"""PageTable: which page of the pool holds which tokens of which sequence.

The sole owner of page ids, reference counts and prefix hashes. A page is exactly one of *free*, *cached*
(full, registered under its hash, referenced by nobody, evicted least recently used first) or *live*.
"""

import hashlib
from array import array
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from phaseline.errors import CapacityError


def _root(salt: bytes) -> bytes:
    """Parent of every first page under `salt`; `person` keeps salts apart from links of the chain."""
    return hashlib.blake2b(salt, digest_size=32, person=b"salt").digest()


def _link(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Hash of a full page: it names these tokens and, through `parent`, everything before them."""
    return hashlib.blake2b(parent + array("q", tokens).tobytes(), digest_size=32).digest()


@dataclass(slots=True)
class _Row:
    """One open sequence. `tail` holds the tokens stored in its last, partly filled page."""

    digest: bytes
    pages: list[int] = field(default_factory=list)
    stored: int = 0
    tail: list[int] = field(default_factory=list)


class PageTable:
    """Pages of `page_size` positions each, lent to at most `slots` sequences of at most `max_pages` pages.

    The cycle of a writer: `grow` to the length it is about to reach, `take_copies` and make them, write
    positions stored .. length - 1, then `fill` with the tokens written. A page that `grow` leaves in the
    written range belongs to that sequence alone, so a writer never touches a shared page.
    """

    def __init__(self, pages: int, page_size: int, slots: int, max_pages: int) -> None:
        self.pages = pages
        self.page_size = page_size
        self.slots = slots
        self.matrix: NDArray[np.int32] = np.full((slots, max_pages), -1, np.int32)  # updated in place
        self._max_pages = max_pages
        self._rows: dict[int, _Row] = {}
        self._free_slots = list(range(slots - 1, -1, -1))
        self._free = list(range(pages - 1, -1, -1))
        self._refs = [0] * pages
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._page_of: dict[bytes, int] = {}
        self._digest_of: dict[int, bytes] = {}
        self._copies: list[tuple[int, int]] = []

    @property
    def free_pages(self) -> int:
        """Pages obtainable now: free ones and cached ones, which would be evicted."""
        return len(self._free) + len(self._cached)

    @property
    def capacity(self) -> int:
        """Positions that one sequence can hold when it has the pool to itself."""
        return min(self.pages, self._max_pages) * self.page_size

    def open(self, tokens: Sequence[int], salt: bytes = b"", reuse: bool = True) -> tuple[int, int]:
        """Take a slot for `tokens` and the longest cached prefix of full pages; return (slot, positions cached).

        At least one token is left to compute: a prompt that is cached to its end is not given its last page.
        Raises CapacityError when no slot is free.
        """
        row = _Row(_root(salt))
        if reuse:
            for start in range(0, len(tokens) - self.page_size, self.page_size):
                digest = _link(row.digest, tokens[start : start + self.page_size])
                page = self._page_of.get(digest)
                if page is None:
                    break
                row.digest = digest
                row.pages.append(page)
        row.stored = len(row.pages) * self.page_size
        return self._seat(row), row.stored

    def grow(self, slot: int, length: int) -> bool:
        """Make positions up to `length` writable: add pages, and replace a shared, partly filled last page by a copy.

        All or nothing: False, with nothing changed, when too few pages are obtainable.
        Raises CapacityError beyond `max_pages`.
        """
        row = self._rows[slot]
        wanted = -(-length // self.page_size)
        last = row.stored // self.page_size
        shared = bool(row.tail) and self._refs[row.pages[last]] > 1
        missing = max(0, wanted - len(row.pages)) + shared
        if not missing:
            return True
        if wanted > self._max_pages:
            raise CapacityError(
                f"{length} positions need {wanted} pages of {self.page_size}; a sequence has at most {self._max_pages}"
            )
        if missing > self.free_pages:
            return False
        if shared:
            source = row.pages[last]
            self._refs[source] -= 1
            self._put(slot, last, self._take())
            self._copies.append((source, row.pages[last]))
        while len(row.pages) < wanted:
            self._put(slot, len(row.pages), self._take())
        return True

    def take_copies(self) -> list[tuple[int, int]]:
        """Hand over the (source, destination) pages to copy, in this order, before anything else is written."""
        copies, self._copies = self._copies, []
        return copies

    def fill(self, slot: int, tokens: Sequence[int]) -> None:
        """Record that `tokens` are now stored behind what was stored before; pages that became full are shareable.

        A page whose twin is registered already stays unregistered, and is freed when its sequence closes.
        """
        row = self._rows[slot]
        index = row.stored // self.page_size
        row.stored += len(tokens)
        row.tail += tokens
        full = len(row.tail) - len(row.tail) % self.page_size
        if not full:
            return
        for start in range(0, full, self.page_size):
            row.digest = _link(row.digest, row.tail[start : start + self.page_size])
            if row.digest not in self._page_of:
                self._page_of[row.digest] = row.pages[index]
                self._digest_of[row.pages[index]] = row.digest
            index += 1
        del row.tail[:full]

    def fork(self, slot: int) -> int:
        """Open a second sequence that shares every page holding stored tokens; CapacityError when no slot is free."""
        row = self._rows[slot]
        holding = -(-row.stored // self.page_size)
        return self._seat(_Row(row.digest, row.pages[:holding], row.stored, row.tail.copy()))

    def close(self, slot: int) -> None:
        """Give a sequence's pages back: full registered ones stay cached, the others are free at once."""
        row = self._rows.pop(slot)
        self.matrix[slot, : len(row.pages)] = -1
        self._free_slots.append(slot)
        for page in reversed(row.pages):  # a prefix is worth more than what follows it: evicted last
            self._refs[page] -= 1
            if self._refs[page]:
                continue
            if page in self._digest_of:
                self._cached[page] = None
            else:
                self._free.append(page)

    def clear_cache(self) -> None:
        """Forget every cached page that no sequence references."""
        while self._cached:
            self._free.append(self._evict())

    def check(self) -> None:
        """Raise AssertionError with a reason if an invariant is broken. Scans everything: for tests."""
        held = Counter(page for row in self._rows.values() for page in row.pages)
        assert all(held[page] == refs for page, refs in enumerate(self._refs)), "refcounts differ from references"
        places = sorted([*self._free, *self._cached, *held])
        assert places == list(range(self.pages)), "a page is not exactly one of free, cached and live"
        assert self._digest_of == {page: digest for digest, page in self._page_of.items()}, "hash maps differ"
        assert len(self._digest_of) == len(self._page_of), "two hashes name one page"
        assert self._cached.keys() <= self._digest_of.keys(), "a cached page has no hash"
        assert self._digest_of.keys().isdisjoint(self._free), "a free page is still registered"
        assert sorted([*self._free_slots, *self._rows]) == list(range(self.slots)), "a slot is lost or taken twice"
        expected = np.full_like(self.matrix, -1)
        for slot, row in self._rows.items():
            expected[slot, : len(row.pages)] = row.pages
            assert len(set(row.pages)) == len(row.pages), f"slot {slot} holds a page twice"
            assert row.stored <= len(row.pages) * self.page_size, f"slot {slot} stores tokens beyond its pages"
            assert len(row.tail) == row.stored % self.page_size, f"slot {slot} lost count of its last page"
            unfilled = row.pages[-(-row.stored // self.page_size) :]
            assert all(self._refs[page] == 1 for page in unfilled), f"slot {slot} shares a page it has yet to write"
        assert np.array_equal(self.matrix, expected), "the matrix differs from the sequences' pages"

    def _seat(self, row: _Row) -> int:
        """Give `row` a slot and a reference to each of its pages."""
        if not self._free_slots:
            raise CapacityError(f"all {self.slots} sequence slots are taken")
        slot = self._free_slots.pop()
        self._rows[slot] = row
        self.matrix[slot, : len(row.pages)] = row.pages
        for page in row.pages:
            if not self._refs[page]:
                del self._cached[page]
            self._refs[page] += 1
        return slot

    def _put(self, slot: int, index: int, page: int) -> None:
        """Make a page just taken entry `index` of a sequence."""
        self._rows[slot].pages[index : index + 1] = [page]
        self.matrix[slot, index] = page
        self._refs[page] = 1

    def _take(self) -> int:
        return self._free.pop() if self._free else self._evict()

    def _evict(self) -> int:
        """Unregister the least recently used cached page and return it."""
        page, _ = self._cached.popitem(last=False)
        del self._page_of[self._digest_of.pop(page)]
        return page
