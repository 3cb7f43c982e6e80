"""Traces of requests that nobody made."""

from collections.abc import Sequence
from typing import Any

from phaseline.lab.trace import Event, Trace


def trace(
    tokens_at: Sequence[float], *, sent: float = 0.0, due: float | None = None, end: float | None = None, **facts: Any
) -> Trace:
    """Tokens that came one by one at `tokens_at`; all times are seconds after the start of the world."""
    stamps = [round(1e9 * (1 + at)) for at in tokens_at]
    over = round(1e9 * (1 + end)) if end is not None else max(stamps, default=round(1e9 * (1 + sent)))
    return Trace(
        round(1e9 * (1 + sent)),
        over,
        tuple(Event(at, "text", 1) for at in stamps),
        None if due is None else round(1e9 * (1 + due)),
        **facts,
    )
