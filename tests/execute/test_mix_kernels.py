"""The residual mix and gates at every level against exact arithmetic: any number of rows, ragged widths, scores near
and far."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from phaseline import _native
from phaseline.errors import UnsupportedError
from phaseline.files.base import TensorInfo
from phaseline.program.cost import prefill_work
from phaseline.program.ir import Program, Rows, Value
from phaseline.program.ops import SelectRows, gate, residual_mix
from phaseline.program.ops.mix import BANK
from support.bounds import EXP, U, assert_within, gamma
from support.memory_file import MemoryFile
from support.small_programs import Small, assert_levels_agree, native, reference, run, same_bits

TOKENS, NOTHING, EPS = 40, 40, 1e-5
Floats = NDArray[np.float64]


class Case:
    """`count` rows for each token, of very different sizes; `spread`: that of the scores. Wanted rows alone or all."""

    def __init__(self, count: int, width: int, *, spread: float = 2.0, wanted: bool = False) -> None:
        rng, self.file = np.random.default_rng(count * width), MemoryFile()
        rows = rng.normal(size=(count, TOKENS + 1, width)) * 10.0 ** rng.uniform(-2, 2, (count, TOKENS + 1, 1))
        rows[0, 3] = 0
        self.rows = rows.astype(np.float32).astype(np.float64)
        self.weight = (rng.normal(size=width) * spread / np.sqrt(width)).astype(np.float32)
        small, given = Small(self.file), self.rows.astype(np.float32)
        given[-1, NOTHING] = np.nan
        values = [small.input(f"c{i}", table) for i, table in enumerate(given)]
        if wanted:
            for i, value in enumerate(values):
                values[i] = Value(value.name, Rows.WANTED, width)
                small.builder.add(SelectRows(value, values[i]))
        small.builder.layer = -1 if wanted else 0
        out = residual_mix(small.builder, tuple(values[:-1]), values[-1], self.file.add("w", self.weight), EPS, "a")
        small.builder.layer, self.out = -1, out
        if wanted:  # as wide as there are tokens
            assert width == TOKENS + 1
            self.program = Program(small.builder.ops, small.builder.layers, small.state, out, width, 1 << 20)
        else:
            self.program = small.finish([out], TOKENS + 1)

    def exact(self, tokens: Sequence[int], mistake: str = "") -> tuple[Floats, Floats]:
        """Output and bound. A score has the roundings of a sixteenth of each sum's terms, two where nothing is fused,
        and of adding sixteen lanes; a share is e^(score - largest) over a sum; each row joins with two roundings."""
        rows, weight = self.rows[:, tokens], self.weight.astype(np.float64)
        count, _, width = rows.shape
        scale = 1 / np.sqrt((rows**2).mean(axis=2, keepdims=True) + EPS)
        score = (rows * scale) @ weight  # (count, tokens)
        if mistake == "scores of raw rows":
            score = rows @ weight
        off = gamma(width // 4 + 32) * (np.abs(rows * scale) @ np.abs(weight))
        away = score.max(axis=0) - score
        p = np.exp(-away)
        p /= p.sum(axis=0)
        if mistake == "the present row left out":
            p = np.where(np.arange(count)[:, None] == count - 1, 0, p)
        if mistake == "even shares":
            p = np.full_like(p, 1 / count)
        rho = np.expm1(2 * off.max(axis=0) + off + U * away + 2 * EXP + gamma(count + 4))
        size = np.einsum("ct,ctw->tw", p * (rho + gamma(2 * count)) + 2.0**-120, np.abs(rows))
        return np.einsum("ct,ctw->tw", p, rows), size


@pytest.mark.parametrize("spread", [0.1, 2.0, 60.0])
@pytest.mark.parametrize(("count", "width"), [(2, 1), (2, 16), (3, 33), (5, 100), (9, 7), (9, 256)])
def test_every_level(count: int, width: int, spread: float) -> None:
    c = Case(count, width, spread=spread)
    tokens = np.random.default_rng(1).permutation(TOKENS)[:17].tolist()
    want, bound = c.exact(tokens)
    assert np.allclose(run(reference(c.file, c.program), tokens)[:, :width], want, rtol=1e-12, atol=1e-13)
    results = {}
    for level in _native.levels():
        executor = native(c.file, c.program, level=level, max_rows=17)
        assert np.isnan(run(executor, [NOTHING] * 17)[:, :width]).all()  # one row is no number: nor is the answer
        results[level] = run(executor, tokens)
        assert_within(results[level][:, :width], want, bound)
        for rows in (1, 3, 8):
            assert same_bits(run(executor, tokens[:rows]), results[level][:rows])
    assert_levels_agree(results)
    for mode in ("layer", "eager"):
        executor = native(c.file, c.program, threads=3, mode=mode, max_rows=17)
        assert same_bits(run(executor, tokens), results[executor.level])


def test_wanted_rows_alone() -> None:
    c = Case(4, TOKENS + 1, wanted=True)
    tokens = list(range(5, 20))
    assert_within(run(native(c.file, c.program, max_rows=17), tokens), *c.exact(tokens))


@pytest.mark.parametrize("mistake", ["scores of raw rows", "the present row left out", "even shares"])
def test_the_comparison_sees_mistakes(mistake: str) -> None:
    c, tokens = Case(5, 100), list(range(TOKENS))
    got = run(native(c.file, c.program, max_rows=TOKENS), tokens)[:, :100]
    assert_within(got, *c.exact(tokens))
    with pytest.raises(AssertionError, match="out of bounds"):
        assert_within(got, *c.exact(tokens, mistake))


def test_an_empty_bank_is_the_row_itself() -> None:
    small = Small(MemoryFile())
    x = small.input("x", np.ones((3, 8)))
    assert residual_mix(small.builder, (), x, small.file.add("w", np.ones(8)), EPS, "a") is x


def test_banks_that_do_not_fit_are_refused() -> None:
    small = Small(MemoryFile())
    x, other = small.input("x", np.ones((3, 8))), small.input("other", np.ones((3, 9)))

    def mix(bank: tuple[Value, ...], weight: TensorInfo) -> None:
        residual_mix(small.builder, bank, x, weight, EPS, "a")

    eight, nine = small.file.add("w8", np.ones(8)), small.file.add("w9", np.ones(9))
    with pytest.raises(UnsupportedError, match="a bank of 9 rows is not supported; supported: up to 8"):
        mix((x,) * (BANK + 1), eight)
    for bank, weight in (((other,), eight), ((x,), nine)):
        with pytest.raises(UnsupportedError, match="need the width of what is mixed, 8"):
            mix(bank, weight)


def test_it_costs_what_it_reads() -> None:
    c = Case(5, 100)
    (op,) = (op for op in c.program.ops if op.outputs() == (c.out,))
    cost = op.cost(prefill_work(7))
    assert cost.flops == 6 * 7 * 5 * 100 and cost.bytes == 400
    assert op.cost(prefill_work(0)).bytes == 0


@pytest.mark.parametrize("width", [1, 16, 40, 100])
def test_a_gate(width: int) -> None:
    """x * sigmoid(z): an exp, and three roundings."""
    rng, file = np.random.default_rng(width), MemoryFile()
    tables = [(rng.normal(size=(TOKENS + 1, width)) * size).astype(np.float32) for size in (3, 20)]
    tables[1][NOTHING] = np.nan
    small = Small(file)
    x, z = (small.input(name, table) for name, table in zip("xz", tables, strict=True))
    program, tokens = small.finish([gate(small.builder, x, z)], TOKENS + 1), list(range(TOKENS))
    exact, by = (table[:TOKENS].astype(np.float64) for table in tables)
    want = exact / (1 + np.exp(-by))
    assert np.allclose(run(reference(file, program), tokens)[:, :width], want, rtol=1e-14, atol=0)
    results = {}
    for level in _native.levels():
        executor = native(file, program, level=level, max_rows=TOKENS)
        assert np.isnan(run(executor, [NOTHING] * TOKENS)[:, :width]).all()
        results[level] = run(executor, tokens)
        assert_within(results[level][:, :width], want, np.abs(want) * (EXP + 3 * U))
        assert same_bits(run(executor, tokens[:5]), results[level][:5])
    assert_levels_agree(results)
    with pytest.raises(AssertionError, match="out of bounds"):
        assert_within(results["portable"][:, :width], by / (1 + np.exp(-exact)), np.abs(want) * (EXP + 3 * U))


def test_gates_that_do_not_fit_are_refused() -> None:
    small = Small(MemoryFile())
    x, z = small.input("x", np.ones((3, 8))), small.input("z", np.ones((3, 9)))
    with pytest.raises(UnsupportedError, match="z of width 9 is none for x of width 8"):
        gate(small.builder, x, z)
