"""What fits: pages of each state group, for a model that keeps everything and for one that is mostly windows."""

from dataclasses import replace

import pytest

from phaseline.engine.memory import Fit, fit
from phaseline.errors import CapacityError
from phaseline.program.ir import Program, Rows, Value
from phaseline.program.state import PagedKV, Recurrent, SlidingKV, StateSpec

KIB, MIB = 1 << 10, 1 << 20
RESERVE = 256 * MIB
PAGE, CONTEXT, WINDOW = 32, 32768, 512
GLOBAL, LOCAL = PagedKV(3, 1, 256), SlidingKV(15, 1, 256, WINDOW)  # gemma3-270m: 1 KiB a position and layer in bf16
# Rows of a chunk of 512 read back 511 positions: 1023, on up to 33 pages.
HELD = 33


def program(*state: StateSpec) -> Program:
    return Program([], [], state, Value("logits", Rows.WANTED, 8), 8, CONTEXT)


def room(memory: int, *state: StateSpec, **options: int) -> Fit:
    """What fits beside the working memory; this program has no weights."""
    return fit(program(*state), memory=RESERVE + memory, **options)


def test_a_long_context_of_a_mostly_sliding_model_takes_what_was_predicted() -> None:
    need = 3 * CONTEXT * KIB + 15 * HELD * PAGE * KIB
    assert need == 96 * MIB + 15840 * KIB  # of 576 MiB if all layers kept everything
    fits = room(need, GLOBAL, LOCAL, context=CONTEXT)
    assert fits.stream(CONTEXT) == need and fits.streams(CONTEXT) == 1
    assert fits.pages == [CONTEXT // PAGE, HELD]
    with pytest.raises(CapacityError, match=f"a context of {CONTEXT - PAGE} tokens would fit"):
        room(need - 1, GLOBAL, LOCAL, context=CONTEXT)
    with pytest.raises(CapacityError, match="a context of"):
        room(5 * need, PagedKV(18, 1, 256), context=CONTEXT)


def test_windows_of_all_sequences_come_before_pages_that_nobody_needs() -> None:
    fits = room(1 << 30, GLOBAL, LOCAL, max_running=4)
    assert (fits.context, fits.pages) == (CONTEXT, [4 * CONTEXT // PAGE, 4 * HELD])
    # Room for two and a half: two windows more than needed for one, and the rest for what is kept.
    tight = room(5 * fits.stream(CONTEXT) // 2, GLOBAL, LOCAL, max_running=16, context=CONTEXT)
    assert tight.pages[1] > 2 * HELD and tight.pages[0] >= CONTEXT // PAGE
    used = sum(group.page_bytes * group.pages for group in tight.groups)
    assert 0 <= 5 * fits.stream(CONTEXT) // 2 - used < sum(group.page_bytes for group in tight.groups)


def test_short_sequences_never_lack_a_window() -> None:
    """Where pages are few, a sliding group has as many as the others: it is not what admission waits for."""
    fits = room(18 * KIB * PAGE * 20, GLOBAL, LOCAL)
    assert (fits.context, fits.pages) == (20 * PAGE, [20, 20])


def test_a_context_left_open_keeps_a_window_for_everybody() -> None:
    memory = 15 * HELD * PAGE * KIB * 16 + 3 * KIB * 20000
    assert room(memory, GLOBAL, LOCAL, max_running=16).pages == [20000 // PAGE, 16 * HELD]
    assert room(memory, GLOBAL, LOCAL, max_running=16, context=CONTEXT).pages[0] >= CONTEXT // PAGE


def test_smaller_chunks_hold_less() -> None:
    assert [room(1 << 40, GLOBAL, LOCAL, max_running=1, chunk=chunk).pages[1] for chunk in (1, 64, 512)] == [17, 19, 33]


def test_a_model_that_keeps_everything_has_what_the_memory_holds() -> None:
    fits = room(PAGE * 3 * KIB * 100, GLOBAL)
    assert (fits.context, fits.pages) == (100 * PAGE, [100])
    assert room(1 << 40, GLOBAL, max_running=3).pages == [3 * CONTEXT // PAGE]


def test_snapshots_are_float32_and_three_for_each_sequence() -> None:
    """Two while a step runs, one to resume from; vectors are padded to sixteen. The rest goes to keys and values."""
    carried = Recurrent(2, (("state", (4, 24, 24)), ("window", (3, 40))), 64)
    page = 2 * (4 * 24 * 32 + 3 * 48) * 4
    for kv_type in ("bf16", "f32"):
        fits = fit(program(GLOBAL, carried), memory=RESERVE + 64 * MIB, kv_type=kv_type, max_running=5, context=1024)
        assert fits.groups[1].page_bytes == page and fits.pages[1] == 5 * 3
        assert (
            fits.pages[0] == 5 * 1024 // PAGE
            and fits.stream(1024) == 2 * page + 1024 // PAGE * fits.groups[0].page_bytes
        )
    fits = room(PAGE * 3 * KIB * 100 + 4 * 3 * page, GLOBAL, carried, max_running=4)
    assert (fits.context, fits.pages) == (100 * PAGE, [100, 12])
    assert room(1 << 40, carried, max_running=2).pages == [6] and room(1 << 40, carried).context == CONTEXT
    with pytest.raises(CapacityError, match="does not fit"):
        room(3 * page - 1, carried, context=1)


def test_a_context_left_open_is_not_lost_to_snapshots() -> None:
    """Where those of all sequences would take over half of the room, fewer run; one page for one sequence is enough."""
    carried = Recurrent(1, (("state", (64, 32, 32)),), 64)
    page, position = 256 * KIB, 3 * KIB
    assert room(16 * 3 * page + PAGE * position, GLOBAL, carried).pages == [8 * 3 * page // (PAGE * position) + 1, 24]
    assert room(3 * page + PAGE * position, GLOBAL, carried).pages == [1, 3]
    with pytest.raises(CapacityError, match="at least 257 MiB are needed"):
        room(3 * page + PAGE * position - 1, GLOBAL, carried)
    short = fit(replace(program(GLOBAL, carried), context=64), memory=RESERVE + 16 * 3 * page + 200 * KIB)
    assert (short.context, short.pages) == (64, [2, 48])  # what a short context leaves goes back to snapshots
    assert room(10 * page, carried).pages == [9]


@pytest.mark.parametrize("context", [0, -1, CONTEXT + 1])
def test_a_context_the_model_does_not_have_is_refused(context: int) -> None:
    with pytest.raises(CapacityError, match=f"1 to {CONTEXT} positions"):
        room(1 << 40, GLOBAL, context=context)


def test_too_little_for_anything_says_how_much_would_do() -> None:
    with pytest.raises(CapacityError, match="at least 257 MiB are needed"):
        room(0, GLOBAL, LOCAL)
