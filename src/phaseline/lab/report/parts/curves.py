"""Time over length: prefill over the prompt's, decode over the context's, with the spread of the samples."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from phaseline.lab.report.amounts import figure, milliseconds, whole
from phaseline.lab.report.amounts import seconds as told_seconds
from phaseline.lab.report.fields import Fields
from phaseline.lab.report.markup import Markup
from phaseline.lab.report.parts.base import Part, block
from phaseline.lab.report.plots import DECODE, PREFILL, Look, Plot, look, side_by_side
from phaseline.lab.report.record import Record, Row, of_kind
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
    main: Look


_FIT, _FIT_POINTS = Look("fit", dash="3 3"), 60
PROMPT = Sweep("prefill", lambda row: row.tokens, "prompt length, tokens", "time to the first token", PREFILL)
CONTEXT = Sweep("decode", lambda row: row.context, "context, tokens", "time per output token (TPOT)", DECODE)
STREAMS = Sweep("decode", lambda row: row.streams, "streams at once", "time of a decode step", DECODE)


def draw_prefill(records: Sequence[Record]) -> list[Markup]:
    return _draw(records, PROMPT, ("measure", "prefill", "compare"), lambda row: row.name)


def draw_decode(records: Sequence[Record]) -> list[Markup]:
    def name(row: Row) -> str:
        return row.name if row.streams == 1 else f"{row.name}, {row.streams} streams"

    return _draw(records, CONTEXT, ("measure", "decode", "compare"), name)


def draw_batch(records: Sequence[Record]) -> list[Markup]:
    return _draw(records, STREAMS, ("batch",), lambda row: row.name)


def _draw(records: Sequence[Record], sweep: Sweep, kinds: Sequence[str], name: Callable[[Row], str]) -> list[Markup]:
    shown = []
    for record in of_kind(records, *kinds):
        rows = [row for row in record.rows() if row.phase == sweep.phase and sweep.size(row)]
        if len({sweep.size(row) for row in rows}) > 1:
            series = series_of(rows, sweep, name)
            fit = Fit.read(record.fields.child("fit")) if "fit" in record.fields else None
            shown.append(block(record, side_by_side(time_plot(series, sweep, fit), rate_plot(series, sweep))))
    return shown


@dataclass(frozen=True)
class Fit:
    """Seconds over size, as the record fitted them: a line, or a floor up to a knee and a line behind it."""

    base_s: float
    slope_s: float
    knee: float

    @classmethod
    def read(cls, fields: Fields) -> "Fit":
        base = fields.number("floor_s" if "floor_s" in fields else "base_s")
        return cls(base, fields.number("slope_s"), fields.maybe_number("knee") or 0.0)

    def seconds(self, size: float) -> float:
        return self.base_s + self.slope_s * max(0.0, size - self.knee)


def series_of(rows: Sequence[Row], sweep: Sweep, name: Callable[[Row], str]) -> list[Series]:
    """One series for each name, each in order of size; the longest first, so that it has the plainest look."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(name(row), []).append(row)
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    return [Series(n, sorted(some, key=lambda row: sweep.size(row) or 0)) for n, some in ordered]


def time_plot(series: Sequence[Series], sweep: Sweep, fit: Fit | None = None) -> Markup:
    """Medians joined, with bars over all samples, and the fit of the first series."""
    rows = [row for one in series for row in one.rows]
    x = sizes_axis(sweep.size_title, [_at(row, sweep) for row in rows])
    samples = [s for row in rows for s in row.seconds]
    wide = max(samples) > 8 * min(samples)
    title = f"{sweep.time_title}, ms" + (" (logarithmic)" if wide else "")
    scaled = [s * 1e3 for s in samples]
    plot = Plot(_summary(series, sweep), x, log_axis(title, scaled) if wide else linear_axis(title, scaled))
    for n, one in enumerate(series):
        shape = look(n, sweep.main)
        plot.line([(_at(row, sweep), row.median_s * 1e3) for row in one.rows], shape)
        for row in one.rows:
            at = _at(row, sweep)
            if len(row.seconds) > 1:
                plot.whisker(at, min(row.seconds) * 1e3, max(row.seconds) * 1e3, shape)
            plot.dot(at, row.median_s * 1e3, shape, f"{one.name}, {row.size}: {told_seconds(row.median_s)}")
        plot.entry(shape, one.name)
    if fit:
        draw_fit(plot, fit, [_at(row, sweep) for row in series[0].rows])
    most = max(len(row.seconds) for row in rows)
    spread = f"Points are medians, bars reach from the fastest to the slowest of up to {most} samples."
    return plot.draw(spread if most > 1 else "One sample each: no spread is known.", _numbers(series, sweep))


