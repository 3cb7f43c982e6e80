"""Attention within a window, at every level: what lies behind it is masked, skipped, and may be gone."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from phaseline import _native
from phaseline.execute.base import Executor
from phaseline.execute.native import MODES, NativeExecutor
from phaseline.program.ir import Program, Rows, Value
from phaseline.program.ops import Attend
from phaseline.program.state import SlidingKV
from phaseline.program.step import Segment, Step, Want
from support.attention import KINDS, TOKENS, Attention, Floats
from support.bounds import BF16, assert_within
from support.memory_file import MemoryFile
from support.page_steps import shuffled
from support.small_programs import Small, assert_levels_agree, native, reference, same_bits

PAGE = NativeExecutor.page_size
# One position, within a page, page edges, several pages, across two splits, more than the context.
WINDOWS = [1, 5, 31, 32, 33, 100, 512, 600, 5000]
LENGTH = 1150
HEADS, KV_HEADS, DIM = 6, 2, 24
WIDTH = HEADS * DIM


def attention(window: int, lossless: bool = False) -> Attention:
    return Attention(HEADS, KV_HEADS, DIM, lossless, seed=window, window=window)


def tokens(n: int = LENGTH) -> list[int]:
    return [int(t) for t in np.random.default_rng(n).integers(0, TOKENS, n)]


def lose_page(executor: Executor, page: int) -> None:
    """Fill a page with NaN."""
    for array in executor._pool.groups[0].values():  # type: ignore[attr-defined]
        array[page].view(np.uint8).fill(0xFF)


def read(executor: Executor, prompt: Sequence[int], chunk: int, window: int) -> NDArray[Any]:
    """All rows, read in chunks. Pages that no row to come reads are lost: from the table, and in memory."""
    table, rows = shuffled(1, -(-len(prompt) // PAGE)), []
    for start in range(0, len(prompt), chunk):
        for gone in range(max(0, start + 1 - window) // PAGE):
            if table[0, gone] >= 0:
                lose_page(executor, table[0, gone])
                table[0, gone] = -1
        rows.append(executor.forward(Step([Segment(0, start, prompt[start : start + chunk], Want.ALL)]), table))
    return np.concatenate(rows)[:, :WIDTH]


def assert_in_bounds(a: Attention, got: NDArray[Any], exact: NDArray[Any], stored: float) -> None:
    """Rows here and there, each with the bound of its own window."""
    for row in (0, 4, 31, 32, 33, 99, 130, 511, 512, 513, 700, LENGTH - 1):
        assert_within(got[row][None], exact[row][None], a.bound(tokens()[: row + 1], 1, stored))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", WINDOWS)
def test_chunks_smaller_and_larger_than_the_window(window: int, kind: str) -> None:
    """The same bits whatever the chunk, each within bounds of exact arithmetic, with everything behind it gone."""
    kv_type, lossless, stored = KINDS[kind]
    a = attention(window, lossless)
    file, program = a.program()
    exact = read(reference(file, program, pages=72), tokens(), 128, window)
    assert np.isfinite(exact).all()
    results = {}
    for level in _native.levels():
        executor = native(file, program, pages=72, level=level, kv_type=kv_type, max_rows=LENGTH, threads=2)
        results[level] = got = read(executor, tokens(), LENGTH, window)
        assert_in_bounds(a, got, exact, stored)
        for chunk in (7, 48, 519):
            assert same_bits(read(executor, tokens(), chunk, window), got)
        assert same_bits(read(executor, tokens()[:140], 1, window), got[:140])
    assert_levels_agree(results)


def test_company_threads_and_modes_change_nothing() -> None:
    """Decodes far into their contexts beside a chunk: few tiles and many, split over the context and not."""
    window = 600
    file, program = attention(window).program()
    alone = read(native(file, program, pages=72, max_rows=LENGTH), tokens(), LENGTH, window)
    for mode in MODES:
        for threads in (1, 3):
            executor = native(file, program, pages=3 * 72, max_rows=LENGTH + 2, threads=threads, mode=mode)
            table = shuffled(3, 36)
            for slot, end in ((0, LENGTH - 1), (1, 513)):
                executor.forward(Step([Segment(slot, 0, tokens()[:end], Want.NONE)]), table)
            table[0, : (LENGTH - window) // PAGE] = -1
            segments = [(0, LENGTH - 1, LENGTH), (2, 0, 90), (1, 513, 514)]
            step = Step([Segment(slot, a, tokens()[a:b], Want.ALL) for slot, a, b in segments])
            want = np.concatenate([alone[a:b] for _, a, b in segments])
            assert same_bits(np.ascontiguousarray(executor.forward(step, table)[:, :WIDTH]), want)


def windowed(a: Attention, prompt: Sequence[int], window: int) -> Floats:
    """All rows in plain numpy: position p reads p - window + 1 .. p."""
    q, k, v = (t[list(prompt)].astype(np.float64) for t in (a.q, a.k, a.v))
    out = np.empty_like(q)
    for p in range(len(prompt)):
        seen = slice(max(0, p - window + 1), p + 1)
        for h in range(a.heads):
            kv = h // (a.heads // a.kv_heads)
            weight = np.exp(k[seen, kv] @ q[p, h] * a.scale)
            out[p, h] = weight @ v[seen, kv] / weight.sum()
    return out.reshape(len(prompt), -1)


@pytest.mark.parametrize("off", [0, -1, 1, 1000])
@pytest.mark.parametrize("window", [2, 33, 64])
def test_a_window_off_by_one_is_seen(window: int, off: int) -> None:
    """The reference and the kernels read exactly the window; the loosest bound in use tells any other from it."""
    a = attention(window)
    file, program = a.program()
    wrong, bound = windowed(a, tokens(150), window + off), a.bound(tokens(150), 150, BF16)
    for executor in (reference(file, program, pages=10), native(file, program, pages=10)):
        got = read(executor, tokens(150), 50, window)
        if off:
            with pytest.raises(AssertionError, match="out of bounds"):
                assert_within(got, wrong, bound)
        else:
            assert_within(got, wrong, bound)


def test_a_page_within_the_window_must_be_there() -> None:
    file, program = attention(40).program()
    executor = native(file, program, pages=8)
    table = np.arange(4, dtype=np.int32)[None]
    executor.forward(Step([Segment(0, 0, tokens(71), Want.NONE)]), table)
    table[0, 0] = -1
    executor.forward(Step([Segment(0, 71, [1])]), table)  # reads 32 .. 71
    with pytest.raises(ValueError, match="does not cover"):
        executor.forward(Step([Segment(0, 70, [1])]), table)  # reads 31 .. 70


def test_a_layer_that_reads_behind_what_its_group_keeps_is_refused() -> None:
    small = Small(MemoryFile(), (SlidingKV(1, 1, 16, window=8),))
    x = small.input("x", np.zeros((4, 16), np.float32))
    out = Value("o", Rows.TOKENS, 16)
    small.builder.add(Attend(x, x, x, out, 0, 1, 1, 16, 1.0, window=9))
    program: Program = small.finish([out], 4)
    with pytest.raises(ValueError, match="within what its state group keeps"):
        native(small.file, program)
