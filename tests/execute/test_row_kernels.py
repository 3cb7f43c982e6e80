"""Operations on single rows at every level: embedding look-up, choice of wanted rows, rotation."""

import numpy as np
import pytest
from numpy.typing import NDArray

from phaseline import _native
from phaseline.files.quant import FORMATS
from phaseline.program.ir import Rows, Value
from phaseline.program.ops import Embed, Rope, RopeSpec, linear
from phaseline.program.step import Segment, Step, Want
from support.bounds import U, assert_within, product_bound
from support.memory_file import MemoryFile
from support.small_programs import Small, assert_levels_agree, native, reference, run

TOKENS = 64
STARTS = (0, 1, 31, 1000, 131_000)
Floats = NDArray[np.float32]


@pytest.mark.parametrize("level", _native.levels())
@pytest.mark.parametrize("format", sorted(FORMATS))
def test_embedding_gives_the_decoded_row(format: str, level: str) -> None:
    """Exactly, for tables whose last panel is ragged, and when the head reads the same table."""
    cols = 256
    rng, file = np.random.default_rng(0), MemoryFile()
    small = Small(file)
    table = file.add_random(rng, "table", format, TOKENS + 1, cols)
    x = Value("x", Rows.TOKENS, cols)
    small.builder.add(Embed(table, x))
    program = small.finish([x, *linear(small.builder, x, [table], ["tied"])], TOKENS + 1)
    tokens = rng.permutation(TOKENS + 1)[:40]
    got = run(native(file, program, level=level, max_rows=40), tokens.tolist())
    assert np.array_equal(got[:, :cols], file.float32("table")[tokens])
    rows = file.float32("table").astype(np.float64)
    assert_within(got[:, cols : cols + TOKENS + 1], rows[tokens] @ rows.T, product_bound(rows[tokens], file, table))


@pytest.mark.parametrize("level", _native.levels())
def test_wanted_rows_come_in_order(level: str) -> None:
    rng, file = np.random.default_rng(0), MemoryFile()
    small = Small(file)
    table = rng.normal(size=(TOKENS, 3)).astype(np.float32)
    program = small.finish([small.input("x", table)], TOKENS)
    segments = [
        Segment(2, 0, [5, 6, 7], Want.LAST),
        Segment(0, 3, [8, 9], Want.NONE),
        Segment(3, 1, [10, 11], Want.ALL),
        Segment(1, 0, [12], Want.LAST),
    ]
    got = native(file, program, level=level).forward(Step(segments), np.zeros((4, 1), np.int32))
    assert np.array_equal(got[:, :3], table[[7, 10, 11, 12]])
    nothing = Step([Segment(0, 0, [1, 2], Want.NONE)])
    assert native(file, program, level=level).forward(nothing, np.zeros((1, 1), np.int32)).shape == (0, TOKENS)


def rope_case(dims: int, head_dim: int, heads: int, base: float = 10000.0) -> tuple[MemoryFile, Small, Value, Floats]:
    rng, file = np.random.default_rng(dims), MemoryFile()
    small = Small(file)
    table = rng.normal(size=(TOKENS, heads * head_dim)).astype(np.float32)
    out = Value("y", Rows.TOKENS, heads * head_dim)
    small.builder.add(Rope(small.input("x", table), out, head_dim, RopeSpec(dims, base)))
    return file, small, out, table


def rope_bound(x: Floats, dims: int, head_dim: int) -> NDArray[np.float64]:
    """Four roundings (sine or cosine, product twice, sum) of terms below |a| + |b|; what is not turned is exact."""
    pairs = np.abs(x.astype(np.float64)).reshape(len(x), -1, head_dim // 2, 2)
    bound = np.repeat(4 * U * pairs.sum(axis=-1), 2, axis=-1)  # (rows, heads, head_dim)
    bound[..., dims:] = 0
    return bound.reshape(x.shape)


@pytest.mark.parametrize(
    ("dims", "head_dim", "heads"), [(2, 2, 3), (16, 16, 4), (64, 64, 9), (8, 24, 2), (32, 80, 1), (2, 128, 2)]
)
def test_rotation(dims: int, head_dim: int, heads: int) -> None:
    """Part of a head or all of it, near the start and far out; the angle is taken in double precision."""
    file, small, out, table = rope_case(dims, head_dim, heads, base=5e5)
    program, width = small.finish([out], TOKENS), heads * head_dim
    tokens = list(range(40))
    exact = reference(file, program)
    executors = {level: native(file, program, level=level, max_rows=40) for level in _native.levels()}
    for start in STARTS:
        want = run(exact, tokens, start=start)[:, :width]
        results = {level: run(e, tokens, start=start)[:, :width] for level, e in executors.items()}
        for got in results.values():
            assert_within(got, want, rope_bound(table[:40], dims, head_dim))
        assert_levels_agree(results)


def test_two_rotations_in_one_program() -> None:
    """Each keeps its own angles."""
    file, small, out, table = rope_case(16, 16, 2)
    again = Value("z", Rows.TOKENS, 32)
    small.builder.add(Rope(out, again, 16, RopeSpec(8, 100.0)))
    program = small.finish([out, again], TOKENS)
    tokens = list(range(40))
    got = run(native(file, program, max_rows=40), tokens, start=77)[:, :64]
    once = rope_bound(table[:40], 16, 16)
    # The second turn carries the first's errors along: a rotation adds those of a pair, and its own of twice the size.
    pairs = once.reshape(40, 2, 8, 2)
    both = np.repeat(pairs.sum(axis=-1), 2, axis=-1).reshape(once.shape) + 2 * once
    assert_within(got, run(reference(file, program), tokens, start=77)[:, :64], np.hstack([once, both]))


@pytest.mark.parametrize("mistake", ["none", "halves", "swapped", "backwards", "position off by one"])
def test_the_comparison_sees_mistakes(mistake: str) -> None:
    dims, heads = 16, 2
    file, small, out, table = rope_case(dims, dims, heads)
    program = small.finish([out], TOKENS)
    got = run(native(file, program, max_rows=40), list(range(40)), start=3)[:, : heads * dims]
    x = table[:40].astype(np.float64).reshape(40, heads, dims)
    position = np.arange(3, 43) + (mistake == "position off by one")
    angle = (position[:, None] * 10000.0 ** (-np.arange(0, dims, 2) / dims))[:, None, :]
    cos, sin = np.cos(angle), np.sin(angle) * (-1 if mistake == "backwards" else 1)
    first, second = slice(0, None, 2), slice(1, None, 2)
    if mistake == "halves":
        first, second = slice(0, dims // 2), slice(dims // 2, None)
    if mistake == "swapped":
        first, second = second, first
    wrong = np.empty_like(x)
    wrong[..., first] = x[..., first] * cos - x[..., second] * sin
    wrong[..., second] = x[..., first] * sin + x[..., second] * cos
    bound = rope_bound(table[:40], dims, dims)
    if mistake == "none":
        assert_within(got, wrong.reshape(40, -1), bound)
    else:
        with pytest.raises(AssertionError, match="out of bounds"):
            assert_within(got, wrong.reshape(40, -1), bound)
