"""PageTable where groups are recurrent: two snapshots for each sequence, and those that are kept."""

from itertools import pairwise

import pytest

from phaseline.errors import CapacityError
from phaseline.state.pages import PageTable
from support.page_tables import spec


def recurrent(pages: int = 8, slots: int = 2) -> PageTable:
    return PageTable([32, pages], page_size=3, slots=slots, max_pages=32, state=[spec(None), spec(0)])


def carry_on(table: PageTable, slot: int, tokens: list[int], *ends: int) -> None:
    """Store tokens in steps that end there."""
    for start, end in pairwise(ends):
        assert table.grow(slot, end)
        table.fill(slot, tokens[start:end])
        table.check()


def test_a_recurrent_group_resumes_at_the_longest_snapshot_that_is_kept() -> None:
    table, tokens = recurrent(), list(range(40))
    slot, _ = table.open(tokens)
    carry_on(table, slot, tokens, 0, 6, 9, 12, 16, 18, 20)  # kept: 6, 12 and 18
    table.close(slot)
    for length, cached in ((40, 18), (18, 12), (17, 12), (12, 6), (7, 6), (6, 0)):
        slot, hit = table.open(tokens[:length])
        assert hit == cached
        table.close(slot)
    assert table.open([*tokens[:8], 99, *tokens[9:]])[1] == 6


def test_what_a_sequence_carries_takes_two_pages_whatever_its_length() -> None:
    table, tokens = recurrent(pages=2, slots=1), [1] * 90
    slot, _ = table.open(tokens)
    carry_on(table, slot, tokens, *range(0, 91, 6))
    assert table.capacity(6) == 96
    table.close(slot)
    assert recurrent(pages=1).capacity(6) == 0


def test_kept_snapshots_make_room_for_sequences_that_run() -> None:
    table, tokens = recurrent(pages=3), list(range(60))
    slot, _ = table.open(tokens)
    carry_on(table, slot, tokens, *range(0, 31, 6))  # two are kept behind the one it goes on from
    other, _ = table.open([99] * 6)
    carry_on(table, other, [99] * 6, 0, 4, 6)
    assert table.grow(slot, 36) and not table.grow(other, 7)


def test_a_step_that_was_given_up_has_carried_nothing_on() -> None:
    table, tokens = recurrent(), list(range(12))
    slot, _ = table.open(tokens)
    carry_on(table, slot, tokens, 0, 6)
    read = int(table.matrix[1, slot, 0])
    assert table.grow(slot, 9) and table.grow(slot, 8)
    assert table.matrix[1, slot, 0] == read != table.matrix[1, slot, 1]
    table.fill(slot, tokens[6:8])
    assert table.matrix[1, slot, 1] == -1


def test_snapshots_between_ends_of_pages_are_refused() -> None:
    with pytest.raises(CapacityError, match="ends of pages of 4 positions"):
        PageTable(4, page_size=4, slots=1, max_pages=4, state=[spec(0)])
