"""The thread team leaves out threads that the system halts, tries them again, and changes no bit by it."""

import numpy as np

from phaseline import _native
from phaseline.execute.host import usable_cores
from phaseline.program.step import Segment, Step, Want
from support.models import Model
from support.small_programs import same_bits

STEP_S = 0.005


def sizes(crew: _native.Crew, halted: float, seconds: float) -> list[int]:
    """Threads of each step over a time in which so many of them are halted on average."""
    found = []
    for _ in range(round(seconds / STEP_S)):
        found.append(crew.size)
        crew.note(STEP_S, min(halted, crew.size) * STEP_S)
    return found


def test_all_threads_where_nobody_else_runs() -> None:
    assert set(sizes(_native.Crew(4), 0.1, 10)) == {4}


def test_a_short_interruption_is_not_taken_for_company() -> None:
    crew = _native.Crew(2)
    for _ in range(20):
        sizes(crew, 0, 0.03)
        crew.note(STEP_S, 0.8 * STEP_S)
    assert crew.size == 2


def test_a_halted_thread_is_left_out_and_tried_again_ever_more_rarely() -> None:
    crew, found = _native.Crew(2), list[int]()
    for _ in range(2000):  # a foreign thread takes half of one core, until the team leaves that core to it
        found.append(crew.size)
        crew.note(STEP_S, STEP_S / 2 if crew.size == 2 else 0)
    assert found[0] == 2 and found[10] == 1
    tries = np.flatnonzero(np.diff(found) > 0)
    pauses = np.diff(tries) * STEP_S
    assert (np.diff(pauses) >= -1e-9).all() and 0.3 < pauses[-1] < 0.6
    assert found.count(2) < 0.1 * len(found)
    assert set(sizes(crew, 0, 2)[100:]) == {2}  # the foreign thread has ended


def test_several_are_left_out_one_after_the_other() -> None:
    crew = _native.Crew(16)
    for _ in range(40):  # three foreign threads, each with half of a core while the team uses all
        crew.note(STEP_S, max(0, crew.size - 13) / 2 * STEP_S)
    assert crew.size == 13
    crew = _native.Crew(8)
    for _ in range(5):  # eight threads on two cores
        crew.note(STEP_S, max(0, crew.size - 2) * STEP_S)
    assert crew.size == 2


def test_one_is_always_left() -> None:
    assert min(sizes(_native.Crew(4), 4.0, 5)) == 1
    assert set(sizes(_native.Crew(1), 1.0, 5)) == {1}


def test_more_threads_than_cores_compute_the_same_with_fewer_of_them(tiny: Model) -> None:
    """Threads that come and go between steps: the system halts some of these whatever else runs."""
    threads, pages = usable_cores() + 3, np.arange(4, dtype=np.int32)[None, :]
    executor, step = tiny.native(threads=threads), Step([Segment(0, 0, list(range(100)), Want.ALL)])
    expected = tiny.native().forward(step, pages)
    used = set()
    for _ in range(400):
        assert same_bits(executor.forward(step, pages), expected)
        used.add(executor.team.active)
        if len(used) > 2:
            break
    assert threads in used and len(used) > 1
