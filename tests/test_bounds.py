"""Regimes: what each resource allows for some work, and when its name may be given to a measured time."""

import pytest

from phaseline.bounds import Bounds, bounds
from phaseline.families import model_program
from phaseline.files.gguf import open_gguf
from phaseline.machine import Ceilings
from phaseline.program.cost import decode_work, op_costs, prefill_work, step_cost
from phaseline.program.ir import Program
from phaseline.program.ops import Cost, Linear
from support.tiny import write_llama

EDGE = 1 << 16  # bytes; beyond it reads are slow
CEILINGS = Ceilings(float_flops=1e9, quant_flops=4e9, read=((EDGE, 1e9),), empty_plan=1e-5, empty_eager=3e-5)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """Quantised products, but for the head."""
    path = tmp_path_factory.mktemp("regime") / "tiny.gguf"
    with open_gguf(write_llama(path, format="Q4_1", formats={"attn_output": "F16", "output.weight": "F32"})) as file:
        return model_program(file)[1]


def test_bounds_add_up_over_operations_and_steps(program: Program) -> None:
    steps = [prefill_work(16), prefill_work(16, start=16)]
    least = bounds(program, steps, CEILINGS)
    total = sum((step_cost(program, work) for work in steps), Cost())
    assert least.cost == total
    assert least.bandwidth == pytest.approx(total.bytes / 1e9)
    seconds = 0.0
    for work in steps:
        for op, cost in zip(program.ops, op_costs(program, work), strict=True):
            quantised = isinstance(op, Linear) and op.matrices[0].format.name == "Q4_1"
            seconds += cost.flops / (4e9 if quantised else 1e9)
    assert least.compute == pytest.approx(seconds)


@pytest.mark.parametrize(("mode", "launch"), [("chunk", 1e-5), ("walk", 1e-5), ("layer", 16e-5), ("eager", 3e-5)])
def test_a_launch_costs_what_an_empty_step_costs(program: Program, mode: str, launch: float) -> None:
    assert bounds(program, [prefill_work(16)], CEILINGS, mode).launch == pytest.approx(launch)


def test_bytes_are_held_against_the_rate_of_their_own_footprint(program: Program) -> None:
    work = decode_work(100)
    size = step_cost(program, work).bytes
    slow = Ceilings(1e9, 4e9, ((1, 2e9), (int(size), 1e9), (int(2 * size), 1e8)), 1e-5, 3e-5)
    assert bounds(program, [work], slow).bandwidth == pytest.approx(size / 1e9, rel=1e-3)


@pytest.mark.parametrize(
    ("compute", "bandwidth", "launch", "seconds", "limit", "fraction"),
    [
        (0.6, 0.1, 0.2, 1.0, "compute", 0.6),
        (0.1, 0.6, 0.2, 1.0, "bandwidth", 0.6),
        (0.1, 0.2, 0.6, 1.0, "launch", 0.6),
        (0.5, 0.1, 0.1, 1.0, "compute", 0.5),
        (0.4999, 0.4, 0.4, 1.0, "unknown", 0.4999),  # bounds overlap in time: they are not added
        (0.1, 0.2, 0.3, 10.0, "unknown", 0.03),
        (0.9, 1.1, 0.1, 1.0, "bandwidth", 1.1),  # above the ceiling: shown as it is
    ],
)
def test_a_name_is_given_only_where_a_bound_explains_half(
    compute: float, bandwidth: float, launch: float, seconds: float, limit: str, fraction: float
) -> None:
    assert Bounds(Cost(), compute, bandwidth, launch).limit(seconds) == (limit, pytest.approx(fraction))
