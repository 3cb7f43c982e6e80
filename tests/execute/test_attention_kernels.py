"""Attention at every level against exact arithmetic: shapes of heads, lengths around pages and splits, mixed steps."""

from collections.abc import Sequence

import numpy as np
import pytest

from phaseline import _native
from phaseline.program.step import Segment, Step, Want
from support.attention import KINDS, NOTHING, TOKENS, Attention, Floats
from support.bounds import BF16, assert_within
from support.page_steps import chunked, mixed_steps, shuffled
from support.small_programs import assert_levels_agree, native, reference, same_bits

HEADS = [(1, 1), (4, 2), (9, 3), (8, 1)]
DIMS = [2, 16, 24, 64, 80, 128]
CONTEXTS = (1, 31, 32, 33, 64, 511, 512, 513, 1100)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
@pytest.mark.parametrize("kind", KINDS)
def test_mixed_steps_over_shuffled_pages(kind: str, heads: int, kv_heads: int, dim: int) -> None:
    kv_type, lossless, stored = KINDS[kind]
    a = Attention(heads, kv_heads, dim, lossless)
    file, program = a.program()
    table, width = shuffled(3, 3), heads * dim
    levels = {
        level: native(file, program, pages=18, level=level, kv_type=kv_type, max_rows=96, threads=1 + dim // 16 % 2)
        for level in _native.levels()
    }
    for executor in levels.values():  # whatever an earlier step left behind is no number
        executor.forward(Step([Segment(0, 0, [NOTHING] * 96, Want.NONE)]), table)
    exact = reference(file, program, pages=18)
    for step, histories in mixed_steps(np.random.default_rng(dim), TOKENS):
        want = exact.forward(step, table)[:, :width]
        bound = np.concatenate(
            [a.bound(h, len(s.tokens), stored) for h, s in zip(histories, step.segments, strict=True)]
        )
        results = {level: executor.forward(step, table)[:, :width] for level, executor in levels.items()}
        for got in results.values():
            assert_within(got, want, bound)
        assert_levels_agree(results)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(1, 1, 2), (4, 2, 24), (9, 3, 64)])
def test_contexts_around_pages_and_splits(heads: int, kv_heads: int, dim: int, kind: str) -> None:
    """Rows at each of CONTEXTS, read as decodes, as ends of chunks and inside one long chunk: the same bits."""
    kv_type, lossless, stored = KINDS[kind]
    a = Attention(heads, kv_heads, dim, lossless)
    file, program = a.program()
    tokens = np.random.default_rng(dim).integers(0, TOKENS, CONTEXTS[-1]).tolist()
    table, width = shuffled(1, 35), heads * dim
    decodes = sorted({*CONTEXTS, *(c - 1 for c in CONTEXTS if c > 1)})  # each of CONTEXTS ends a chunk of one row
    last = [decodes.index(c) for c in CONTEXTS]
    exact = chunked(reference(file, program, pages=70), tokens, table, CONTEXTS)[:, :width]
    bound = np.concatenate([a.bound(tokens[:c], 1, stored) for c in CONTEXTS])
    results = {}
    for level in _native.levels():
        executor = native(file, program, pages=70, level=level, kv_type=kv_type, max_rows=1100, threads=2)
        results[level] = got = chunked(executor, tokens, table, CONTEXTS)[:, :width]
        assert_within(got, exact, bound)
        assert same_bits(got, chunked(executor, tokens, table, decodes)[last, :width])
        whole = executor.forward(Step([Segment(0, 0, tokens, Want.ALL)]), table)
        assert same_bits(got, np.ascontiguousarray(whole[np.array(CONTEXTS) - 1, :width]))
    assert_levels_agree(results)


