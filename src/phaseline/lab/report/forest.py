"""Estimates with their intervals, a line each, against the value that means no difference."""

from collections.abc import Sequence
from dataclasses import dataclass

from phaseline.lab.report.amounts import shortened
from phaseline.lab.report.markup import Markup, prose, tag
from phaseline.lab.report.plots import Look
from phaseline.lab.report.scales import Axis, Tick

_ROW, _NAME = 40, 14  # pixels: a row, and the base line of its name in it


@dataclass(frozen=True)
class Estimate:
    """One row: a value, its interval where it has one (an end may be unknown), and all of it in words."""

    name: str
    value: float
    low: float | None
    high: float | None
    look: Look
    told: str


def forest(rows: Sequence[Estimate], axis: Axis, none: float, caption: str, allowed: float | None = None) -> Markup:
    """The rows one below the other. `none` is no difference; from there to `allowed` the ground is shaded."""
    height = _ROW * len(rows)
    shade = None if allowed is None else _shade(axis, none, allowed, height)
    plot = tag(
        "svg",
        shade,
        (_tick(axis, tick, height) for tick in axis.ticks),
        _upright(axis, none, height, "guide"),
        (_row(row, axis, n * _ROW) for n, row in enumerate(rows)),
        tag("line", x1=0, x2="100%", y1=height, y2=height, class_="base"),
        tag("text", axis.title, x="100%", y=height + 34, text_anchor="end", class_="axis"),
        role="img",
        aria_label=f"{axis.title}. " + "; ".join(row.told for row in rows) + ".",
        width="100%",
        height=height,
    )
    return tag("figure", tag("div", plot, class_="plot lanes"), tag("figcaption", prose(caption)))


def _row(row: Estimate, axis: Axis, top: int) -> Markup:
    middle = top + 27
    low, high = (row.value if end is None else min(max(end, axis.low), axis.high) for end in (row.low, row.high))
    ends = {"x1": _percent(axis, low), "x2": _percent(axis, high)}
    interval = tag("line", **ends, y1=middle, y2=middle, class_=f"whisker {row.look.colour}")
    at = _percent(axis, min(max(row.value, axis.low), axis.high))
    name = tag("text", shortened(row.name, 48), x=0, y=top + _NAME, class_="lane")
    return tag(
        "g",
        name,
        interval if row.low is not None or row.high is not None else None,
        row.look.mark(at, middle, row.told),
    )


def _shade(axis: Axis, start: float, end: float, height: int) -> Markup:
    left, right = (axis.place(min(max(v, axis.low), axis.high)) for v in sorted((start, end)))
    return tag(
        "rect", x=f"{100 * left:.2f}%", width=f"{100 * (right - left):.2f}%", y=0, height=height, class_="allowed"
    )


def _tick(axis: Axis, tick: Tick, height: int) -> Markup:
    words = tag("text", tick.label, x=_percent(axis, tick.value), y=height + 17, text_anchor="middle")
    return tag("g", _upright(axis, tick.value, height, "grid"), words, class_="tick" + " roomy" * tick.minor)


def _upright(axis: Axis, value: float, height: int, kind: str) -> Markup:
    at = _percent(axis, value)
    return tag("line", x1=at, x2=at, y1=0, y2=height, class_=kind)


def _percent(axis: Axis, value: float) -> str:
    return f"{100 * axis.place(value):.2f}%"
