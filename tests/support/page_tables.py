"""State groups that keep everything, a window or snapshots, and sequences stored in a page table."""

from phaseline.program.state import PagedKV, Recurrent, SlidingKV, StateSpec
from phaseline.state.pages import PageTable

EVERY = 6  # positions at whose multiples snapshots are kept


def spec(window: int | None) -> StateSpec:
    if window == 0:
        return Recurrent(1, (("carried", (1,)),), EVERY)
    return PagedKV(1, 1, 1) if window is None else SlidingKV(1, 1, 1, window)


def stored(table: PageTable, tokens: list[int], salt: bytes = b"") -> int:
    """Open a sequence and store all its tokens."""
    slot, cached = table.open(tokens, salt)
    assert table.grow(slot, len(tokens))
    table.fill(slot, tokens[cached:])
    return slot
