"""Timelines: lanes over one clock, with blocks of prefill and a tick for each arrival of decode."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from phaseline.lab.report.amounts import count, seconds, shortened
from phaseline.lab.report.markup import Child, Markup, prose, tag
from phaseline.lab.report.scales import Axis, Tick, time_axis
from phaseline.lab.trace import Trace

_LANE, _BAR, _NAME = 46, 20, 15  # pixels: a lane, the bar in it, and its name above that
_MOST_TICKS = 4000  # of a lane: more would be a block, and a heavy one
_MOST_REQUESTS = 160
_ALL = 320  # pixels of many requests together


@dataclass(frozen=True)
class Block:
    """A stretch of time (seconds); `kind` is a class of the style sheet."""

    start: float
    end: float
    kind: str
    tip: str | None = None


@dataclass(frozen=True)
class Lane:
    """One stream: when its tokens arrived (seconds, rising), and what else is known of its time."""

    name: str
    ticks: Sequence[float]
    blocks: Sequence[Block] = ()

    @property
    def ends(self) -> tuple[float, float]:
        """When it begins and is over."""
        moments = [*self.ticks, *(b.start for b in self.blocks), *(b.end for b in self.blocks)]
        return min(moments, default=0.0), max(moments, default=0.0)

    def worst(self, start: float, end: float) -> Block | None:
        """The largest gap between ticks whose middle lies between two moments."""
        gaps = [(a, b) for a, b in pairwise(self.ticks) if start < (a + b) / 2 < end]
        if not gaps:
            return None
        a, b = max(gaps, key=lambda gap: gap[1] - gap[0])
        return Block(a, b, "gap", f"{self.name}: worst gap {seconds(b - a)}")


def lane_axis(lanes: Sequence[Lane], title: str, earliest: float) -> Axis:
    """A clock in milliseconds that holds all lanes, but for what was before `earliest` (seconds)."""
    ends = [lane.ends for lane in lanes]
    low, high = min(start for start, _ in ends), max(end for _, end in ends)
    return time_axis(title, max(low, earliest) * 1e3, high * 1e3)


def draw_lanes(lanes: Sequence[Lane], axis: Axis, summary: str, mark: float | None = None) -> Markup:
    """The lanes one below the other, as far as the axis goes; one crosses them all at `mark` (seconds)."""
    height = _LANE * len(lanes)
    line = None if mark is None else _upright(axis, mark, height)
    drawn = [_lane(lane, axis, n * _LANE) for n, lane in enumerate(lanes)]
    return _timeline(axis, height, [line, *drawn], summary)


def _lane(lane: Lane, axis: Axis, top: int) -> Markup:
    bar = top + _NAME + 5
    seen = [t for t in lane.ticks if axis.low <= t * 1e3 <= axis.high]
    every = -(-len(seen) // _MOST_TICKS) or 1
    path = "".join(f"M{1000 * axis.place(t * 1e3):.1f} 0v{_BAR}" for t in seen[::every])
    ticks = tag("path", d=path, class_="ticks decode")
    return tag(
        "g",
        tag("text", shortened(lane.name), x=0, y=top + _NAME, class_="lane"),
        tag("line", x1=0, x2="100%", y1=bar + _BAR, y2=bar + _BAR, class_="grid"),
        (_rect(block, axis, 1e3, bar, _BAR) for block in lane.blocks),
        tag("svg", ticks, y=bar, viewBox=f"0 0 1000 {_BAR}", preserveAspectRatio="none", width="100%", height=_BAR)
        if path
        else None,
    )


def requests_over_time(traces: Sequence[Trace]) -> Markup:
    """Many requests, a thin line each, in order of sending: waiting for the first token, then decoding."""
    shown = sorted(traces, key=lambda trace: trace.sent_ns)[:_MOST_REQUESTS]
    zero = min(_due(trace) for trace in shown)
    last = max(trace.end_ns for trace in shown)
    axis = time_axis("time, s", 0.0, (last - zero) / 1e9)
    row = max(3, min(12, _ALL // len(shown)))
    drawn = [
        _rect(block, axis, 1.0, n * row, max(2, row - 1)) for n, t in enumerate(shown) for block in _spans(t, zero)
    ]
    failed = sum(trace.error is not None for trace in shown)
    more = f"; the first {len(shown)} of {len(traces)} are drawn" if len(shown) < len(traces) else ""
    told = (
        f"Requests over time: {count(len(shown), 'request')} in {seconds((last - zero) / 1e9)}, {failed} failed{more}."
    )
    kinds = {block.kind for trace in shown for block in _spans(trace, zero)}
    names = {"late": "due, not yet sent", "prefill": "sent, no token yet", "decode": "decoding", "failed": "failed"}
    return tag(
        "figure",
        tag("h4", "Requests over time"),
        legend([(kind, name) for kind, name in names.items() if kind in kinds]),
        tag("div", _timeline(axis, row * len(shown), drawn, told), class_="requests"),
        tag("figcaption", f"A line for each request, in order of sending{more}."),
    )


def legend(kinds: Sequence[tuple[str, str]]) -> Markup:
    """What the colours of blocks mean: pairs of kind and name. The kind "tick" is that of ticks."""
    entries = (tag("li", tag("span", class_=f"key {kind}"), prose(name)) for kind, name in kinds)
    return tag("ul", entries, class_="legend")


def _spans(trace: Trace, zero: int) -> list[Block]:
    """A request's phases, in seconds since `zero`."""
    arrivals = [event.t_ns for event in trace.events if event.bears_tokens] if trace.error is None else []
    sent, due = (trace.sent_ns - zero) / 1e9, (_due(trace) - zero) / 1e9
    late = [Block(due, sent, "late")] if due < sent else []
    if not arrivals:
        return [*late, Block(sent, (trace.end_ns - zero) / 1e9, "failed", trace.error)]
    first, last = (arrivals[0] - zero) / 1e9, (arrivals[-1] - zero) / 1e9
    told = f"TTFT {seconds(first - sent)}, decode {seconds(last - first)}"
    return [*late, Block(sent, first, "prefill", told), Block(first, last, "decode", told)]


