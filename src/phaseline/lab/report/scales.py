"""Axes: from amounts to places on a plot, with ticks at round amounts."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from phaseline.lab.report.amounts import figure, grouped, whole

_NARROW, _CHARACTER = 250.0, 6.8  # pixels: across a plot on a phone, and of a digit


@dataclass(frozen=True)
class Tick:
    """A round amount and its label; a `minor` one gives way where there is little room."""

    value: float
    label: str
    minor: bool = False


@dataclass(frozen=True)
class Axis:
    """From `low` to `high`, straight or logarithmic."""

    title: str  # with the unit
    low: float
    high: float
    log: bool
    ticks: tuple[Tick, ...]

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high end."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def linear_axis(title: str, values: Iterable[float]) -> Axis:
    """An axis that holds all values and zero, and begins and ends at round amounts."""
    found = [*values, 0.0]
    low, high = min(found), max(found)
    if high <= low:
        low, high = (0.0, high or 1.0) if high >= 0 else (low, 0.0)
    step = _round_step((high - low) / 5)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    marks = [n * step for n in range(first, last + 1)]
    return _axis(title, marks[0], marks[-1], marks, lambda mark: _plain(mark, step))


def time_axis(title: str, low: float, high: float) -> Axis:
    """An axis that begins and ends where the values do, so that no room is lost."""
    high = high if high > low else low + (abs(low) or 1.0)
    return _inside(title, low, high, 8)


def log_axis(
    title: str,
    values: Iterable[float],
    *,
    margin: float = 1.15,
    label: Callable[[float], str] = lambda value: figure(value, 1),
) -> Axis:
    """A logarithmic axis with ticks at 1, 2 and 5 of each decade, or at each (third ...) decade of many.

    All values must be above 0; `margin` is the factor left free at both ends.
    """
    found = list(values)
    low, high = min(found) / margin, max(found) * margin
    decades = math.log10(high / low)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    digits = (1, 2, 5) if decades <= 2.5 else (1,)
    every = max(1, math.ceil(decades / 6)) if digits == (1,) else 1
    marks = [d * 10.0**p for p in powers if p % every == 0 for d in digits if low <= d * 10.0**p <= high]
    if len(marks) < 2:  # less than an octave
        return _inside(title, low, high, 4, log=True)
    return _axis(title, low, high, marks, label, log=True)


def sizes_axis(title: str, sizes: Iterable[float]) -> Axis:
    """A logarithmic axis whose ticks are the measured sizes themselves (prompt lengths, contexts, chunks)."""
    found = sorted(set(sizes))
    low, high = found[0] / 1.25, found[-1] * 1.25
    marks = _apart(found, low, high, 0.045)
    return _axis(title, low, high, marks, lambda size: f"{size:g}" if size < 1 else whole(size), log=True)


def _axis(
    title: str, low: float, high: float, marks: Sequence[float], label: Callable[[float], str], *, log: bool = False
) -> Axis:
    """With a tick at each mark; minor is one that would touch the one before it on a phone."""
    bare = Axis(title, low, high, log, ())
    ticks: list[Tick] = []
    end = -math.inf  # of the words before, in pixels
    for mark in marks:
        words = label(mark)
        middle, half = _NARROW * bare.place(mark), _CHARACTER * len(words) / 2
        ticks.append(Tick(mark, words, middle - half < end))
        end = end if ticks[-1].minor else middle + half + _CHARACTER
    return replace(bare, ticks=tuple(ticks))


def _inside(title: str, low: float, high: float, ticks: int, *, log: bool = False) -> Axis:
    """With ticks at round amounts between two others."""
    step = _round_step((high - low) / ticks)
    marks = [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return _axis(title, low, high, marks, lambda mark: _plain(mark, step), log=log)


def _apart(sizes: Sequence[float], low: float, high: float, least: float) -> list[float]:
    """Those that stand at least a share `least` of the axis apart, the largest among them."""
    kept: list[float] = []
    for size in reversed(sizes):
        if not kept or math.log(kept[-1] / size) / math.log(high / low) >= least:
            kept.append(size)
    return kept[::-1]


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 2.5, 5 x 10^n that is not below `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= least * (1 - 1e-9))


def _plain(value: float, step: float) -> str:
    """As many decimals as the step needs."""
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    if round(step * 10**decimals, 6) != round(step * 10**decimals):  # steps of 2.5
        decimals += 1
    return grouped(value, decimals) if decimals < 10 and abs(value) < 1e15 else figure(value)
