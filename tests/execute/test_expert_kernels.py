"""Routed experts at every level against exact arithmetic, however rows and experts meet."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from phaseline import _native
from phaseline.errors import UnsupportedError
from phaseline.execute.native import MODES
from phaseline.files.base import TensorInfo
from phaseline.program.ir import Program, Value
from phaseline.program.ops import Activation, RMSNorm, experts
from support.bounds import assert_within, expert_bound, gamma
from support.memory_file import MemoryFile
from support.small_programs import Small, assert_levels_agree, native, reference, run, same_bits, split

TOKENS = 64  # that bring numbers; one more, NOTHING, brings NaN
NOTHING = TOKENS
ROWS = (1, 2, 5, 8, 9, 33)
Floats = NDArray[np.float64]
Parts = list[tuple[TensorInfo, TensorInfo, TensorInfo]]  # gate, up and down of each expert
Choice = Callable[[np.random.Generator, int, int], NDArray[Any]]  # (rng, experts, active) -> (TOKENS + 1, active)


def uniform(rng: np.random.Generator, count: int, active: int) -> NDArray[Any]:
    return np.array([rng.permutation(count)[:active] for _ in range(TOKENS + 1)])


def skewed(rng: np.random.Generator, count: int, active: int) -> NDArray[Any]:
    """All rows choose expert 1; the last expert is never chosen."""
    others = [e for e in range(count - 1) if e != 1]
    return np.array([[1, *rng.permutation(others)[: active - 1]] for _ in range(TOKENS + 1)])


def all_the_same(rng: np.random.Generator, count: int, active: int) -> NDArray[Any]:
    return np.tile(rng.permutation(count)[:active], (TOKENS + 1, 1))


@dataclass
class Case:
    """A mixture of `count` experts over known rows, choices and shares."""

    file: MemoryFile
    parts: Parts
    program: Program
    out: Value
    x: Floats  # normed
    chosen: NDArray[Any]
    shares: Floats
    residual: Floats
    activation: Activation

    def exact(self, tokens: NDArray[Any]) -> tuple[Floats, Floats]:
        """Output and bound: the answers are added in the order of the choice, each with one rounding or two."""
        out, bound = np.zeros((2, len(tokens), self.out.width))
        size = np.zeros_like(out)
        for row, token in enumerate(tokens):
            for e, share in zip(self.chosen[token], self.shares[token], strict=True):
                answer = answers(self.x[[token]], self.file, self.parts[e], self.activation)[0]
                off = expert_bound(self.x[[token]], self.file, *self.parts[e], self.activation)[0]
                out[row] += share * answer
                bound[row] += abs(share) * off
                size[row] += abs(share) * (np.abs(answer) + off)
        size += np.abs(self.residual[tokens])
        return out + self.residual[tokens], bound + gamma(2 * self.chosen.shape[1] + 2) * size


def answers(x: Floats, file: MemoryFile, part: tuple[TensorInfo, ...], activation: Activation) -> Floats:
    gate, up, down = (file.float32(w.name).astype(np.float64) for w in part)
    return np.asarray(activation.gate(x @ gate.T, x @ up.T) @ down.T)


def case(
    formats: tuple[str, str, str] = ("Q4_1", "Q4_1", "Q8_0"),
    *,
    count: int = 7,
    active: int = 3,
    width: int = 64,
    ff: int = 32,
    choice: Choice = uniform,
    norm: bool = False,
    residual: bool = True,
    activation: Activation = Activation.SILU,
    seed: int = 0,
) -> Case:
    rng, file = np.random.default_rng(seed), MemoryFile()
    small = Small(file)
    shapes = [("gate", ff, width), ("up", ff, width), ("down", width, ff)]
    parts = [
        tuple(file.add_random(rng, f"{n}.{e}", f, *s, 0.3) for (n, *s), f in zip(shapes, formats, strict=True))
        for e in range(count)
    ]
    stacks = [file.stack(n, [part[i] for part in parts]) for i, (n, *_) in enumerate(shapes)]
    x = rng.normal(size=(TOKENS + 1, width)) * 10.0 ** rng.uniform(-1, 1, (TOKENS + 1, 1))
    x[3] = 0
    table = x.astype(np.float32)
    added = rng.normal(size=(TOKENS + 1, width)).astype(np.float32)
    chosen, shares = choice(rng, count, active), rng.uniform(-1, 1, (TOKENS + 1, active)).astype(np.float32)
    before = RMSNorm(file.add("norm", np.exp2(rng.integers(-1, 2, width))), 1e-5) if norm else None
    exact = table.astype(np.float64)
    if before:
        exact = before.reference(exact, {"norm": file.float32("norm").astype(np.float64)})
    table[NOTHING] = np.nan
    inputs = [small.input(n, t) for n, t in (("x", table), ("chosen", chosen), ("shares", shares), ("r", added))]
    small.builder.layer = 0  # which mode `layer` runs row by row
    out = experts(
        small.builder,
        inputs[0],
        (stacks[0], stacks[1], stacks[2]),
        (inputs[1], inputs[2]),
        "y",
        norm=before,
        residual=inputs[3] if residual else None,
        activation=activation,
    )
    small.builder.layer = -1
    program = small.finish([out], TOKENS + 1)
    own = shares.astype(np.float64)
    return Case(file, parts, program, out, exact, chosen, own, added * residual, activation)  # type: ignore[arg-type]


def tokens_of(seed: int = 1) -> NDArray[Any]:
    return np.random.default_rng(seed).permutation(TOKENS)[: ROWS[-1]]


def check(c: Case) -> None:
    """All levels within the bound at 33 rows, and the same bits for fewer rows, any threads and any mode."""
    tokens = tokens_of()
    want, bound = c.exact(tokens)
    results = {}
    for level in _native.levels():
        executor = native(c.file, c.program, level=level, max_rows=ROWS[-1])
        run(executor, [NOTHING] * ROWS[-1])  # whatever an earlier step left behind is no number
        results[level] = run(executor, tokens.tolist())
        assert_within(results[level][:, : c.out.width], want, bound)
        for rows in ROWS:
            assert same_bits(run(executor, tokens[:rows].tolist()), results[level][:rows])
    assert_levels_agree(results)
    spec = run(reference(c.file, c.program), tokens.tolist())[:, : c.out.width]
    assert np.allclose(spec, want, rtol=1e-12, atol=1e-12)
    for threads, mode in ((3, "chunk"), (2, "dispatch"), (2, "layer"), (1, "eager")):
        executor = native(c.file, c.program, threads=threads, mode=mode, max_rows=ROWS[-1])
        run(executor, [NOTHING] * ROWS[-1])
        assert same_bits(run(executor, tokens.tolist()), results[executor.level])


FORMATS = [
    ("F32", "F32", "F32"),
    ("BF16", "BF16", "F16"),
    ("Q4_1", "Q4_1", "Q8_0"),
    ("Q5_0", "Q5_1", "Q4_0"),
    ("F16", "Q8_0", "Q4_1"),
    ("Q4_1", "F32", "BF16"),
]


@pytest.mark.parametrize("formats", FORMATS)
def test_formats(formats: tuple[str, str, str]) -> None:
    check(case(formats))


@pytest.mark.parametrize("formats", [("Q4_K", "Q4_K", "Q6_K"), ("Q5_K", "Q5_K", "Q4_K")])
def test_formats_of_super_blocks(formats: tuple[str, str, str]) -> None:
    check(case(formats, width=256, ff=256, count=4, active=2))


@pytest.mark.parametrize("choice", [uniform, skewed, all_the_same])
@pytest.mark.parametrize(("count", "active"), [(2, 1), (9, 4), (40, 2)])
def test_how_rows_and_experts_meet(choice: Choice, count: int, active: int) -> None:
    check(case(choice=choice, count=max(count, active + 2), active=active, norm=True))


@pytest.mark.parametrize("activation", Activation)
def test_activations(activation: Activation) -> None:
    check(case(("Q4_1", "F32", "Q8_0"), activation=activation))


@pytest.mark.parametrize("active", [1, 5])
def test_every_expert_of_all(active: int) -> None:
    check(case(count=active, active=active, residual=False))


@pytest.mark.parametrize(("width", "ff"), [(32, 16), (48, 112), (96, 32), (16, 272)])
def test_odd_sizes(width: int, ff: int) -> None:
    check(case(("F32", "F32", "F32"), width=width, ff=ff, norm=True, seed=ff))


@pytest.mark.parametrize("mode", MODES)
def test_reads_are_counted(mode: str) -> None:
    """The union of the rows' experts; row by row, each row reads its own."""
    c = case(count=12, active=2)
    executor = native(c.file, c.program, mode=mode, threads=2, max_rows=ROWS[-1])
    for rows in (1, 6, 33):
        tokens = tokens_of(rows)[:rows]
        run(executor, tokens.tolist())
        (found,) = executor.expert_reads()
        union = len(np.unique(c.chosen[tokens]))
        assert found.distinct == union
        assert found.reads == (union if mode in ("chunk", "eager") else 2 * rows)
        size = sum(w.nbytes for w in c.parts[0])
        assert found.bytes == found.reads * size
        assert c.program.ops[found.op].outputs() == (c.out,)
    executor.empty_step()
    assert [(r.distinct, r.reads) for r in executor.expert_reads()] == [(0, 0)]


MISTAKES = ["none", "two experts exchanged", "shares in another order", "gate and up exchanged", "another activation"]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_comparison_sees_mistakes(mistake: str) -> None:
    c, tokens = case(count=4, active=2, residual=False), tokens_of()
    got = split(run(native(c.file, c.program, max_rows=ROWS[-1]), tokens.tolist()), [c.out])[0]
    if mistake == "two experts exchanged":
        c.parts[1], c.parts[2] = c.parts[2], c.parts[1]
    elif mistake == "shares in another order":
        c.shares = c.shares[:, ::-1]
    elif mistake == "gate and up exchanged":
        c.parts = [(up, gate, down) for gate, up, down in c.parts]
    elif mistake == "another activation":
        c.activation = Activation.SITU
    want, bound = c.exact(tokens)
    if mistake == "none":
        assert_within(got, want, bound)
    else:
        with pytest.raises(AssertionError, match="out of bounds"):
            assert_within(got, want, bound)


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="multiples of 16"):
        case(("F32", "F32", "F32"), ff=24)
    with pytest.raises(UnsupportedError, match="multiples of 16"):
        case(("F32", "F32", "F32"), width=40)
