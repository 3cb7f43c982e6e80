"""Traces and rows of sweeps, made up: what a system of known costs would have shown."""

from collections.abc import Sequence
from typing import Any

from phaseline.lab.experiments.sweep import Cell, cell_row
from phaseline.lab.trace import META, Event, Trace


def trace(times: Sequence[float], *, tokens: int | None = 1, error: str | None = None, **facts: Any) -> Trace:
    """A stream sent at 0 whose tokens came at these seconds."""
    stamps = [round(t * 1e9) for t in times]
    events = [Event(stamp, "text", tokens) for stamp in stamps]
    end = stamps[-1] if stamps else 0
    return Trace(0, end, (*events, Event(end, META)), error=error, **facts)


def prefill_row(tokens: int, seconds: Sequence[float], **facts: Any) -> dict[str, Any]:
    """A prompt's row, one round for each time."""
    return cell_row(Cell("prefill", tokens), [[trace([s], **facts)] for s in seconds])


def decode_row(context: int, steps: Sequence[float], streams: int = 1, system: str = "") -> dict[str, Any]:
    """Streams that decode together, one round for each step time."""
    cell = Cell("decode", 8, context, streams, system)
    return cell_row(cell, [[trace([1 + step * n for n in range(8)])] * streams for step in steps])
