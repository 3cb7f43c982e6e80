"""The guard: what each phase lost against its base, how sure that is, and whether the guard itself was seen to work."""

from collections.abc import Sequence

from phaseline.lab.report.amounts import figure, milliseconds, share, whole
from phaseline.lab.report.fields import Fields
from phaseline.lab.report.forest import Estimate, forest
from phaseline.lab.report.markup import Markup, tag
from phaseline.lab.report.parts.base import Part, block
from phaseline.lab.report.plots import DECODE, PREFILL
from phaseline.lab.report.record import Record, of_kind
from phaseline.lab.report.scales import linear_axis
from phaseline.lab.report.tables import Column, Table


def draw(records: Sequence[Record]) -> list[Markup]:
    shown = []
    for record in of_kind(records, "guard", "guard-noise", "guard-prove"):
        rows, noise = record.fields.children("results"), record.fields.child("noise")
        parts = []
        if record.kind == "guard" and rows:
            parts = [_forest(rows), _losses(rows).draw()]
        if record.kind == "guard-prove" and rows:
            parts = [_rates(record.fields.children("rates")).draw(), _trials(rows).draw()]
        known = [(phase, noise.maybe_number(phase)) for phase in ("prefill", "decode")]
        told = "; ".join(f"{phase} {share(value)}" for phase, value in known if value is not None)
        parts += (
            [tag("p", f"One thing against itself seems to differ by up to: {told}.", class_="hint")] if told else []
        )
        if parts:
            shown.append(block(record, parts))
    return shown


def _forest(rows: Sequence[Fields]) -> Markup:
    """Loss of time in per cent, with its bounds, and the floor that is allowed."""
    estimates = []
    for row in rows:
        phase = row.text("phase")
        value, low, high = (row.number("loss"), row.maybe_number("low"), row.maybe_number("high"))
        name = f"{phase} against {row.text('reference')}: {row.text('verdict')}"
        ends = f" ({share(low)} to {share(high)})" if low is not None and high is not None else ""
        look = PREFILL if phase == "prefill" else DECODE
        estimates.append(
            Estimate(name, 100 * value, _per_cent(low), _per_cent(high), look, f"{name}, lost {share(value)}{ends}")
        )
    floor = 100 * max(row.number("floor") for row in rows)
    span = [end for one in estimates for end in (one.value, one.low, one.high) if end is not None]
    axis = linear_axis("time lost, %", [*span, floor, -floor])
    told = f"Left of 0 is faster. The shaded ground is the floor, up to {figure(floor)} %: a loss in it passes."
    return forest(estimates, axis, 0.0, told, allowed=floor)


def _per_cent(value: float | None) -> float | None:
    """Bounded, as a bound may lie anywhere."""
    return None if value is None else 100 * max(-1.0, min(1.0, value))


def _losses(rows: Sequence[Fields]) -> Table:
    columns = [
        Column("Phase", words=True),
        Column("Against", words=True),
        Column("Head", "ms"),
        Column("Reference", "ms"),
    ]
    columns += [
        Column("Lost"),
        Column("from"),
        Column("to"),
        Column("Floor"),
        Column("Replicates"),
        Column("Verdict", words=True),
    ]
    table = Table("Time lost; each bound holds by itself", columns)
    for row in rows:
        table.add(
            tag("span", row.text("phase"), class_="phase"),
            row.text("reference"),
            *(milliseconds(row.maybe_positive(key)) for key in ("head_s", "reference_s")),
            *(share(row.maybe_number(key)) for key in ("loss", "low", "high", "floor")),
            whole(row.maybe_whole("replicates")),
            row.text("verdict"),
        )
    return table


def _rates(found: Sequence[Fields]) -> Table:
    columns = [
        Column("Slowed", words=True),
        Column("Trials"),
        Column("Refused"),
        Column("Undecided"),
        Column("As it should"),
    ]
    table = Table("What the guard did, by what was slowed", columns)
    for one in found:
        table.add(
            one.text("injected"), *(whole(one.whole(key)) for key in ("trials", "refused", "undecided", "as_expected"))
        )
    return table


def _trials(rows: Sequence[Fields]) -> Table:
    columns = [
        Column("Trial"),
        Column("Slowed", words=True),
        Column("by"),
        Column("Prefill lost"),
        Column("Decode lost"),
    ]
    table = Table("Every trial", [*columns, Column("Replicates"), Column("As it should", words=True)])
    for row in rows:
        losses = (share(row.child("losses").maybe_number(phase)) for phase in ("prefill", "decode"))
        good = "yes" if row.flag("as_expected") else tag("b", "NO", class_="lost")
        table.add(
            row.whole("trial") + 1,
            row.text("injected"),
            share(row.number("by")),
            *losses,
            row.whole("replicates"),
            good,
        )
    return table


PART = Part(
    "guard",
    "Guard",
    "Head against base by turns, correctness first, both phases. A phase that lost more than its floor is refused, "
    "whatever the other gained.",
    "phaseline guard check",
    draw,
)
