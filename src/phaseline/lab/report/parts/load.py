"""Many requests: the field's summary of a run, the sweep over paces, the search for the best rate."""

from collections.abc import Sequence

from phaseline.lab.report.amounts import NONE, count, figure, seconds, share, whole
from phaseline.lab.report.fields import Fields
from phaseline.lab.report.lanes import requests_over_time
from phaseline.lab.report.markup import Markup, tag
from phaseline.lab.report.parts.base import Part, block
from phaseline.lab.report.plots import DECODE, PREFILL, Look, Plot, look, side_by_side
from phaseline.lab.report.record import Record, of_kind
from phaseline.lab.report.scales import Axis, linear_axis, sizes_axis
from phaseline.lab.report.tables import Column, Table

_LATENCIES = {
    "ttft": "TTFT, from sending",
    "ttft_from_due": "TTFT, from when it was due",
    "tpot": "TPOT",
    "itl": "ITL",
    "gap": "gap between arrivals",
    "worst_gap": "worst gap of a request",
    "e2el": "end to end",
    "client_lag": "the client's own lag",
}
Points = list[tuple[float, float]]


def draw(records: Sequence[Record]) -> list[Markup]:
    shown = []
    for record in of_kind(records, "load"):
        rows = record.fields.children("results")
        parts = [
            _summary(record.fields.child("summary")) if "summary" in record.fields else None,
            _sweep(rows) if len(rows) > 1 else None,
            _search(record.fields.child("search")) if "search" in record.fields else None,
            _requests(record),
        ]
        if any(parts):
            shown.append(block(record, parts))
    return shown


def _summary(found: Fields) -> Markup:
    """Counts and rates, then the distributions."""
    done, failed = found.whole("completed"), found.whole("failed")
    counted = [
        ("completed", f"{whole(done)} of {count(done + failed, 'request')}"),
        ("duration", seconds(found.maybe_positive("duration"))),
        ("requests", _per_second(found.maybe_number("request_throughput"))),
        ("goodput", _per_second(found.maybe_number("request_goodput"))),
        ("met the objectives", share(_attained(found))),
        ("output tokens", _per_second(found.maybe_number("output_throughput"))),
        ("all tokens", _per_second(found.maybe_number("total_token_throughput"))),
        ("rate requested", _per_second(found.maybe_number("requested_rate"))),
        ("rate achieved", _per_second(found.maybe_number("achieved_rate"))),
    ]
    terms = [tag("div", tag("dt", name), tag("dd", tag("b", value))) for name, value in counted if value != NONE]
    columns = [Column("Latency", words=True), Column("Mean", "ms"), Column("Median", "ms"), Column("p99", "ms")]
    table = Table("Of the run that the summary is about; p99 takes 100 samples or more", columns)
    for key, name in _LATENCIES.items():
        cells = [found.maybe_number(f"{which}_{key}_ms") for which in ("mean", "median", "p99")]
        if any(cell is not None for cell in cells):
            table.add(name, *(figure(cell) for cell in cells))
    notes = [tag("li", note) for note in found.texts("notes")]
    convention = found.maybe_text("itl_convention")
    return tag(
        "div",
        tag("dl", terms, class_="counts"),
        table.draw() if table.rows else None,
        tag("p", f"ITL is {convention}.", class_="hint") if convention else None,
        tag("ul", notes, class_="notes") if notes else None,
    )


def _attained(found: Fields) -> float | None:
    """From when requests were due where they were: the headline of an open loop."""
    due = found.maybe_number("slo_attainment_from_due")
    return found.maybe_number("slo_attainment") if due is None else due


def _sweep(rows: Sequence[Fields]) -> Markup | None:
    """Throughput and latencies over what was varied: the rate, or the streams at once."""
    by_rate = [(_rate(row), row) for row in rows]
    by_streams = [(row.maybe_positive("max_concurrency"), row) for row in rows]
    paces = by_rate if all(pace for pace, _ in by_rate) else by_streams
    points = [(pace, row) for pace, row in paces if pace]
    if len({pace for pace, _ in points}) < 2:
        return None
    unit = "requests per second, asked for" if paces is by_rate else "streams at once"
    axis = sizes_axis(unit, [pace for pace, _ in points])

    def over(key: str) -> Points:
        return [(pace, value) for pace, row in points if (value := row.maybe_positive(key)) is not None]

    due = over("median_ttft_from_due_ms")
    tokens = over("output_throughput")
    plots = [
        _line(axis, "output tokens per second", tokens, look(5))
        if tokens
        else _line(axis, "requests per second", over("request_throughput"), look(5)),
        _line(axis, "median TTFT from when it was due, ms", due, PREFILL)
        if due
        else _line(axis, "median TTFT, ms", over("median_ttft_ms"), PREFILL),
        _line(axis, "median TPOT, ms", over("median_tpot_ms"), DECODE),
        _line(axis, "worst gap of all, ms", over("max_worst_gap_ms"), DECODE),
    ]
    return side_by_side(*plots)


def _line(axis: Axis, title: str, points: Points, shape: Look) -> Markup | None:
    if not points:
        return None
    told = ", ".join(f"{figure(x)} gives {figure(y)}" for x, y in points)
    plot = Plot(f"{title} over {axis.title}: {told}.", axis, linear_axis(title, [y for _, y in points]), height=190)
    plot.line(points, shape)
    for x, y in points:
        plot.dot(x, y, shape, f"{figure(x)}: {figure(y)}")
    return plot.draw()


def _rate(row: Fields) -> float | None:
    """The rate that was asked for, where it is a number: not a ramp, not a log's, not infinite."""
    return row.positive("request_rate") if isinstance(row.raw("request_rate"), int | float) else None


def _search(found: Fields) -> Markup:
    columns = [
        Column("Rate", "requests/s"),
        Column("Attainment", "of each run", words=True),
        Column("Verdict", words=True),
    ]
    table = Table("What the search for the highest rate saw, in order", columns)
    for probe in found.children("probes"):
        verdict = ("kept" if probe.flag("passed") else "not kept") + (
            "" if probe.flag("sure") else ", within the noise"
        )
        table.add(figure(probe.positive("rate")), ", ".join(share(a) for a in probe.numbers("attainments")), verdict)
    return table.draw()


def _requests(record: Record) -> Markup | None:
    """Over time, those of the run that the summary is about."""
    traces, summary = record.fields.traces(), record.fields.raw("summary")
    chosen = next((run for run in record.fields.children("runs") if run.raw("summary") == summary), None)
    if chosen is not None:
        first = chosen.whole("first")
        traces = traces[first : first + chosen.whole("count")]
    return requests_over_time(traces) if traces else None


def _per_second(value: float | None) -> str:
    return NONE if value is None else f"{figure(value)}\u202f/s"


PART = Part(
    "load",
    "Load",
    "Requested, achieved and completed are three rates. Where requests were due at a time, latency counts from then: a "
    "client that sends late must not hide queueing.",
    "phaseline lab load",
    draw,
)
