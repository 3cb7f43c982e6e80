"""The page: all parts in order, what is not in the records, and the style, in one file that needs no other."""

from collections.abc import Sequence
from importlib.resources import files

from phaseline.lab.report.amounts import NONE, count
from phaseline.lab.report.markup import Markup, join, prose, tag
from phaseline.lab.report.parts import (
    chunk,
    compare,
    curves,
    endtoend,
    gaps,
    glance,
    guard,
    interference,
    load,
    phases,
    provenance,
    regime,
    roofline,
)
from phaseline.lab.report.parts.base import Part
from phaseline.lab.report.record import Record

PARTS: Sequence[Part] = (
    phases.PART,
    roofline.PART,
    regime.PART,
    curves.PREFILL_PART,
    curves.DECODE_PART,
    curves.BATCH_PART,
    chunk.PART,
    interference.PART,
    endtoend.PART,
    load.PART,
    gaps.PART,
    compare.PART,
    guard.PART,
    provenance.CALIBRATION,
    provenance.PROVENANCE,
)
# Nothing may be fetched or run, whatever a record says.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def report_page(records: Sequence[Record]) -> str:
    """One HTML document of what the records hold. Raises FileFormatError, naming the place, for a malformed record."""
    drawn = [(part, part.draw(records)) for part in PARTS]
    shown = [(part, blocks) for part, blocks in drawn if blocks]
    title = _title(records)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("link", rel="icon", href="data:,"),
        tag("style", _style("phaseline", "palette.css"), _style(__package__, "page.css")),
    )
    body = tag(
        "body",
        tag("a", "Skip to the results", href="#glance", class_="skip"),
        tag("header", tag("p", "Phaseline lab report", class_="kicker"), tag("h1", title), glance.dateline(records)),
        tag("nav", _contents([part for part, _ in shown]), aria_label="Contents"),
        tag(
            "main",
            glance.draw(records),
            (_section(part, blocks) for part, blocks in shown),
            _absent([part for part, blocks in drawn if not blocks]),
        ),
        tag("footer", tag("p", "Derived from raw records by phaseline report; nothing was measured for this page.")),
        class_="single" if len(records) == 1 else None,
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _style(package: str, name: str) -> Markup:
    return Markup(files(package).joinpath(name).read_text(encoding="utf-8"))


def _title(records: Sequence[Record]) -> str:
    models = list(dict.fromkeys(record.model for record in records if record.model))
    return f"Prefill and decode of {models[0] if len(models) == 1 else count(len(models) or 1, 'model')}"


def _contents(parts: Sequence[Part]) -> Markup:
    return tag("ul", (tag("li", tag("a", prose(part.title), href=f"#{part.anchor}")) for part in parts))


def _section(part: Part, blocks: Sequence[Markup]) -> Markup:
    return tag(
        "section",
        tag("h2", prose(part.title)),
        tag("p", prose(part.about), class_="about"),
        join(blocks),
        id=part.anchor,
    )


def _absent(parts: Sequence[Part]) -> Markup | None:
    if not parts:
        return None
    lines = [tag("li", tag("b", prose(part.title)), f" {NONE} ", part.source) for part in parts]
    return tag("section", tag("h2", "Not in these records"), tag("ul", lines, class_="absent"), id="absent")
