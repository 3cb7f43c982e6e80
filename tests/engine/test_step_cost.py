"""What a step costs: learnt from steps whose cost is known, noise and all."""

import math
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaseline.engine.step_cost import Estimate, Reach, StepCost, step_rows
from phaseline.files.gguf import open_gguf
from phaseline.program.cost import step_cost as program_cost
from phaseline.program.ops.base import Span, Work
from phaseline.program.step import Segment, Step, Want
from support.deepseek import write_deepseek
from support.kimi import write_kimi
from support.models import half_windowed, open_model
from support.tiny import write_llama

ALL = Reach()
TRUE = (2e-3, 3e-4, 5e-8, 2e-4, 4e-5, 1e-8)  # seconds: a step, a decode row, a position ...


def step(decodes: Sequence[int] = (), prefill: int = 0, start: int = 0, want: Want = Want.NONE) -> Step:
    """Decode rows at these positions, and a chunk."""
    segments = [Segment(slot, at, [1]) for slot, at in enumerate(decodes)]
    if prefill:
        segments.append(Segment(len(decodes), start, [1] * prefill, want))
    return Step(segments)


def any_step(rng: random.Random) -> Step:
    decodes = [rng.randrange(2000) for _ in range(rng.randrange(5))]
    prefill = rng.choice([0, 32, 64, 200, 512]) if decodes else rng.choice([32, 512])
    return step(decodes, prefill, rng.randrange(2000), rng.choice([Want.NONE, Want.LAST, Want.ALL]))


def cost(one: Step) -> float:
    return sum(c * amount for c, amount in zip(TRUE, step_rows(one, ALL), strict=True))


def learnt(rng: random.Random, steps: int = 200, noise: float = 0.0, held_up: float = 0.0) -> StepCost:
    """A share of the steps, `held_up`, takes twenty times as long."""
    known = StepCost()
    for _ in range(steps):
        one = any_step(rng)
        known.observe(one, cost(one) * rng.lognormvariate(0, noise) * (20 if rng.random() < held_up else 1))
    return known


def test_the_rows_of_a_step() -> None:
    assert step_rows(step(), ALL) == (1, 0, 0, 0, 0, 0)
    assert step_rows(step([0, 9]), ALL) == (1, 2, 11, 0, 0, 0)
    assert step_rows(step([4], 3, 10, Want.LAST), ALL) == (1, 1, 5, 3, 1, 11 + 12 + 13)
    assert step_rows(step([], 2, 0, Want.ALL), ALL) == (1, 0, 0, 2, 2, 1 + 2)


@pytest.mark.parametrize(
    ("noise", "held_up", "within"), [(0.0, 0.0, 0.001), (0.1, 0.0, 0.1), (0.1, 0.1, 0.15)], ids=str
)
def test_a_linear_cost_is_recovered(noise: float, held_up: float, within: float) -> None:
    rng = random.Random(1)
    costs = Estimate(learnt(rng, 200, noise, held_up).estimate().costs, caution=1.0)
    for _ in range(50):
        one = any_step(rng)
        assert costs.seconds(step_rows(one, ALL)) == pytest.approx(cost(one), rel=within)


def test_caution_covers_most_of_the_noise_and_has_a_limit() -> None:
    rng = random.Random(2)
    assert learnt(rng).estimate().caution == pytest.approx(1, abs=1e-3)
    estimate = learnt(rng, 1000, 0.3).estimate()
    mixed = [one for one in (any_step(rng) for _ in range(3000)) if step_rows(one, ALL)[1] and step_rows(one, ALL)[3]]
    covered = sum(cost(one) * rng.lognormvariate(0, 0.3) <= estimate.seconds(step_rows(one, ALL)) for one in mixed)
    assert 0.92 < covered / len(mixed) < 0.995
    assert learnt(rng, 1000, 0.1, held_up=0.5).estimate().caution == 4


def test_what_is_not_known_yet_costs_much() -> None:
    known = StepCost()
    assert known.estimate().most_rows(0.05, 0, 1000) == 0
    for position in range(50):  # a stream alone tells nothing of prompts
        known.observe(step([position]), 0.01)
    assert known.estimate().most_rows(0.05, 0, 1000) == 0
    known.observe(step([50], 32), 0.02)
    assert known.estimate().most_rows(0.05, 0, 1000) > 64


def test_until_mixed_steps_are_many_others_show_the_noise() -> None:
    known = StepCost()
    for late in (1.0, 1.5):
        known.observe(step([], 64), late * cost(step([], 64)))
    known.observe(step([3], 64), cost(step([3], 64)))
    assert known.estimate().caution > 1.25
    for _ in range(20):
        known.observe(step([3], 64), cost(step([3], 64)))
    assert known.estimate().caution < 1.25


