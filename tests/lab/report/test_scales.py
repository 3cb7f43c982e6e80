"""Amounts as they are written, and axes: ticks are round, in order, and where they belong."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaseline.lab.report.amounts import amount, count, figure, grouped, seconds, share, shortened, times, whole
from phaseline.lab.report.scales import Axis, linear_axis, log_axis, sizes_axis, time_axis

POSITIVE = st.floats(1e-12, 1e12)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (figure(0.031415), "0.0314"),
        (figure(999.6), "1\u202f000"),
        (figure(99.96), "100"),
        (figure(-2.5, 2), "\u22122.5"),
        (figure(None), "\u2013"),
        (figure(0), "0"),
        (figure(1234567), "1\u202f234\u202f567"),
        (amount(0.0314159, "s"), "31.4\u202fms"),
        (amount(0.9996, "s"), "1.00\u202fs"),
        (amount(5000, "s"), "5\u202f000\u202fs"),
        (amount(2.33e11, "FLOP/s"), "233\u202fGFLOP/s"),
        (amount(0, "B"), "0\u202fB"),
        (seconds(4.2e-5), "42.0\u202f\u00b5s"),
        (share(0.5), "50\u202f%"),
        (share(1.0), "100\u202f%"),
        (times(10.2), "10\u00d7"),
        (whole(1024), "1\u202f024"),
        (whole(0.25), "0.250"),
        (count(1, "prompt"), "1 prompt"),
        (count(2, "prompt"), "2 prompts"),
        (grouped(-1234.5, 1), "\u22121\u202f234.5"),
        (shortened("a" * 20 + "b" * 20, 11), "aaaaa\u2026bbbbb"),
        (shortened("short"), "short"),
    ],
)
def test_amounts(written: str, expected: str) -> None:
    assert written == expected


@given(POSITIVE, st.integers(1, 6))
def test_a_figure_is_the_number_to_so_many_digits(value: float, digits: int) -> None:
    read = float(figure(value, digits).replace("\u202f", "").replace("\u2212", "-"))
    assert read == pytest.approx(value, rel=0.51 * 10 ** (1 - digits))
    assert len(re.sub(r"^0\.0*|e.*|\D", "", figure(value, digits))) >= digits


def check(axis: Axis, values: list[float]) -> None:
    for value in values:
        assert -1e-9 <= axis.place(value) <= 1 + 1e-9
    ticks = [tick.value for tick in axis.ticks]
    assert ticks == sorted(ticks) and 1 <= len(ticks) <= 20
    assert all(-1e-6 <= axis.place(tick) <= 1 + 1e-6 for tick in ticks)
    assert len({tick.label for tick in axis.ticks}) == len(ticks)


@given(st.lists(POSITIVE, min_size=1, max_size=20))
def test_axes_hold_what_they_are_made_for(values: list[float]) -> None:
    check(linear_axis("x", values), values)
    check(log_axis("x", values), values)
    check(time_axis("x", min(values), max(values)), values)


@given(st.lists(st.integers(1, 1 << 20), min_size=1, max_size=20))
def test_ticks_of_sizes_are_sizes(sizes: list[int]) -> None:
    axis = sizes_axis("x", sizes)
    check(axis, list(map(float, sizes)))
    assert {tick.value for tick in axis.ticks} <= set(sizes) and axis.ticks[-1].value == max(sizes)


def test_places_are_in_proportion() -> None:
    straight, bent = linear_axis("x", [0, 10]), log_axis("x", [1, 100], margin=1)
    assert [straight.place(v) for v in (0, 5, 10)] == [0, 0.5, 1]
    assert [bent.place(v) for v in (1, 10, 100)] == pytest.approx([0, 0.5, 1])
    assert bent.place(math.sqrt(10)) == pytest.approx(0.25)


def test_negative_values_get_an_axis_through_zero() -> None:
    axis = linear_axis("x", [-41.6, 3.9])
    assert axis.low <= -41.6 and 0.0 in [tick.value for tick in axis.ticks]
    assert "\u221220" in [tick.label for tick in axis.ticks]
