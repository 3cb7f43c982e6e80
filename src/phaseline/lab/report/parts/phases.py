"""The phase table: every kind of step, how long, how fast, at which limit; and the phase ratio of each mode."""

from collections.abc import Sequence

from phaseline.lab.report.amounts import NONE, figure, milliseconds, rate, times, whole
from phaseline.lab.report.fields import Fields
from phaseline.lab.report.markup import Child, Markup, tag
from phaseline.lab.report.parts.base import Part, block
from phaseline.lab.report.record import Record, Row
from phaseline.lab.report.tables import Column, Table, bar

_MODES = {
    "walk": "one token a step",
    "layer": "layer loop outside, one row at a time",
    "eager": "whole chunks, a call for each operation",
    "dispatch": "one row at a time inside the experts",
    "chunk": "whole steps in one call",
}
_KINDS = ("measure", "prefill", "decode", "batch", "compare")


def draw(records: Sequence[Record]) -> list[Markup]:
    shown = []
    for record in records:
        rows = record.rows() if record.kind in _KINDS else []
        ratios = [Ratio.read(one) for one in record.fields.children("phase_ratios")] if record.kind == "measure" else []
        if rows:
            lost = [tag("li", told) for told in record.failures()]
            table = phase_table(rows).draw()
            bars = _ratio_bars(ratios) if ratios else None
            shown.append(block(record, bars, table, tag("ul", lost, class_="notes") if lost else None))
    return shown


class Ratio:
    """A row of `phase_ratios`."""

    def __init__(self, fields: Fields) -> None:
        self.mode = fields.maybe_text("mode") or ""
        self.ratio = fields.positive("ratio")
        self.prefill_tokens, self.decode_context = fields.whole("prefill_tokens"), fields.whole("decode_context")
        self.prefill_tok_s, self.decode_tok_s = fields.positive("prefill_tok_s"), fields.positive("decode_tok_s")
        self.marginal_tok_s = fields.maybe_positive("marginal_tok_s")

    @classmethod
    def read(cls, fields: Fields) -> "Ratio":
        return cls(fields)


def phase_table(rows: Sequence[Row]) -> Table:
    """All rows of one record; columns that would be empty are left out."""
    priced, judged = any(row.flops for row in rows), any(row.limit for row in rows)
    several = any(row.streams > 1 for row in rows)
    columns = [Column("Phase", words=True), Column("System" if any(row.system for row in rows) else "Mode", words=True)]
    columns += [Column("Size", "tokens"), *([Column("Streams")] if several else [])]
    columns += [Column("Time", "ms"), Column("\u00b1", "ms"), Column("Rate", "tok/s")]
    columns += [Column("Limit", words=True), Column("explains", "of the time", words=True)] if judged else []
    columns += [Column("Work", "GFLOP/s"), Column("Traffic", "GB/s")] if priced else []
    table = Table("Every kind of step that was measured: median and median deviation of its time", columns)
    before = None
    for row in rows:
        size = whole(row.tokens if row.phase == "prefill" else row.context)
        cells: list[Child] = [tag("span", row.phase, class_=f"phase {row.phase}"), row.name, size]
        cells += [row.streams] if several else []
        deviation = milliseconds(row.spread_s, 2) if len(row.seconds) > 1 else NONE
        cells += [milliseconds(row.median_s), deviation, figure(row.tok_s)]
        if judged:
            cells += [limit(row), NONE if row.fraction is None else bar(row.fraction, row.phase)]
        if priced:
            cells += [NONE if work is None else figure(work / row.median_s / 1e9) for work in (row.flops, row.bytes)]
        table.add(*cells, new_group=row.phase != before)
        before = row.phase
    return table


def limit(row: Row) -> Markup:
    """The limit's name, as a badge where there is one."""
    return Markup(NONE) if row.limit is None else badge(row.limit, inferred=row.inferred)


def badge(name: str, *, inferred: bool = False) -> Markup:
    """The name of a limit; "unknown" is no name."""
    known = name in ("launch", "bandwidth", "compute", "capacity")
    return tag("span", name, " (inferred)" if inferred else None, class_="badge" if known else "badge unknown")


def _ratio_bars(ratios: Sequence[Ratio]) -> Markup:
    """Prefill's rate over decode's for each way to read a prompt."""
    most = max(1.0, *(one.ratio for one in ratios))
    items = []
    for one in ratios:
        width = f"width:{100 * one.ratio / most:.1f}%"
        fill = tag("span", tag("span", style=width, class_="fill prefill"), class_="bar", aria_hidden="true")
        marginal = f"; marginal {rate(one.marginal_tok_s)}" if one.marginal_tok_s else ""
        told = f"{rate(one.prefill_tok_s)} at {whole(one.prefill_tokens)} tokens{marginal}"
        name = tag("span", tag("b", one.mode), " ", tag("small", _MODES.get(one.mode, "")), class_="name")
        items.append(
            tag("li", name, fill, tag("b", times(one.ratio), class_="value"), tag("small", told, class_="told"))
        )
    decode = ratios[0]
    against = f"{rate(decode.decode_tok_s)} of one stream at context {whole(decode.decode_context)}"
    return tag(
        "div",
        tag("h4", "Phase ratio: prefill rate over decode rate"),
        tag("ul", items, class_="bars"),
        tag("p", f"Decode is {against}. A ratio of about 1 means that prompts are not read in batches.", class_="hint"),
    )


PART = Part(
    "phases",
    "The phases",
    "Prefill reads the prompt, decode writes the answer a token at a time. The limit is what holds a step back; beside "
    "it stands how much of the measured time it explains. Where no limit explains half of it, the limit is unknown.",
    "phaseline measure MODEL",
    draw,
)
