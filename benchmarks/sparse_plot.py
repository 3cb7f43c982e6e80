"""The curves of `sparse.py` as one SVG that stands alone: rates as dots, predictions as lines, both axes in octaves."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 40, 60
COLOURS = {"sparse": "#b3541e", "dense": "#1f6f8b"}


def draw(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows of prefill; the dispatch control as a cross."""
    rows = [row for row in rows if row["phase"] == "prefill"]
    chunks = sorted({row["chunk"] for row in rows})
    rates = [row[key] for row in rows for key in ("tok_s", "predicted_tok_s") if row.get(key)]
    low, high = math.floor(math.log2(min(rates))), math.ceil(math.log2(max(rates)))

    def x(chunk: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log2(chunk / chunks[0]) / math.log2(chunks[-1] / chunks[0])

    def y(rate: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - math.log2(rate)) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        ' font-family="sans-serif" font-size="13">',
        "<title>Tokens per second against the chunk, of a sparse and a dense model, measured and predicted</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
    ]
    for power in range(low, high + 1):
        at = y(2.0**power)
        parts.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{2**power}</text>')
    for chunk in chunks:
        parts.append(f'<text x="{x(chunk):.1f}" y="{HEIGHT - BOTTOM + 22}" text-anchor="middle">{chunk}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 14}" text-anchor="middle">prompt tokens per step</text>')
    parts.append(f'<text x="{LEFT - 50}" y="{TOP - 18}">tokens/s</text>')
    for n, (model, colour) in enumerate(COLOURS.items()):
        mine = sorted((row for row in rows if row["model"] == model), key=lambda row: row["chunk"])
        curve = [row for row in mine if row["mode"] == "chunk"]
        line = " ".join(f"{x(row['chunk']):.1f},{y(row['predicted_tok_s']):.1f}" for row in curve)
        parts.append(
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="6 4"/>'
        )
        for row in mine:
            parts.append(_mark(row, x(row["chunk"]), y(row["tok_s"]), colour))
        parts.append(_legend(model, colour, LEFT + 90 + 330 * n))
    return "\n".join([*parts, "</svg>\n"])


def _mark(row: Mapping[str, Any], x: float, y: float, colour: str) -> str:
    tip = f"<title>{row['model']}, {row['mode']} {row['chunk']}: {row['tok_s']:.0f} tok/s</title>"
    if row["mode"] == "chunk":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}">{tip}</circle>'
    d = f"M{x - 5:.1f} {y - 5:.1f}l10 10m0-10l-10 10"
    return f'<path d="{d}" stroke="{colour}" stroke-width="2.5">{tip}</path>'


def _legend(model: str, colour: str, x: float) -> str:
    control = ", cross: experts row by row" if model == "sparse" else ""
    return (
        f'<circle cx="{x}" cy="18" r="4.5" fill="{colour}"/>'
        f'<text x="{x + 10}" y="22">{model} (dashed: predicted{control})</text>'
    )
