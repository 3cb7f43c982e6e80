"""The guard's decisions: exact bounds, and how often it is wrong under noise of every kind."""

import itertools
import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from phaseline.errors import RequestError
from phaseline.lab.guard_stats import Comparison, Loss, Rules, Verdict, _rank, decided, look, loss

ratios = st.lists(st.floats(-1, 1), min_size=1, max_size=20)
FLOOR = 0.01


@pytest.mark.parametrize("n", range(1, 10))
def test_ranks_are_those_of_all_ways_to_toss_the_coins(n: int) -> None:
    sums = Counter(sum(picked) for picked in itertools.product(*((0, r) for r in range(1, n + 1))))
    for risk in (0.5, 0.2, 0.1, 0.05, 0.01, 0.001):
        below = [c for c in range(n * (n + 1) // 2 + 1) if sum(sums[w] for w in range(c + 1)) / 2**n <= risk]
        assert _rank(n, risk) == (max(below) if below else None)


def test_a_known_case() -> None:
    # The averages of all pairs of 0, 1, 2, 4 are 0 .5 1 1 1.5 2 2 2.5 3 4; P(W <= 1) = 2/16.
    found = loss([math.log1p(x / 100) for x in (4, 0, 2, 1)], 2 / 16, 1 / 16)
    assert found.estimate == pytest.approx(0.0175, abs=2e-4)
    assert found.low == pytest.approx(0.005, abs=1e-4)
    assert found.high == pytest.approx(0.04)
    assert loss([0.1], 0.1, 0.1) == Loss(pytest.approx(math.expm1(0.1)), -1.0, math.inf)


@given(ratios, st.floats(0.001, 0.4), st.floats(-1, 1))
def test_bounds_hold_the_estimate_and_go_with_the_data(x: list[float], risk: float, shift: float) -> None:
    found, moved = loss(x, risk, risk), loss([value + shift for value in x], risk, risk)
    turned = loss([-value for value in x], risk, risk)
    assert found.low <= found.estimate <= found.high
    for name in ("low", "estimate", "high"):
        assert 1 + getattr(moved, name) == pytest.approx((1 + getattr(found, name)) * math.exp(shift))
    assert (1 + found.low) * (1 + turned.high) == pytest.approx(1) or (found.low, turned.high) == (-1, math.inf)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (Loss(0.05, 0.011, 0.09), Verdict.SLOWER),
        (Loss(0.05, 0.01, 0.09), Verdict.UNKNOWN),
        (Loss(0.0, -0.1, 0.05), Verdict.UNKNOWN),
        (Loss(0.0, -0.1, 0.049), Verdict.KEPT),
        (Loss(0.02, 0.0, 0.04), Verdict.DOUBTFUL),
        (Loss(0.02, 0.015, 0.04), Verdict.SLOWER),
        (Loss(-0.5, -0.6, -0.4), Verdict.KEPT),
    ],
)
def test_what_bounds_mean(found: Loss, verdict: Verdict) -> None:
    assert found.verdict(FLOOR, 0.05) is verdict


def test_looks_grow_up_to_the_last_one() -> None:
    assert Rules().looks == (12, 18, 27, 41, 62, 93, 140)
    assert Rules(least=5, most=5).looks == (5,)
    assert Rules(least=1, most=4).looks == (1, 2, 3, 4)


@pytest.mark.parametrize("bad", [{"catch": 0}, {"catch": 1.0}, {"least": 0}, {"least": 9, "most": 8}, {"miss": 0.6}])
def test_rules_that_make_no_sense(bad: dict[str, float]) -> None:
    with pytest.raises(RequestError):
        Rules(**bad)  # type: ignore[arg-type]


Noise = Callable[[np.random.Generator, int], NDArray[np.float64]]


def _autocorrelated(rng: np.random.Generator, n: int) -> NDArray[np.float64]:
    noise = np.empty(n)
    last = 0.0
    for i, step in enumerate(rng.normal(0, 0.02, n)):
        noise[i] = last = 0.95 * last + step
    return noise


