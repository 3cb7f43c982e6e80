"""Whole requests over a grid of lengths: the time of each, and how the phases share it."""

from collections.abc import Sequence

from phaseline.lab.report.amounts import NONE, count, figure, milliseconds, share, whole
from phaseline.lab.report.fields import Fields
from phaseline.lab.report.markup import Markup, tag
from phaseline.lab.report.parts.base import Part, block
from phaseline.lab.report.record import Record, of_kind
from phaseline.lab.report.tables import Column, Table


def draw(records: Sequence[Record]) -> list[Markup]:
    shown = []
    for record in of_kind(records, "endtoend"):
        rows = record.fields.children("results")
        if rows:
            shown.append(block(record, _grid(rows).draw(), _balance(record.fields.children("balance"))))
    return shown


def _grid(rows: Sequence[Fields]) -> Table:
    judged = any("slo_attainment" in row for row in rows)
    columns = [Column("Prompt", "tokens"), Column("Output", "tokens"), Column("TTFT", "ms"), Column("TPOT", "ms")]
    columns += [Column("Worst gap", "ms"), Column("End to end", "ms")]
    columns += [Column("Prefill | decode", "share of the time", words=True)]
    columns += [*([Column("Goodput", "of requests")] if judged else []), Column("Failed")]
    table = Table("Medians of whole requests, one stream at a time; the worst gap is the largest of all", columns)
    prompt = None
    for row in rows:
        times = (milliseconds(row.maybe_positive(key)) for key in ("ttft_s", "tpot_s", "worst_gap_s", "e2e_s"))
        table.add(
            whole(row.whole("prompt")),
            whole(row.whole("output")),
            *times,
            shares(row.maybe_number("prefill_share")),
            *([share(row.maybe_number("slo_attainment"))] if judged else []),
            f"{row.maybe_whole('failed') or 0} of {row.maybe_whole('samples') or 0}",
            new_group=row.whole("prompt") != prompt,
        )
        prompt = row.whole("prompt")
    return table


def shares(prefill: float | None) -> Markup:
    """Both phases' shares as one bar of two colours."""
    if prefill is None:
        return Markup(NONE)
    left = 100 * max(0.0, min(1.0, prefill))
    parts = [
        tag("span", class_=f"fill {phase}", style=f"width:{width:.1f}%")
        for phase, width in (("prefill", left), ("decode", 100 - left))
    ]
    told = f"{share(prefill)} | {share(1 - prefill)}"
    return tag("span", tag("span", parts, class_="bar split", aria_hidden="true"), told, class_="bar-cell")


def _balance(found: Sequence[Fields]) -> Markup | None:
    if not found:
        return None
    pairs = [
        f"{figure(one.positive('output_tokens'))} after a prompt of {count(one.whole('prompt'), 'token')}"
        for one in found
    ]
    told = "Output tokens after which decode has taken as long as the first token did: " + "; ".join(pairs) + "."
    return tag("p", told, class_="hint")


PART = Part(
    "endtoend",
    "End to end",
    "TTFT is prefill and one selection, with no decode step in it; TPOT is the time of each later token. Which of the "
    "two makes a request slow depends on both lengths.",
    "phaseline lab endtoend",
    draw,
)
