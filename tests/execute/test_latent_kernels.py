"""Latent attention at every level against exact arithmetic: odd sizes, page and split edges, all ways to store it."""

import numpy as np
import pytest

from phaseline import _native
from phaseline.program.step import Segment, Step, Want
from support.bounds import BF16, assert_within
from support.latent import NOTHING, TOKENS, Latent, plain_latent
from support.page_steps import chunked, mixed_steps, shuffled
from support.small_programs import assert_levels_agree, native, reference, same_bits

CONTEXTS = (1, 31, 32, 33, 64, 511, 512, 513, 1100)
STORED = {"f32": 0.0, "bf16": BF16}
# heads, nope, pe, rank, value
SIZES = [(1, 16, 8, 24, 12), (4, 32, 16, 64, 32), (3, 20, 10, 40, 17), (9, 8, 2, 33, 5), (16, 64, 32, 96, 48)]


@pytest.mark.parametrize("kv_type", STORED)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("turned", [True, False])
def test_mixed_steps_over_shuffled_pages(sizes: tuple[int, ...], kv_type: str, turned: bool) -> None:
    a = Latent(*sizes, turned=turned, seed=sizes[0])
    program, table = a.program(), shuffled(3, 3)
    levels = {
        level: native(a.file, program, pages=18, level=level, kv_type=kv_type, max_rows=96, threads=1 + sizes[0] % 2)
        for level in _native.levels()
    }
    for executor in levels.values():  # whatever an earlier step left behind is no number
        executor.forward(Step([Segment(0, 0, [NOTHING] * 96, Want.NONE)]), table)
    exact = reference(a.file, program, pages=18)
    for step, histories in mixed_steps(np.random.default_rng(sizes[1]), TOKENS):
        want = exact.forward(step, table)[:, : a.width]
        bound = np.concatenate(
            [a.bound(h, len(s.tokens), STORED[kv_type]) for h, s in zip(histories, step.segments, strict=True)]
        )
        results = {level: executor.forward(step, table)[:, : a.width] for level, executor in levels.items()}
        for got in results.values():
            assert_within(got, want, bound)
        assert_levels_agree(results)


@pytest.mark.parametrize("format", ["F32", "F16", "BF16", "Q8_0", "Q4_1", "IQ3_S"])
@pytest.mark.parametrize("fused", [False, True])
def test_the_formats_of_its_weights(format: str, fused: bool) -> None:
    """As two tensors of three dimensions, and as the older files' fused one."""
    a = Latent(*((2, 256, 8, 256, 16) if format == "IQ3_S" else (4, 32, 8, 64, 32)), format, fused)
    program, table = a.program(), shuffled(1, 2)
    tokens = np.random.default_rng(5).integers(0, TOKENS, 50).tolist()
    step = Step([Segment(0, 0, tokens, Want.ALL)])
    want = reference(a.file, program, pages=4).forward(step, table)[:, : a.width]
    bound = a.bound(tokens, 50, 0.0)
    for level in _native.levels():
        got = native(a.file, program, pages=4, level=level, kv_type="f32", max_rows=50).forward(step, table)
        assert_within(got[:, : a.width], want, bound)


@pytest.mark.parametrize("kv_type", STORED)
@pytest.mark.parametrize("sizes", [(1, 16, 8, 24, 12), (3, 20, 10, 40, 17), (16, 64, 32, 96, 48)])
def test_contexts_around_pages_and_splits(sizes: tuple[int, ...], kv_type: str) -> None:
    """Rows at each of CONTEXTS, read as decodes, as ends of chunks and inside one long chunk: the same bits."""
    a = Latent(*sizes)
    program, table = a.program(), shuffled(1, 35)
    tokens = np.random.default_rng(sizes[0]).integers(0, TOKENS, CONTEXTS[-1]).tolist()
    decodes = sorted({*CONTEXTS, *(c - 1 for c in CONTEXTS if c > 1)})  # each of CONTEXTS ends a chunk of one row
    last = [decodes.index(c) for c in CONTEXTS]
    exact = chunked(reference(a.file, program, pages=70), tokens, table, CONTEXTS)[:, : a.width]
    bound = np.concatenate([a.bound(tokens[:c], 1, STORED[kv_type]) for c in CONTEXTS])
    results = {}
    for level in _native.levels():
        executor = native(a.file, program, pages=70, level=level, kv_type=kv_type, max_rows=1100, threads=2)
        results[level] = got = chunked(executor, tokens, table, CONTEXTS)[:, : a.width]
        assert_within(got, exact, bound)
        assert same_bits(got, chunked(executor, tokens, table, decodes)[last, : a.width])
        whole = executor.forward(Step([Segment(0, 0, tokens, Want.ALL)]), table)
        assert same_bits(got, np.ascontiguousarray(whole[np.array(CONTEXTS) - 1, : a.width]))
    assert_levels_agree(results)


def test_more_rows_than_a_block_holds() -> None:
    """Wide rows make blocks of few: eight of these. Threads, and company in the batch, change no bit."""
    a = Latent(64, 32, 32, 1024, 32)
    program, table = a.program(), shuffled(2, 2)
    tokens = np.random.default_rng(3).integers(0, TOKENS, 40).tolist()
    alone = Step([Segment(0, 0, tokens, Want.ALL)])
    exact = reference(a.file, program, pages=8).forward(alone, table)[:, : a.width]
    got = native(a.file, program, pages=8, max_rows=80, kv_type="f32").forward(alone, table)[:, : a.width]
    assert_within(got, exact, a.bound(tokens, 40, 0.0))
    both = Step([Segment(1, 0, tokens[::-1], Want.NONE), Segment(0, 0, tokens, Want.ALL)])
    executor = native(a.file, program, pages=8, max_rows=80, kv_type="f32", threads=3)
    assert same_bits(executor.forward(both, table)[:, : a.width], got)


def test_copied_pages_continue_the_same_way() -> None:
    """Copy-on-write: a sequence on copies of another's pages reads what the other reads."""
    a = Latent(4, 32, 16, 64, 32)
    table = np.array([[5, 1], [2, 7]], np.int32)
    for kv_type in STORED:
        executor = native(a.file, a.program(), pages=8, kv_type=kv_type, max_rows=64)
        executor.forward(Step([Segment(0, 0, list(range(40)), Want.NONE)]), table)
        executor.copy_pages([(0, 5, 2), (0, 1, 7)])
        both = executor.forward(Step([Segment(0, 40, [77]), Segment(1, 40, [77])]), table)
        assert np.isfinite(both).all() and same_bits(both[0], both[1])


MISTAKES = ["no_norm", "no_rope", "rope_on_nope", "positions_shifted", "next_head", "scale_of_nope", "sees_next"]


@pytest.mark.parametrize("mistake", ["none", *MISTAKES])
def test_the_comparison_sees_mistakes(mistake: str) -> None:
    """The loosest bound in use, that of bf16, still tells a wrong reference from the right one."""
    a = Latent(4, 32, 16, 64, 32)
    tokens = np.random.default_rng(1).permutation(TOKENS)[:70].tolist()
    step = Step([Segment(0, 0, tokens, Want.ALL)])
    got = native(a.file, a.program(), pages=6, max_rows=70).forward(step, shuffled(1, 3))[:, : a.width]
    wrong, bound = plain_latent(a, tokens, mistake), a.bound(tokens, 70, BF16)
    if mistake == "none":
        assert_within(got, wrong, bound)
    else:
        with pytest.raises(AssertionError, match="out of bounds"):
            assert_within(got, wrong, bound)
