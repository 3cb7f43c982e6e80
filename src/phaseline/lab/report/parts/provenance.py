"""Where each record comes from: machine, build, versions, date and command; and how true its clock was."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from phaseline.lab.report.amounts import NONE, amount, figure, seconds, whole
from phaseline.lab.report.fields import Fields
from phaseline.lab.report.markup import Child, Markup, tag
from phaseline.lab.report.parts.base import Part, block
from phaseline.lab.report.record import Record
from phaseline.lab.report.tables import Column, Table

_MOST_DEPTH = 4
_Lines = tuple[tuple[str, Child], ...]


def draw_calibration(records: Sequence[Record]) -> list[Markup]:
    return [
        block(record, _calibration(record.fields.child("calibration")))
        for record in records
        if "calibration" in record.fields
    ]


def draw(records: Sequence[Record]) -> list[Markup]:
    told: dict[str, list[tuple[Record, _Lines]]] = {}  # what was told already, by what it is about
    return [_card(record, told) for record in records]


def _calibration(found: Fields) -> Markup:
    exact = found.maybe_flag("counts_exact")
    verdict = {True: "every event came, in order", False: "EVENTS WERE LOST OR OUT OF ORDER", None: "not said"}[exact]
    columns = [Column("Error of this client's clock", words=True), Column("Median", "ms"), Column("p99", "ms")]
    table = Table("Stamps of the client held against a scripted server's own", [*columns, Column("Largest", "ms")])
    for name, key in (("when an event arrived", "error_ms"), ("when a request was sent", "request_ms")):
        if key in found:
            one = found.child(key)
            table.add(name, *(figure(one.maybe_number(part)) for part in ("p50", "p99", "max")))
    told = f"{found.maybe_whole('events') or 'no'} events on {found.maybe_whole('streams') or 'no'} streams: {verdict}."
    return tag("div", tag("p", told, class_=None if exact else "warning"), table.draw())


def _card(record: Record, told: dict[str, list[tuple[Record, _Lines]]]) -> Markup:
    """Everything about one record; of what was told of another before, only what differs."""
    drawn = []
    for name, lines in _groups(record):
        before = told.setdefault(name, [])
        like = next(((r, other) for r, other in before if _nearly(lines, other)), None)
        reference = None
        if like is None:
            before.append((record, lines))
        else:
            changed = [line for line in lines if line not in like[1]]
            link = tag("a", like[0].mark, href=f"#{like[0].mark}")
            reference = tag("p", "as ", link, ", but for:" if changed else None)
            lines = tuple(changed)
        facts = tag("dl", ((tag("dt", key), tag("dd", value)) for key, value in lines))
        drawn.append(tag("div", tag("h4", name), reference, facts if lines else None, class_="facts"))
    head = tag("h3", tag("span", record.mark, class_="mark"), " ", record.title)
    return tag("section", head, drawn, id=record.mark, class_="source")


def _nearly(lines: _Lines, other: _Lines) -> bool:
    """The same facts, of which hardly any differ."""
    changed = sum(line not in other for line in lines)
    return [key for key, _ in lines] == [key for key, _ in other] and changed <= min(2, len(lines) / 3)


def _groups(record: Record) -> Iterator[tuple[str, _Lines]]:
    """Facts by what they are about."""
    fields = record.fields
    run: list[tuple[str, Child]] = [
        ("record", tag("code", record.source)),
        ("command", tag("code", fields.maybe_text("command") or NONE)),
        *((key, fields.maybe_text(key) or NONE) for key in ("date", "python", "platform")),
        ("phaseline", fields.maybe_text("version") or NONE),
    ]
    yield "run", tuple(run)
    groups = [(key, fields.child(key)) for key in ("model", "system", "machine", "build")]
    groups += [(role or f"system {n}", one) for n, (role, one) in enumerate(record.systems(), 1)]
    for name, one in groups:
        if lines := tuple(_flat(one)):
            yield name, lines
    if "ceilings" in fields:
        yield "ceilings", tuple(_ceilings(fields.child("ceilings")))


def _flat(fields: Fields) -> Iterator[tuple[str, Child]]:
    """Every plain value of an object, nested names joined; ceilings have their units."""
    for key, value in fields.items():
        if key == "ceilings":
            yield from _ceilings(fields.child(key))
        else:
            yield from _leaves(key.replace("_", " "), value, 0)


def _leaves(name: str, value: Any, depth: int) -> Iterator[tuple[str, Child]]:
    if isinstance(value, Mapping) and depth < _MOST_DEPTH:
        for key, inner in value.items():
            yield from _leaves(f"{name}, {key}", inner, depth + 1)
    elif value is not None:
        yield name, _told(name, value)


def _told(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        size = "bytes" in name or "memory" in name
        return (
            amount(float(value), "B")
            if size and abs(value) < 1e18
            else whole(value)
            if type(value) is int
            else figure(value, 4)
        )
    return f"{value}"[:300]


def _ceilings(found: Fields) -> Iterator[tuple[str, Child]]:
    yield "float32", amount(found.positive("float_flops"), "FLOP/s")
    yield "quantised", amount(found.positive("quant_flops"), "FLOP/s")
    for one in found.children("read"):
        speed = amount(one.positive("bytes_per_s"), "B/s")
        yield f"reading {amount(one.positive('footprint'), 'B')}", speed
    yield "empty step, one call", seconds(found.maybe_number("empty_plan"))
    yield "empty step, a call for each operation", seconds(found.maybe_number("empty_eager"))


CALIBRATION = Part(
    "calibration",
    "Calibration of the clock",
    "Before a server is measured over HTTP, the lab measures a server whose timeline is known. What it gets wrong "
    "there is its own error.",
    "phaseline lab EXPERIMENT --calibrate (the default over HTTP)",
    draw_calibration,
)
PROVENANCE = Part(
    "provenance",
    "Where this was measured",
    "What it takes to measure it again.",
    "any record",
    draw,
)
