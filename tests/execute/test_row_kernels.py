"""Operations on single rows at every level: embedding look-up, choice of wanted rows, rotation."""

import numpy as np
import pytest
from numpy.typing import NDArray

from phaseline import _native
from phaseline.files.base import TensorInfo
from phaseline.files.quant import FORMATS
from phaseline.program.ir import Rows, Value
from phaseline.program.ops import Embed, Rope, RopeSpec, Yarn, linear
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
def test_embedding_scaled_and_with_learned_positions(level: str) -> None:
    """A row of the table, once rounded when scaled and once when its position's row is added."""
    rng, file, cols, start = np.random.default_rng(0), MemoryFile(), 96, 20
    small = Small(file)
    table, places = file.add_random(rng, "table", "F16", TOKENS, cols), file.add_random(rng, "places", "Q8_0", 60, cols)
    scaled, both = (Value(name, Rows.TOKENS, cols) for name in ("scaled", "both"))
    small.builder.add(Embed(table, scaled, 9.8))
    small.builder.add(Embed(table, both, positions=places))
    program = small.finish([scaled, both], TOKENS)
    tokens = rng.integers(0, TOKENS, 40)
    got = run(native(file, program, level=level, max_rows=40), tokens.tolist(), start=start)
    rows, added = file.float32("table")[tokens], file.float32("places")[start : start + 40]
    assert np.array_equal(got[:, : 2 * cols], np.hstack([rows * np.float32(9.8), rows + added]))


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


