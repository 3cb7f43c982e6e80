"""Rooflines: how much arithmetic each kind of step does per byte, and how fast, under the ceilings of the same run."""

from collections.abc import Sequence
from dataclasses import dataclass

from phaseline.lab.report.amounts import amount, count, figure, seconds, shortened, whole
from phaseline.lab.report.markup import Markup
from phaseline.lab.report.parts.base import Part, block
from phaseline.lab.report.plots import DECODE, LEFT, OVER, PREFILL, RIGHT, UNDER, Look, Plot
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
        holders = (record.fields, record.fields.child("machine"))
        found = next((holder.child("ceilings") for holder in holders if "ceilings" in holder), None)
        if found is None:
            return None
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
    points = [
        _Point(row, row.flops / row.bytes, row.flops / row.median_s / 1e9) for row in rows if row.flops and row.bytes
    ]
    flat = {"quantised": ceilings.quant_flops / 1e9, "float32": ceilings.float_flops / 1e9}
    speeds = [speed / 1e9 for _, speed in ceilings.read]
    roof, slow, fast = max(flat.values()), min(speeds), max(speeds)
    x = log_axis("arithmetic intensity, FLOP per byte", [*(p.intensity for p in points), 2 * roof / slow], margin=1.6)
    y = log_axis("arithmetic, GFLOP/s", [*(p.speed for p in points), x.low * slow, roof], margin=1.4)
    plot = Plot(_summary(points, ceilings), x, y, height=320)
    for level in flat.values():
        plot.line([(level / fast, level), (x.high, level)], _ROOF if level == roof else _LOWER)
    slopes = [[(x.low, x.low * speed), (roof / speed, roof)] for speed in (slow, fast)]
    plot.band(slopes[0], slopes[1], _ROOF)
    plot.line(slopes[1], _ROOF)
    for point in points:
        plot.dot(
            point.intensity, point.speed, look_of(point.row), point.told, 1.0 if point.row.mode == "chunk" else 0.9
        )
    for name, level in flat.items():
        plot.label(x.high, level, f"{name} {amount(level * 1e9, 'FLOP/s')}", [("end", -6), ("end", 15)], "ceiling")
    at = (x.low * roof / fast) ** 0.5
    told = f"reads {amount(slow * 1e9, 'B/s')} to {amount(fast * 1e9, 'B/s')}"
    plot.label(at, at * slow, told, [("start", 16), ("start", 34), ("end", -10)], "ceiling")
    for point in points:
        if point.row.mode == "chunk":
            places = [UNDER, OVER, RIGHT, LEFT] if point.row.phase == "prefill" else [RIGHT, LEFT, OVER, UNDER]
            plot.label(point.intensity, point.speed, _short(point.row), places, point.row.phase)
    for one in {(row.phase, row.mode, row.streams > 1): row for row in rows}.values():
        name = f"{one.phase}, {one.mode}" if one.mode else one.phase
        plot.entry(look_of(one), name + (", several streams" if one.streams > 1 else ""), line=False)
    return plot.draw(
        "Beside the points: prompt tokens of prefill, context of decode. The roof has a width on its slope because "
        "reading speed depends on how many bytes a step goes through.",
        _numbers(points),
    )


@dataclass(frozen=True)
class _Point:
    row: Row
    intensity: float  # FLOP per byte
    speed: float  # GFLOP/s

    @property
    def told(self) -> str:
        limited = f"; limit {self.row.limit}" if self.row.limit else ""
        reached = f"{figure(self.intensity)} FLOP/B, {figure(self.speed)} GFLOP/s, {seconds(self.row.median_s)}"
        return f"{self.row.phase} {self.row.mode}, {self.row.size}: {reached}{limited}"


def _short(row: Row) -> str:
    if row.system:
        return shortened(row.system, 16)
    if row.phase == "prefill":
        return whole(row.tokens)
    return count(row.streams, "stream") if row.streams > 1 else whole(row.context)


def look_of(row: Row) -> Look:
    """Colour tells the phase, glyph the mode, hollow more than one stream."""
    base = PREFILL if row.phase == "prefill" else DECODE
    return Look(base.colour, _GLYPHS.get(row.mode, "circle"), hollow=row.streams > 1)


_ROOF, _LOWER = Look("roof"), Look("roof", dash="5 4")


def _summary(points: Sequence[_Point], ceilings: Ceilings) -> str:
    read = max(rate for _, rate in ceilings.read)
    return (
        f"Roofline. Ceilings: {amount(ceilings.quant_flops, 'FLOP/s')} quantised, "
        f"{amount(ceilings.float_flops, 'FLOP/s')} float32, reading up to {amount(read, 'B/s')}. "
        + ". ".join(point.told for point in points)
    )


def _numbers(points: Sequence[_Point]) -> Table:
    columns = [
        Column("Step", words=True),
        Column("Mode", words=True),
        Column("Intensity", "FLOP/B"),
        Column("Work", "GFLOP/s"),
        Column("Traffic", "GB/s"),
    ]
    table = Table("Points of the roofline", columns)
    for p in points:
        table.add(
            f"{p.row.phase}, {p.row.size}",
            p.row.mode,
            figure(p.intensity),
            figure(p.speed),
            figure(p.speed / p.intensity),
        )
    return table


PART = Part(
    "rooflines",
    "Rooflines",
    "Under the slope a step waits for bytes, under the flat roof for arithmetic. Decode reads every weight for one "
    "token and stands far to the left; prefill spends each weight on many tokens and moves right.",
    "phaseline measure MODEL",
    draw,
)
