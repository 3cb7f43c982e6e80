"""What every part of the page is: a heading, a word on how to read it, and something to show for each record."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from phaseline.lab.report.markup import Child, Markup, tag
from phaseline.lab.report.record import Record


@dataclass(frozen=True)
class Part:
    """`draw` gives nothing where no record has what it shows; `source` says what would have given it."""

    anchor: str
    title: str
    about: str
    source: str
    draw: Callable[[Sequence[Record]], list[Markup]]


def block(record: Record, *content: Child) -> Markup:
    """What a part shows of one record, under the record's name."""
    mark = tag("a", record.mark, href=f"#{record.mark}", class_="mark", title="where this was measured")
    return tag("div", tag("h3", mark, " ", record.title), content, class_="block")
