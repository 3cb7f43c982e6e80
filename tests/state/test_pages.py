"""PageTable: a state machine over a simulated pool, and the rules one by one."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from numpy.typing import NDArray

from phaseline.errors import CapacityError
from phaseline.program.state import Recurrent
from phaseline.state.pages import PageTable
from support.page_tables import spec, stored

PAGES, PAGE_SIZE, SLOTS, MAX_PAGES = 10, 3, 4, 6
GARBAGE = -7
# Windows of the state groups; None keeps everything.
STATES: list[list[int | None]] = [[None], [None, 4], [None, 1, 8], [5], [2, 7], [None, 3, None], [None, 1000]]
RECURRENT: list[list[int | None]] = [[0], [0, None], [None, 0, 4]]  # 0: a recurrent group


@dataclass
class Written:
    """What the model knows of an open sequence: its prompt and salt, and the tokens stored so far."""

    prompt: list[int]
    salt: bytes
    stored: list[int]


# Few distinct prompts, so that prefixes meet: a run of zeros, then a run of ones.
prompts = st.builds(lambda a, b: [0] * a + [1] * b, st.integers(0, 9), st.integers(1, 8))


class Pool(RuleBasedStateMachine):
    """The table drives pools of tokens; what rows to come read of a sequence must be what was written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.open: dict[int, Written] = {}
        self.seen: set[tuple[bytes, tuple[int, ...]]] = set()  # prefixes of full pages ever stored, by salt

    @initialize(windows=st.sampled_from(STATES + RECURRENT))
    def begin(self, windows: list[int | None]) -> None:
        self.specs = [spec(window) for window in windows]
        self.groups = range(len(windows))
        self.pages = [PAGES - g for g in self.groups]
        self.table = PageTable(self.pages, PAGE_SIZE, SLOTS, MAX_PAGES, self.specs)
        self.memory = [np.full((count, PAGE_SIZE), GARBAGE) for count in self.pages]
        # Of a recurrent group: the tokens that each page carries, all since the sequence began.
        self.carried: list[dict[int, list[int]]] = [{} for _ in self.groups]
        self.recurrent = [g for g in self.groups if isinstance(self.specs[g], Recurrent)]
        self.paged = [g for g in self.groups if g not in self.recurrent]

    def pick(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.open)))

    def live(self, matrix: NDArray[np.int32]) -> set[int]:
        return set(matrix[matrix >= 0].tolist())

    def oldest(self, g: int, slot: int) -> int:
        """Oldest entry that rows to come read."""
        return self.specs[g].oldest(len(self.open[slot].stored)) // PAGE_SIZE

    def grow(self, slot: int, length: int, ahead: int = 0) -> bool:
        """Grow, predicting the answer from the matrix alone, and make the copies."""
        stored, expected = len(self.open[slot].stored), self.table.matrix.copy()
        fits, ends = True, {}
        for g in self.recurrent:
            fits &= bool((expected[g, slot, 1] < 0) <= self.pages[g] - len(self.live(expected[g])))
        for g in self.paged:
            matrix = expected[g]
            matrix[slot, : self.oldest(g, slot)] = -1  # what will be forgotten, whether it fits or not
            end = ahead if ahead > length and self.specs[g].oldest(ahead) == 0 else length
            wanted = np.arange(MAX_PAGES)[self.oldest(g, slot) : -(-end // PAGE_SIZE)]
            last = matrix[slot, min(stored // PAGE_SIZE, MAX_PAGES - 1)]
            partial = stored % PAGE_SIZE and np.count_nonzero(matrix == last) > 1
            needed = np.count_nonzero(matrix[slot, wanted] < 0) + bool(partial)
            fits &= bool(needed <= self.pages[g] - len(self.live(matrix)))
            ends[g] = end
        assert self.table.grow(slot, length, ahead) is fits
        if not fits:
            assert np.array_equal(expected, self.table.matrix)
        for g in self.paged if fits else ():
            held = np.flatnonzero(self.table.matrix[g, slot] >= 0)
            assert held.tolist() == list(range(self.oldest(g, slot), max(held.max() + 1, -(-ends[g] // PAGE_SIZE))))
        for g, source, destination in self.table.take_copies():
            self.memory[g][destination] = self.memory[g][source]
        return fits

    def write(self, slot: int, tokens: list[int]) -> None:
        """What an executor does: put tokens behind the stored ones, through the matrix."""
        stored = self.open[slot].stored
        for g in self.recurrent:
            read, write = self.table.matrix[g, slot, :2].tolist()
            assert np.count_nonzero(self.table.matrix[g] == write) == 1, "writing over what somebody reads"
            self.carried[g][write] = (self.carried[g][read] if read >= 0 else []) + tokens
        for g in self.paged:
            for position, token in enumerate(tokens, len(stored)):
                page = self.table.matrix[g, slot, position // PAGE_SIZE]
                assert np.count_nonzero(self.table.matrix[g] == page) == 1, "writing into a shared page"
                self.memory[g][page, position % PAGE_SIZE] = token

    @rule(prompt=prompts, salt=st.sampled_from([b"", b"salt"]), reuse=st.booleans())
    def open_sequence(self, prompt: list[int], salt: bytes, reuse: bool) -> None:
        if len(self.open) == SLOTS:
            with pytest.raises(CapacityError, match="4 sequence slots"):
                self.table.open(prompt, salt, reuse)
            return
        slot, cached = self.table.open(prompt, salt, reuse)
        assert slot not in self.open
        assert cached % PAGE_SIZE == 0 and cached < len(prompt)
        assert cached == 0 or (reuse and (salt, tuple(prompt[:cached])) in self.seen)
        self.open[slot] = Written(prompt, salt, prompt[:cached])

    @precondition(lambda self: self.open)
    @rule(data=st.data(), count=st.integers(1, 8), ahead=st.sampled_from([0, 0, 3, 10]))
    def store(self, data: st.DataObject, count: int, ahead: int) -> None:
        slot = self.pick(data)
        written = self.open[slot]
        start = len(written.stored)
        stride = self.table.stride or MAX_PAGES * PAGE_SIZE
        count = min(count, MAX_PAGES * PAGE_SIZE - start, stride - start % stride)
        tokens = written.prompt[start : start + count]
        tokens += data.draw(st.lists(st.integers(0, 1), min_size=count - len(tokens), max_size=count - len(tokens)))
        if not count or not self.grow(slot, start + count, min(start + count + ahead, MAX_PAGES * PAGE_SIZE)):
            return
        self.write(slot, tokens)
        self.table.fill(slot, tokens)
        written.stored += tokens
        for end in range(PAGE_SIZE, len(written.stored) + 1, PAGE_SIZE):
            self.seen.add((written.salt, tuple(written.stored[:end])))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), count=st.integers(1, 5))
    def interrupted_step(self, data: st.DataObject, count: int) -> None:
        """Positions are covered and scribbled on, but nothing is recorded as stored."""
        slot = self.pick(data)
        start = len(self.open[slot].stored)
        end = min(start + count, MAX_PAGES * PAGE_SIZE)
        if end > start and self.grow(slot, end):
            self.write(slot, [GARBAGE] * (end - start))

    @precondition(lambda self: 0 < len(self.open) < SLOTS)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        slot = self.pick(data)
        free, written = self.table.free_pages, self.open[slot]
        self.open[self.table.fork(slot)] = Written(written.prompt, written.salt, written.stored.copy())
        assert self.table.free_pages == free

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        slot = self.pick(data)
        self.table.close(slot)
        del self.open[slot]

    @rule()
    def clear_cache(self) -> None:
        self.table.clear_cache()

    @invariant()
    def consistent(self) -> None:
        self.table.check()
        free = 0
        for g in self.groups:
            given_up = self.table._groups[g].ids._free
            self.memory[g][given_up] = GARBAGE  # a hit on such a page would read it
            self.carried[g] |= {page: [GARBAGE] for page in given_up}
            free += self.pages[g] - len(self.live(self.table.matrix[g]))
            for slot, written in self.open.items():
                if g in self.recurrent:
                    read = int(self.table.matrix[g, slot, 0])
                    assert (self.carried[g][read] if read >= 0 else []) == written.stored
                    continue
                oldest, end = self.specs[g].oldest(len(written.stored)), len(written.stored)
                positions = np.arange(oldest, end)
                pages = self.table.matrix[g, slot, positions // PAGE_SIZE]
                assert (pages >= 0).all()
                assert self.memory[g][pages, positions % PAGE_SIZE].tolist() == written.stored[oldest:]
        assert self.table.free_pages == free


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize(
    ("length", "cached"), [(1, 0), (4, 0), (5, 4), (7, 4), (8, 4), (9, 8), (11, 8), (12, 8), (13, 12), (20, 12)]
)
def test_a_hit_is_the_longest_run_of_full_pages_short_of_the_last_token(length: int, cached: int) -> None:
    table = PageTable(pages=16, page_size=4, slots=2, max_pages=8)
    table.close(stored(table, list(range(14))))  # three full pages and a half
    _, hit = table.open(list(range(length)))
    assert hit == cached


def test_live_pages_are_shared_and_outlive_their_first_owner() -> None:
    table = PageTable(pages=6, page_size=4, slots=3, max_pages=4)
    first = stored(table, list(range(10)))
    second, cached = table.open(list(range(10)))
    assert cached == 8
    assert table.matrix[0, second, :2].tolist() == table.matrix[0, first, :2].tolist()
    table.close(first)
    assert table.free_pages == 4  # the two shared ones are still live
    table.check()


def test_salt_separates_and_reuse_can_be_declined() -> None:
    table = PageTable(pages=8, page_size=4, slots=4, max_pages=4)
    stored(table, list(range(10)), b"one tenant")
    assert table.open(list(range(10)), b"another")[1] == 0
    assert table.open(list(range(10)), b"one tenant", reuse=False)[1] == 0
    assert table.open(list(range(10)), b"one tenant")[1] == 8


def test_a_page_is_found_only_behind_the_same_prefix() -> None:
    table = PageTable(pages=8, page_size=2, slots=2, max_pages=4)
    table.close(stored(table, [1, 2, 3, 4, 5]))
    assert table.open([9, 9, 3, 4, 5])[1] == 0


def test_eviction_takes_the_least_recently_used_and_the_deepest_first() -> None:
    table = PageTable(pages=4, page_size=2, slots=2, max_pages=4)
    table.close(stored(table, [1, 1, 1, 1]))
    table.close(stored(table, [2, 2, 2, 2]))
    slot = stored(table, [3, 3])  # evicts the second page of the first sequence
    table.close(slot)
    slot, cached = table.open([1, 1, 1, 1, 1])
    assert cached == 2
    table.close(slot)
    assert table.open([2, 2, 2, 2, 2])[1] == 4


def test_the_older_registration_of_a_page_is_kept() -> None:
    table = PageTable(pages=4, page_size=2, slots=3, max_pages=2)
    first, second = (table.open([1, 1, 1])[0] for _ in range(2))
    for slot in (first, second):
        assert table.grow(slot, 2)
        table.fill(slot, [1, 1])
    third, cached = table.open([1, 1, 1])
    assert cached == 2
    assert table.matrix[0, third, 0] == table.matrix[0, first, 0] != table.matrix[0, second, 0]


def test_a_writer_gets_its_own_copy_of_a_shared_partial_page_and_the_last_sharer_keeps_it() -> None:
    table = PageTable(pages=4, page_size=4, slots=2, max_pages=2)
    parent = stored(table, [0, 1, 2, 3, 4, 5])
    child = table.fork(parent)
    shared = int(table.matrix[0, parent, 1])
    assert table.grow(parent, 7)
    assert table.take_copies() == [(0, shared, int(table.matrix[0, parent, 1]))]
    assert table.grow(child, 7)
    assert table.take_copies() == []
    assert table.matrix[0, child, 1] == shared
    assert table.matrix[0, child, 0] == table.matrix[0, parent, 0]


def test_growing_beyond_the_longest_sequence_is_refused() -> None:
    table = PageTable(pages=8, page_size=4, slots=1, max_pages=2)
    slot, _ = table.open([1])
    with pytest.raises(CapacityError, match="9 positions need 3 pages of 4; a sequence has at most 2"):
        table.grow(slot, 9)


def test_clear_cache_forgets_only_what_nobody_holds() -> None:
    table = PageTable(pages=8, page_size=2, slots=3, max_pages=4)
    table.close(stored(table, [1, 1, 1]))
    stored(table, [2, 2, 2])
    table.clear_cache()
    assert table.open([1, 1, 1])[1] == 0
    assert table.open([2, 2, 2])[1] == 2


def test_check_reports_a_foreign_entry_in_the_matrix() -> None:
    table = PageTable(pages=4, page_size=2, slots=2, max_pages=2)
    stored(table, [1, 2, 3])
    table.check()
    table.matrix[0, :, 0] = table.matrix[0, 0, 1] = 0
    with pytest.raises(AssertionError, match="matrix"):
        table.check()
