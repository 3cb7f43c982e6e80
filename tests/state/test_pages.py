"""PageTable: a state machine over a simulated pool, and the rules one by one."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from phaseline.errors import CapacityError
from phaseline.state.pages import PageTable

PAGES, PAGE_SIZE, SLOTS, MAX_PAGES = 10, 3, 4, 6
GARBAGE = -7


@dataclass
class Written:
    """What the model knows of an open sequence: its prompt and salt, and the tokens stored so far."""

    prompt: list[int]
    salt: bytes
    stored: list[int]


# Few distinct prompts, so that prefixes meet: a run of zeros, then a run of ones.
prompts = st.builds(lambda a, b: [0] * a + [1] * b, st.integers(0, 9), st.integers(1, 8))


class Pool(RuleBasedStateMachine):
    """The table drives a pool of tokens; every open sequence must read back as what was written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = PageTable(PAGES, PAGE_SIZE, SLOTS, MAX_PAGES)
        self.memory = np.full((PAGES, PAGE_SIZE), GARBAGE)
        self.open: dict[int, Written] = {}
        self.seen: set[tuple[bytes, tuple[int, ...]]] = set()  # prefixes of full pages ever stored, by salt

    def pick(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.open)))

    def live(self) -> set[int]:
        return set(self.table.matrix[self.table.matrix >= 0].tolist())

    def grow(self, slot: int, length: int) -> bool:
        """Grow, predicting the answer from the matrix alone, and make the copies."""
        before = self.table.matrix.copy()
        owned = before[slot][before[slot] >= 0]
        stored = len(self.open[slot].stored)
        partial = stored % PAGE_SIZE and np.count_nonzero(before == owned[stored // PAGE_SIZE]) > 1
        needed = max(0, -(-length // PAGE_SIZE) - len(owned)) + bool(partial)
        fits = needed <= PAGES - len(self.live())
        assert self.table.grow(slot, length) is fits
        if not fits:
            assert np.array_equal(before, self.table.matrix)
        for source, destination in self.table.take_copies():
            self.memory[destination] = self.memory[source]
        return fits

    def write(self, slot: int, tokens: list[int]) -> None:
        """What an executor does: put tokens behind the stored ones, through the matrix."""
        for position, token in enumerate(tokens, len(self.open[slot].stored)):
            page = self.table.matrix[slot, position // PAGE_SIZE]
            assert np.count_nonzero(self.table.matrix == page) == 1, "writing into a shared page"
            self.memory[page, position % PAGE_SIZE] = token

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
    @rule(data=st.data(), count=st.integers(1, 8))
    def store(self, data: st.DataObject, count: int) -> None:
        slot = self.pick(data)
        written = self.open[slot]
        start = len(written.stored)
        count = min(count, MAX_PAGES * PAGE_SIZE - start)
        tokens = written.prompt[start : start + count]
        tokens += data.draw(st.lists(st.integers(0, 1), min_size=count - len(tokens), max_size=count - len(tokens)))
        if not self.grow(slot, start + count):
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
        if self.grow(slot, end):
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
        assert self.table.free_pages == PAGES - len(self.live())
        for slot, written in self.open.items():
            pages = self.table.matrix[slot, : -(-len(written.stored) // PAGE_SIZE)]
            assert self.memory[pages].ravel()[: len(written.stored)].tolist() == written.stored


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


def stored(table: PageTable, tokens: list[int], salt: bytes = b"") -> int:
    """Open a sequence and store all its tokens."""
    slot, cached = table.open(tokens, salt)
    assert table.grow(slot, len(tokens))
    table.fill(slot, tokens[cached:])
    return slot


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
    assert table.matrix[second, :2].tolist() == table.matrix[first, :2].tolist()
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
    assert table.matrix[third, 0] == table.matrix[first, 0] != table.matrix[second, 0]


def test_a_writer_gets_its_own_copy_of_a_shared_partial_page_and_the_last_sharer_keeps_it() -> None:
    table = PageTable(pages=4, page_size=4, slots=2, max_pages=2)
    parent = stored(table, [0, 1, 2, 3, 4, 5])
    child = table.fork(parent)
    shared = int(table.matrix[parent, 1])
    assert table.grow(parent, 7)
    assert table.take_copies() == [(shared, int(table.matrix[parent, 1]))]
    assert table.grow(child, 7)
    assert table.take_copies() == []
    assert table.matrix[child, 1] == shared
    assert table.matrix[child, 0] == table.matrix[parent, 0]


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
    table.matrix[0, 0] = table.matrix[0, 1] = table.matrix[1, 0] = 0
    with pytest.raises(AssertionError, match="matrix"):
        table.check()
