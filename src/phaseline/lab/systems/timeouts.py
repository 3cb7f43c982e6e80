"""How long a stream may keep its client waiting, phase by phase."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from phaseline.lab.systems.base import Piece, StreamFault
from phaseline.lab.trace import META


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds; None waits for ever. Headers, roles and keep-alives are no events: a server can send them for ever."""

    connect: float | None = 10.0  # to open a connection; also to answer a small question, such as the models served
    first: float | None = 600.0  # from the ask to the first text or token: queueing and prefill
    between: float | None = 120.0  # between two of them, and from the last one to the end
    total: float | None = None  # for the whole stream


async def watch(
    batches: AsyncGenerator[Sequence[Piece], None], timeouts: Timeouts
) -> AsyncGenerator[Sequence[Piece], None]:
    """Pass on what arrives. Raises StreamFault, and closes `batches`, if it does not arrive in time."""
    now = asyncio.get_running_loop().time
    end = _after(now(), timeouts.total)
    phase, patience = "before the first event", timeouts.first
    due = _after(now(), patience)
    async with aclosing(batches):
        while True:
            overall = end is not None and (due is None or end < due)
            try:
                async with asyncio.timeout_at(end if overall else due):
                    batch = await anext(batches, None)
            except TimeoutError:
                if overall:
                    raise StreamFault(f"timeout: the stream took more than {timeouts.total} s in all") from None
                raise StreamFault(f"timeout: nothing came for {patience} s {phase}") from None
            if batch is None:
                return
            yield batch
            if any(piece.channel != META for piece in batch):
                phase, patience = "after an event", timeouts.between
                due = _after(now(), patience)


def _after(start: float, seconds: float | None) -> float | None:
    return None if seconds is None else start + seconds