def _bursts(rng: np.random.Generator, n: int) -> NDArray[np.float64]:
    noise, i = rng.normal(0, 0.01, n), 0
    while i < n:  # quiet for a while, then a neighbour works for a while
        i += rng.geometric(1 / 40)
        busy = rng.geometric(1 / 12)
        noise[i : i + busy] += rng.uniform(0.1, 0.6)
        i += busy
    return noise


NOISES: dict[str, Noise] = {
    "normal": lambda rng, n: rng.normal(0, 0.02, n),
    "heavy-tailed": lambda rng, n: 0.015 * rng.standard_t(2, n),
    "one-sided": lambda rng, n: np.log1p(rng.exponential(0.03, n)),
    "autocorrelated": _autocorrelated,
    "bursts": _bursts,
    "drift": lambda rng, n: rng.normal(0, 0.02, n) + np.linspace(0, 0.5, n),
}


def trial(noise: Noise, rng: np.random.Generator, prefill: float, decode: float, rules: Rules) -> str:
    """One check of two phases that lost so much, on slots of time whose noise goes on from one to the next."""
    data = []
    for lost in (prefill, decode):
        slots = noise(rng, 2 * rules.most).reshape(-1, 2)
        first = rng.random(rules.most) < 0.5
        data.append(np.where(first, 1, -1) * (slots[:, 0] - slots[:, 1]) + math.log1p(lost))
    for n in rules.looks:
        phases = zip(("prefill", "decode"), data, strict=True)
        findings = look([Comparison(phase, "base", FLOOR, some[:n].tolist()) for phase, some in phases], rules)
        if decided(findings):
            break
    verdicts = [finding.verdict for finding in findings]
    return "refused" if Verdict.SLOWER in verdicts else "unknown" if Verdict.UNKNOWN in verdicts else "passed"


@pytest.mark.parametrize("name", NOISES)
@pytest.mark.parametrize(
    ("prefill", "decode", "outcome", "at_least"),
    [
        (0.0, 0.0, "passed", 0.99),
        (FLOOR, FLOOR, "passed", 0.97),  # the worst case: 1% false alarms are promised, and the trials are few
        (0.05, 0.0, "refused", 0.95),
        (0.0, 0.05, "refused", 0.95),
        (-0.3, 0.05, "refused", 0.95),  # a gain in one phase pays for nothing
    ],
)
def test_how_often_it_is_right(name: str, prefill: float, decode: float, outcome: str, at_least: float) -> None:
    rng, rules, trials = np.random.default_rng(1), Rules(), 200
    outcomes = Counter(trial(NOISES[name], rng, prefill, decode, rules) for _ in range(trials))
    assert outcomes[outcome] >= at_least * trials, outcomes


def test_every_comparison_and_every_look_has_its_share_of_the_risk() -> None:
    x = np.random.default_rng(1).normal(0, 0.02, 30).tolist()
    one = Comparison("prefill", "base", FLOOR, x)
    alone, among = look([one], Rules())[0].loss, look([one] * 4, Rules())[0].loss
    assert among.low < alone.low and among.high == alone.high  # missing a slowdown is a matter of its own phase
    single = look([one], Rules(least=30, most=30))[0].loss
    assert alone.low < single.low < single.high < alone.high
    assert look([one], Rules())[0].row() == {
        "phase": "prefill", "reference": "base", "loss": alone.estimate, "low": alone.low, "high": alone.high,
        "floor": FLOOR, "replicates": 30, "verdict": "kept",
    }  # fmt: skip


def test_noise_that_is_too_much_gives_no_verdict() -> None:
    rng, rules = np.random.default_rng(1), Rules(most=18)
    outcomes = Counter(trial(lambda r, n: r.normal(0, 0.2, n), rng, 0.05, 0.0, rules) for _ in range(50))
    assert outcomes["unknown"] >= 45 and outcomes["passed"] == 0
