"""Systems side by side: how fast each is in each phase, held against the first one, and the denominators."""

from collections.abc import Sequence

from phaseline.lab.report.amounts import NONE, TIMES, figure, share, shortened, times, whole
from phaseline.lab.report.fields import Fields
from phaseline.lab.report.forest import Estimate, forest
from phaseline.lab.report.markup import Child, Markup, tag
from phaseline.lab.report.parts.base import Part, block
from phaseline.lab.report.plots import DECODE, PREFILL
from phaseline.lab.report.record import Record, of_kind
from phaseline.lab.report.scales import log_axis
from phaseline.lab.report.tables import Column, Table

_PHASES = (("prefill", PREFILL), ("decode", DECODE))


def draw(records: Sequence[Record]) -> list[Markup]:
    shown = []
    for record in of_kind(records, "compare"):
        standings = record.fields.children("standings")
        if standings:
            denominators, noise = record.fields.children("denominators"), record.fields.child("noise")
            parts = [_forest(standings), _table(standings).draw(), _noise(noise), _denominators(denominators)]
            shown.append(block(record, parts))
    return shown


def _forest(standings: Sequence[Fields]) -> Markup | None:
    """Speed over the reference's, with intervals over rounds."""
    reference = standings[0].text("system")
    rows = []
    for one in standings[1:]:
        for phase, look in _PHASES:
            key = f"{phase}_of_reference"
            if key not in one:
                continue
            ratio, name = one.child(key), f"{shortened(one.text('system'))}, {phase}"
            low, high = ratio.maybe_positive("low"), ratio.maybe_positive("high")
            told = f"{name}: {times(ratio.positive('value'), 3)} as fast{_interval(low, high)}"
            rows.append(Estimate(name, ratio.positive("value"), low, high, look, told))
    if not rows:
        return None
    ends = [end for row in rows for end in (row.value, row.low, row.high) if end]
    axis = log_axis("speed over that of the reference", [*ends, 0.8, 1.25], label=lambda v: f"{figure(v, 1)}{TIMES}")
    told = f"Right of 1 is faster than {reference}. Bars are 95% intervals over rounds, both in the same round."
    return forest(rows, axis, 1.0, told)


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" ({figure(low)} to {figure(high)})"


def _table(standings: Sequence[Fields]) -> Table:
    columns = [Column("System", words=True), Column("Prefill", "tok/s"), Column("at", "tokens")]
    columns += [Column("marginal", "tok/s"), Column("Decode", "tok/s"), Column("at context", "tokens")]
    columns += [Column("Phase ratio"), Column("Worst phase", words=True), Column("ratio there")]
    table = Table("The first system is the reference", columns)
    for one in standings:
        own = one.child("phase_ratio").maybe_positive("value")
        table.add(
            one.text("system"),
            figure(one.maybe_positive("prefill_tok_s")),
            whole(one.maybe_whole("prefill_tokens")),
            figure(one.maybe_positive("marginal_tok_s")),
            figure(one.maybe_positive("decode_tok_s")),
            whole(one.maybe_whole("decode_context")),
            times(own),
            one.maybe_text("worst_phase") or NONE,
            times(one.child("worst_ratio").maybe_positive("value"), 3),
        )
    return table


def _noise(found: Fields) -> Markup | None:
    known = [(phase, found.maybe_number(phase)) for phase, _ in _PHASES]
    told = ", ".join(f"{phase} {share(value)}" for phase, value in known if value is not None)
    return tag("p", f"The reference against itself differs by up to: {told}.", class_="hint") if told else None


def _denominators(found: Sequence[Fields]) -> Markup | None:
    if not found:
        return None
    columns = [Column("Denominator", words=True), Column("Of", words=True), Column("over", words=True)]
    columns += [Column("Prefill"), Column("Decode"), Column("Where from", words=True)]
    table = Table("A ratio is worth what it is divided by: three denominators, each by itself", columns)
    for one in found:
        ratios = (_ratio(one.child(phase)) for phase, _ in _PHASES)
        table.add(one.text("kind"), one.text("of"), one.text("against"), *ratios, _origin(one))
    return table.draw()


def _ratio(found: Fields) -> str:
    ends = _interval(found.maybe_positive("low"), found.maybe_positive("high"))
    return times(found.maybe_positive("value"), 3) + ends


def _origin(one: Fields) -> Child:
    expired = tag("b", " (expired)", class_="lost") if one.maybe_flag("expired") else None
    until = f"good until {one.text('expires')}" if "expires" in one else None
    parts = [one.maybe_text("date"), one.maybe_text("commit"), one.maybe_text("command"), until]
    return [", ".join(part for part in parts if part), expired]


PART = Part(
    "compare",
    "Comparison",
    "The same work by turns. A phase far behind with a phase ratio near 1 looks like a missing feature; one that is "
    "behind by less looks like tuning.",
    "phaseline lab compare A B",
    draw,
)