def draw_fit(plot: Plot, fit: Fit, sizes: Sequence[float]) -> None:
    """The fit over the sizes it was made of, in milliseconds, as far as the axis goes."""
    low, high = min(sizes), max(sizes)
    places = [low * (high / low) ** (n / _FIT_POINTS) for n in range(_FIT_POINTS + 1)]
    points = [(place, fit.seconds(place) * 1e3) for place in places]
    plot.line([(x, y) for x, y in points if plot.y.low <= y <= plot.y.high], _FIT, thin=True)
    plot.entry(_FIT, "fit: floor and slope" if fit.knee else "fit: a line", glyph=False)


def rate_plot(series: Sequence[Series], sweep: Sweep) -> Markup:
    """Tokens per second over the same sizes."""
    rows = [row for one in series for row in one.rows if row.tok_s]
    if not rows:
        return Markup()
    x = sizes_axis(sweep.size_title, [_at(row, sweep) for row in rows])
    plot = Plot(_rates(series, sweep), x, linear_axis("rate, tok/s", [row.tok_s or 0 for row in rows]))
    for n, one in enumerate(series):
        points = [(_at(row, sweep), row.tok_s) for row in one.rows if row.tok_s]
        plot.line(points, look(n, sweep.main))
        for at, rate in points:
            plot.dot(at, rate, look(n, sweep.main), f"{one.name}, {whole(at)}: {figure(rate)} tok/s")
        plot.entry(look(n, sweep.main), one.name)
    return plot.draw("Tokens over the median time.")


def _at(row: Row, sweep: Sweep) -> float:
    return float(sweep.size(row) or 0)


def _summary(series: Sequence[Series], sweep: Sweep) -> str:
    told = [
        f"{one.name}: " + ", ".join(f"{whole(_at(row, sweep))} takes {told_seconds(row.median_s)}" for row in one.rows)
        for one in series
    ]
    return f"{sweep.time_title} over {sweep.size_title}. " + "; ".join(told) + "."


def _rates(series: Sequence[Series], sweep: Sweep) -> str:
    told = [
        f"{one.name}: "
        + ", ".join(f"{whole(_at(row, sweep))} at {figure(row.tok_s)} tok/s" for row in one.rows if row.tok_s)
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
            size, samples = whole(_at(row, sweep)), len(row.seconds)
            table.add(one.name, size, milliseconds(row.median_s), fastest, slowest, samples, figure(row.tok_s))
    return table


PREFILL_PART = Part(
    "prefill",
    "Prefill over the prompt's length",
    "From sending the prompt to its first token. On the left the time is a floor, the cost of any step at all; on the "
    "right it grows with the prompt, and its slope is the marginal rate.",
    "phaseline measure MODEL or phaseline lab prefill",
    draw_prefill,
)
DECODE_PART = Part(
    "decode",
    "Decode over the context's length",
    "Each output token reads all weights and the whole context. The line's height at the left is the price of the "
    "weights, its rise the price of keys and values.",
    "phaseline measure MODEL or phaseline lab decode",
    draw_decode,
)
BATCH_PART = Part(
    "batch",
    "Decode over streams",
    "Streams that decode together share one reading of the weights. What does not get cheaper with more is each "
    "stream's own: its keys and values, and its arithmetic.",
    "phaseline lab batch",
    draw_batch,
)