def test_splits_in_several_waves() -> None:
    """One row far into its context: few threads hold what ten splits came to, more hold all; the same bits."""
    a = Attention(3, 3, 16)
    file, program = a.program()
    tokens = np.random.default_rng(2).integers(0, TOKENS, 22 * 512 + 5).tolist()
    table = shuffled(1, len(tokens) // 32 + 1)
    for level in _native.levels():
        rows = []
        for threads in (1, 4):
            executor = native(file, program, pages=2 * table.size, level=level, max_rows=1024, threads=threads)
            chunked(executor, tokens[:-1], table, [*range(1024, len(tokens) - 1, 1024), len(tokens) - 1])
            rows.append(executor.forward(Step([Segment(0, len(tokens) - 1, tokens[-1:])]), table)[:, :48])
        late = len(tokens) - 1000
        whole = executor.forward(Step([Segment(0, late, tokens[late:], Want.ALL)]), table)[-1:, :48]
        assert same_bits(rows[0], np.ascontiguousarray(whole)) and same_bits(rows[1], rows[0])


@pytest.mark.parametrize("falling", [False, True])
def test_scores_far_apart(falling: bool) -> None:
    """The largest score grows from page to page, or never after the first; most weights vanish."""
    a = Attention(2, 1, 16)
    # Key t points along the query with a length that changes by t: scores from 0 to 160.
    a.q[...] = 0.0
    a.q[..., 0] = 4.0
    a.k[:TOKENS, :, 0] = np.linspace(0, 160, TOKENS)[:: -1 if falling else 1, None]
    file, program = a.program()
    tokens, table = list(range(TOKENS)), shuffled(1, 8)
    exact = reference(file, program, pages=16).forward(Step([Segment(0, 0, tokens, Want.ALL)]), table)
    bound = a.bound(tokens, TOKENS, 0.0)
    for level in _native.levels():
        executor = native(file, program, pages=16, level=level, kv_type="f32", max_rows=TOKENS)
        got = executor.forward(Step([Segment(0, 0, tokens, Want.ALL)]), table)
        assert_within(got[:, :32], exact[:, :32], bound)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("at", [0, 9, 40, 600])
def test_what_reads_a_score_that_is_no_number_is_none(at: int, bad: float) -> None:
    """Of one key, while all values are numbers; who comes before it is none the wiser."""
    a = Attention(4, 2, 24)
    a.q[..., 0] = 1.0 + np.abs(a.q[..., 0])
    a.k[TOKENS - 1] = 0.0
    a.k[TOKENS - 1, :, 0] = bad
    a.v[...] = 1.0  # which no weight that is a number makes infinite
    file, program = a.program()
    tokens = np.random.default_rng(1).integers(0, TOKENS - 1, 700).tolist()
    tokens[at] = TOKENS - 1
    step, table = Step([Segment(0, 0, tokens, Want.ALL)]), shuffled(1, 22)
    for level in _native.levels():
        executor = native(file, program, pages=44, level=level, kv_type="f32", max_rows=700)
        got = executor.forward(step, table)[:, :96]
        assert np.isnan(got[at:]).all() and np.isfinite(got[:at]).all()


def test_copied_pages_continue_the_same_way() -> None:
    """Copy-on-write: a sequence on copies of another's pages reads what the other reads."""
    a = Attention(4, 2, 24)
    file, program = a.program()
    table = np.array([[5, 1], [2, 7]], np.int32)
    for kv_type in ("f32", "bf16"):
        executor = native(file, program, pages=8, kv_type=kv_type, max_rows=64)
        executor.forward(Step([Segment(0, 0, list(range(40)), Want.NONE)]), table)
        executor.copy_pages([(0, 5, 2), (0, 1, 7)])
        both = executor.forward(Step([Segment(0, 40, [77]), Segment(1, 40, [77])]), table)
        assert np.isfinite(both).all() and same_bits(both[0], both[1])


def plain_attention(a: Attention, tokens: Sequence[int], **wrong: bool) -> Floats:
    """Attention of all rows in plain numpy, with one mistake if asked."""
    q, k, v = (t[list(tokens)].astype(np.float64) for t in (a.q, a.k, a.v))
    n, group = len(tokens), a.heads // a.kv_heads
    out = np.empty_like(q)
    for h in range(a.heads):
        kv = h % a.kv_heads if wrong.get("heads_interleaved") else h // group
        score = q[:, h] @ k[:, kv].T * (1.0 if wrong.get("no_scale") else a.scale)
        late = 1 if wrong.get("sees_next") else -1 if wrong.get("misses_first") else 0
        seen = np.arange(n) <= np.arange(n)[:, None] + max(late, 0)
        if late < 0:
            seen[1:, 0] = False
        p = np.where(seen, np.exp(score), 0)
        values = np.roll(v[:, kv], 1, axis=0) if wrong.get("values_shifted") else v[:, kv]
        out[:, h] = p @ values / p.sum(axis=1, keepdims=True)
    return out.reshape(n, -1)


@pytest.mark.parametrize(
    "mistake", ["none", "no_scale", "sees_next", "misses_first", "heads_interleaved", "values_shifted"]
)
def test_the_comparison_sees_mistakes(mistake: str) -> None:
    """The loosest bound in use, that of bf16, still tells a wrong reference from the right one."""
    a = Attention(4, 2, 16)
    file, program = a.program()
    tokens = np.random.default_rng(1).permutation(TOKENS)[:70].tolist()
    got = native(file, program, pages=6, max_rows=70).forward(Step([Segment(0, 0, tokens, Want.ALL)]), shuffled(1, 3))
    wrong, bound = plain_attention(a, tokens, **{mistake: True}), a.bound(tokens, 70, BF16)
    if mistake == "none":
        assert_within(got[:, :64], wrong, bound)
    else:
        with pytest.raises(AssertionError, match="out of bounds"):
            assert_within(got[:, :64], wrong, bound)


def test_the_comparison_sees_pages_in_the_wrong_order() -> None:
    a = Attention(4, 2, 16)
    file, program = a.program()
    tokens = np.random.default_rng(1).permutation(TOKENS)[:70].tolist()
    table = shuffled(1, 3)
    executor = native(file, program, pages=6, max_rows=70, kv_type="f32")
    executor.forward(Step([Segment(0, 0, tokens[:69], Want.NONE)]), table)
    exact = plain_attention(a, tokens)[69:]
    wrong_table = np.ascontiguousarray(table[:, [1, 0, 2]])
    right = executor.forward(Step([Segment(0, 69, tokens[69:])]), table)[:, :64]
    assert_within(right, exact, a.bound(tokens, 1, 0.0))
    # All of both pages is read either way: only a partly filled page in the wrong place shows.
    wrong_table = np.ascontiguousarray(table[:, [0, 2, 1]])
    wrong = executor.forward(Step([Segment(0, 69, tokens[69:])]), wrong_table)[:, :64]
    with pytest.raises(AssertionError, match="out of bounds"):
        assert_within(wrong, exact, a.bound(tokens, 1, 0.0))
