"""Linear at every level against exact arithmetic: every format, row count, ragged width; norm, gate and residual."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from phaseline import _native
from phaseline.files.quant import FORMATS
from phaseline.program.ir import Program, Value
from phaseline.program.ops import Activation, RMSNorm, linear
from support.bounds import TOP, U, activation_bound, assert_within, gate_bound, normed_product_bound, product_bound
from support.memory_file import MemoryFile
from support.small_programs import Small, assert_levels_agree, native, reference, run, same_bits, split

OUTPUTS = (1, 15, 16, 17, 40)
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 33)
TOKENS = 96  # that bring numbers; one more, NOTHING, brings NaN
NOTHING = TOKENS
COLS = {1: (1, 7, 32, 33, 96, 256, 512), 32: (32, 96, 256, 512), 256: (256, 512)}
CASES = [(name, cols) for name, format in FORMATS.items() for cols in COLS[format.block]]
Floats = NDArray[np.float64]
Bounds = Callable[[NDArray[Any]], list[Floats]]  # of each output, for rows of these tokens


def inputs(rng: np.random.Generator, cols: int) -> NDArray[np.float32]:
    """Rows of very different sizes, with outliers, zeros, and one row of nothing."""
    x = rng.normal(size=(TOKENS + 1, cols)) * 10.0 ** rng.uniform(-3, 3, (TOKENS + 1, 1))
    x[rng.random(x.shape) < 0.02] *= 50
    x[rng.random(x.shape) < 0.05] = 0
    x[3] = 0
    x[NOTHING] = np.nan
    return x.astype(np.float32)


def check(file: MemoryFile, program: Program, outs: list[Value], bounds: Bounds) -> None:
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


NORMED = [("F32", 1), ("F16", 33), ("BF16", 576), ("Q4_1", 96), ("Q6_K", 512), ("IQ4_XS", 256)]


@pytest.mark.parametrize(("format", "cols"), NORMED)
def test_norm_before(format: str, cols: int) -> None:
    rng, file = np.random.default_rng(cols), MemoryFile()
    small, table = Small(file), inputs(rng, cols)
    scale = rng.normal(1, 0.5, cols).astype(np.float32)
    norm = RMSNorm(file.add("norm", scale), 1e-5)
    weights = [file.add_random(rng, f"w{n}", format, n, cols) for n in OUTPUTS]
    outs = list(linear(small.builder, small.input("x", table), weights, [w.name for w in weights], norm=norm))
    x = table.astype(np.float64)
    normed = norm.reference(x, {"norm": scale.astype(np.float64)})
    program = small.finish(outs, TOKENS + 1)
    check(file, program, outs, lambda t: [normed_product_bound(x[t], normed[t], file, w) for w in weights])


GATES = [("F32", "F32", 7), ("Q4_1", "Q4_1", 96), ("Q4_K", "Q6_K", 256), ("F16", "BF16", 33)]
MIXED_GATES = [("F16", "Q4_1", 32), ("Q8_0", "F32", 96)]


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize(("gate_format", "format", "cols"), GATES + MIXED_GATES)
def test_gate_after(gate_format: str, format: str, cols: int, activation: Activation) -> None:
    """activation(first) * second, as the activation has it, the two in one format or in different ones."""
    rng, file = np.random.default_rng(cols), MemoryFile()
    small, table = Small(file), inputs(rng, cols)
    x, pairs, outs = small.input("x", table), [], list[Value]()
    for n in OUTPUTS:
        gate = file.add_random(rng, f"g{n}", gate_format, n, cols, 0.1)  # most of ordinary size, some far out
        pairs.append((gate, file.add_random(rng, f"u{n}", format, n, cols)))
        outs += linear(small.builder, x, pairs[-1], [f"y{n}"], gate=activation)
    exact = table.astype(np.float64)

    def bounds(t: NDArray[Any]) -> list[Floats]:
        result = []
        for pair in pairs:
            g, y = (exact[t] @ file.float32(w.name).astype(np.float64).T for w in pair)
            g_bound, y_bound = (product_bound(exact[t], file, w) for w in pair)
            result.append(gate_bound(g, g_bound, y, y_bound, activation))
        return result

    check(file, small.finish(outs, TOKENS + 1), outs, bounds)


@pytest.mark.parametrize(("format", "cols"), [("F32", 33), ("Q5_0", 96), ("Q4_K", 256)])
def test_residual_after(format: str, cols: int) -> None:
    rng, file = np.random.default_rng(cols), MemoryFile()
    small, table = Small(file), inputs(rng, cols)
    x, weights, added, outs = small.input("x", table), [], [], list[Value]()
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
@pytest.mark.parametrize("activation", Activation)
def test_activations_far_out(level: str, activation: Activation) -> None:
    """Far below zero they are x e^x and x e^-t: the kernels' exp shows its own error, two ulp. Near zero they
    keep their digits."""
    tiny = np.geomspace(1e-30, 1, 512)
    file, x = MemoryFile(), np.concatenate([np.linspace(-79, 90, 4096), tiny, -tiny]).astype(np.float32)[:, None]
    small = Small(file)
    one = file.add("one", np.ones((1, 1), np.float32))
    outs = list(linear(small.builder, small.input("x", x), [one], ["y"], activation=activation))
    got = run(native(file, small.finish(outs, len(x)), level=level, max_rows=len(x)), list(range(len(x))))[:, :1]
    exact = x.astype(np.float64)
    assert_within(got, activation.reference(exact), activation_bound(activation, exact, np.zeros_like(exact)))


@pytest.mark.parametrize(("format", "cols"), [("F32", 33), ("Q5_0", 96), ("Q4_K", 256)])
@pytest.mark.parametrize("activation", [None, Activation.GELU])
def test_bias_and_activation_after(format: str, cols: int, activation: Activation | None) -> None:
    """A bias for each output, and then an activation; together with a residual, which is added last."""
    rng, file = np.random.default_rng(cols), MemoryFile()
    small, table, rest = Small(file), inputs(rng, cols), rng.normal(size=(TOKENS + 1, 17)).astype(np.float32)
    x, residual = small.input("x", table), small.input("rest", rest)
    weights = [file.add_random(rng, f"w{n}", format, n, cols, 0.1) for n in OUTPUTS]
    biases = [file.add(f"b{n}", rng.normal(size=n).astype(np.float32)) for n in OUTPUTS]
    outs = list(linear(small.builder, x, weights, [w.name for w in weights], biases=biases, activation=activation))
    last = {"biases": [biases[3]], "activation": activation, "residual": residual}
    outs += linear(small.builder, x, [weights[3]], ["y"], **last)
    exact = table.astype(np.float64)

    def bounds(t: NDArray[Any]) -> list[Floats]:
        result = []
        for w, b in zip([*weights, weights[3]], [*biases, biases[3]], strict=True):
            off = product_bound(exact[t], file, w)
            y = exact[t] @ file.float32(w.name).astype(np.float64).T + file.float32(b.name)
            off = off + U * (np.abs(y) + off)
            if activation:
                off, y = activation_bound(activation, y, off), activation.reference(y)
            result.append(off)
        result[-1] = off + U * (np.abs(y + rest[t]) + off)
        return result

    check(file, small.finish(outs, TOKENS + 1), outs, bounds)


def test_a_gate_and_its_partner_have_biases_of_their_own() -> None:
    rng, file, cols = np.random.default_rng(0), MemoryFile(), 64
    small, table = Small(file), inputs(rng, cols)
    g, u = (file.add_random(rng, name, "F32", 40, cols, 0.1) for name in "gu")
    a, b = (file.add(name, rng.normal(size=40).astype(np.float32)) for name in "ab")
    outs = list(linear(small.builder, small.input("x", table), [g, u], ["y"], biases=[a, b], gate=Activation.GELU))
    exact = table.astype(np.float64)

    def bounds(t: NDArray[Any]) -> list[Floats]:
        sides = []
        for w, bias in ((g, a), (u, b)):
            off = product_bound(exact[t], file, w)
            y = exact[t] @ file.float32(w.name).astype(np.float64).T + file.float32(bias.name)
            sides += [y, off + U * (np.abs(y) + off)]
        return [gate_bound(*sides, Activation.GELU)]

    check(file, small.finish(outs, TOKENS + 1), outs, bounds)


@pytest.mark.parametrize("format", ["F32", "Q8_0"])
def test_one_matrix_holds_several_outputs(format: str) -> None:
    """As queries, keys and values may stand in one: each part is what a matrix of its own would give."""
    rng, file, cols, widths = np.random.default_rng(0), MemoryFile(), 96, (32, 16, 48, 7)
    small, table = Small(file), inputs(rng, cols)
    weight = file.add_random(rng, "w", format, sum(widths), cols)
    bias = file.add("b", rng.normal(size=sum(widths)).astype(np.float32))
    x = small.input("x", table)
    outs = list(linear(small.builder, x, [weight], "qkvz", widths=widths, biases=[bias]))
    exact = table.astype(np.float64)

    def bounds(t: NDArray[Any]) -> list[Floats]:
        off = product_bound(exact[t], file, weight)
        y = exact[t] @ file.float32("w").astype(np.float64).T + file.float32("b")
        return np.split(off + U * (np.abs(y) + off), np.cumsum(widths)[:-1], axis=1)

    check(file, small.finish(outs, TOKENS + 1), outs, bounds)


@pytest.mark.parametrize("level", _native.levels())
def test_activations_keep_fifteen_bits(level: str) -> None:
    """The errors are those of rounding to steps of max / 16256, not only below them: their size is step / sqrt(12)."""
    rng, file, cols = np.random.default_rng(0), MemoryFile(), 512
    small, table = Small(file), rng.normal(size=(TOKENS, cols)).astype(np.float32)
    weight = file.add_random(rng, "w", "Q8_0", TOKENS, cols)
    outs = list(linear(small.builder, small.input("x", table), [weight], ["y"]))
    got = run(native(file, small.finish(outs, TOKENS), level=level, max_rows=TOKENS), list(range(TOKENS)))
    x, w = table.astype(np.float64), file.float32("w").astype(np.float64)
    step = np.repeat(np.abs(x).reshape(TOKENS, -1, 32).max(axis=2) / TOP, 32, axis=1)
    expected = np.sqrt(step**2 / 12 @ (w**2).T)
    assert 0.95 < np.sqrt(np.mean(((got - x @ w.T) / expected) ** 2)) < 1.05


def rounded_to_8_bits(x: Floats) -> Floats:
    blocks = x.reshape(len(x), -1, 32)
    step = np.maximum(np.abs(blocks).max(axis=2, keepdims=True), 1e-30) / 127
    return np.asarray((np.round(blocks / step) * step).reshape(x.shape))


MISTAKES: dict[str, Callable[[Floats, Floats], Floats]] = {
    "none": lambda x, w: x @ w.T,
    "activations of 8 bits": lambda x, w: rounded_to_8_bits(x) @ w.T,
    "halves of a block exchanged": lambda x, w: x @ np.roll(w.reshape(len(w), -1, 32), 16, axis=2).reshape(w.shape).T,
    "the last block left out": lambda x, w: x[:, :-32] @ w[:, :-32].T,
    "outputs off by one": lambda x, w: x @ np.roll(w, 1, axis=0).T,
    "minimum off by a hundredth": lambda x, w: x @ (w - 0.01 * w.min()).T,
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("format", ["Q4_1", "Q8_0", "IQ4_XS", "MXFP4", "IQ1_S"])
def test_the_comparison_sees_mistakes(format: str, mistake: str) -> None:
    rng, file = np.random.default_rng(0), MemoryFile()
    small, table = Small(file), rng.normal(size=(TOKENS, 256))
    weight = file.add_random(rng, "w", format, 40, 256)
    outs = list(linear(small.builder, small.input("x", table), [weight], ["y"]))
    got = run(native(file, small.finish(outs, TOKENS), max_rows=8), list(range(8)))[:, :40]
    x, w = table.astype(np.float32).astype(np.float64)[:8], file.float32("w").astype(np.float64)
    wrong, bound = MISTAKES[mistake](x, w), product_bound(x, file, weight)
    if mistake == "none":
        assert_within(got, wrong, bound)
    else:
        with pytest.raises(AssertionError, match="out of bounds"):
            assert_within(got, wrong, bound)
