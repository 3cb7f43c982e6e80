"""Distributions of the raw gaps between arrivals: what share is longer than so much, down to the worst one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from phaseline.lab.experiments.clash import Clash
from phaseline.lab.report.amounts import figure, milliseconds, seconds, whole
from phaseline.lab.report.markup import Markup
from phaseline.lab.report.parts.base import Part, block
from phaseline.lab.report.plots import DECODE, Plot, look
from phaseline.lab.report.record import Record, Row
from phaseline.lab.report.scales import log_axis
from phaseline.lab.report.tables import Column, Table
from phaseline.lab.stats import median
from phaseline.lab.trace import Trace

_LEAST = 8  # gaps, for a distribution to say anything
_MOST_POINTS = 200
_MOST_SERIES = 8


@dataclass(frozen=True)
class Gaps:
    """Gaps in seconds, rising; `name` tells the series."""

    name: str
    gaps: Sequence[float]

    @classmethod
    def of(cls, name: str, traces: Iterable[Trace]) -> "Gaps":
        arrivals = [[event.t_ns for event in t.events if event.bears_tokens] for t in traces if t.error is None]
        return cls(name, sorted((b - a) / 1e9 for times in arrivals for a, b in pairwise(times) if b > a))

    def points(self) -> list[tuple[float, float]]:
        """(gap in ms, share of the gaps at least as long), fewer where there are many; the longest are all there."""
        total = len(self.gaps)
        keep = {min(total, round(total ** (n / _MOST_POINTS))) for n in range(_MOST_POINTS + 1)} | {total}
        return [(self.gaps[total - k] * 1e3, k / total) for k in sorted(keep, reverse=True)]


def draw(records: Sequence[Record]) -> list[Markup]:
    shown = []
    for record in records:
        series = [one for one in gaps_of(record) if len(one.gaps) >= _LEAST]
        if series:
            shown.append(block(record, gap_plot(series[:_MOST_SERIES], _numbers(series))))
    return shown


def gaps_of(record: Record) -> list[Gaps]:
    """The series of a record: of its decode rows, or all its traces together."""
    named: dict[str, list[Trace]] = {}
    for fields in record.fields.children("results"):
        traces = fields.traces()
        if traces and fields.raw("phase") == "decode" and fields.positives("seconds"):
            row = Row.read(fields)
            named.setdefault(f"{row.name}, {row.size}", []).extend(traces)
        elif traces and record.kind == "endtoend":
            named.setdefault("all requests", []).extend(traces)
        for clash in fields.each("clashes", Clash.from_dict):
            named.setdefault(fields.text("setting"), []).extend(clash.victims)
    if not named and "traces" in record.fields:
        named["all requests"] = record.fields.traces()
    return [Gaps.of(name, traces) for name, traces in named.items()]


def gap_plot(series: Sequence[Gaps], numbers: Table) -> Markup:
    """Both axes logarithmic: the tail is what matters."""
    gaps = [gap * 1e3 for one in series for gap in (one.gaps[0], one.gaps[-1])]
    least = 1 / max(len(one.gaps) for one in series)
    x = log_axis("gap, ms", gaps)
    y = log_axis("share of gaps at least as long", [least, 1.0], margin=1.15, label=lambda s: f"{figure(100 * s, 1)} %")
    told = "; ".join(f"{one.name}: median {seconds(median(one.gaps))}, worst {seconds(one.gaps[-1])}" for one in series)
    plot = Plot(f"Distribution of gaps between arrivals. {told}.", x, y)
    for n, one in enumerate(series):
        points = one.points()
        plot.line(points, look(n, DECODE))
        worst = one.gaps[-1] * 1e3
        plot.dot(worst, points[-1][1], look(n, DECODE), f"{one.name}: worst gap {figure(worst)} ms")
        plot.entry(look(n, DECODE), one.name)
    caption = (
        "Raw gaps between two arrivals that bear tokens, not smoothed, not per token. Each line ends at the worst."
    )
    return plot.draw(caption, numbers)


def _numbers(series: Sequence[Gaps]) -> Table:
    columns = [Column("Gaps of", words=True), Column("Count"), Column("Median", "ms"), Column("p90", "ms")]
    table = Table("Gaps between arrivals", [*columns, Column("p99", "ms"), Column("Worst", "ms")])
    for one in series:
        total = len(one.gaps)
        p90, p99 = (
            one.gaps[min(total - 1, int(q * total))] if total >= n else None for q, n in ((0.9, 10), (0.99, 100))
        )
        cells = (milliseconds(value) for value in (median(one.gaps), p90, p99, one.gaps[-1]))
        table.add(one.name, whole(total), *cells)
    return table


PART = Part(
    "gaps",
    "Gaps between tokens",
    "What a reader of the stream waits for between one arrival and the next. A p99 is given for 100 gaps or more.",
    "any record with raw traces of decode",
    draw,
)
