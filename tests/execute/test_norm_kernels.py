"""Norms at every level against exact arithmetic: before a product, or of each group of a row, with a residual."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from phaseline import _native
from phaseline.program.ops import LayerNorm, Norm, Normalise, RMSNorm, linear, normalise
from support.bounds import U, assert_within, gamma, product_bound
from support.memory_file import MemoryFile
from support.small_programs import Small, assert_levels_agree, native, reference, run, same_bits, split

TOKENS, ROWS = 41, (1, 2, 7, 8, 9, 40)
NOTHING = TOKENS - 1  # a row of NaN
EPS = 1e-5
Floats = NDArray[np.float64]


def norm_of(rng: np.random.Generator, file: MemoryFile, kind: str, width: int) -> Norm:
    weight = file.add("norm", rng.normal(1, 0.5, width))
    return RMSNorm(weight, EPS) if kind == "rms" else LayerNorm(weight, file.add("bias", rng.normal(size=width)), EPS)


def inputs(rng: np.random.Generator, width: int) -> NDArray[np.float32]:
    """Rows of very different sizes, some far from a mean of zero, one of zeros and one of nothing."""
    x = rng.normal(size=(TOKENS, width)) * 10.0 ** rng.uniform(-3, 3, (TOKENS, 1))
    x[::3] += 3 * x[::3].std(axis=1, keepdims=True)
    x[3] = 0
    x[NOTHING] = np.nan
    return x.astype(np.float32)


def norm_bound(x: Floats, norm: Norm, weights: dict[str, Floats]) -> Floats:
    """|computed - exact|, x: (..., width), with n = width / 8 + 8 roundings in a sum of lanes, and that of its mean.

    The mean is off by gamma(n) mean|x|, and what is left of x by that and a rounding. The mean of squares of those
    residues follows: its relative error d is twice theirs, plus gamma(n + 4), and 1/sqrt moves by d / 2 (1 - d).
    Without a mean the residue is x itself.
    """
    n = x.shape[-1] // 8 + 8
    residue, own = x, np.zeros_like(x)
    if isinstance(norm, LayerNorm):
        residue = x - x.mean(axis=-1, keepdims=True)
        own = gamma(n) * np.abs(x).mean(axis=-1, keepdims=True) + U * np.abs(residue)
    squares = np.mean(residue**2, axis=-1, keepdims=True)
    moved = 2 * np.sqrt(squares * np.mean(own**2, axis=-1, keepdims=True)) + np.mean(own**2, axis=-1, keepdims=True)
    d = moved / (squares + norm.eps) + gamma(n + 4)
    scale = 1 / np.sqrt(squares + norm.eps)
    weight = np.abs(weights["norm"])
    bound = scale * weight * (own + (np.abs(residue) + own) * (d / (2 * (1 - d)) + gamma(6)))
    if isinstance(norm, LayerNorm):
        bound = bound + U * np.abs(norm.reference(x, weights))
    return np.asarray(bound)


def decoded(file: MemoryFile) -> dict[str, Floats]:
    return {name: file.float32(name).astype(np.float64) for name in ("norm", "bias") if name in file.tensors}


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize(("width", "groups"), [(1, 3), (16, 4), (17, 1), (64, 9), (80, 2), (128, 3), (600, 1)])
@pytest.mark.parametrize("added", [False, True])
def test_groups_of_a_row(kind: str, width: int, groups: int, added: bool) -> None:
    """A head's width or the row's, plain or before a residual; the same bits for any number of rows."""
    rng, file = np.random.default_rng(width), MemoryFile()
    small, table, rest = Small(file), inputs(rng, width * groups), inputs(rng, width * groups)
    norm = norm_of(rng, file, kind, width)
    residual = small.input("rest", rest) if added else None
    out = normalise(small.builder, small.input("x", table), norm, "y", residual=residual)
    program, tokens = small.finish([out], TOKENS), rng.permutation(TOKENS - 1)
    (want,) = split(run(reference(file, program), tokens.tolist()), [out])
    x = table[tokens].astype(np.float64).reshape(len(tokens), groups, width)
    bound = norm_bound(x, norm, decoded(file)).reshape(want.shape)
    bound = bound + U * (np.abs(want) + bound) if added else bound
    results = {}
    for level in _native.levels():
        executor = native(file, program, level=level, max_rows=TOKENS)
        run(executor, [NOTHING] * TOKENS)  # whatever an earlier step left behind is no number
        results[level] = run(executor, tokens.tolist())
        (got,) = split(results[level], [out])
        assert_within(got, want, bound)
        for rows in ROWS:
            assert same_bits(run(executor, tokens[:rows].tolist()), results[level][:rows])
    assert_levels_agree(results)


@pytest.mark.parametrize(("format", "cols"), [("F32", 33), ("F16", 576), ("Q4_1", 96)])
def test_a_layer_norm_before_a_product(format: str, cols: int) -> None:
    rng, file = np.random.default_rng(cols), MemoryFile()
    small, table = Small(file), inputs(rng, cols)
    norm = norm_of(rng, file, "layer", cols)
    weight = file.add_random(rng, "w", format, 40, cols)
    outs = list(linear(small.builder, small.input("x", table), [weight], ["y"], norm=norm))
    program, tokens = small.finish(outs, TOKENS), rng.permutation(TOKENS - 1)
    (want,) = split(run(reference(file, program), tokens.tolist()), outs)
    x, weights = table[tokens].astype(np.float64), decoded(file)
    normed, own = norm.reference(x, weights), norm_bound(x, norm, weights)
    # A quantised block's step follows its largest element, which the norm's own error moves as well.
    bound = product_bound(np.abs(normed) + own, file, weight) + own @ np.abs(file.float32("w").astype(np.float64)).T
    results = {}
    for level in _native.levels():
        results[level] = run(native(file, program, level=level, max_rows=TOKENS), tokens.tolist())
        assert_within(split(results[level], outs)[0], want, bound)
    assert_levels_agree(results)


@pytest.mark.parametrize("mistake", ["none", "the mean stays", "no bias", "the row for the head", "eps forgotten"])
def test_the_comparison_sees_mistakes(mistake: str) -> None:
    rng, file, width = np.random.default_rng(0), MemoryFile(), 16
    small, table = Small(file), rng.normal(0.01, 0.01, (TOKENS, 2 * width)).astype(np.float32)
    norm = norm_of(rng, file, "layer", width)
    out = normalise(small.builder, small.input("x", table), norm, "y")
    got = run(native(file, small.finish([out], TOKENS), max_rows=8), list(range(8)))[:, : 2 * width]
    x, weights = table[:8].astype(np.float64).reshape(8, 2, width), decoded(file)
    bound = norm_bound(x, norm, weights).reshape(8, -1)
    wrong: Any = norm.reference(x, weights)
    if mistake == "the mean stays":
        wrong = RMSNorm(norm.weight, EPS).reference(x, weights) + weights["bias"]
    if mistake == "no bias":
        wrong = wrong - weights["bias"]
    if mistake == "the row for the head":
        whole = {name: np.tile(values, 2) for name, values in weights.items()}
        wrong = norm.reference(x.reshape(8, -1), whole)
    if mistake == "eps forgotten":
        wrong = LayerNorm(norm.weight, file.tensors["bias"], 0.0).reference(x, weights)
    if mistake == "none":
        assert_within(got, wrong.reshape(8, -1), bound)
    else:
        with pytest.raises(AssertionError, match="out of bounds"):
            assert_within(got, wrong.reshape(8, -1), bound)


def test_what_it_costs_and_says() -> None:
    rng, file = np.random.default_rng(0), MemoryFile()
    small = Small(file)
    x = small.input("x", inputs(rng, 32))
    normalise(small.builder, x, norm_of(rng, file, "layer", 16), "y", residual=x)
    op = small.builder.ops[-1]
    assert isinstance(op, Normalise) and op.describe() == "y = x + layer_norm(x by 16)"
    assert op.inputs() == (x, x) and [w.name for w in op.weights()] == ["norm", "bias"]
