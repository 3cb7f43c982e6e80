"""Kimi delta attention's reference: the recurrence and the chunk form against the equations, element by element."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from phaseline.program.cost import decode_work, prefill_work
from phaseline.program.ir import Rows, Value
from phaseline.program.ops import Context, RMSNorm
from phaseline.program.ops.delta import CHUNK, Decay, DeltaAttend, Form, chunked, recurrent
from support.memory_file import MemoryFile

FORMS = {"recurrent": recurrent, "chunked": chunked}
EPS = 1e-5
Floats = NDArray[np.float64]


@dataclass
class Delta:
    """One operation over rows drawn once; `harsh`: channels that forget all but e^-60 in a row, and some that keep."""

    heads: int = 3
    dim: int = 8
    taps: int = 4
    rows: int = 70
    lowest: float | None = None
    harsh: bool = False

    def __post_init__(self) -> None:
        rng, width, file = np.random.default_rng(self.dim), self.heads * self.dim, MemoryFile()
        self.x = {name: rng.normal(size=(self.rows, width)) for name in ("q", "k", "v", "decay", "gate")}
        self.x["beta"] = rng.normal(size=(self.rows, self.heads))
        if self.harsh:
            self.x["decay"] = rng.choice([-30.0, 0.0, 60.0], size=(self.rows, width))
        convolutions = [file.add(f"conv_{n}", rng.normal(size=(width, self.taps))) for n in "qkv"]
        decay = Decay(
            file.add("rate", -np.exp(rng.normal(0, 0.3, (self.heads, 1)))),
            file.add("shift", rng.normal(-1, 1, (1, width))),
            self.lowest,
        )
        norm = RMSNorm(file.add("norm", rng.normal(1, 0.2, (1, self.dim))), EPS)
        values = {name: Value(name, Rows.TOKENS, x.shape[1]) for name, x in self.x.items()}
        self.op = DeltaAttend(
            *(values[n] for n in ("q", "k", "v", "decay", "beta", "gate")),
            Value("out", Rows.TOKENS, width),
            (convolutions[0], convolutions[1], convolutions[2]),
            decay,
            norm,
            layer=1,
        )
        self.weights = {name: file.float32(name).astype(np.float64) for name in file.tensors}
        self.weights["norm"] = self.weights["norm"][0]

    def run(self, form: Form, ends: Sequence[int], dtype: Any = np.float64) -> Floats:
        """All rows, in steps that end at `ends`; each step reads one snapshot and writes the other."""
        width = self.heads * self.dim
        memory = {
            "state": np.full((4, 2, self.heads, self.dim, self.dim), np.nan, dtype),
            "window": np.full((4, 2, self.taps - 1, 3 * width), np.nan, dtype),
        }
        out, place = [], -1
        for start, end in zip([0, *ends[:-1]], ends, strict=True):
            n, target = end - start, (place + 1) % 4
            ctx = Context(
                values={v: self.x[v.name][start:end].astype(dtype) for v in self.op.inputs()},
                weights={name: w.astype(dtype) for name, w in self.weights.items()},
                tokens=np.zeros(n, np.int32),
                positions=np.arange(start, end, dtype=np.int32),
                spans=[(0, start, 0, n)],
                wanted=np.zeros(0, np.int32),
                pages=np.array([[[place, target]]], np.int32),
                state=[memory],
            )
            self.op.attend(ctx, form)
            out.append(ctx.values[self.op.out])
            place = target
        return np.concatenate(out)

    def equations(self, mistake: str = "", carried: Sequence[int] = ()) -> Floats:
        """The published equations, in loops over heads and channels, with one mistake if asked.

        `carried`: rows before which "state lost" forgets the state.
        """
        w, dim = self.weights, self.dim
        shift = w["shift"].reshape(self.heads, dim)
        mixed = {}
        for name in "qkv":
            rows = np.concatenate([np.zeros((self.taps, self.heads * dim)), self.x[name]])
            off = mistake == "window off by one"
            y = sum(w[f"conv_{name}"][:, i] * rows[1 + i - off : 1 + i - off + self.rows] for i in range(self.taps))
            mixed[name] = (y / (1 + np.exp(-y))).reshape(self.rows, self.heads, dim)
        out = np.empty((self.rows, self.heads, dim))
        for h in range(self.heads):
            s, rate = np.zeros((dim, dim)), w["rate"][h, 0]
            for t in range(self.rows):
                q, k, v = (mixed[name][t, h] for name in "qkv")
                q, k = (x / np.sqrt((x**2).sum() + 1e-6) for x in (q, k))
                r = self.x["decay"][t].reshape(self.heads, dim)[h] + shift[h]
                g = rate * np.logaddexp(0, r) if self.lowest is None else self.lowest / (1 + np.exp(rate * r))
                if mistake == "state lost" and t in carried:
                    s = np.zeros_like(s)
                s = s * (np.exp(g)[None, :] if mistake == "decay on the wrong axis" else np.exp(g)[:, None])
                d = (v - s.T @ k) / (1 + np.exp(-self.x["beta"][t, h]))
                s = s + np.outer(k, d)
                o = s.T @ q / np.sqrt(dim)
                out[t, h] = o / np.sqrt((o**2).mean() + EPS) * w["norm"]
        return out.reshape(self.rows, -1) / (1 + np.exp(-self.x["gate"]))


KINDS: dict[str, dict[str, Any]] = {
    "kimi linear": {},
    "strong decay": {"harsh": True},
    "kimi k3": {"lowest": -5.0},
    "one head": {"heads": 1, "dim": 5, "taps": 3},
}
ENDS = (1, 2, 18, 18 + CHUNK, 51, 70)  # one row, ragged tails, whole chunks: each from a state that is not zero


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_both_forms_are_the_equations(kind: str, form: str) -> None:
    """In float64 but for rounding. In float32 within eight roundings for each row that a state goes through, and those
    of sums of g over a chunk, which e^g passes on as they are; relative to the largest output."""
    delta = Delta(**KINDS[kind])
    exact = delta.equations()
    largest = np.abs(
        delta.op.decay.reference(delta.x["decay"].reshape(-1, delta.heads, delta.dim), delta.weights)
    ).max()
    tolerance = 8 * (delta.rows + CHUNK * largest) * 2.0**-24
    for ends in (ENDS, (70,)):
        assert np.abs(delta.run(FORMS[form], ends) - exact).max() < 1e-10 * np.abs(exact).max()
        assert np.abs(delta.run(FORMS[form], ends, np.float32) - exact).max() < tolerance * np.abs(exact).max()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mistake", ["decay on the wrong axis", "state lost", "window off by one"])
def test_the_comparison_sees_mistakes(mistake: str, form: str) -> None:
    delta = Delta()
    wrong = delta.equations(mistake, carried=ENDS)
    assert np.abs(delta.run(FORMS[form], ENDS) - wrong).max() > 0.05 * np.abs(wrong).max()


def test_a_step_given_up_changes_nothing() -> None:
    """What a step reads stays as it was: the same step may run again."""
    delta = Delta()
    once = delta.run(recurrent, (30, 70))
    assert np.array_equal(once, delta.run(recurrent, (30, 70)))


def test_cost_does_not_grow_with_the_context() -> None:
    op = Delta().op
    near, far = (op.cost(decode_work(context)) for context in (1, 100_000))
    assert near == far and near.flops > 0
    assert near.state_bytes == 2 * 4 * (3 * 8 * 8 + 3 * 3 * 3 * 8)  # read and written, in float32
    assert op.cost(prefill_work(10)).flops == 10 * near.flops
