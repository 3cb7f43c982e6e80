"""What is promised bit for bit: a row's logits do not depend on the schedule that computed it.

Not on the chunk size, the other rows of the step, the pages, the number of threads, the mode, nor on AVX2 or AVX-512.
"""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from phaseline import _native
from phaseline.execute.native import MODES
from phaseline.program.step import Segment, Step, Want
from support.models import Model, logits, page_table
from support.small_programs import same_bits

LENGTH = 300
Logits = NDArray[np.float32]


def prompt(model: Model, n: int = LENGTH, seed: int = 0) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(0, model.spec.vocab, n)]


@pytest.fixture(scope="module", params=["f32", "bf16"])
def kv_type(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def expected(tiny: Model, kv_type: str) -> Logits:
    """All rows in one chunk, on one thread."""
    return logits(tiny.native(kv_type=kv_type), prompt(tiny))


@pytest.mark.parametrize("chunk", [1, 7, 31, 32, 33, 64, 256])
def test_chunk_size(tiny: Model, kv_type: str, expected: Logits, chunk: int) -> None:
    """Prompt lengths k C - 1, k C and k C + 1 are prefixes of this one."""
    assert same_bits(logits(tiny.native(kv_type=kv_type), prompt(tiny), chunk=chunk, seed=chunk), expected)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads(tiny: Model, kv_type: str, expected: Logits, threads: int) -> None:
    executor = tiny.native(kv_type=kv_type, threads=threads)
    for chunk in (LENGTH, 50):
        assert same_bits(logits(executor, prompt(tiny), chunk=chunk), expected)
    assert same_bits(logits(executor, prompt(tiny)[:40], chunk=1), expected[:40])


@pytest.mark.parametrize("mode", MODES)
def test_mode(tiny: Model, kv_type: str, expected: Logits, mode: str) -> None:
    executor = tiny.native(kv_type=kv_type, mode=mode, threads=2)
    assert same_bits(logits(executor, prompt(tiny), chunk=100), expected)


def test_levels_with_fused_multiply_add(tiny: Model, kv_type: str, expected: Logits) -> None:
    wide = [level for level in _native.levels() if level != "portable"]
    if len(wide) < 2:
        pytest.skip("this processor has one such level at most")
    for level in wide:
        assert same_bits(logits(tiny.native(kv_type=kv_type, level=level), prompt(tiny), chunk=64), expected)


def test_the_portable_level_too_keeps_its_own_bits(tiny: Model, kv_type: str) -> None:
    executor = tiny.native(kv_type=kv_type, level="portable", threads=2)
    whole = logits(executor, prompt(tiny))
    for chunk in (1, 7, 64):
        assert same_bits(logits(executor, prompt(tiny), chunk=chunk), whole)


def test_company_in_the_batch(tiny: Model, kv_type: str, expected: Logits) -> None:
    """The same sequence in any slot, among prompts of other lengths that prefill and decode beside it."""
    executor = tiny.native(pages=128, kv_type=kv_type, threads=2)
    lengths = (5, 129, 64, 33)
    order = np.random.default_rng(3).permutation(128).astype(np.int32).reshape(8, 16)
    for slot in (0, 3, 7):
        others = [s for s in range(8) if s != slot]
        got: list[Logits] = []
        for step, n in enumerate((100, 1, 99, 100)):
            start = sum((100, 1, 99, 100)[:step])
            segments = [Segment(slot, start, prompt(tiny)[start : start + n], Want.ALL)]
            if step == 0:
                beside = [Segment(s, 0, prompt(tiny, k, seed=s)) for s, k in zip(others, lengths, strict=False)]
            else:
                beside = [Segment(s, k + step - 1, [s + step]) for s, k in zip(others, lengths, strict=False)]
            before, after = beside[: slot // 2], beside[slot // 2 :]
            rows = executor.forward(Step([*before, *segments, *after]), page_table(tiny.program, order, [step] * 8))
            got.append(rows[len(before) : len(before) + n])
        assert same_bits(np.concatenate(got), expected)


def test_rows_nobody_wants(tiny: Model, kv_type: str, expected: Logits) -> None:
    """The head runs on wanted rows alone; which they are changes no bit of them."""
    executor = tiny.native(kv_type=kv_type)
    tables = [page_table(tiny.program, np.arange(16, dtype=np.int32)[None, :], [turn]) for turn in (0, 1)]
    none = executor.forward(Step([Segment(0, 0, prompt(tiny)[:200], Want.NONE)]), tables[0])
    assert none.shape == (0, tiny.spec.vocab)
    last = executor.forward(Step([Segment(0, 200, prompt(tiny)[200:], Want.LAST)]), tables[1])
    assert same_bits(last, expected[-1:])


def test_profiling_changes_nothing(tiny: Model, kv_type: str, expected: Logits) -> None:
    executor = tiny.native(kv_type=kv_type, threads=2)
    table = page_table(tiny.program, np.arange(16, dtype=np.int32)[None, :], [0])
    got, seconds = executor.profile(Step([Segment(0, 0, prompt(tiny), Want.ALL)]), table)
    assert same_bits(got, expected) and seconds.shape == (len(tiny.program.ops),) and (seconds > 0).all()


def test_a_real_model(smollm2: Model, prose_ids: Sequence[int]) -> None:
    """SmolLM2 on real text: chunk sizes, threads, modes and levels together."""
    ids = prose_ids[:50]
    expected = logits(smollm2.native(threads=2), ids)
    level = "avx2" if "avx2" in _native.levels() else None
    assert same_bits(logits(smollm2.native(level=level, mode="layer"), ids, chunk=35, seed=1), expected)
    assert same_bits(logits(smollm2.native(threads=3, mode="eager"), ids, chunk=10, seed=2), expected)
    assert same_bits(logits(smollm2.native(threads=2), ids[:12], chunk=1, seed=3), expected[:12])


def test_the_comparison_sees_one_bit(expected: Logits) -> None:
    other = expected.copy()
    other.view(np.uint32)[-1, -1] ^= 1
    assert not same_bits(other, expected)
    zero = np.zeros(1, np.float32)
    assert not same_bits(zero, -zero)
