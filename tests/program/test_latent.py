"""Latent attention's reference: both of its forms against the equations, and its cost."""

import numpy as np
import pytest
from numpy.typing import NDArray

from phaseline.execute.reference import ReferenceExecutor
from phaseline.program.cost import decode_work, op_costs, prefill_work
from phaseline.program.ir import Program
from phaseline.program.ops import Context, LatentAttend
from phaseline.program.step import Segment, Step, Want
from support.latent import TOKENS, Latent, plain_latent


def run(a: Latent, program: Program, tokens: list[int], dtype: type, chunk: int) -> NDArray[np.float64]:
    executor = ReferenceExecutor(a.file, program, 4, dtype)
    table = np.array([[2, 0, 3]], np.int32)
    steps = [Step([Segment(0, i, tokens[i : i + chunk], Want.ALL)]) for i in range(0, len(tokens), chunk)]
    return np.concatenate([executor.forward(step, table) for step in steps])[:, : a.width]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("turned", [True, False])
def test_both_forms_are_the_equations(fused: bool, turned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64 but for rounding, in chunks that end inside pages; in float32 by as much as products of 64 allow."""
    a = Latent(3, 20, 10, 40, 17, fused=fused, turned=turned)
    program, tokens = a.program(), np.random.default_rng(0).integers(0, TOKENS, 70).tolist()
    exact = plain_latent(a, tokens, "none")
    size = np.abs(exact).max()
    for form in ("absorbed", "expanded"):
        if form == "expanded":
            monkeypatch.setattr(LatentAttend, "reference", lambda op, ctx: expanded(op, ctx))
        assert np.abs(run(a, program, tokens, np.float64, 33) - exact).max() < 1e-12 * size
        assert np.abs(run(a, program, tokens, np.float32, 33) - exact).max() < 1e-5 * size


def expanded(op: LatentAttend, ctx: Context) -> None:
    op.reference_expanded(ctx)


def test_cost_counts_one_row_for_all_heads() -> None:
    a = Latent(4, 32, 16, 64, 24)
    program = a.program()
    (at,) = [i for i, op in enumerate(program.ops) if isinstance(op, LatentAttend)]
    products, pair = 4 * 64 * 32 + 4 * 24 * 64, 4 * (64 + 16 + 64)
    cost = op_costs(program, decode_work(999))[at]
    assert cost.flops == 2 * products + 2 * 1000 * pair
    assert cost.state_bytes == (999 + 2) * (64 + 16) * 2
    assert cost.weight_bytes == 4 * (products + 64)
    chunk = op_costs(program, prefill_work(10, start=5))[at]
    assert chunk.flops == 10 * 2 * products + 2 * sum(range(6, 16)) * pair
    assert chunk.state_bytes == (5 + 2 * 10) * (64 + 16) * 2


def test_a_fused_tensor_is_counted_once() -> None:
    """The older files' one tensor has a row for each key and value element of a head."""
    a = Latent(4, 32, 16, 64, 24, fused=True)
    program = a.program()
    (op,) = [op for op in program.ops if isinstance(op, LatentAttend)]
    assert op.cost(decode_work(0)).weight_bytes == 4 * (4 * (32 + 24) * 64 + 64)
    assert [w.name for w in op.weights()] == ["norm", "kv_b"]
