"""Chunk size: what a chunk costs, and the frontier between the streams' worst gap and the prompt's own TTFT."""

from collections.abc import Sequence
from dataclasses import dataclass

from phaseline.lab.experiments.chunk_advice import piece_seconds
from phaseline.lab.experiments.clash import Clash
from phaseline.lab.report.amounts import count, figure, milliseconds, seconds, whole
from phaseline.lab.report.fields import Fields
from phaseline.lab.report.markup import Markup
from phaseline.lab.report.parts.base import Part, block
from phaseline.lab.report.parts.curves import Fit, draw_fit
from phaseline.lab.report.parts.interference import interval
from phaseline.lab.report.plots import DECODE, LEFT, OVER, PREFILL, RIGHT, UNDER, Look, Plot, side_by_side
from phaseline.lab.report.record import Record, of_kind
from phaseline.lab.report.scales import linear_axis, log_axis, sizes_axis
from phaseline.lab.report.tables import Column, Table
from phaseline.lab.stats import median

_LONGEST_PROMPT = 1 << 20  # tokens
_TRIED = Look("series-0", "diamond")


def draw(records: Sequence[Record]) -> list[Markup]:
    shown = []
    for record in of_kind(records, "chunk", "interference"):
        points = record.fields.children("frontier") if record.kind == "chunk" else _settings(record)
        figures = [_frontier(record, points) if len(points) > 1 else None, _cost(record)]
        if any(figures):
            shown.append(block(record, side_by_side(*figures)))
    return shown


def _settings(record: Record) -> list[Fields]:
    """Settings of an interference that make a frontier: all ran against the same prompt."""
    return [row for row in record.fields.children("results") if "worst_gap_s" in row and "ttft_s" in row]


@dataclass(frozen=True)
class _Point:
    """One size or setting: milliseconds, and the interval of the worst gap."""

    name: str
    gap: float
    ttft: float
    low: float
    high: float

    @classmethod
    def read(cls, fields: Fields) -> "_Point":
        name = whole(fields.whole("size")) if "size" in fields else fields.text("setting")
        gap, ttft = 1e3 * fields.positive("worst_gap_s"), 1e3 * fields.positive("ttft_s")
        ends = fields.numbers("worst_gap_interval_s")
        low, high = (1e3 * end for end in ends) if len(ends) == 2 else (gap, gap)
        return cls(name, gap, ttft, low, high)

    @property
    def told(self) -> str:
        return f"{self.name}: worst gap {figure(self.gap)} ms, TTFT {figure(self.ttft)} ms"


def _best(points: Sequence[_Point]) -> list[_Point]:
    """Those that no other beats in both, by rising TTFT."""
    kept: list[_Point] = []
    for point in sorted(points, key=lambda one: (one.ttft, one.gap)):
        if not kept or point.gap < kept[-1].gap:
            kept.append(point)
    return kept


def _frontier(record: Record, rows: Sequence[Fields]) -> Markup:
    """Worst gap of the streams over TTFT of the prompt, a point for each size."""
    tried = [row for row in record.fields.children("checks") if "worst_gap_s" in row and "ttft_s" in row]
    points, checks = [_Point.read(row) for row in rows], [_Point.read(row) for row in tried]
    budget = record.fields.child("recommendation").maybe_positive("budget_ms")
    every = [*points, *checks]
    x = linear_axis("TTFT of the prompt, ms", [one.ttft for one in every])
    y = linear_axis("worst gap of the streams, ms", [*(one.high for one in every), *([budget] if budget else [])])
    plot = Plot(f"Frontier of chunk sizes. {'; '.join(one.told for one in every)}.", x, y)
    if budget:
        plot.level(budget)
    plot.line([(one.ttft, one.gap) for one in _best(points)], DECODE, thin=True)
    for one, shape in [*((point, DECODE) for point in points), *((check, _TRIED) for check in checks)]:
        plot.whisker(one.ttft, one.low, one.high, shape)
        plot.dot(one.ttft, one.gap, shape, one.told)
    for one in points:
        plot.label(one.ttft, one.gap, one.name, [RIGHT, OVER, LEFT, UNDER])
    if budget:
        plot.label(x.low, budget, f"budget {figure(budget)} ms", [("start", -6), ("start", 15)], "ceiling")
    plot.entry(DECODE, "settings; the line joins those that no other beats")
    if checks:
        plot.entry(_TRIED, "tried: " + ", ".join(one.name for one in checks), line=False)
    told = "Down and left is better, and no size is best at both. Bars are 95% intervals over runs."
    return plot.draw(told, _numbers([*rows, *tried]))


def _numbers(rows: Sequence[Fields]) -> Table:
    columns = [Column("Chunk", words=True), Column("Worst gap", "ms"), Column("95% interval", "ms")]
    table = Table("Worst gap against TTFT", [*columns, Column("TTFT", "ms"), Column("95% interval", "ms")])
    for one in rows:
        gap, ttft = milliseconds(one.positive("worst_gap_s")), milliseconds(one.positive("ttft_s"))
        table.add(
            _Point.read(one).name, gap, interval(one, "worst_gap_interval_s"), ttft, interval(one, "ttft_interval_s")
        )
    return table


def _cost(record: Record) -> Markup | None:
    """What a step costs over the prompt tokens in it, and the fit with its knee."""
    if record.kind != "chunk" or "cost" not in record.fields:
        return None
    fit = Fit.read(record.fields.child("cost"))
    chunked = bool(record.fields.raw("frontier"))
    samples: dict[int, list[float]] = {}
    for row in record.fields.children("results"):
        size = row.whole("size")
        if not size:
            raise row.refusal("size", "a number of tokens above 0")
        clashes = [clash for clash in row.each("clashes", Clash.from_dict) if _can_be(clash)]
        pieces = [piece_seconds(clash, size, chunked=chunked) for clash in clashes]
        samples.setdefault(size, []).extend(piece * 1e3 for piece in pieces if piece)
    sizes = [size for size, found in samples.items() if found]
    if len(sizes) < 2:
        return None
    x = sizes_axis("prompt tokens in the step", sizes)
    y = log_axis("time of a step, ms (logarithmic)", [piece for found in samples.values() for piece in found])
    at_knee = f"knee at {count(round(fit.knee), 'token')}" if fit.knee else "no knee in sight"
    told = "; ".join(f"{whole(size)} takes {figure(median(samples[size]))} ms" for size in sizes)
    plot = Plot(f"Cost of a chunk. {told}; {at_knee}; each token beyond costs {seconds(fit.slope_s)}.", x, y)
    for size in sizes:
        middle, found = median(samples[size]), samples[size]
        plot.whisker(size, min(found), max(found), PREFILL)
        plot.dot(size, middle, PREFILL, f"{whole(size)} tokens: {figure(middle)} ms")
    if x.low < fit.knee < x.high:
        plot.upright(fit.knee)
        plot.label(fit.knee, y.high, at_knee, [("start", 14), ("end", 14)], "ceiling")
    plot.entry(PREFILL, "median of the rounds", line=False)
    draw_fit(plot, fit, sizes)
    return plot.draw("Beside the rows of the running streams. Up to the knee, prompt tokens join a step for nothing.")


def _can_be(clash: Clash) -> bool:
    """Somebody was there to be held up, by a prompt of a length that some model reads."""
    return bool(clash.victims) and (clash.intruder.prompt_tokens or 0) <= _LONGEST_PROMPT


PART = Part(
    "chunk",
    "Chunk size",
    "Small chunks keep the others' gaps short and make the prompt itself wait; large ones do the reverse. The frontier "
    "shows the price of each.",
    "phaseline lab chunk",
    draw,
)
