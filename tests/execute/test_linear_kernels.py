"""Linear at every level against exact arithmetic: every format, row count, ragged width; norm, gate and residual."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from phaseline import _native
from phaseline.files.quant import FORMATS
from phaseline.program.ir import Program, Value
from phaseline.program.ops import RMSNorm, linear
from support.bounds import U, assert_within, gate_bound, normed_product_bound, product_bound
from support.memory_file import MemoryFile
from support.small_programs import Small, assert_levels_agree, native, reference, run, same_bits, split

OUTPUTS = (1, 15, 16, 17, 40)
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 33)
TOKENS = 96  # that bring numbers; one more, NOTHING, brings NaN
NOTHING = TOKENS
COLS = {1: (1, 7, 32, 33, 96, 256, 512), 32: (32, 96, 256, 512), 256: (256, 512)}
CASES = [(name, cols) for name, format in FORMATS.items() for cols in COLS[format.block]]
Floats = NDArray[np.float64]


def inputs(rng: np.random.Generator, cols: int) -> NDArray[np.float32]:
    """Rows of very different sizes, with outliers, zeros, and one row of nothing."""
    x = rng.normal(size=(TOKENS + 1, cols)) * 10.0 ** rng.uniform(-3, 3, (TOKENS + 1, 1))
    x[rng.random(x.shape) < 0.02] *= 50
    x[rng.random(x.shape) < 0.05] = 0
    x[3] = 0
    x[NOTHING] = np.nan
    return x.astype(np.float32)


def check(file: MemoryFile, program: Program, outs: list[Value], bounds: Callable[[NDArray[Any]], list[Floats]]) -> None:
    """All levels within the bounds at 33 rows, and the same bits for any smaller number of rows."""
    tokens = np.random.default_rng(1).permutation(TOKENS)[: ROWS[-1]]
    exact = split(run(reference(file, program), tokens.tolist()), outs)
    results = {}
    for level in _native.levels():
        executor = native(file, program, level=level, max_rows=ROWS[-1])
        run(executor, [NOTHING] * ROWS[-1])  # whatever an earlier step left behind is no number
        results[level] = run(executor, tokens.tolist())
        for got, want, bound in zip(split(results[level], outs), exact, bounds(tokens), strict=True):
            assert_within(got, want, bound)
        for rows in ROWS:
            assert same_bits(run(executor, tokens[:rows].tolist()), results[level][:rows])
    assert_levels_agree(results)


@pytest.mark.parametrize(("format", "cols"), CASES)
def test_several_outputs_of_one_format(format: str, cols: int) -> None:
    rng, file = np.random.default_rng(cols), MemoryFile()
    small, table = Small(file), inputs(rng, cols)
    weights = [file.add_random(rng, f"w{n}", format, n, cols) for n in OUTPUTS]
    outs = list(linear(small.builder, small.input("x", table), weights, [w.name for w in weights]))
    x = table.astype(np.float64)
    check(file, small.finish(outs, TOKENS + 1), outs, lambda t: [product_bound(x[t], file, w) for w in weights])


@pytest.mark.parametrize("order", [0, 1, 5])
def test_plain_and_quantised_weights_share_one_input(order: int) -> None:
    rng, file, cols = np.random.default_rng(order), MemoryFile(), 256
    small, table = Small(file), inputs(rng, cols)
    formats = np.roll(["Q4_1", "F32", "Q6_K", "F16", "Q8_0", "BF16", "Q5_K"], order)
    weights = [file.add_random(rng, f"w{i}", f, 5 + 6 * i, cols) for i, f in enumerate(formats)]
    outs = list(linear(small.builder, small.input("x", table), weights, [w.name for w in weights]))
    x = table.astype(np.float64)
    check(file, small.finish(outs, TOKENS + 1), outs, lambda t: [product_bound(x[t], file, w) for w in weights])


@pytest.mark.parametrize(("format", "cols"), [("F32", 1), ("F16", 33), ("BF16", 576), ("Q4_1", 96), ("Q6_K", 512)])
def test_norm_before(format: str, cols: int) -> None:
    rng, file = np.random.default_rng(cols), MemoryFile()
    small, table = Small(file), inputs(rng, cols)
    scale = rng.normal(1, 0.5, cols).astype(np.float32)
    norm = RMSNorm(file.add("norm", scale), 1e-5)
    weights = [file.add_random(rng, f"w{n}", format, n, cols) for n in OUTPUTS]
    outs = list(linear(small.builder, small.input("x", table), weights, [w.name for w in weights], norm=norm))
    x = table.astype(np.float64)
    normed = norm.reference(x, scale.astype(np.float64))
    program = small.finish(outs, TOKENS + 1)
    check(file, program, outs, lambda t: [normed_product_bound(x[t], normed[t], file, w) for w in weights])


@pytest.mark.parametrize(
    ("gate_format", "format", "cols"),
    [("F32", "F32", 7), ("Q4_1", "Q4_1", 96), ("Q4_K", "Q6_K", 256), ("F16", "BF16", 33), ("F16", "Q4_1", 32), ("Q8_0", "F32", 96)],
)
def test_gate_after(gate_format: str, format: str, cols: int) -> None:
    """silu(first) * second, the two in one format or in different ones."""
    rng, file = np.random.default_rng(cols), MemoryFile()
    small, table = Small(file), inputs(rng, cols)
    x, outs, pairs = small.input("x", table), [], []
    for n in OUTPUTS:
        # Gates of ordinary size, and some far out on either side.
        pair = [file.add_random(rng, f"g{n}", gate_format, n, cols, 0.1), file.add_random(rng, f"u{n}", format, n, cols)]
        outs += linear(small.builder, x, pair, [f"y{n}"], gate=True)
        pairs.append(pair)
    exact = table.astype(np.float64)

    def bounds(t: NDArray[Any]) -> list[Floats]:
        result = []
        for pair in pairs:
            g, y = (exact[t] @ file.float32(w.name).astype(np.float64).T for w in pair)
            result.append(gate_bound(g, product_bound(exact[t], file, pair[0]), y, product_bound(exact[t], file, pair[1])))
        return result

    check(file, small.finish(outs, TOKENS + 1), outs, bounds)


@pytest.mark.parametrize(("format", "cols"), [("F32", 33), ("Q5_0", 96), ("Q4_K", 256)])
def test_residual_after(format: str, cols: int) -> None:
    rng, file = np.random.default_rng(cols), MemoryFile()
    small, table = Small(file), inputs(rng, cols)
    x, outs, weights, added = small.input("x", table), [], [], []
    for n in OUTPUTS:
        added.append(rng.normal(size=(TOKENS + 1, n)).astype(np.float32) * 100)
        weights.append(file.add_random(rng, f"w{n}", format, n, cols))
        outs += linear(small.builder, x, [weights[-1]], [f"y{n}"], residual=small.input(f"r{n}", added[-1]))
    exact = table.astype(np.float64)

    def bounds(t: NDArray[Any]) -> list[Floats]:
        result = []
        for w, r in zip(weights, added, strict=True):
            product = product_bound(exact[t], file, w)
            y = exact[t] @ file.float32(w.name).astype(np.float64).T
            result.append(product + U * (np.abs(r[t] + y) + product))
        return result

    check(file, small.finish(outs, TOKENS + 1), outs, bounds)


@pytest.mark.parametrize("level", _native.levels())
def test_silu_follows_exp_far_out(level: str) -> None:
    """For a gate far below zero, silu(g) = g e^g: the kernels' exp shows its relative error."""
    file = MemoryFile()
    small = Small(file)
    g = np.linspace(-87, 90, 4096).astype(np.float32)[:, None]
    one = [file.add("g", np.ones((1, 1), np.float32)), file.add("u", np.zeros((1, 1), np.float32) + 1)]
    x = small.input("x", g)
    (silu,) = linear(small.builder, x, [one[0]], ["g"])
    outs = list(linear(small.builder, silu, one, ["y"], gate=True))
    program = small.finish(outs, len(g))
    tokens = list(range(len(g)))
    got = run(native(file, program, level=level, max_rows=len(g)), tokens)[:, 0]
    exact = g[:, 0].astype(np.float64)
    # silu(g) * g, with exp's error and three roundings
    want = exact * exact / (1 + np.exp(-exact))
    assert_within(got, want, np.abs(want) * (4 * U + 4 * U))
