"""Rooflines: how much arithmetic each kind of step does per byte, and how fast, under the ceilings of the same run."""

from collections.abc import Sequence
from dataclasses import dataclass

from phaseline.lab.report.amounts import amount, figure, seconds
from phaseline.lab.report.markup import Markup
from phaseline.lab.report.parts.base import Part, block
from phaseline.lab.report.plots import DECODE, PREFILL, Look, Plot
from phaseline.lab.report.record import Record, Row
from phaseline.lab.report.scales import log_axis
from phaseline.lab.report.tables import Column, Table

_GLYPHS = {"chunk": "circle", "eager": "square", "layer": "triangle", "walk": "cross"}


@dataclass(frozen=True)
class Ceilings:
    """Rates per second, measured in the run."""

    quant_flops: float
    float_flops: float
    read: list[tuple[float, float]]  # bytes of the footprint, bytes per second

    @classmethod
    def of(cls, record: Record) -> "Ceilings | None":
        machine = record.fields.child("machine")
        if "ceilings" not in machine:
            return None
        found = machine.child("ceilings")
        read = [(one.positive("footprint"), one.positive("bytes_per_s")) for one in found.children("read")]
        return cls(found.positive("quant_flops"), found.positive("float_flops"), read) if read else None


def draw(records: Sequence[Record]) -> list[Markup]:
    shown = []
    for record in records:
        ceilings = Ceilings.of(record)
        rows = [row for row in record.rows() if row.flops and row.bytes]
        if ceilings and rows:
            shown.append(block(record, roofline(rows, ceilings)))
    return shown


def roofline(rows: Sequence[Row], ceilings: Ceilings) -> Markup:
    """Points under the ceilings of their run."""
    points = [(row, (row.flops or 0) / (row.bytes or 1), (row.flops or 0) / row.median_s) for row in rows]
    roof, fastest = max(ceilings.quant_flops, ceilings.float_flops), max(ceilings.read, key=lambda one: one[1])
    slowest = min(ceilings.read, key=lambda one: one[1])
    ridge = roof / slowest[1]
    x = log_axis("arithmetic intensity, FLOP per byte", [*(p[1] for p in points), ridge * 2], margin=1.6)
    low = min(min(p[2] for p in points), x.low * slowest[1])
    y = log_axis("FLOP/s", [low, roof], margin=1.3, label=lambda v: amount(v, "FLOP/s"))
    plot = Plot(_summary(points, ceilings), x, y, height=320)
    for _, speed in {fastest, slowest}:
        left = max(x.low, y.low / speed)
        corner = roof / speed
        plot.line([(left, left * speed), (corner, roof)], _ROOF)
    plot.line([(roof / fastest[1], roof), (x.high, roof)], _ROOF)
    other = min(ceilings.quant_flops, ceilings.float_flops)
    plot.line([(other / fastest[1], other), (x.high, other)], _LOWER)
    for level in {ceilings.quant_flops, ceilings.float_flops}:
        name = "quantised" if level == ceilings.quant_flops else "float32"
        plot.label(x.high, level, f"{name}: {amount(level, 'FLOP/s')}", side="end", lift=-6, kind="ceiling")
    at = (x.low * (roof / fastest[1])) ** 0.5
    told = f"reading: {amount(slowest[1], 'B/s')} to {amount(fastest[1], 'B/s')}"
    plot.label(at, at * fastest[1], told, side="end", lift=-8, kind="ceiling")
    for row, intensity, speed in points:
        plot.dot(intensity, speed, look_of(row), _tip(row, intensity, speed), 1.0 if row.mode == "chunk" else 0.85)
    for row, intensity, speed in points:
        if row.mode == "chunk":
            size = row.tokens if row.phase == "prefill" else row.streams if row.streams > 1 else row.context
            plot.label(intensity, speed, figure(size, 15), lift=18, kind=row.phase)
    for phase, mode in dict.fromkeys((row.phase, row.mode) for row in rows):
        one = next(row for row in rows if (row.phase, row.mode) == (phase, mode))
        plot.entry(look_of(one), f"{phase}, {mode}" if mode else phase, line=False)
    return plot.draw(
        "Numbers beside the points: prompt tokens of prefill, context of decode, or the streams where there are "
        "several. The roof is not one line: reading speed depends on how many bytes a step goes through.",
        _numbers(points),
    )


def look_of(row: Row) -> Look:
    """Colour tells the phase, glyph the mode, hollow more than one stream."""
    base = PREFILL if row.phase == "prefill" else DECODE
    return Look(base.colour, _GLYPHS.get(row.mode, "circle"), hollow=row.streams > 1)


_ROOF, _LOWER = Look("roof"), Look("roof", dash="5 4")


def _tip(row: Row, intensity: float, speed: float) -> str:
    limited = f"; limit {row.limit}" if row.limit else ""
    return (
        f"{row.phase} {row.mode}, {row.size}: {figure(intensity)} FLOP/B, {amount(speed, 'FLOP/s')}, "
        f"{seconds(row.median_s)}{limited}"
    )


def _summary(points: Sequence[tuple[Row, float, float]], ceilings: Ceilings) -> str:
    told = "; ".join(
        f"{row.phase} {row.mode} {row.size} at {figure(i)} FLOP/B reaches {amount(s, 'FLOP/s')}" for row, i, s in points
    )
    read = max(rate for _, rate in ceilings.read)
    return (
        f"Roofline. Ceilings: {amount(ceilings.quant_flops, 'FLOP/s')} quantised, "
        f"{amount(ceilings.float_flops, 'FLOP/s')} float32, reading up to {amount(read, 'B/s')}. {told}."
    )


def _numbers(points: Sequence[tuple[Row, float, float]]) -> Table:
    columns = [
        Column("Step", words=True),
        Column("Mode", words=True),
        Column("Intensity", "FLOP/B"),
        Column("Work", "GFLOP/s"),
        Column("Traffic", "GB/s"),
    ]
    table = Table("Points of the roofline", columns)
    for row, intensity, speed in points:
        traffic = figure(speed / intensity / 1e9)
        table.add(f"{row.phase}, {row.size}", row.mode, figure(intensity), figure(speed / 1e9), traffic)
    return table


PART = Part(
    "rooflines",
    "Rooflines",
    "Under the slope a step waits for bytes, under the flat roof for arithmetic. Decode reads every weight for one "
    "token and stands far to the left; prefill spends each weight on many tokens and moves right.",
    "phaseline measure MODEL",
    draw,
)
