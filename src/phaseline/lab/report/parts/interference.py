"""A long prompt among streams that decode: what it costs them under each setting, and lanes that show it happen."""

from collections.abc import Sequence

from phaseline.lab.report.amounts import NONE, count, milliseconds, seconds, whole
from phaseline.lab.report.fields import Fields
from phaseline.lab.report.lanes import Block, Lane, draw_lanes, lane_axis, legend
from phaseline.lab.report.markup import Markup, prose, tag
from phaseline.lab.report.parts.base import Part, block
from phaseline.lab.report.record import Record, of_kind
from phaseline.lab.report.scales import Axis
from phaseline.lab.report.tables import Column, Table


def draw(records: Sequence[Record]) -> list[Markup]:
    shown = []
    for record in of_kind(records, "interference", "chunk"):
        rows = [row for row in record.fields.children("results") if "setting" in row]
        timelines = record.fields.children("timelines")
        if rows or timelines:
            shown.append(
                block(record, _timelines(timelines) if timelines else None, _table(rows).draw() if rows else None)
            )
    return shown


def _timelines(found: Sequence[Fields]) -> Markup:
    """One below the other over the same clock, so that they can be compared."""
    drawn = [(one, [_read_lane(lane) for lane in one.children("lanes")]) for one in found]
    drawn = [(one, lanes) for one, lanes in drawn if lanes]
    first = max((one.maybe_number("first_token_s") or 0.0 for one, _ in drawn), default=0.0)
    every = [lane for _, lanes in drawn for lane in lanes]
    axis = lane_axis(every, "time since the prompt was sent, ms", earliest=-_BEFORE * first)
    seen = {block.kind for lane in every for block in lane.blocks}
    kinds = [("prefill stalled", "prefill, a stream stalled"), ("prefill faint", "prefill, none stalled")]
    kinds = [(kind, name) for kind, name in kinds if kind in seen]
    keys = legend([*kinds, ("tick decode", "a token arrives"), ("gap", "worst gap")])
    return tag(
        "figure", keys, (_timeline(one, lanes, axis) for one, lanes in drawn), tag("figcaption", prose(_CAPTION))
    )


_BEFORE = 0.3  # of the longest wait for the first token: how much is drawn of the time before
_CAPTION = (
    "One run of each setting, that of the median worst gap. The prompt's blocks are gaps of the first stream before "
    "the prompt's first token: seen from outside, this is all that can be known of chunks."
)


def _timeline(one: Fields, lanes: Sequence[Lane], axis: Axis) -> Markup:
    first = one.maybe_number("first_token_s")
    marked = [_with_worst(lane, first) for lane in lanes]
    told = f"Timeline, {one.text('setting')}. " + "; ".join(_told(lane) for lane in marked)
    return tag("div", tag("h4", one.text("setting")), draw_lanes(marked, axis, f"{told}.", mark=0.0), class_="timeline")


def _read_lane(fields: Fields) -> Lane:
    name = fields.text("name")
    blocks = []
    for one in fields.children("prefill"):
        start, end = one.number("start"), one.number("end")
        kind = "prefill stalled" if one.maybe_flag("stalled") else "prefill faint"
        blocks.append(Block(start, end, kind, f"{name}: prefill {seconds(end - start)}"))
    return Lane(name, sorted(fields.numbers("ticks")), blocks)


def _with_worst(lane: Lane, first_token: float | None) -> Lane:
    """A stream that was there before has its worst gap marked."""
    worst = None if lane.blocks or first_token is None else lane.worst(0.0, first_token)
    return Lane(lane.name, lane.ticks, [worst]) if worst else lane


def _told(lane: Lane) -> str:
    tips = [one.tip for one in lane.blocks if one.kind == "gap" and one.tip]
    return (
        tips[0]
        if tips
        else f"{lane.name}: {count(len(lane.ticks), 'arrival')}, {count(len(lane.blocks), 'block')} of prefill"
    )


def _table(rows: Sequence[Fields]) -> Table:
    table = Table(
        "What the prompt cost the streams that ran, and what it waited itself: medians over the runs",
        [
            Column("Setting", words=True),
            Column("Worst gap", "ms"),
            Column("95% interval", "ms"),
            Column("Median gap", "ms"),
            Column("before", "ms"),
            Column("TTFT of the prompt", "ms"),
            Column("95% interval", "ms"),
            Column("Stalls"),
            Column("at most"),
        ],
    )
    for row in rows:
        stalls = row.numbers("stalls")
        table.add(
            row.text("setting"),
            milliseconds(row.maybe_positive("worst_gap_s")),
            interval(row, "worst_gap_interval_s"),
            milliseconds(row.maybe_positive("median_gap_s")),
            milliseconds(row.child("before").maybe_positive("median_gap_s")),
            milliseconds(row.maybe_positive("ttft_s")),
            interval(row, "ttft_interval_s"),
            f"{whole(min(stalls))} to {whole(max(stalls))}"
            if stalls and min(stalls) < max(stalls)
            else whole(next(iter(stalls), None)),
            whole(row.maybe_whole("most_stalls")),
        )
    return table


def interval(row: Fields, key: str) -> str:
    """Low to high of an interval in seconds, as milliseconds; nothing where there is none."""
    ends = row.numbers(key)
    if len(ends) != 2:
        return NONE
    return " to ".join(milliseconds(end) for end in ends)


PART = Part(
    "interference",
    "Interference",
    "A long prompt arrives while others write. Read at once, it stops them all; read in chunks, it lets a token of "
    "theirs through after each. A stall is a gap above 1.5 times the stream's median before.",
    "phaseline lab interference",
    draw,
)