def test_nothing_is_concluded_from_steps_of_a_quarter_of_the_size() -> None:
    known = StepCost(Reach(pair=0.001))
    for _ in range(20):
        known.observe(step([5], 100), 0.02)
        known.observe(step([5]), 0.01)
    estimate = known.estimate()
    most = 4 * (100 + 0.001 * 100 * 101 / 2)
    assert estimate.most_rows(1.0, 0, 1000) == 356 and estimate.most_rows(1.0, 0, 300) == 300
    deep = estimate.most_rows(1.0, 9000, 1000)  # a cached prefix: each row has nine times its own work before it
    assert deep == pytest.approx(most / 10, abs=1.1)
    rest = estimate.beside(estimate.reach.chunk(9000, deep // 2))
    assert rest.most_rows(1.0, 9000, 1000) == pytest.approx(deep / 2, abs=1)


def test_old_steps_are_forgotten_kind_by_kind() -> None:
    known = StepCost()
    for seconds in (0.5, 0.05):
        for at in range(100):
            known.observe(step([at], 100, at), seconds)
    for at in range(1000):
        known.observe(step([at]), 0.005)  # do not drive out what is known of the mixed ones
    assert known.estimate().seconds(step_rows(step([50], 100, 50), ALL)) == pytest.approx(0.05, rel=0.02)
    assert known.estimate().seconds(step_rows(step([500]), ALL)) == pytest.approx(0.005, rel=0.02)


@given(st.lists(st.just(0.0) | st.floats(1e-9, 1e3), max_size=40), st.integers(0, 1000))
def test_no_cost_is_ever_negative_whatever_was_observed(odd: list[float], seed: int) -> None:
    rng = random.Random(seed)
    known = learnt(rng, 5)
    for seconds in odd:
        known.observe(any_step(rng), seconds)
    estimate = known.estimate()
    assert all(0 <= each < math.inf for each in estimate.costs) and 1 <= estimate.caution <= 4


amounts = st.floats(0, 1e-2, allow_subnormal=False).filter(lambda x: x == 0 or x > 1e-9)


@st.composite
def reaches(draw: st.DrawFn) -> Reach:
    share = draw(st.sampled_from([0, 0.5, 1]))
    return Reach(((None, 1 - share), (draw(st.integers(1, 5000)), share)), draw(st.sampled_from([0, 1e-3])))


@given(st.tuples(*[amounts] * 6), st.floats(1, 4), st.integers(1, 4000), st.integers(0, 5000), st.booleans(), reaches())
def test_the_rows_that_fit_are_the_inverse_of_their_cost(
    costs: tuple[float, ...], caution: float, rows: int, start: int, scored: bool, reach: Reach
) -> None:
    estimate = Estimate(costs, caution, reach)
    seconds = estimate.seconds(reach.chunk(start, rows, rows * scored))
    if seconds:
        assert estimate.most_rows(seconds * (1 + 1e-9), start, 5000, scored) == rows
        assert estimate.most_rows(seconds * (1 + 1e-9), start, max(1, rows // 2), scored) == max(1, rows // 2)
    assert estimate.most_rows(-seconds, start, 5000, scored) == 0


def test_rows_that_cost_nothing_always_fit() -> None:
    assert Estimate((1, 1, 1, 0, 0, 0), 1).most_rows(1e-9, 5, 77) == 77


@pytest.mark.parametrize("kind", ["plain", "windowed", "latent", "recurrent"])
def test_reach_is_what_the_program_costs(kind: str, tmp_path: Path) -> None:
    write = {"latent": write_deepseek, "recurrent": write_kimi}.get(kind, write_llama)
    with open_gguf(write(tmp_path / "tiny.gguf")) as file:
        program = open_model(file).program
    if kind == "windowed":
        program = half_windowed(program, 40)
    reach = Reach.of(program)
    assert [window for window, _ in reach.shares] == ([None, 40] if kind == "windowed" else [None])

    def flops(start: int, rows: int) -> float:
        return program_cost(program, Work([Span(start, rows, 0)])).flops

    for start, rows in ((0, 1), (0, 30), (0, 100), (25, 30), (200, 1), (300, 77)):
        pairs = reach.pairs(start, rows)
        assert flops(start, rows) == pytest.approx(flops(0, 1) * (rows * (1 - reach.pair) + reach.pair * pairs))