def _due(trace: Trace) -> int:
    return trace.sent_ns if trace.due_ns is None else min(trace.due_ns, trace.sent_ns)


def _timeline(axis: Axis, height: int, drawn: Child, summary: str) -> Markup:
    plot = tag(
        "svg",
        (_tick(axis, tick, height) for tick in axis.ticks),
        drawn,
        tag("line", x1=0, x2="100%", y1=height, y2=height, class_="base"),
        tag("text", axis.title, x="100%", y=height + 34, text_anchor="end", class_="axis"),
        role="img",
        aria_label=summary,
        width="100%",
        height=height,
    )
    return tag("div", plot, class_="plot lanes")


def _rect(block: Block, axis: Axis, scale: float, top: int, height: int) -> Markup:
    left, right = axis.place(block.start * scale), axis.place(block.end * scale)
    tip = None if block.tip is None else tag("title", block.tip)
    place = {"x": f"{100 * left:.2f}%", "width": f"{100 * max(0.0, right - left):.2f}%", "y": top, "height": height}
    return tag("rect", tip, **place, class_=f"span {block.kind}")


def _upright(axis: Axis, moment: float, height: int) -> Markup:
    at = f"{100 * axis.place(moment * 1e3):.2f}%"
    return tag("line", x1=at, x2=at, y1=0, y2=height, class_="guide")


def _tick(axis: Axis, tick: Tick, height: int) -> Markup:
    at = f"{100 * axis.place(tick.value):.2f}%"
    words = tag("text", tick.label, x=at, y=height + 17, text_anchor="middle")
    return tag(
        "g", tag("line", x1=at, x2=at, y1=0, y2=height, class_="grid"), words, class_="tick" + " roomy" * tick.minor
    )
