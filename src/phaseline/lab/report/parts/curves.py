"""Time over length: prefill over the prompt's, decode over the context's, with the spread of the samples."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from phaseline.lab.report.amounts import figure, milliseconds
from phaseline.lab.report.amounts import seconds as told_seconds
from phaseline.lab.report.markup import Markup
from phaseline.lab.report.parts.base import Part, block
from phaseline.lab.report.plots import Plot, look, side_by_side
from phaseline.lab.report.record import Record, Row
from phaseline.lab.report.scales import linear_axis, log_axis, sizes_axis
from phaseline.lab.report.tables import Column, Table


@dataclass(frozen=True)
class Series:
    """Rows of one kind, told apart by `name`."""

    name: str
    rows: Sequence[Row]


@dataclass(frozen=True)
class Sweep:
    """What is drawn over what: `size` is a row's place on the x axis."""

    phase: str
    size: Callable[[Row], int | None]
    size_title: str
    time_title: str


PROMPT = Sweep("prefill", lambda row: row.tokens, "prompt length, tokens", "time to the first token")
CONTEXT = Sweep("decode", lambda row: row.context, "context, tokens", "time per output token (TPOT)")
STREAMS = Sweep("decode", lambda row: row.streams, "streams at once", "time of a decode step")


def draw_prefill(records: Sequence[Record]) -> list[Markup]:
    return _draw(records, PROMPT, ("measure", "prefill"), lambda row: row.mode)


def draw_decode(records: Sequence[Record]) -> list[Markup]:
    def name(row: Row) -> str:
        return row.mode if row.streams == 1 else f"{row.mode}, {row.streams} streams"

    return _draw(records, CONTEXT, ("measure", "decode"), name)


def _draw(records: Sequence[Record], sweep: Sweep, kinds: Sequence[str], name: Callable[[Row], str]) -> list[Markup]:
    shown = []
    for record in records:
        rows = [row for row in record.rows() if row.phase == sweep.phase] if record.kind in kinds else []
        series = series_of([row for row in rows if sweep.size(row)], sweep, name)
        if series:
            shown.append(block(record, side_by_side(time_plot(series, sweep), rate_plot(series, sweep))))
    return shown


def series_of(rows: Sequence[Row], sweep: Sweep, name: Callable[[Row], str]) -> list[Series]:
    """One series for each name, each in order of size; the longest first, so that it has the plainest look."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(name(row), []).append(row)
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    return [Series(n, sorted(some, key=lambda row: sweep.size(row) or 0)) for n, some in ordered]


def time_plot(series: Sequence[Series], sweep: Sweep) -> Markup:
    """Medians joined, every sample as a faint dot, quartiles as a band."""
    rows = [row for one in series for row in one.rows]
    x = sizes_axis(sweep.size_title, [_at(row, sweep) for row in rows])
    samples = [s for row in rows for s in row.seconds]
    wide = max(samples) > 8 * min(samples)
    title = f"{sweep.time_title}, ms" + (" (logarithmic)" if wide else "")
    scaled = [s * 1e3 for s in samples]
    plot = Plot(_summary(series, sweep), x, log_axis(title, scaled) if wide else linear_axis(title, scaled))
    for n, one in enumerate(series):
        shape = look(n)
        plot.line([(_at(row, sweep), row.median_s * 1e3) for row in one.rows], shape)
        for row in one.rows:
            at = _at(row, sweep)
            if len(row.seconds) > 1:
                plot.whisker(at, min(row.seconds) * 1e3, max(row.seconds) * 1e3, shape)
            plot.dot(at, row.median_s * 1e3, shape, f"{one.name}, {row.size}: {told_seconds(row.median_s)}")
        plot.entry(shape, one.name or sweep.phase)
    most = max(len(row.seconds) for row in rows)
    spread = f"Points are medians, bars reach from the fastest to the slowest of up to {most} samples."
    return plot.draw(spread if most > 1 else "One sample each: no spread is known.", _numbers(series, sweep))


def rate_plot(series: Sequence[Series], sweep: Sweep) -> Markup:
    """Tokens per second over the same sizes."""
    rows = [row for one in series for row in one.rows if row.tok_s]
    if not rows:
        return Markup()
    x = sizes_axis(sweep.size_title, [_at(row, sweep) for row in rows])
    plot = Plot(_rates(series, sweep), x, linear_axis("rate, tok/s", [row.tok_s or 0 for row in rows]))
    for n, one in enumerate(series):
        points = [(_at(row, sweep), row.tok_s) for row in one.rows if row.tok_s]
        plot.line(points, look(n))
        for at, rate in points:
            plot.dot(at, rate, look(n), f"{one.name}, {figure(at, 15)}: {figure(rate)} tok/s")
        plot.entry(look(n), one.name or sweep.phase)
    return plot.draw("Tokens over the median time.")


def _at(row: Row, sweep: Sweep) -> float:
    return float(sweep.size(row) or 0)


def _summary(series: Sequence[Series], sweep: Sweep) -> str:
    told = [
        f"{one.name or sweep.phase}: "
        + ", ".join(f"{figure(_at(row, sweep), 15)} takes {told_seconds(row.median_s)}" for row in one.rows)
        for one in series
    ]
    return f"{sweep.time_title} over {sweep.size_title}. " + "; ".join(told) + "."


def _rates(series: Sequence[Series], sweep: Sweep) -> str:
    told = [
        f"{one.name or sweep.phase}: "
        + ", ".join(f"{figure(_at(row, sweep), 15)} at {figure(row.tok_s)} tok/s" for row in one.rows if row.tok_s)
        for one in series
    ]
    return f"Rate over {sweep.size_title}. " + "; ".join(told) + "."


def _numbers(series: Sequence[Series], sweep: Sweep) -> Table:
    table = Table(
        f"{sweep.time_title} over {sweep.size_title}",
        [
            Column("Series", words=True),
            Column("Size", "tokens" if sweep is not STREAMS else "streams"),
            Column("Median", "ms"),
            Column("Fastest", "ms"),
            Column("Slowest", "ms"),
            Column("Samples"),
            Column("Rate", "tok/s"),
        ],
    )
    for one in series:
        for row in one.rows:
            fastest, slowest = milliseconds(min(row.seconds)), milliseconds(max(row.seconds))
            size, samples = figure(_at(row, sweep), 15), len(row.seconds)
            table.add(one.name, size, milliseconds(row.median_s), fastest, slowest, samples, figure(row.tok_s))
    return table


PREFILL_PART = Part(
    "prefill",
    "Prefill over the prompt’s length",
    "From sending the prompt to its first token. On the left the time is a floor, the cost of any step at all; on the "
    "right it grows with the prompt, and its slope is the marginal rate.",
    "phaseline measure MODEL or phaseline lab prefill",
    draw_prefill,
)
DECODE_PART = Part(
    "decode",
    "Decode over the context’s length",
    "Each output token reads all weights and the whole context. The line’s height at the left is the price of the "
    "weights, its rise the price of keys and values.",
    "phaseline measure MODEL or phaseline lab decode",
    draw_decode,
)
