"""A family against others that run the same file: every schedule, whole models of random weights."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from phaseline import _native
from phaseline.execute.base import Executor
from phaseline.execute.native import MODES
from phaseline.files.gguf import open_gguf
from phaseline.program.step import Segment, Step, Want
from support.distributions import log_softmax
from support.llamacpp import llamacpp
from support.models import Model, logits, open_model, page_table, relative_error
from support.small_programs import same_bits
from support.tiny import EOS

Floats = NDArray[np.float32]
Answer = Callable[[Sequence[int]], Floats]  # logits of every position
NEAR = 1e-5  # float32 throughout, of the largest logit: sums of some hundred terms in some ten layers
APART = 1e-3  # what a mistake must exceed


def random_ids(model: Model, n: int, seed: int = 0) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(2, model.spec.vocab, n)]


def assert_every_schedule(model: Model, answer: Answer, tokens: int, chunks: Sequence[int] = (7, 33, 64)) -> None:
    """The reference and each level give `answer`; then any chunk, decode and batch give the very bits of the whole.

    Weights must be plain, so that native stays in float32 but for its state, which is asked to as well.
    """
    ids = random_ids(model, tokens)
    want = answer(ids)
    assert relative_error(logits(model.reference(), ids), want) <= 1e-4
    assert relative_error(logits(model.reference(), ids, chunk=chunks[0]), want) <= 1e-4
    for level in _native.levels():
        executor = model.native(kv_type="f32", level=level)
        whole = logits(executor, ids)
        assert relative_error(whole, want) <= NEAR
    for chunk in (1, *chunks):
        assert same_bits(logits(executor, ids, chunk=chunk, seed=chunk), whole)
    threads = model.native(kv_type="f32", threads=2)
    assert same_bits(logits(threads, ids, chunk=chunks[0]), whole)
    # The state in bf16 moves the answer by its own rounding, and by no bit more under another schedule.
    half = model.native(threads=2)
    assert relative_error(logits(half, ids), want) <= 0.1
    assert same_bits(logits(half, ids, chunk=chunks[0]), logits(half, ids))
    assert_a_batch(model, answer, (tokens, 1, 5, 40))


def assert_a_batch(model: Model, answer: Answer, lengths: Sequence[int]) -> None:
    """Prompts of mixed lengths read together in pieces, then all of them decoding: each as if it were alone."""
    prompts = [random_ids(model, n, seed) for seed, n in enumerate(lengths)]
    pages = -(-max(lengths) // 32)
    order = np.random.default_rng(9).permutation(pages * len(lengths)).astype(np.int32).reshape(len(lengths), pages)
    executor = model.native(pages=order.size, kv_type="f32", threads=2)
    rows: list[list[Floats]] = [[] for _ in lengths]
    done, turns = [0] * len(lengths), [0] * len(lengths)
    for turn in range(max(lengths)):
        left = [slot for slot, n in enumerate(lengths) if done[slot] < n]
        if not left:
            break
        sizes = {slot: min(lengths[slot] - done[slot], (19, 1, 3, 11)[(slot + turn) % 4]) for slot in left}
        step = [Segment(s, done[s], prompts[s][done[s] : done[s] + n], Want.ALL) for s, n in sizes.items()]
        table = page_table(model.program, order, turns)
        parts = np.split(executor.forward(Step(step), table), np.cumsum(list(sizes.values()))[:-1])
        turns = [n + (slot in sizes) for slot, n in enumerate(turns)]
        for slot, part in zip(sizes, parts, strict=True):
            rows[slot].append(part)
            done[slot] += len(part)
    for ids, got in zip(prompts, rows, strict=True):
        assert relative_error(np.concatenate(got), answer(ids)) <= NEAR


def assert_same_in_company(model: Model, prompts: Sequence[Sequence[int]]) -> None:
    """The first of eight prompts gives the bits that it gives alone: cut in two, beside others that then decode."""
    ids, *others = prompts
    executor = model.native(pages=64, threads=2)
    table = np.random.default_rng(0).permutation(64).astype(np.int32).reshape(8, 8)
    want = logits(model.native(), ids)
    segments = [Segment(s, 0, other, Want.NONE) for s, other in enumerate(others, 1)]
    step = Step([*segments[:3], Segment(0, 0, ids[:40], Want.ALL), *segments[3:]])
    first = executor.forward(step, page_table(model.program, table, [0] * 8))
    decoding = [Segment(s, len(other), [s], Want.NONE) for s, other in enumerate(others, 1)]
    step = Step([Segment(0, 40, ids[40:], Want.ALL), *decoding])
    rest = executor.forward(step, page_table(model.program, table, [1] * 8))
    assert same_bits(np.concatenate([first, rest]), want)


def assert_same_on_any_schedule(model: Model, ids: Sequence[int], chunks: Sequence[int]) -> None:
    """Chunks, threads, modes and levels leave every bit; over more than one split of attention where ids are many."""
    want = logits(model.native(max_rows=len(ids)), ids)
    for chunk in chunks:
        assert same_bits(logits(model.native(threads=2), ids, chunk=chunk, seed=chunk), want)
    assert same_bits(logits(model.native(threads=2), ids[:60], chunk=1), want[:60])
    for mode in MODES:
        assert same_bits(logits(model.native(mode=mode, threads=3), ids[:100], chunk=60), want[:100])
    for level in _native.levels():
        if level != "portable":
            assert same_bits(logits(model.native(level=level), ids, chunk=len(ids) // 2), want)
    whole = logits(model.native(level="portable"), ids[:60])
    assert same_bits(logits(model.native(level="portable", threads=2), ids[:60], chunk=7), whole)


def assert_seen(model: Model, wrong: Answer, tokens: int) -> None:
    """The comparison does tell the model from one that is wrong in what matters."""
    ids = random_ids(model, tokens)
    assert relative_error(logits(model.reference(), ids), wrong(ids)) > APART


def greedy(executor: Executor, prompt: Sequence[int], tokens: int) -> tuple[list[int], float]:
    """The next ids, and the smallest lead of a chosen one over the runner-up, in logits."""
    table = np.arange(32, dtype=np.int32)[None, :]
    ids, fresh, lead = list(prompt), list(prompt), np.inf
    for turn in range(tokens):
        pages = page_table(executor.program, table, [turn])
        (row,) = executor.forward(Step([Segment(0, len(ids) - len(fresh), fresh)]), pages)
        second, first = np.sort(row)[-2:]
        lead = min(lead, float(first - second))
        fresh = [int(row.argmax())]
        ids += fresh
    return ids[len(prompt) :], lead


def assert_near_llamacpp(path: Path, other: Path, *, limit: float = 0.03) -> None:
    """Log-probabilities of its 20 most likely tokens, and no such ones for the model in `other`."""
    with open_gguf(path) as file, open_gguf(other) as apart, llamacpp(path, context=512, float32_state=True) as peer:
        model, wrong = open_model(file), open_model(apart)
        ids = [int(i) for i in np.random.default_rng(1).integers(2, 258, 120)]
        ours, theirs = (log_softmax(logits(m.native(kv_type="f32"), ids, chunk=33)) for m in (model, wrong))
        # It tells nothing of the end, nor of a byte that is no character by itself (2 is the token of byte 0).
        silent = {EOS, *range(2 + 128, 2 + 256)}
        lengths = [n for n in range(9, 120, 7) if ours[n - 1].argmax() not in silent]
        for n in lengths[:5]:
            top, expected = peer.top(ids[:n], 20)
            assert np.abs(ours[n - 1][top] - expected).max() < limit
            assert np.abs(theirs[n - 1][top] - expected).max() > 0.1


def assert_same_tokens_as_llamacpp(path: Path, *, prompts: Sequence[int], tokens: int, lead: float = 1e-4) -> None:
    """For random prompts of these lengths; no choice may be closer than `lead`, which its rounding could turn."""
    with open_gguf(path) as file:
        model = open_model(file)
        with llamacpp(path, context=model.spec.context, float32_state=True) as peer:
            for n in prompts:
                prompt = random_ids(model, n, seed=n)
                ours, least = greedy(model.native(kv_type="f32"), prompt, tokens)
                assert least > lead and len(set(ours)) >= 3
                assert peer.greedy(prompt, tokens) == ours
