"""A plain SVG file of lines over two logarithmic axes, for docs/."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import log2

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 440, 60, 90, 40, 46
COLOURS = ("#1b6ca8", "#d1495b", "#2e8b57", "#8d5a97", "#c77700", "#3d3d3d", "#00838f", "#9e9d24", "#6d4c41", "#5c6bc0")
DASHES = ("", "6 3", "2 3")
APART = 13  # pixels between the names of lines

Points = Sequence[tuple[float, float]]


def line_plot(title: str, x_title: str, y_title: str, lines: Mapping[str, Points]) -> str:
    """Lines named at their right ends, told apart by colour and dash."""
    every = [point for points in lines.values() for point in points]
    x_ticks, y_ticks = powers(x for x, _ in every), powers(y for _, y in every)

    def across(x: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * log2(x / x_ticks[0]) / log2(x_ticks[-1] / x_ticks[0])

    def down(y: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * log2(y / y_ticks[0]) / log2(y_ticks[-1] / y_ticks[0])

    parts = [f'<text x="{LEFT}" y="18" font-weight="bold">{escape(title)}</text>']
    for x in x_ticks:
        parts.append(f'<path d="M{across(x):.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#e3e3e3"/>')
        parts.append(f'<text x="{across(x):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{x:g}</text>')
    for y in y_ticks:
        parts.append(f'<path d="M{LEFT} {down(y):.1f}H{WIDTH - RIGHT}" stroke="#e3e3e3"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{down(y) + 4:.1f}" text-anchor="end">{y:g}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 10}" text-anchor="end">{escape(x_title)}</text>')
    parts.append(f'<text x="{LEFT - 50}" y="{TOP - 8}">{escape(y_title)}</text>')
    lowest = float(HEIGHT)
    by_end = sorted(enumerate(lines.items()), key=lambda one: one[1][1][-1][1])
    for number, (name, points) in by_end:  # from the bottom up, so that names move aside
        colour, dash = COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)]
        path = "L".join(f"{across(x):.1f} {down(y):.1f}" for x, y in points)
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.5" stroke-dasharray="{dash}"/>')
        lowest = min(lowest - APART, down(points[-1][1]) + 4)
        parts.append(f'<text x="{WIDTH - RIGHT + 6}" y="{lowest:.1f}" fill="{colour}">{escape(name)}</text>')
    font = 'font-family="sans-serif" font-size="12"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {font}>'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', *parts, "</svg>", ""])


def powers(values: Iterable[float]) -> list[float]:
    """Powers of two around the values."""
    found = list(values)
    low, high = min(found), max(found)
    tick = 2.0 ** (log2(low) // 1)
    ticks = [tick]
    while ticks[-1] < high:
        ticks.append(2 * ticks[-1])
    return ticks
