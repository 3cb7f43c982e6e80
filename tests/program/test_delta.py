"""Kimi delta attention's reference: the recurrence and the chunk form against the equations, element by element."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from phaseline.program.cost import decode_work, prefill_work
from phaseline.program.ops import Context
from phaseline.program.ops.delta import CHUNK, Form, chunked, recurrent
from support.delta import MISTAKES, Delta, Floats

FORMS = {"recurrent": recurrent, "chunked": chunked}
KINDS: dict[str, dict[str, Any]] = {
    "kimi linear": {},
    "strong decay": {"harsh": True},
    "kimi k3": {"lowest": -5.0},
    "one head": {"heads": 1, "dim": 5, "taps": 3},
}
ENDS = (1, 2, 18, 18 + CHUNK, 51, 70)  # one row, ragged tails, whole chunks: each from a state that is not zero
TOKENS = range(ENDS[-1])


def run(delta: Delta, form: Form, ends: Sequence[int], dtype: Any = np.float64) -> Floats:
    """All rows, in steps that end at `ends`; each step reads one snapshot and writes the other."""
    memory = {
        "state": np.full((4, 2, delta.heads, delta.dim, delta.dim), np.nan, dtype),
        "window": np.full((4, 2, delta.taps - 1, 3 * delta.width), np.nan, dtype),
    }
    out, place = [], -1
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        n, target = end - start, (place + 1) % 4
        ctx = Context(
            values={v: delta.x[v.name][start:end].astype(dtype) for v in delta.op.inputs()},
            weights={name: w.astype(dtype) for name, w in delta.weights.items()},
            tokens=np.zeros(n, np.int32),
            positions=np.arange(start, end, dtype=np.int32),
            spans=[(0, start, 0, n)],
            wanted=np.zeros(0, np.int32),
            pages=np.array([[[place, target]]], np.int32),
            state=[memory],
        )
        delta.op.attend(ctx, form)
        out.append(ctx.values[delta.op.out])
        place = target
    return np.concatenate(out)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_both_forms_are_the_equations(kind: str, form: str) -> None:
    """In float64 but for rounding. In float32 within eight roundings for each row that a state goes through, and those
    of sums of g over a chunk, which e^g passes on as they are; relative to the largest output."""
    delta = Delta(**KINDS[kind])
    exact = delta.equations(TOKENS)
    inputs = delta.x["decay"][TOKENS].reshape(-1, delta.heads, delta.dim)
    largest = np.abs(delta.op.decay.reference(inputs, delta.weights)).max()
    tolerance = 8 * (len(TOKENS) + CHUNK * largest) * 2.0**-24
    for ends in (ENDS, (70,)):
        assert np.abs(run(delta, FORMS[form], ends) - exact).max() < 1e-10 * np.abs(exact).max()
        assert np.abs(run(delta, FORMS[form], ends, np.float32) - exact).max() < tolerance * np.abs(exact).max()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_comparison_sees_mistakes(mistake: str, form: str) -> None:
    delta = Delta()
    wrong = delta.equations(TOKENS, mistake, carried=ENDS)
    assert np.abs(run(delta, FORMS[form], ENDS) - wrong).max() > 0.05 * np.abs(wrong).max()


def test_a_step_given_up_changes_nothing() -> None:
    """What a step reads stays as it was: the same step may run again."""
    delta = Delta()
    once = run(delta, recurrent, (30, 70))
    assert np.array_equal(once, run(delta, recurrent, (30, 70)))


def test_cost_does_not_grow_with_the_context() -> None:
    op = Delta().op
    near, far = (op.cost(decode_work(context)) for context in (1, 100_000))
    assert near == far and near.flops > 0
    assert near.state_bytes == 2 * 4 * (3 * 8 * 8 + 3 * 3 * 3 * 8)  # read and written, in float32
    assert op.cost(prefill_work(10)).flops == 10 * near.flops
