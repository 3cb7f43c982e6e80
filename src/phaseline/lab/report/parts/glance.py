"""The top of the page: what each record found, in its own words, and its two or three figures that matter most."""

from collections.abc import Sequence

from phaseline.lab.report.amounts import count, figure, times, whole
from phaseline.lab.report.fields import Fields
from phaseline.lab.report.markup import Markup, tag
from phaseline.lab.report.parts.phases import Ratio
from phaseline.lab.report.record import KINDS, Record


def dateline(records: Sequence[Record]) -> Markup:
    """When and on what, in one line."""
    days = sorted({day[:10] for record in records if (day := record.fields.maybe_text("date"))})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}" if days else "undated"
    processors = dict.fromkeys(record.fields.child("machine").maybe_text("cpu") for record in records)
    where = ", ".join(name for name in processors if name) or "an unnamed processor"
    return tag("p", f"{when} · {where} · {count(len(records), 'record')}", class_="dateline")


def draw(records: Sequence[Record]) -> Markup:
    return tag("section", tag("h2", "At a glance"), (_card(record) for record in records), id="glance")


def _card(record: Record) -> Markup:
    partial = record.fields.maybe_flag("partial")
    warning = tag("p", "Partial: the measuring was interrupted.", class_="warning") if partial else None
    error = record.fields.maybe_text("error")
    failed = tag("p", f"Failed: {error}", class_="warning") if error else None
    figures = [
        tag("div", tag("dt", name), tag("dd", tag("b", value), " ", tag("small", unit)))
        for name, value, unit in _figures(record)
    ]
    return tag(
        "article",
        tag("h3", tag("a", record.mark, href=f"#{record.mark}", class_="mark"), " ", record.title),
        warning,
        failed,
        tag("dl", figures, class_="figures") if figures else None,
        (tag("p", sentence, class_="finding") for sentence in _findings(record)),
        class_="card",
    )


def _findings(record: Record) -> list[str]:
    told = record.fields.texts("finding")
    if record.kind == "measure":
        told = [_sentence(ratio) for ratio in _ratios(record)[:1]]
    return told or [f"{KINDS[record.kind]}: the record states no finding."]


def _sentence(one: Ratio) -> str:
    meaning = "so prompts are not read in batches" if one.ratio < 1.5 else "so reading in batches pays"
    return (
        f"A prompt of {one.prefill_tokens} tokens is read at {figure(one.prefill_tok_s)} tokens per second, "
        f"{figure(one.ratio, 2)} times as fast as one stream writes at context {one.decode_context}, {meaning}."
    )


def _figures(record: Record) -> list[tuple[str, str, str]]:
    """Name, value and unit of what matters most in a record of this kind."""
    if record.kind in ("measure", "prefill"):
        return [figures for one in _ratios(record)[:1] for figures in _ratio_figures(one)]
    if record.kind == "load" and "summary" in record.fields:
        return _load_figures(record.fields.child("summary"))
    if record.kind == "chunk" and "chunk" in record.fields.child("recommendation"):
        advice = record.fields.child("recommendation")
        return [
            (f"Chunk for gaps up to {figure(advice.positive('budget_ms'))} ms", whole(advice.whole("chunk")), "tokens")
        ]
    return []


def _ratio_figures(one: Ratio) -> list[tuple[str, str, str]]:
    return [
        (f"Prefill, {one.prefill_tokens} tokens", figure(one.prefill_tok_s), "tok/s"),
        (f"Decode, context {one.decode_context}", figure(one.decode_tok_s), "tok/s"),
        ("Phase ratio", times(one.ratio), ""),
    ]


def _load_figures(summary: Fields) -> list[tuple[str, str, str]]:
    due = summary.maybe_number("median_ttft_from_due_ms")
    first = ("Median TTFT", summary.maybe_number("median_ttft_ms")) if due is None else ("Median TTFT from due", due)
    shown = [(*first, "ms"), ("Median TPOT", summary.maybe_number("median_tpot_ms"), "ms")]
    shown.append(("Output tokens", summary.maybe_number("output_throughput"), "per s"))
    return [(name, figure(value), unit) for name, value, unit in shown if value is not None]


def _ratios(record: Record) -> list[Ratio]:
    """The product's way to read a prompt first."""
    fields = record.fields
    found = [Ratio(one) for one in fields.children("phase_ratios")]
    if "phase_ratio" in fields:
        found.append(Ratio(fields.child("phase_ratio")))
    return sorted(found, key=lambda one: one.mode != "chunk")