def rope_case(spec: RopeSpec, head_dim: int, heads: int) -> tuple[MemoryFile, Small, Value, Floats]:
    rng, file = np.random.default_rng(spec.dims), MemoryFile()
    small = Small(file)
    table = rng.normal(size=(TOKENS, heads * head_dim)).astype(np.float32)
    if spec.factors:
        file.add(spec.factors.name, rng.uniform(1, 8, spec.dims // 2))
    out = Value("y", Rows.TOKENS, heads * head_dim)
    small.builder.add(Rope(small.input("x", table), out, head_dim, spec))
    return file, small, out, table


def rope_bound(x: Floats, spec: RopeSpec, head_dim: int) -> NDArray[np.float64]:
    """Four roundings (sine or cosine, product twice, sum) of terms below |a| + |b|; what is not turned is exact."""
    size, pairs = np.abs(x.astype(np.float64)).reshape(len(x), -1, head_dim), spec.dims // 2
    bound = np.zeros_like(size)  # (rows, heads, head_dim)
    a, b = pair_places(spec)
    bound[..., a] = bound[..., b] = 4 * U * spec.magnitude * (size[..., a] + size[..., b])
    assert size[..., a].shape[-1] == pairs
    return bound.reshape(x.shape)


def pair_places(spec: RopeSpec) -> tuple[slice, slice]:
    half = spec.dims // 2
    return (slice(0, half), slice(half, spec.dims)) if spec.halves else (slice(0, spec.dims, 2), slice(1, spec.dims, 2))


FACTORS = TensorInfo("factors", (32,), FORMATS["F32"], 128)
SPECS = [
    (RopeSpec(2, 5e5), 2, 3),
    (RopeSpec(16, 5e5), 16, 4),
    (RopeSpec(64, 5e5), 64, 9),
    (RopeSpec(8, 5e5), 24, 2),
    (RopeSpec(32, 5e5), 80, 1),
    (RopeSpec(2, 5e5), 128, 2),
    (RopeSpec(128, 1e6, halves=True), 128, 2),
    (RopeSpec(8, 1e4, halves=True), 24, 3),
    (RopeSpec(34, 1e4, halves=True), 34, 1),
    (RopeSpec(64, 1e4, stretch=8.0), 64, 2),
    (RopeSpec(64, 5e5, factors=FACTORS), 64, 2),
    (RopeSpec(64, 1e4, halves=True, yarn=Yarn(4.0, 2048, magnitude=1.14)), 80, 2),
]


@pytest.mark.parametrize(("spec", "head_dim", "heads"), SPECS)
def test_rotation(spec: RopeSpec, head_dim: int, heads: int) -> None:
    """Part of a head or all of it, near the start and far out; the angle is taken in double precision."""
    file, small, out, table = rope_case(spec, head_dim, heads)
    program, width = small.finish([out], TOKENS), heads * head_dim
    tokens = list(range(40))
    exact = reference(file, program)
    executors = {level: native(file, program, level=level, max_rows=40) for level in _native.levels()}
    for start in STARTS:
        want = run(exact, tokens, start=start)[:, :width]
        results = {level: run(e, tokens, start=start)[:, :width] for level, e in executors.items()}
        for got in results.values():
            assert_within(got, want, rope_bound(table[:40], spec, head_dim))
        assert_levels_agree(results)


def test_stretched_frequencies_counted_by_hand() -> None:
    """Linear scaling and factors divide; yarn keeps a pair of 32 turns in its context and divides one of a single."""
    plain = RopeSpec(8, 1e4).frequencies(None)
    assert plain == pytest.approx([1, 0.1, 0.01, 0.001])
    assert RopeSpec(8, 1e4, stretch=4.0).frequencies(None) == pytest.approx(plain / 4)
    assert RopeSpec(8, 1e4).frequencies(np.array([1, 2, 4, 8])) == pytest.approx(plain / [1, 2, 4, 8])
    # Pairs turn 1024 / 2 pi = 163, 16.3, 1.63 and 0.163 times; 32 turns lie at pair 0.7, one at pair 2.2.
    yarn = RopeSpec(8, 1e4, yarn=Yarn(4.0, 1024)).frequencies(None)
    assert yarn == pytest.approx(plain * [1, 2 / 3 + 1 / 3 / 4, 1 / 3 + 2 / 3 / 4, 1 / 4])


def test_two_rotations_in_one_program() -> None:
    """Each keeps its own angles."""
    file, small, out, table = rope_case(RopeSpec(16, 1e4), 16, 2)
    again = Value("z", Rows.TOKENS, 32)
    small.builder.add(Rope(out, again, 16, RopeSpec(8, 100.0)))
    program = small.finish([out, again], TOKENS)
    tokens = list(range(40))
    got = run(native(file, program, max_rows=40), tokens, start=77)[:, :64]
    once = rope_bound(table[:40], RopeSpec(16, 1e4), 16)
    # The second turn carries the first's errors along: a rotation adds those of a pair, and its own of twice the size.
    pairs = once.reshape(40, 2, 8, 2)
    both = np.repeat(pairs.sum(axis=-1), 2, axis=-1).reshape(once.shape) + 2 * once
    assert_within(got, run(reference(file, program), tokens, start=77)[:, :64], np.hstack([once, both]))


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("mistake", ["none", "pairing", "swapped", "backwards", "position off by one"])
def test_the_comparison_sees_mistakes(mistake: str, halves: bool) -> None:
    dims, heads = 16, 2
    spec = RopeSpec(dims, 1e4, halves)
    file, small, out, table = rope_case(spec, dims, heads)
    program = small.finish([out], TOKENS)
    got = run(native(file, program, max_rows=40), list(range(40)), start=3)[:, : heads * dims]
    x = table[:40].astype(np.float64).reshape(40, heads, dims)
    position = np.arange(3, 43) + (mistake == "position off by one")
    angle = (position[:, None] * 10000.0 ** (-np.arange(0, dims, 2) / dims))[:, None, :]
    cos, sin = np.cos(angle), np.sin(angle) * (-1 if mistake == "backwards" else 1)
    first, second = pair_places(RopeSpec(dims, 1e4, halves != (mistake == "pairing")))
    if mistake == "swapped":
        first, second = second, first
    wrong = np.empty_like(x)
    wrong[..., first] = x[..., first] * cos - x[..., second] * sin
    wrong[..., second] = x[..., first] * sin + x[..., second] * cos
    bound = rope_bound(table[:40], spec, dims)
    if mistake == "none":
        assert_within(got, wrong.reshape(40, -1), bound)
    else:
        with pytest.raises(AssertionError, match="out of bounds"):
            assert_within(got, wrong.reshape(40, -1), bound)
