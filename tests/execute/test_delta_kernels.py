"""Delta attention at every level against exact arithmetic: odd sizes, ragged tails, states carried on by steps."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from phaseline import _native
from phaseline.errors import UnsupportedError
from phaseline.execute.base import Executor
from phaseline.execute.native import MODES
from phaseline.program.ops.delta import chunked, recurrent
from phaseline.program.step import Segment, Step, Want
from support.bounds import assert_within
from support.delta import MISTAKES, Delta
from support.page_steps import mixed_steps
from support.small_programs import assert_levels_agree, native, reference, same_bits

PAGES = 12
KINDS: dict[str, dict[str, Any]] = {
    "kimi linear": {},
    "strong decay": {"harsh": True, "dim": 24},
    "kimi k3": {"lowest": -5.0, "dim": 40, "heads": 2},
    "strong and bounded": {"lowest": -5.0, "harsh": True, "dim": 16},
    "one small head": {"heads": 1, "dim": 5, "taps": 3},
    "one tap, wide": {"heads": 2, "dim": 128, "taps": 1},
    "eight taps": {"heads": 5, "dim": 33, "taps": 8},
}
ENDS = (1, 2, 19, 35, 51, 70)  # one row, ragged tails, longer ones: each from a state that is not zero


class Carried:
    """Sequences on any executor, each step reading one page of a slot and writing another one."""

    def __init__(self, executor: Executor, slots: int = 1, seed: int = 0) -> None:
        self.executor = executor
        free = np.random.default_rng(seed).permutation(PAGES)[: 2 * slots].reshape(slots, 2)
        self.pages = free.astype(np.int32)  # (slots, 2)
        self.table = np.full((1, slots, 2), -1, np.int32)

    def forward(self, step: Step) -> NDArray[Any]:
        for s in step.segments:
            self.table[0, s.slot, 1] = self.pages[s.slot, int(self.table[0, s.slot, 0] == self.pages[s.slot, 0])]
        out = self.executor.forward(step, self.table)
        for s in step.segments:
            self.table[0, s.slot, 0] = self.table[0, s.slot, 1]
        return out

    def read(self, tokens: Sequence[int], ends: Sequence[int]) -> NDArray[Any]:
        """One sequence in slot 0, in chunks that end at `ends`."""
        starts = [0, *ends[:-1]]
        steps = [Step([Segment(0, a, tokens[a:b], Want.ALL)]) for a, b in zip(starts, ends, strict=True)]
        return np.concatenate([self.forward(step) for step in steps])


@pytest.mark.parametrize("kind", KINDS)
def test_mixed_steps_over_shuffled_pages(kind: str) -> None:
    """Pages hold NaN before they are written, and so do all buffers: a step of NaN goes first."""
    delta = Delta(**KINDS[kind])
    exact = Carried(reference(delta.file, delta.program, pages=PAGES), 3)
    levels = {}
    for n, level in enumerate(_native.levels()):
        executor = native(delta.file, delta.program, pages=PAGES, level=level, max_rows=96, threads=1 + n)
        nothing = Step([Segment(0, 0, [delta.tokens] * 96, Want.NONE)])
        executor.forward(nothing, np.array([[[-1, 0]]], np.int32))
        levels[level] = Carried(executor, 3)
    for step, histories in mixed_steps(np.random.default_rng(1), delta.tokens):
        want = exact.forward(step)[:, : delta.width]
        bound = np.concatenate(
            [delta.bound(h)[-len(s.tokens) :] for h, s in zip(histories, step.segments, strict=True)]
        )
        results = {level: carried.forward(step)[:, : delta.width] for level, carried in levels.items()}
        for got in results.values():
            assert_within(got, want, bound)
        assert_levels_agree(results)


@pytest.mark.parametrize("form", [recurrent, chunked])
@pytest.mark.parametrize("kind", ["kimi linear", "strong decay", "kimi k3"])
def test_both_forms_of_the_reference(kind: str, form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    delta = Delta(**KINDS[kind])
    tokens = np.random.default_rng(2).permutation(delta.tokens).tolist()
    monkeypatch.setattr(type(delta.op), "reference", lambda self, ctx: self.attend(ctx, form))
    want = Carried(reference(delta.file, delta.program, pages=PAGES)).read(tokens, ENDS)[:, : delta.width]
    for level in _native.levels():
        executor = native(delta.file, delta.program, pages=PAGES, level=level, max_rows=70)
        assert_within(Carried(executor).read(tokens, ENDS)[:, : delta.width], want, delta.bound(tokens))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("level", _native.levels())
def test_chunks_threads_modes_and_company_change_no_bit(level: str, mode: str) -> None:
    delta = Delta(heads=3, dim=24)
    tokens = np.random.default_rng(3).integers(0, delta.tokens, 150).tolist()
    made = [
        native(delta.file, delta.program, pages=PAGES, level=level, max_rows=180, threads=threads, mode=m)
        for threads, m in ((1, "chunk"), (2, mode))
    ]
    whole = Carried(made[0]).read(tokens, [150])
    assert np.isfinite(whole).all()
    for ends in (range(1, 151), range(10, 151, 10), (7, 8, 75, 76, 77, 149, 150), [150]):
        assert same_bits(Carried(made[1], seed=4).read(tokens, list(ends)), whole)
    company = Carried(made[1], 3, seed=5)
    rows = []
    for a, b in ((0, 60), (60, 61), (61, 100)):
        beside = [Segment(slot, a, tokens[a:b][::-1], Want.ALL) for slot in (0, 2)]
        step = Step([beside[0], Segment(1, a, tokens[a:b], Want.ALL), beside[1]])
        rows.append(company.forward(step)[b - a : 2 * (b - a)])
    assert same_bits(np.concatenate(rows), np.ascontiguousarray(whole[:100]))


def test_more_rows_than_a_block_holds() -> None:
    """Wide rows make blocks of few, of which each goes on from the one before."""
    delta = Delta(heads=64, dim=64, tokens=40)
    tokens = np.random.default_rng(3).integers(0, delta.tokens, 200).tolist()
    executor = native(delta.file, delta.program, pages=PAGES, max_rows=200, threads=2)
    whole = Carried(executor).read(tokens, [200])
    assert_within(whole[:90, : delta.width], delta.equations(tokens[:90]), delta.bound(tokens[:90]))
    assert same_bits(Carried(executor).read(tokens, [3, 66, 120, 200]), whole)


def test_a_step_run_again_and_a_copied_page_go_on_the_same_way() -> None:
    """A step that was given up has changed nothing that it read; a fork reads a page that another reads, too."""
    delta = Delta()
    executor = native(delta.file, delta.program, pages=PAGES, max_rows=32)
    executor.forward(Step([Segment(0, 0, list(range(20)), Want.NONE)]), np.array([[[-1, 3]]], np.int32))
    go_on = Step([Segment(0, 20, [5, 6], Want.ALL)])
    first = executor.forward(go_on, np.array([[[3, 4]]], np.int32))
    assert same_bits(executor.forward(go_on, np.array([[[3, 4]]], np.int32)), first)
    executor.copy_pages([(0, 3, 7)])
    both = Step([Segment(0, 20, [5, 6], Want.ALL), Segment(1, 20, [5, 6], Want.ALL)])
    got = executor.forward(both, np.array([[[3, 5], [7, 6]]], np.int32))
    assert same_bits(got[:2], first) and same_bits(got[2:], first)


@pytest.mark.parametrize("mistake", ["none", *MISTAKES])
@pytest.mark.parametrize("kind", ["kimi linear", "strong decay", "kimi k3"])
def test_the_comparison_sees_mistakes(kind: str, mistake: str) -> None:
    delta = Delta(**KINDS[kind])
    tokens = np.random.default_rng(1).permutation(delta.tokens).tolist()
    got = Carried(native(delta.file, delta.program, pages=PAGES, max_rows=70)).read(tokens, ENDS)[:, : delta.width]
    wrong, bound = delta.equations(tokens, mistake, ENDS), delta.bound(tokens)
    if mistake == "none":
        assert_within(got, wrong, bound)
    else:
        with pytest.raises(AssertionError, match="out of bounds"):
            assert_within(got, wrong, bound)


@pytest.mark.parametrize("pages", [[-1, -1], [0, PAGES], [PAGES, 0], [3, 3]])
def test_page_lists_that_make_no_sense_are_refused(pages: list[int]) -> None:
    delta = Delta()
    executor = native(delta.file, delta.program, pages=PAGES, max_rows=8)
    with pytest.raises(ValueError, match="pages of recurrent state"):
        executor.forward(Step([Segment(0, 0, [1])]), np.array([[pages]], np.int32))


def test_convolutions_longer_than_the_kernels_are_refused() -> None:
    delta = Delta(taps=9)
    with pytest.raises(UnsupportedError, match="conv_q: 9 taps, where kernels have up to 8"):
        native(delta.file, delta.program, pages=PAGES)
