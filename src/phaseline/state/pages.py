"""PageTable: which page of the pool holds which tokens of which sequence, in every state group.

With its parts (`lists.py`, `snapshots.py`: what sequences hold of a group; `ids.py`: its ids) the sole owner of page
ids, reference counts and prefix hashes.
"""

import hashlib
import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from phaseline.errors import CapacityError
from phaseline.program.state import PagedKV, Recurrent, StateSpec
from phaseline.state.lists import GONE, PageLists
from phaseline.state.snapshots import HELD, Snapshots

_ALL_KEPT = (PagedKV(1, 1, 1),)


def _root(salt: bytes) -> bytes:
    """Parent of every first page under `salt`; `person` keeps salts apart from links of the chain."""
    return hashlib.blake2b(salt, digest_size=32, person=b"salt").digest()


def _link(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Hash of a full page: it names these tokens and, through `parent`, everything before them."""
    return hashlib.blake2b(parent + array("q", tokens).tobytes(), digest_size=32).digest()


@dataclass(slots=True)
class _Row:
    """One open sequence. `tail` holds the tokens stored in its last, partly filled page. Its pages for positions up
    to `room` are its own to write, and none is to be let go of before."""

    digest: bytes
    stored: int = 0
    tail: list[int] = field(default_factory=list)
    room: int = 0


class PageTable:
    """Pages of `page_size` positions each, lent to at most `slots` sequences of at most `max_pages` pages.

    `state` has a spec for each state group, of which only the positions it keeps matter here; `pages` counts the pages
    of each group, or of every group alike.

    The cycle of a writer: `grow` to the length it is about to reach, `take_copies` and make them, write
    positions stored .. length - 1, then `fill` with the tokens written. A page that `grow` leaves in the
    written range belongs to that sequence alone, so a writer never touches a shared page; one that no position to be
    written reads is let go of by `grow`.
    """

    def __init__(
        self,
        pages: int | Sequence[int],
        page_size: int,
        slots: int,
        max_pages: int,
        state: Sequence[StateSpec] = _ALL_KEPT,
    ) -> None:
        counts = [pages] * len(state) if isinstance(pages, int) else pages
        self.page_size = page_size
        self.slots = slots
        recurrent = [spec for spec in state if isinstance(spec, Recurrent)]
        # Shape (groups, slots, max pages, or the two of a recurrent group), updated in place.
        width = max(max_pages, HELD if recurrent else 0)
        self.matrix: NDArray[np.int32] = np.full((len(state), slots, width), GONE, np.int32)
        self._max_pages = max_pages
        self._groups = [
            Snapshots(spec, count, page_size, matrix)
            if isinstance(spec, Recurrent)
            else PageLists(spec, count, page_size, matrix[:, :max_pages], self._lost)
            for spec, count, matrix in zip(state, counts, self.matrix, strict=True)
        ]
        self._all_kept = all(group.keeps_all for group in self._groups)  # no step changes a list before it needs a page
        # Positions at whose multiples steps should end, so that recurrent groups can keep a snapshot there.
        self.stride = math.lcm(*(spec.every for spec in recurrent)) if recurrent else None
        if any(spec.every % page_size for spec in recurrent):
            raise CapacityError(f"snapshots are kept at ends of pages of {page_size} positions only")
        self._rows: dict[int, _Row] = {}
        self._free_slots = list(range(slots - 1, -1, -1))
        self._copies: list[tuple[int, int, int]] = []

    @property
    def pages(self) -> int:
        """Pages of all groups together."""
        return sum(group.ids.count for group in self._groups)

    @property
    def group_pages(self) -> list[int]:
        """Pages of each group."""
        return [group.ids.count for group in self._groups]

    @property
    def free_pages(self) -> int:
        """Pages of all groups obtainable now: free ones and cached ones, which would be evicted."""
        return sum(self.group_free_pages)

    @property
    def group_free_pages(self) -> list[int]:
        """Pages of each group obtainable now."""
        return [group.ids.obtainable for group in self._groups]

    def capacity(self, step: int) -> int:
        """Positions of the longest sequence that fits alone, growing by at most `step` at once."""
        return min(self._max_pages, *(group.capacity(step) for group in self._groups)) * self.page_size

    def holds(self, sequences: int, length: int, step: int) -> bool:
        """Whether so many sequences of so many positions, growing by at most `step` at once, have room together."""
        return all(sequences * group.most_held(length, step) <= group.ids.count for group in self._groups)

    def in_hand(self, length: int, step: int) -> int:
        """Positions whose pages a sequence of up to `length` positions holds at most, in groups that forget, while it
        grows by at most `step` at once."""
        held = [group.most_held(length, step) for group in self._groups if not group.keeps_all]
        return min(length, max(held, default=0) * self.page_size)

    def cached(self, tokens: Sequence[int], salt: bytes = b"") -> int:
        """Positions that `open` would find cached now."""
        return len(self._cached_chain(tokens, salt)) * self.page_size

    def open(self, tokens: Sequence[int], salt: bytes = b"", reuse: bool = True) -> tuple[int, int]:
        """Take a slot for `tokens` and the longest cached prefix of full pages; return (slot, positions cached).

        A prefix counts where every group still has what rows behind it read. At least one token is left to compute: a
        prompt that is cached to its end is not given its last page. Raises CapacityError when no slot is free.
        """
        chain = self._cached_chain(tokens, salt) if reuse else []
        row = _Row(chain[-1] if chain else _root(salt), len(chain) * self.page_size)
        slot = self._seat(row)
        for group in self._groups:
            group.open(slot, chain)
        return slot, row.stored

    def grow(self, slot: int, length: int, ahead: int = 0) -> bool:
        """Make positions up to `length` writable: add pages, and replace a shared, partly filled last page by a copy.

        Groups that will forget nothing until then take pages for positions up to `ahead` at once. All or nothing:
        False, with no page taken, when too few are obtainable. Raises CapacityError beyond `max_pages`.
        """
        row = self._rows[slot]
        if max(length, ahead) <= row.room:
            return True
        wanted = -(-max(length, ahead) // self.page_size)
        if wanted > self._max_pages:
            raise CapacityError(
                f"{max(length, ahead)} positions need {wanted} pages of {self.page_size}; "
                f"a sequence has at most {self._max_pages}"
            )
        for group in self._groups:
            group.forget(slot, row.stored)
        ends = [group.takes(length, ahead) for group in self._groups]
        for group, end in zip(self._groups, ends, strict=True):
            if group.missing(slot, row.stored, end) > group.ids.obtainable:
                return False
        for g, (group, end) in enumerate(zip(self._groups, ends, strict=True)):
            self._copies += [(g, *pair) for pair in group.grow(slot, row.stored, end)]
        if self._all_kept:
            row.room = wanted * self.page_size
        return True

    def take_copies(self) -> list[tuple[int, int, int]]:
        """Hand over the pages to copy, (group, source, destination), in this order, before anything else is written."""
        copies, self._copies = self._copies, []
        return copies

    def fill(self, slot: int, tokens: Sequence[int]) -> None:
        """Record that `tokens` are now stored behind what was stored before; pages that became full are shareable."""
        row = self._rows[slot]
        row.stored += len(tokens)
        row.tail += tokens
        if len(row.tail) < self.page_size and self.stride is None:
            return
        full = len(row.tail) - len(row.tail) % self.page_size
        digests = []
        for start in range(0, full, self.page_size):
            row.digest = _link(row.digest, row.tail[start : start + self.page_size])
            digests.append(row.digest)
        del row.tail[:full]
        for group in self._groups:
            group.fill(slot, row.stored, digests)

    def fork(self, slot: int) -> int:
        """Open a second sequence that shares every page holding stored tokens; CapacityError when no slot is free."""
        row = self._rows[slot]
        row.room = 0
        child = self._seat(_Row(row.digest, row.stored, row.tail.copy()))
        for group in self._groups:
            group.fork(slot, child, row.stored)
        return child

    def close(self, slot: int) -> None:
        """Give a sequence's pages back: full registered ones stay cached, the others are free at once."""
        del self._rows[slot]
        for group in self._groups:
            group.close(slot)
        self._free_slots.append(slot)

    def clear_cache(self) -> None:
        """Forget every cached page that no sequence references."""
        for group in self._groups:
            group.ids.clear_cache()

    def check(self) -> None:
        """Raise AssertionError with a reason if an invariant is broken. Scans everything: for tests."""
        assert sorted([*self._free_slots, *self._rows]) == list(range(self.slots)), "a slot is lost or taken twice"
        for slot, row in self._rows.items():
            assert len(row.tail) == row.stored % self.page_size, f"slot {slot} lost count of its last page"
        for group in self._groups:
            group.check({slot: row.stored for slot, row in self._rows.items()})

    def _cached_chain(self, tokens: Sequence[int], salt: bytes) -> list[bytes]:
        """Hashes of the longest prefix of full pages, short of the last token, that a sequence can resume behind."""
        chain: list[bytes] = []
        digest = _root(salt)
        whole = [group for group in self._groups if group.keeps_all]
        for start in range(0, len(tokens) - self.page_size, self.page_size):
            digest = _link(digest, tokens[start : start + self.page_size])
            if any(group.ids.find(digest) is None for group in whole):
                break
            chain.append(digest)
        others = [group for group in self._groups if not group.keeps_all]
        while chain and not all(group.resumes(chain) for group in others):
            chain.pop()
        return chain

    def _lost(self, digest: bytes) -> None:
        """A group that keeps everything evicted this page: nothing can be resumed behind it, so others drop theirs."""
        for group in self._groups:
            group.ids.drop(digest)

    def _seat(self, row: _Row) -> int:
        if not self._free_slots:
            raise CapacityError(f"all {self.slots} sequence slots are taken")
        slot = self._free_slots.pop()
        self._rows[slot] = row
        return slot
