"""Tables that scroll by themselves where a phone is too narrow for them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from phaseline.lab.report.amounts import share
from phaseline.lab.report.markup import Child, Markup, tag


@dataclass(frozen=True)
class Column:
    """A head, with its unit below it; words stand left, numbers right."""

    head: str
    unit: str = ""
    words: bool = False


@dataclass
class Table:
    """Rows of cells under heads; `caption` says what they are."""

    caption: str
    columns: Sequence[Column]
    rows: list[Sequence[Child]] = field(default_factory=list)
    breaks: set[int] = field(default_factory=set)  # rows that begin a new group

    def add(self, *cells: Child, new_group: bool = False) -> None:
        if new_group and self.rows:
            self.breaks.add(len(self.rows))
        self.rows.append(cells)

    def draw(self) -> Markup:
        """The table; its first column names each row."""
        heads = [
            tag("th", c.head, tag("span", c.unit, class_="unit") if c.unit else None, scope="col", class_=_kind(c))
            for c in self.columns
        ]
        body = [
            tag(
                "tr", (self._cell(n, cell) for n, cell in enumerate(row)), class_="group" if at in self.breaks else None
            )
            for at, row in enumerate(self.rows)
        ]
        table = tag(
            "table", tag("caption", tag("span", self.caption)), tag("thead", tag("tr", heads)), tag("tbody", body)
        )
        return tag("div", table, class_="scroll", tabindex=0, role="group", aria_label=self.caption)

    def folded(self) -> Markup:
        """Behind a fold, under a figure."""
        return tag("details", tag("summary", "The numbers"), self.draw())

    def _cell(self, at: int, cell: Child) -> Markup:
        kind = _kind(self.columns[at])
        return tag("th", cell, scope="row", class_=kind) if at == 0 else tag("td", cell, class_=kind)


def bar(fraction: float, kind: str) -> Markup:
    """A fraction as a number and as a bar as long; more than all of it fills the bar."""
    width = f"width:{100 * max(0.0, min(1.0, fraction)):.1f}%"
    drawn = tag("span", tag("span", style=width, class_=f"fill {kind}"), class_="bar", aria_hidden="true")
    return tag("span", drawn, share(fraction), class_="bar-cell")


def _kind(column: Column) -> str | None:
    return "words" if column.words else None
