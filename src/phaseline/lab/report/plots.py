"""Plots as inline SVG that fit any width: across in per cent, down in pixels, so text keeps its size on a phone."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from phaseline.lab.report.markup import Child, Markup, join, prose, tag
from phaseline.lab.report.scales import Axis, Tick
from phaseline.lab.report.tables import Table

Point = tuple[float, float]
Place = tuple[str, float]  # what of the words is at a point (start, middle, end), and pixels from there down
OVER, UNDER, RIGHT, LEFT = ("middle", -9.0), ("middle", 19.0), ("start", 4.0), ("end", 4.0)

_GLYPHS = {  # around (0, 0), about 8 pixels across
    "circle": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0Z",
    "square": "M-3.5-3.5h7v7h-7Z",
    "diamond": "M0-5 5 0 0 5-5 0Z",
    "triangle": "M0-4.8 4.6 3.4h-9.2Z",
    "cross": "M-4-4 4 4M-4 4 4-4",
}
_CHARACTER = 6.8  # pixels of a digit of a label
_NARROW, _WIDE = 280.0, 620.0  # pixels across a plot on a phone and on a desk, for labels that must not collide


@dataclass(frozen=True)
class Look:
    """How a series is told apart: a colour (class of the style sheet), a glyph and a dash, never colour alone."""

    colour: str
    glyph: str = "circle"
    dash: str | None = None
    hollow: bool = False

    def mark(self, x: str, y: float, tip: str | None = None, size: float = 1.0) -> Markup:
        """The glyph at a place of an svg."""
        kind = f"glyph {self.colour}" + (" hollow" if self.hollow or self.glyph == "cross" else "")
        scale = None if size == 1 else f"scale({size:g})"
        title = None if tip is None else tag("title", tip)
        return tag("svg", title, tag("path", d=_GLYPHS[self.glyph], transform=scale), x=x, y=_px(y), class_=kind)

    def swatch(self, line: bool, glyph: bool) -> Markup:
        """Its sample in a legend."""
        stroke = tag("line", x1=0, y1=6, x2=22, y2=6, class_=f"line {self.colour}", stroke_dasharray=self.dash)
        return tag(
            "svg", stroke if line else None, self.mark("11", 6) if glyph else None, class_="swatch", width=22, height=12
        )


PREFILL, DECODE = Look("prefill"), Look("decode")
_OTHERS = tuple(
    Look(f"series-{n}", glyph, dash)
    for n, (glyph, dash) in enumerate(
        [("square", "7 4"), ("diamond", "2 4"), ("triangle", "9 4 2 4"), ("cross", "4 3"), ("circle", "12 4")]
    )
)


def look(index: int, main: Look = PREFILL) -> Look:
    """The look of a series: of the first that of its phase, then others; they begin again, hollow, after five."""
    if index == 0:
        return main
    again, at = divmod(index - 1, len(_OTHERS))
    return replace(_OTHERS[at], hollow=again % 2 == 1)


@dataclass(frozen=True)
class _Extent:
    """Room that words or a glyph take: `left` to `right` pixels from a share of the width, on a base line `down`."""

    across: float
    down: float
    left: float
    right: float

    def meets(self, other: "_Extent", width: float) -> bool:
        """In a plot of that many pixels."""
        apart = (self.across - other.across) * width
        return abs(self.down - other.down) < 13 and self.left + apart < other.right and other.left < self.right + apart

    def fits(self, width: float) -> bool:
        at = self.across * width
        return at + self.left > -4 and at + self.right < width + 12 and self.down > 8


@dataclass
class Plot:
    """One pair of axes. `summary` is the whole of it in words, for whoever cannot see it."""

    summary: str
    x: Axis
    y: Axis
    height: int = 240
    _under: list[Markup] = field(default_factory=list)
    _over: list[Markup] = field(default_factory=list)
    _taken: list[_Extent] = field(default_factory=list)
    _legend: list[tuple[Markup, str]] = field(default_factory=list)

    def line(self, points: Sequence[Point], look: Look, *, thin: bool = False) -> None:
        """A line through the points."""
        if len(points) > 1:
            kind = f"line {look.colour}" + (" thin" if thin else "")
            path = _path((self._across(x), self._down(y)) for x, y in points)
            self._under.append(self._stretched(tag("path", d=path, class_=kind, stroke_dasharray=look.dash)))

    def band(self, lows: Sequence[Point], highs: Sequence[Point], look: Look) -> None:
        """The area between two lines."""
        outline = [(self._across(x), self._down(y)) for x, y in [*lows, *reversed(highs)]]
        if len(outline) > 3:
            path = tag("path", d=_path(outline) + "Z", class_=f"area {look.colour}")
            self._under.insert(0, self._stretched(path))

    def dot(self, x: float, y: float, look: Look, tip: str | None = None, size: float = 1.0) -> None:
        self._taken.append(_Extent(self.x.place(x), self._down(y) + 4, -5, 5))
        self._over.append(look.mark(_percent(self.x.place(x)), self._down(y), tip, size))

    def whisker(self, x: float, low: float, high: float, look: Look) -> None:
        """A line up and down: the spread of what was measured at one place."""
        at = _percent(self.x.place(x))
        ends = {"y1": _px(self._down(low)), "y2": _px(self._down(high))}
        self._under.append(tag("line", x1=at, x2=at, **ends, class_=f"whisker {look.colour}"))

    def upright(self, x: float) -> None:
        """A line over the whole height."""
        at = _percent(self.x.place(x))
        self._under.append(tag("line", x1=at, x2=at, y1=0, y2=self.height, class_="guide"))

    def level(self, y: float) -> None:
        """A line over the whole width."""
        at = _px(self._down(y))
        self._under.append(tag("line", x1=0, x2="100%", y1=at, y2=at, class_="guide"))

    def label(self, x: float, y: float, words: str, places: Sequence[Place], kind: str = "") -> None:
        """Words beside a point, at the first of the places where they cover neither glyphs nor other words, if any."""
        across, length = self.x.place(x), _CHARACTER * len(words)
        for side, lift in places:
            left, shift = {"start": (7.0, 7), "middle": (-length / 2, 0), "end": (-length - 7, -7)}[side]
            extent = _Extent(across, self._down(y) + lift, left, left + length)
            if self._free(extent, _WIDE):
                roomy = "" if self._free(extent, _NARROW) else " roomy"
                at = {"x": _percent(across), "dx": shift or None, "y": _px(extent.down), "text_anchor": side}
                self._over.append(tag("text", words, **at, class_=f"note {kind}{roomy}"))
                self._taken.append(extent)
                return

    def entry(self, look: Look, name: str, *, line: bool = True, glyph: bool = True) -> None:
        """A line of the legend."""
        self._legend.append((look.swatch(line, glyph), name))

    def draw(self, caption: str = "", numbers: Table | None = None) -> Markup:
        """The figure: legend, plot, caption, and all its numbers behind a fold."""
        left = round(max(len(t.label) for t in self.y.ticks) * _CHARACTER + 12) if self.y.ticks else 8
        legend = tag("ul", (tag("li", swatch, name) for swatch, name in self._legend), class_="legend")
        plot = tag(
            "svg",
            (self._tick_y(tick) for tick in self.y.ticks),
            (self._tick_x(tick) for tick in self.x.ticks),
            tag("line", x1=0, x2="100%", y1=self.height, y2=self.height, class_="base"),
            self._under,
            self._over,
            tag("text", self.x.title, x="100%", y=self.height + 34, text_anchor="end", class_="axis"),
            role="img",
            aria_label=self.summary,
            width="100%",
            height=self.height,
        )
        return tag(
            "figure",
            legend if self._legend else None,
            tag("div", self.y.title, class_="axis-title"),
            tag("div", plot, class_="plot", style=f"padding-left:{left}px"),
            tag("figcaption", prose(caption)) if caption else None,
            numbers.folded() if numbers else None,
        )

    def _free(self, extent: _Extent, width: float) -> bool:
        return extent.fits(width) and not any(extent.meets(other, width) for other in self._taken)

    def _across(self, x: float) -> float:
        return 1000 * self.x.place(x)

    def _down(self, y: float) -> float:
        return self.height * (1 - self.y.place(y))

    def _stretched(self, drawn: Markup) -> Markup:
        """Paths have no per cents: they are drawn 1000 wide and stretched, their strokes are not."""
        box = f"0 0 1000 {self.height}"
        return tag("svg", drawn, viewBox=box, preserveAspectRatio="none", width="100%", height=self.height)

    def _tick_x(self, tick: Tick) -> Markup:
        at = _percent(self.x.place(tick.value))
        words = tag("text", tick.label, x=at, y=self.height + 17, text_anchor="middle")
        grid = tag("line", x1=at, x2=at, y1=self.height, y2=self.height + 4, class_="base")
        return tag("g", grid, words, class_="tick" + (" roomy" if tick.minor else ""))

    def _tick_y(self, tick: Tick) -> Markup:
        at = _px(self._down(tick.value))
        words = tag("text", tick.label, x=-8, y=at, dy="0.35em", text_anchor="end")
        return tag("g", tag("line", x1=0, x2="100%", y1=at, y2=at, class_="grid"), words, class_="tick")


def _path(places: Iterable[Point]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)


def _percent(share: float) -> str:
    return f"{100 * share:.2f}%"


def _px(pixels: float) -> str:
    return f"{pixels:.1f}"


def side_by_side(*figures: Child) -> Markup:
    """Figures next to each other where there is room, else one below the other."""
    return tag("div", join(figures), class_="pair")
