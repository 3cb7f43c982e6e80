"""What limits each phase: the claim, the evidence for it, and the same operation by operation."""

from collections.abc import Sequence

from phaseline.lab.report.amounts import NONE, TIMES, figure, milliseconds, whole
from phaseline.lab.report.fields import Fields
from phaseline.lab.report.markup import Markup, tag
from phaseline.lab.report.parts.base import Part, block
from phaseline.lab.report.parts.phases import badge
from phaseline.lab.report.record import Record, of_kind
from phaseline.lab.report.tables import Column, Table, bar


def draw(records: Sequence[Record]) -> list[Markup]:
    shown = []
    for record in of_kind(records, "regime"):
        claims, ops = record.fields.children("results"), record.fields.children("ops")
        if claims:
            shown.append(
                block(
                    record, [_claim(one, [op for op in ops if op.raw("label") == one.raw("label")]) for one in claims]
                )
            )
    return shown


def _claim(one: Fields, ops: Sequence[Fields]) -> Markup:
    fraction, phase = one.maybe_number("fraction"), one.maybe_text("phase") or "mixed"
    drawn = None if fraction is None else bar(fraction, phase if phase in ("prefill", "decode") else "mixed")
    explained = tag("p", "The tightest ceiling explains ", drawn, " of the time.") if drawn else None
    head = tag("h4", one.text("label"), " ", badge(one.text("limit"), inferred=one.maybe_flag("inferred") or False))
    evidence = tag("ul", (tag("li", sentence) for sentence in one.texts("evidence")), class_="notes")
    return tag("div", head, explained, evidence, _operations(one.text("label"), ops) if ops else None, class_="claim")


def _operations(label: str, ops: Sequence[Fields]) -> Markup:
    changes = [change.text("change") for change in ops[0].children("interventions")]
    columns = [
        Column("Operation", words=True),
        Column("Times"),
        Column("Time", "ms"),
        Column("Share", "of the step", words=True),
    ]
    columns += [Column("Limit", words=True), Column("explains", "of the time", words=True)]
    table = Table(
        f"{label}, by operation; on the right, how its time changed when something else was",
        [*columns, *map(Column, changes)],
    )
    for op in sorted(ops, key=lambda one: -(one.maybe_number("share") or 0.0)):
        fraction, part = op.maybe_number("fraction"), op.maybe_number("share")
        factors = {one.text("change"): one.positive("factor") for one in op.children("interventions")}
        table.add(
            op.text("op"),
            whole(op.maybe_whole("count")),
            milliseconds(op.maybe_positive("median_s")),
            NONE if part is None else bar(part, "mixed"),
            badge(op.text("limit"), inferred=op.maybe_flag("inferred") or False),
            NONE if fraction is None else bar(fraction, "mixed"),
            *(f"{TIMES}{figure(factors[change])}" if change in factors else NONE for change in changes),
        )
    return table.draw()


PART = Part(
    "limits",
    "Limits and their evidence",
    "A limit is a claim: its ceiling explains at least half of the time, and nothing that was changed contradicts it. "
    "Inferred means that nothing that was changed could have contradicted it.",
    "phaseline lab regime",
    draw,
)
