"""PageTable where groups slide: what is held, let go of, and found again."""

import numpy as np
import pytest

from phaseline.state.pages import PageTable, _link, _root
from support.page_tables import spec, stored


def windowed(*windows: int | None, pages: int = 64, slots: int = 2) -> PageTable:
    return PageTable(pages, page_size=4, slots=slots, max_pages=32, state=[spec(window) for window in windows])


@pytest.mark.parametrize("chunk", [1, 3, 16])
def test_a_sliding_group_holds_its_window_and_a_chunk_whatever_the_length(chunk: int) -> None:
    table = windowed(None, 10)
    slot, _ = table.open([])
    most = 0
    for start in range(0, 96, chunk):
        assert table.grow(slot, start + chunk, ahead=96)
        table.fill(slot, [1] * chunk)
        table.check()
        held = (table.matrix[:, slot] >= 0).sum(axis=1)
        assert held[0] == 24
        most = max(most, held[1])
    assert most <= -(-(9 + chunk - 1) // 4) + 1 < 24


def test_a_group_that_forgets_nothing_before_the_end_takes_all_its_pages_at_once() -> None:
    table = windowed(None, 10)
    slot, _ = table.open([])
    assert table.grow(slot, 2, ahead=9)  # the row at 9 reads position 0 still
    assert (table.matrix[:, slot] >= 0).sum(axis=1).tolist() == [3, 3]
    assert table.grow(slot, 2, ahead=30)
    assert (table.matrix[:, slot] >= 0).sum(axis=1).tolist() == [8, 3]


def prefix_hit(table: PageTable, tokens: list[int]) -> int:
    slot, cached = table.open(tokens)
    table.check()
    table.close(slot)
    return cached


def walked(table: PageTable, tokens: list[int]) -> None:
    """Store a sequence token by token, and close it: pages behind each window are given up one by one."""
    slot, cached = table.open(tokens)
    for i in range(cached, len(tokens)):
        assert table.grow(slot, i + 1)
        table.fill(slot, [tokens[i]])
    table.close(slot)


def test_a_hit_is_the_longest_prefix_whose_window_is_there_in_every_group() -> None:
    table = windowed(None, 6, 9, pages=40)
    walked(table, list(range(30)))
    assert prefix_hit(table, list(range(31))) == 28  # given up, and cached, before what came later
    assert prefix_hit(table, [*range(18), 99]) == 16
    # The group of window 6 loses what it gave up first: pages 0 and 1.
    table._groups[1].ids.drop(chain(range(30))[0])
    table._groups[1].ids.drop(chain(range(30))[1])
    assert prefix_hit(table, [*range(18), 99]) == 16  # reads from position 11 on, in page 2
    assert prefix_hit(table, [*range(13), 99]) == 0  # reads from position 7 on, in page 1; and so on down
    table._groups[2].ids.drop(chain(range(30))[2])
    assert prefix_hit(table, [*range(18), 99]) == 0  # 16 - 9 + 1 = 8, in page 2
    assert prefix_hit(table, list(range(31))) == 28


def chain(tokens: range) -> list[bytes]:
    digest, links = _root(b""), []
    for start in range(0, len(tokens) - 3, 4):
        digest = _link(digest, tokens[start : start + 4])
        links.append(digest)
    return links


def test_a_model_of_windows_alone_resumes_where_they_are() -> None:
    table = windowed(6, pages=4)  # fewer pages than the sequence fills: the first ones are evicted
    walked(table, list(range(30)))
    assert prefix_hit(table, list(range(31))) == 28
    assert prefix_hit(table, list(range(10))) == 0
    slot, cached = table.open(list(range(31)))
    assert cached == 28 and table.matrix[0, slot, :7].tolist() == [-1] * 5 + table.matrix[0, slot, 5:7].tolist()


def test_pages_behind_one_that_is_evicted_are_not_kept_elsewhere() -> None:
    table = PageTable([6, 64], page_size=4, slots=1, max_pages=6, state=[spec(None), spec(6)])
    walked(table, [1] * 12)
    walked(table, [2] * 23)  # the group that keeps everything evicts all of the first sequence's pages
    assert table.free_pages == table.pages
    assert len(table._groups[1].ids._cached) == 5


def test_a_fork_shares_its_window_and_copies_only_its_last_page() -> None:
    table = windowed(None, 6)
    parent = stored(table, list(range(18)))
    child = table.fork(parent)
    assert table.grow(child, 19)
    copies = table.take_copies()
    assert [group for group, *_ in copies] == [0, 1]
    for group, source, destination in copies:
        assert (table.matrix[group, parent, 4], table.matrix[group, child, 4]) == (source, destination)
    assert np.count_nonzero(table.matrix[1, child] >= 0) == 2  # 13 .. 18
    table.check()


@pytest.mark.parametrize(("pages", "positions"), [(5, 128), (4, 16), (1, 4)])
def test_one_sequence_alone_is_bounded_by_its_window_or_by_its_length(pages: int, positions: int) -> None:
    """Window 10 and steps of 8 touch 17 positions, on up to 5 pages."""
    table = PageTable(pages, page_size=4, slots=1, max_pages=32, state=[spec(10)])
    assert table.capacity(8) == positions
    slot, _ = table.open([])
    for start in range(0, positions, 8):
        count = min(8, positions - start)
        assert table.grow(slot, start + count)
        table.fill(slot, [1] * count)
