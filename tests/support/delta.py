"""One delta attention over random inputs: its equations in loops, and how far a kernel may stray from them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phaseline.program.ir import Rows, Value
from phaseline.program.ops import Activation, Decay, DeltaAttend, RMSNorm
from phaseline.program.state import Recurrent
from support.bounds import EXP, U, activation_bound, gamma
from support.memory_file import MemoryFile
from support.small_programs import Small

EPS, UNIT_EPS = 1e-5, 1e-6
INPUTS = ("q", "k", "v", "decay", "beta", "gate")
MISTAKES = ("decay on the wrong axis", "state lost", "window off by one")
Floats = NDArray[np.float64]


@dataclass
class Delta:
    """Token t brings row t of each input; one more token, behind the last, brings NaN.

    `harsh`: channels that forget all but e^-60 in a row, and some that keep.
    """

    heads: int = 3
    dim: int = 8
    taps: int = 4
    tokens: int = 70
    lowest: float | None = None
    harsh: bool = False

    def __post_init__(self) -> None:
        rng, self.width = np.random.default_rng(self.dim), self.heads * self.dim
        self.file = MemoryFile()
        parts = (("state", (self.heads, self.dim, self.dim)), ("window", (self.taps - 1, 3 * self.width)))
        small = Small(self.file, (Recurrent(2, parts, every=64),))
        small.builder.layer = 0
        self.x: dict[str, Floats] = {}
        values: list[Value] = []
        for name in INPUTS:
            width = self.heads if name == "beta" else self.width
            x = rng.normal(size=(self.tokens + 1, width))
            if self.harsh and name == "decay":
                x = rng.choice([-30.0, 0.0, 60.0], size=x.shape)
            x[self.tokens] = np.nan
            self.x[name] = x.astype(np.float32).astype(np.float64)
            values.append(small.input(name, x))
        convolutions = [self.file.add(f"conv_{n}", rng.normal(size=(self.width, self.taps))) for n in "qkv"]
        decay = Decay(
            self.file.add("rate", -np.exp(rng.normal(0, 0.3, (self.heads, 1)))),
            self.file.add("shift", rng.normal(-1, 1, (1, self.width))),
            self.lowest,
        )
        self.op = DeltaAttend(
            *(values[0], values[1], values[2], values[3], values[4], values[5]),
            Value("out", Rows.TOKENS, self.width),
            (convolutions[0], convolutions[1], convolutions[2]),
            decay,
            RMSNorm(self.file.add("norm", rng.normal(1, 0.2, self.dim)), EPS),
            layer=1,
            unit_eps=UNIT_EPS,
        )
        small.builder.add(self.op)
        self.program = small.finish([self.op.out], self.tokens + 1)
        self.weights = {w.name: self.file.float32(w.name).astype(np.float64) for w in self.op.weights()}

    def equations(self, tokens: Sequence[int], mistake: str = "", carried: Collection[int] = ()) -> Floats:
        """The published equations over a sequence, (rows, width), with one mistake if asked.

        `carried`: rows before which "state lost" forgets the state.
        """
        w, dim, rows = self.weights, self.dim, len(tokens)
        q, k, v = (x for x, _ in self._mixed(tokens, early=mistake == "window off by one"))
        g = self._decay(tokens)[0]
        out = np.empty((rows, self.heads, dim))
        for h in range(self.heads):
            s = np.zeros((dim, dim))
            for t in range(rows):
                unit_q, unit_k = (x[t, h] / np.sqrt((x[t, h] ** 2).sum() + UNIT_EPS) for x in (q, k))
                if mistake == "state lost" and t in carried:
                    s = np.zeros_like(s)
                fade = np.exp(g[t, h])
                s = s * (fade[None, :] if mistake == "decay on the wrong axis" else fade[:, None])
                d = (v[t, h] - s.T @ unit_k) / (1 + np.exp(-self.x["beta"][tokens[t], h]))
                s = s + np.outer(unit_k, d)
                o = s.T @ unit_q / np.sqrt(dim)
                out[t, h] = o / np.sqrt((o**2).mean() + EPS) * w["norm"]
        return out.reshape(rows, -1) / (1 + np.exp(-self.x["gate"][list(tokens)]))

    def bound(self, tokens: Sequence[int]) -> Floats:
        """|computed - exact| over a sequence that begins with nothing, (rows, width).

        A column s of the state goes to (I - b k k^T) diag(e) s + b v k, with b, e and |k| at most 1: what a row brings
        in error never grows in later rows, as length. So lengths of the errors of columns add up, row after row, and
        each row brings what its own q, k, v, e, b are off by and its roundings, from the equations' own sizes.
        """
        dim, rows = self.dim, len(tokens)
        mixed = [self._unit(x, off, part) for part, (x, off) in zip("qkv", self._mixed(tokens), strict=True)]
        g, g_off = self._decay(tokens)
        fade = np.exp(g)
        fade_off = fade * (np.expm1(g_off) + EXP) + 2.0**-126  # where exp stops
        b = 1 / (1 + np.exp(-self.x["beta"][list(tokens)]))
        b_off = b * (EXP + 3 * U)
        dot = gamma(dim + 6)  # of a sum over half of the rows, two roundings each, and the last ones
        o, o_off = np.empty((rows, self.heads, dim)), np.empty((rows, self.heads, dim))
        for h in range(self.heads):
            s, off = np.zeros((dim, dim)), np.zeros(dim)  # off: the length of each column's error
            for t in range(rows):
                (q, q_off), (k, k_off), (v, v_off) = ((x[t, h], x_off[t, h]) for x, x_off in mixed)
                e, e_off = fade[t, h], fade_off[t, h] + U * (fade[t, h] + fade_off[t, h])
                q_size, k_size = np.abs(q) + q_off, np.abs(k) + k_off
                scaled = e_off[:, None] * np.abs(s)
                off = e.max() * off + np.linalg.norm(scaled, axis=0) + e_off.max() * off
                s = e[:, None] * s
                size = np.abs(s)  # of what is read, but for off

                def read(x_size: Floats, x_off: Floats, size: Floats = size, off: Floats = off) -> Floats:
                    """How far a product with the columns is off, but for their own error."""
                    each = x_off + dot * x_size
                    return np.asarray(each @ size + np.linalg.norm(each) * off)

                asked, asked_off = k @ s, read(k_size, k_off)
                wrong = np.abs(v - asked) + off
                d = b[t, h] * (v - asked)
                most_b = b[t, h] + b_off[t, h]
                d_off = most_b * (v_off + asked_off) + b_off[t, h] * wrong
                d_off = d_off + gamma(2) * most_b * (wrong + v_off + asked_off)
                d_size = np.abs(d) + most_b * off + d_off
                both_off = q_off @ k_size + np.abs(q) @ k_off + dot * q_size @ k_size
                seen_off = read(q_size, q_off)
                o[t, h] = q @ s + (q @ k) * d
                o_off[t, h] = np.linalg.norm(q) * off + seen_off + abs(q @ k) * d_off + both_off * d_size
                o_off[t, h] += gamma(3) * (
                    q_size @ size + np.linalg.norm(q_size) * off + (abs(q @ k) + both_off) * d_size
                )
                off = off + np.linalg.norm(k_off) * d_size + np.linalg.norm(k) * d_off
                off = off + gamma(2) * (np.linalg.norm(s, axis=0) + off + np.linalg.norm(k_size) * d_size)
                s = s + np.outer(k, d)
        squares = (o**2).sum(axis=2, keepdims=True) + dim * EPS
        moved = length_off(o, o_off, squares, gamma(dim // 8 + 16))
        norm = np.abs(self.weights["norm"])
        normed = (np.abs(o) / np.sqrt(squares / dim)) * norm
        normed_off = normed * moved + o_off / np.sqrt(squares / dim) * (1 + moved) * norm
        gate = 1 / (1 + np.exp(-self.x["gate"][list(tokens)]))
        gated = (normed_off + (normed + normed_off) * (EXP + 5 * U)).reshape(rows, -1) * gate
        return np.asarray(gated + 2.0**-120)

    def _mixed(self, tokens: Sequence[int], early: bool = False) -> list[tuple[Floats, Floats]]:
        """Of q, k and v: silu of the convolution, (rows, heads, dim), and how far a kernel's may be off."""
        found = []
        for name in "qkv":
            taps, rows = self.weights[f"conv_{name}"], len(tokens)
            x = np.concatenate([np.zeros((self.taps, self.width)), self.x[name][list(tokens)]])
            parts = [taps[:, i] * x[1 + i - early : 1 + i - early + rows] for i in range(self.taps)]
            y = sum(parts, np.zeros((rows, self.width)))
            y_off = gamma(2 * self.taps) * sum(map(np.abs, parts), np.zeros((rows, self.width)))
            off = activation_bound(Activation.SILU, y, y_off) + U * np.abs(y)
            found += [(x.reshape(rows, self.heads, self.dim) for x in (y / (1 + np.exp(-y)), off))]
        return [(x, off) for x, off in found]

    def _unit(self, x: Floats, off: Floats, part: str) -> tuple[Floats, Floats]:
        """q and k in their lengths; v as it is."""
        if part == "v":
            return x, off
        squares = (x**2).sum(axis=2, keepdims=True) + UNIT_EPS
        moved = length_off(x, off, squares, gamma(self.dim // 8 + 20))
        scale = (self.dim**-0.5 if part == "q" else 1.0) / np.sqrt(squares)
        return x * scale, (np.abs(x) * moved + off * (1 + moved)) * scale

    def _decay(self, tokens: Sequence[int]) -> tuple[Floats, Floats]:
        """g and how far a kernel's may be off. r = x + shift has one rounding and a slope of at most 1 in softplus; the
        series has two for each of eight terms. In sigmoid, relative errors are the argument's and its own."""
        rate = self.weights["rate"].reshape(-1, 1)
        shape = (len(tokens), self.heads, self.dim)
        r = self.x["decay"][list(tokens)].reshape(shape) + self.weights["shift"].reshape(shape[1:])
        if self.lowest is None:
            soft = np.logaddexp(0, r)
            off = np.abs(rate) * (U * np.abs(r) + soft * (EXP + gamma(28) + 2.0**-29) + 2.0**-126)
            g = rate * soft
        else:
            g = self.lowest / (1 + np.exp(rate * r))
            off = np.abs(g) * (np.expm1(gamma(3) * np.abs(rate * r)) + EXP + 4 * U) + 2.0**-120
        return g, off + U * np.abs(g)


def length_off(x: Floats, off: Floats, squares: Floats, own: float) -> Floats:
    """Relative error of 1 / sqrt(squares), a sum over x^2 and more, when x is off and its sum and root have `own`."""
    share = (2 * np.abs(x) * off + off**2).sum(axis=2, keepdims=True) / squares
    assert (share < 0.5).all(), "inputs too near to zero to say anything"
    return np.asarray((1 - share) ** -0.5 * (1 + own) - 1)
