"""What every experiment is: it can be run, stopped at any time, and asked for its record."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol

Progress = Callable[[int, int, str], None]  # done, total, what is being measured now


class Experiment(Protocol):
    """One question asked of one or more systems. Keeps raw traces as it goes; everything else is derived at the end."""

    name: str  # the command's: prefill, decode, batch ...

    async def run(self, progress: Progress) -> None:
        """Measure. May be cancelled at any await; what was measured until then stays."""

    def record(self) -> dict[str, Any]:
        """Finding, table and raw traces of what was measured, as plain data.

        Keys: `finding` (sentences in plain words), `results` (rows of plain numbers), `traces` or rows that hold them,
        and what the experiment adds. Provenance is added by whoever saves it.
        """


async def conduct(experiment: Experiment, progress: Progress, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Run an experiment and return its record, which says `partial` if it was interrupted.

    Cancelling the task that awaits this, as Ctrl-C under `asyncio.run` does, ends the measuring, not the record.
    """
    partial = False
    try:
        await experiment.run(progress)
    except asyncio.CancelledError:
        partial = True
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
    return {"experiment": experiment.name, "partial": partial, **facts, **experiment.record()}
