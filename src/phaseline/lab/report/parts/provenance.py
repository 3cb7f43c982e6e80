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


def draw_calibration(records: Sequence[Record]) -> list[Markup]:
    return [
        block(record, _calibration(record.fields.child("calibration")))
        for record in records
        if "calibration" in record.fields
    ]


def draw(records: Sequence[Record]) -> list[Markup]:
    return [_card(record) for record in records]


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


def _card(record: Record) -> Markup:
    fields = record.fields
    lines: list[tuple[str, Child]] = [
        ("record", tag("code", record.source)),
        ("command", tag("code", fields.maybe_text("command") or NONE)),
        ("date", fields.maybe_text("date") or NONE),
        ("phaseline", fields.maybe_text("version") or NONE),
        ("python", fields.maybe_text("python") or NONE),
        ("platform", fields.maybe_text("platform") or NONE),
    ]
    for key in ("model", "system", "machine", "build"):
        lines += [(f"{key}: {name}", value) for name, value in _flat(fields.child(key))]
    for number, (role, one) in enumerate(record.systems()):
        lines += [(f"{role or f'system {number + 1}'}: {name}", value) for name, value in _flat(one)]
    terms = [(tag("dt", name), tag("dd", value)) for name, value in lines]
    return tag("section", tag("h3", record.mark, " ", record.title), tag("dl", terms), id=record.mark, class_="source")


def _flat(fields: Fields) -> Iterator[tuple[str, str]]:
    """Every plain value of an object, nested names joined; ceilings have their units."""
    for key, value in fields.items():
        if key == "ceilings":
            yield from _ceilings(fields.child(key))
        else:
            yield from _leaves(key.replace("_", " "), value, 0)


def _leaves(name: str, value: Any, depth: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and depth < _MOST_DEPTH:
        for key, inner in value.items():
            yield from _leaves(f"{name} {str(key).replace('_', ' ')}", inner, depth + 1)
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


def _ceilings(found: Fields) -> Iterator[tuple[str, str]]:
    yield "ceiling float32", amount(found.positive("float_flops"), "FLOP/s")
    yield "ceiling quantised", amount(found.positive("quant_flops"), "FLOP/s")
    for one in found.children("read"):
        speed = amount(one.positive("bytes_per_s"), "B/s")
        yield f"ceiling of reading {amount(one.positive('footprint'), 'B')}", speed
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
