"""How far a kernel may stray from the exact answer, derived from how it computes; never tuned.

u = 2^-24 is float32's unit roundoff, gamma(n) = n u / (1 - n u) bounds n roundings in a row (Higham 2002, 3.1). Counts
are those of the portable level, where a multiply-add rounds twice. All arithmetic here is float64.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from phaseline.files.base import TensorInfo
from phaseline.program.ops import Activation
from support.memory_file import MemoryFile

Floats = NDArray[np.float64]
U = 2.0**-24
TOP = 127 * 128  # of a quantised activation
EXP = 4 * U  # relative error of the kernels' exp: 2 ulp
# Of the kernels' tanh = -e / (2 + e). e = 2^n p + 2^n - 1, where p = e^r - 1 is off by 3.3 U of itself and r by 0.45 U.
# The worst is n = 1, where |p| <= 0.293 and e >= 0.414: (2 * 0.293 * 4.3 + 2 * 0.707 * 0.45) / 0.414 + 1 = 8.6 U in e,
# times 2 / (2 + e), and two roundings.
TANH = 10 * U
BF16 = 2.0**-8  # relative error of an element stored as bf16: its roundoff, for eight significant bits


def gamma(n: int) -> float:
    return n * U / (1 - n * U)


def assert_within(actual: NDArray[Any], expected: NDArray[Any], bound: NDArray[Any] | float) -> float:
    """Every element of `actual` lies within its bound of `expected`. Returns the largest share of a bound in use."""
    assert actual.shape == expected.shape
    error = np.abs(actual.astype(np.float64) - expected)
    limit = np.broadcast_to(np.asarray(bound, np.float64), error.shape)
    bad = ~(error <= limit)  # true for NaN as well
    if bad.any():
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        raise AssertionError(
            f"{bad.sum()} of {bad.size} elements out of bounds; first at {at}: {actual[at]!r} for {expected[at]!r}, "
            f"error {error[at]:.3g}, allowed {limit[at]:.3g}"
        )
    used: Floats = np.divide(error, limit, out=np.zeros_like(error), where=limit > 0)
    return float(used.max(initial=0.0))


def product_bound(x: Floats, file: MemoryFile, weight: TensorInfo) -> Floats:
    """|computed - exact| for x @ w.T, (rows, outputs).

    Plain weights: cols multiply-adds, gamma(2 cols) sum |x||w|.
    Quantised: a block's activations become s q, s = max|x| / TOP. Rounding q to whole costs s/2 each; the three
    roundings of x * (TOP / max) and of s cost TOP * 3u of s more. Integer sums are exact. Per block, at most two
    terms (code part d * code, minimum m; Q2_K has both for each half) are added with two roundings each, after at most
    three of their own: gamma(4 blocks + 4) sum (|w - m| + |m|) |s q|, and |s q| <= |x| + s. The decoded reference
    weight itself is rounded once: u |w| |x|.
    """
    w = file.float32(weight.name).astype(np.float64)
    size = np.abs(x)
    if weight.format.block == 1:
        return np.asarray(gamma(2 * w.shape[1]) * (size @ np.abs(w).T))
    step = np.repeat(size.reshape(len(x), -1, 32).max(axis=2) / TOP, 32, axis=1)  # (rows, cols)
    m = _minima(file, weight)
    parts = np.abs(w - m) + np.abs(m)
    rounding = gamma((8 if weight.format.name == "Q2_K" else 4) * (w.shape[1] // 32) + 4)
    bound = step * (0.5 + 3 * TOP * U) @ np.abs(w).T + rounding * ((size + step) @ parts.T) + U * size @ np.abs(w).T
    return np.asarray(bound)


def normed_product_bound(x: Floats, normed: Floats, file: MemoryFile, weight: TensorInfo) -> Floats:
    """The same for rms_norm(x) @ w.T, `normed` being the exact norm of x.

    A normed element has a relative error of gamma(cols / 8 + 16): two roundings for each sixteenth of the sum of
    squares, which has no cancellation, four to add its lanes, and those of mean, eps, root, inverse, two products.
    """
    own = gamma(x.shape[1] // 8 + 16)
    w = np.abs(file.float32(weight.name).astype(np.float64))
    return np.asarray((1 + own) * product_bound(normed, file, weight) + own * np.abs(normed) @ w.T)


def activation_bound(activation: Activation, x: Floats, x_bound: Floats) -> Floats:
    """For silu(x), situ(x) and gelu(x), whose slopes are at most 1.1, 1.1 and 1.13; evaluation adds that of exp, of
    tanh where there is one, and three roundings.

    gelu(x) = x / (1 + e^-t): the cubic t has six roundings, which move the quotient by as much of
    t e^-t / (1 + e^-t). All stop e^-t where it is 2^115, far below what is asked elsewhere.
    """
    size, moved = np.abs(activation.reference(x)), 1.13 * x_bound
    own = EXP + 3 * U
    if activation is Activation.GELU:
        t = np.clip(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3), -80, 80)
        own = own + gamma(6) * np.abs(t) / (1 + np.exp(t))
    if activation is Activation.SITU:
        own = own + TANH
    return np.asarray(moved + (size + moved) * own + np.abs(x) * 2.0**-115)


def gate_bound(
    g: Floats, g_bound: Floats, y: Floats, y_bound: Floats, activation: Activation = Activation.SILU
) -> Floats:
    """For activation(g) * y; situ limits y first, by a tanh whose argument and result are rounded."""
    if activation is Activation.SITU:
        y = 25 * np.tanh(y / 25)
        y_bound = y_bound + (np.abs(y) + y_bound) * (TANH + 4 * U)
    size, own = np.abs(activation.reference(g)), activation_bound(activation, g, g_bound)
    return np.asarray(size * y_bound + np.abs(y) * own + own * y_bound + U * size * np.abs(y))


def expert_bound(
    x: Floats,
    file: MemoryFile,
    gate: TensorInfo,
    up: TensorInfo,
    down: TensorInfo,
    activation: Activation = Activation.SILU,
) -> Floats:
    """For down(activation(gate x) * up x), (rows, outputs): the middle's own bound passes through down, whose product
    is that of a middle larger by as much."""
    w = [file.float32(t.name).astype(np.float64) for t in (gate, up, down)]
    g, y = x @ w[0].T, x @ w[1].T
    middle = activation.gate(g, y)
    off = gate_bound(g, product_bound(x, file, gate), y, product_bound(x, file, up), activation)
    return np.asarray(product_bound(np.abs(middle) + off, file, down) + off @ np.abs(w[2]).T)


def attention_bound(
    q: Floats,
    k: Floats,
    v: Floats,
    scale: float,
    stored: float,
    window: int | None = None,
    *,
    q_off: Floats | float = 0.0,
    k_off: Floats | float = 0.0,
    v_off: Floats | float = 0.0,
) -> Floats:
    """|computed - exact| of the last positions' attention, (rows, heads, dim).

    q: (rows, heads, dim), of positions len(k) - rows ..; k, v: (context, kv heads, dim). `stored`: relative error of a
    stored element, 0 or BF16. A score's error is (stored + gamma(2 dim + 2)) sum |q||k| scale; a weight e^(s - max)
    is rescaled at most once per page, each with an error of exp, its argument's rounding and a product; the
    arguments add up to the spread of the scores. With weights p (1 + d), |d| <= rho, the average moves by at most
    sum p rho |v - out| / sum p / (1 - max rho). Sums over tokens, pages and splits then cost
    gamma(2 context + 8 pages) of the average of |v|, in numerator and denominator; a stored value moves by stored |v|.
    exp never falls under 2^-126: that much more, at most, for each position. A row that reads only the `window` latest
    positions meets so many and no more, on one page more than they fill. `q_off`, `k_off` and `v_off`, shaped as
    theirs: how far the kernel's own queries, keys and values are from the exact ones before they are stored.
    """
    rows, heads, dim = q.shape
    context, kv_heads, _ = k.shape
    read = min(context, window or context)
    pages = -(-read // 32) + 1
    out = np.empty((rows, heads, v.shape[2]))
    offs = [np.broadcast_to(off, x.shape) for off, x in ((q_off, q), (k_off, k), (v_off, v))]
    for h in range(heads):
        kv = h // (heads // kv_heads)
        keys, values = k[:, kv], v[:, kv]
        score = q[:, h] @ keys.T * scale  # (rows, context)
        behind = np.arange(context - rows, context)[:, None] - np.arange(context)  # (rows, context)
        hidden = (behind < 0) | (behind >= (window or context))
        p = np.where(hidden, 0, np.exp(score - np.where(hidden, -np.inf, score).max(axis=1, keepdims=True)))
        p /= p.sum(axis=1, keepdims=True)
        spread = np.where(hidden, 0, score).max(axis=1) - np.where(hidden, 0, score).min(axis=1)
        exact = np.abs(q[:, h]) @ np.abs(keys).T * abs(scale)
        magnitude = (np.abs(q[:, h]) + offs[0][:, h]) @ (np.abs(keys) + offs[1][:, kv]).T * abs(scale)
        rounding = stored + (1 + stored) * gamma(2 * dim + 2)
        argument = rounding * magnitude + magnitude - exact + U * spread[:, None]
        rho = np.expm1(argument + (pages + 1) * (EXP + 3 * U))  # (rows, context)
        mean, size = p @ values, p @ np.abs(values)
        apart = np.matmul((p * rho)[:, None, :], np.abs(values - mean[:, None, :]))[:, 0]  # (rows, dim)
        moved = apart / (1 - rho.max(axis=1, initial=0, where=~hidden))[:, None] + offs[2][:, kv].max(axis=0)
        sums = 2 * gamma(2 * read + 8 * pages) + stored
        out[:, h] = moved + sums * (size + moved) + read * 2.0**-126 * np.abs(values).max()
    return out


# Where a format with a minimum keeps its codes.
_CODES = {"Q4_1": slice(4, None), "Q5_1": slice(4, None), "Q4_K": slice(16, None), "Q5_K": slice(16, None)}
_CODES |= {"Q2_K": slice(16, 80), "TQ1_0": slice(52), "TQ2_0": slice(64), "IQ1_S": slice(2, 34)}


def _minima(file: MemoryFile, weight: TensorInfo) -> Floats:
    """The minimum part of each decoded weight: what its block decodes to with all codes zero. 0 where it has none."""
    name = weight.format.name
    if name not in _CODES:
        return np.zeros(weight.shape)
    blocks = file.raw(weight.name).reshape(-1, weight.format.bytes).copy()
    blocks[:, _CODES[name]] = 0
    if name == "IQ1_S":  # and the high bits of its indices, beside scales
        blocks[:, 34:].view("<u2")[:] &= 0xF000
    return weight.format.decode_rows(blocks.reshape(weight.shape[0], -1)).astype(np.float64)
