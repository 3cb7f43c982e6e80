"""The phase table: every kind of step, how long, how fast, at which limit; and the phase ratio of each mode."""

from collections.abc import Sequence

from phaseline.lab.report.amounts import NONE, figure, milliseconds, rate
from phaseline.lab.report.fields import Fields
from phaseline.lab.report.markup import Markup, tag
from phaseline.lab.report.parts.base import Part, block
from phaseline.lab.report.record import Record, Row
from phaseline.lab.report.tables import Column, Table, bar

_MODES = {
    "walk": "one token a step",
    "layer": "layer loop outside, one row at a time",
    "eager": "whole chunks, a call for each operation",
    "chunk": "whole steps in one call",
}
_KINDS = ("measure", "prefill", "decode", "batch")


def draw(records: Sequence[Record]) -> list[Markup]:
    shown = []
    for record in records:
        rows = record.rows() if record.kind in _KINDS else []
        ratios = [Ratio.read(one) for one in record.fields.children("phase_ratios")] if record.kind == "measure" else []
        if rows:
            shown.append(block(record, _ratio_bars(ratios) if ratios else None, phase_table(rows).draw()))
    return shown


class Ratio:
    """A row of `phase_ratios`."""

    def __init__(self, fields: Fields) -> None:
        self.mode = fields.text("mode")
        self.ratio = fields.positive("ratio")
        self.prefill_tokens, self.decode_context = fields.whole("prefill_tokens"), fields.whole("decode_context")
        self.prefill_tok_s, self.decode_tok_s = fields.positive("prefill_tok_s"), fields.positive("decode_tok_s")
        self.marginal_tok_s = fields.maybe_positive("marginal_tok_s")

    @classmethod
    def read(cls, fields: Fields) -> "Ratio":
        return cls(fields)

    @property
    def times(self) -> str:
        return f"{figure(self.ratio, 2)}×"


def phase_table(rows: Sequence[Row]) -> Table:
    """All rows of one record."""
    table = Table(
        "Every kind of step that was measured: median and median deviation of its time",
        [
            Column("Phase", words=True),
            Column("Mode", words=True),
            Column("Size", "tokens"),
            Column("Streams"),
            Column("Time", "ms"),
            Column("±", "ms"),
            Column("Rate", "tok/s"),
            Column("Work", "GFLOP/s"),
            Column("Traffic", "GB/s"),
            Column("Limit", words=True),
            Column("of it", words=True),
        ],
    )
    before = None
    for row in rows:
        table.add(
            tag("span", row.phase, class_=f"phase {row.phase}"),
            row.mode,
            figure(row.tokens if row.phase == "prefill" else row.context, 15),
            row.streams,
            milliseconds(row.median_s),
            milliseconds(row.spread_s, 2) if len(row.seconds) > 1 else NONE,
            figure(row.tok_s),
            NONE if row.flops is None else figure(row.flops / row.median_s / 1e9),
            NONE if row.bytes is None else figure(row.bytes / row.median_s / 1e9),
            limit(row),
            NONE if row.fraction is None else bar(row.fraction, row.phase),
            new_group=row.phase != before,
        )
        before = row.phase
    return table


def limit(row: Row) -> Markup:
    """The limit's name as a badge."""
    if row.limit is None:
        return Markup(NONE)
    known = row.limit in ("launch", "bandwidth", "compute", "capacity")
    return tag("span", row.limit, " (inferred)" if row.inferred else None, class_="badge" if known else "badge unknown")


def _ratio_bars(ratios: Sequence[Ratio]) -> Markup:
    """Prefill's rate over decode's for each way to read a prompt."""
    most = max(1.0, *(one.ratio for one in ratios))
    items = []
    for one in ratios:
        width = f"width:{100 * one.ratio / most:.1f}%"
        fill = tag("span", tag("span", style=width, class_="fill prefill"), class_="bar", aria_hidden="true")
        marginal = f"; marginal {rate(one.marginal_tok_s)}" if one.marginal_tok_s else ""
        told = f"{rate(one.prefill_tok_s)} at {figure(one.prefill_tokens, 15)} tokens{marginal}"
        name = tag("span", tag("b", one.mode), " ", tag("small", _MODES.get(one.mode, "")), class_="name")
        items.append(tag("li", name, fill, tag("b", one.times, class_="value"), tag("small", told, class_="told")))
    decode = ratios[0]
    against = f"{rate(decode.decode_tok_s)} of one stream at context {figure(decode.decode_context, 15)}"
    return tag(
        "div",
        tag("h4", "Phase ratio: prefill rate over decode rate"),
        tag("ul", items, class_="bars"),
        tag("p", f"Decode is {against}. A ratio of about 1 means that prompts are not read in batches.", class_="hint"),
    )


PART = Part(
    "phases",
    "The phases",
    "Prefill reads the prompt, decode writes the answer a token at a time. The limit is what holds a step back, and "
    "“of it” is how much of the measured time that limit explains; “unknown” where no single limit explains half.",
    "phaseline measure MODEL",
    draw,
)
