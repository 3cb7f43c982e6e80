"""The executor that is slowed on purpose: which steps, by how much."""

import time
from collections.abc import Sequence
from typing import Any

import pytest

from phaseline.cli.guard_worker import Slowed
from phaseline.program.step import Segment, Step, Want

STEP_S = 0.002
PREFILL = [
    Step([Segment(0, 0, [1, 2, 3])]),
    Step([Segment(0, 3, [1], Want.NONE)]),  # a walk
    Step([Segment(0, 0, [1])]),  # a prompt of one token
    Step([Segment(0, 9, [1]), Segment(1, 0, [1, 2])]),  # mixed
]
DECODE = [Step([Segment(0, 9, [1])]), Step([Segment(0, 9, [1]), Segment(1, 4, [2])])]


class Executor:
    """Takes its time."""

    program, page_size = None, 16

    def forward(self, step: Step, pages: Any) -> str:
        time.sleep(STEP_S)
        return f"logits of {step.rows}"

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None: ...

    def close(self) -> None: ...


def timed(slowed: Slowed, step: Step) -> float:
    began = time.perf_counter()
    assert slowed.forward(step, None) == f"logits of {step.rows}"
    return time.perf_counter() - began


@pytest.mark.parametrize("steps", [PREFILL, DECODE], ids=["prefill", "decode"])
def test_one_phase_is_slowed_and_the_other_is_not(steps: list[Step]) -> None:
    for phase in ("prefill", "decode"):
        slowed = Slowed(Executor(), **{phase: 50.0})
        slowed.forward(DECODE[0] if phase == "prefill" else PREFILL[0], None)  # decode follows on something
        for step in steps:
            assert (timed(slowed, step) >= 51 * STEP_S) == ((steps is PREFILL) == (phase == "prefill"))


def test_what_lies_between_decode_steps_is_slowed_with_them() -> None:
    slowed = Slowed(Executor(), decode=2.0)
    slowed.forward(PREFILL[0], None)
    began = time.perf_counter()
    for _ in range(3):
        time.sleep(5 * STEP_S)  # sampling and scheduling
        slowed.forward(DECODE[0], None)
    assert time.perf_counter() - began >= 3 * 3 * 6 * STEP_S


def test_all_else_is_passed_on() -> None:
    executor = Executor()
    slowed = Slowed(executor)
    assert (slowed.program, slowed.page_size) == (None, 16)
    assert slowed.copy_pages == executor.copy_pages and slowed.close == executor.close
