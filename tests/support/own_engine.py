"""Our engine over a tiny model, as the lab's experiments take it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from phaseline import load
from phaseline.lab.experiments.own import Own
from phaseline.lab.systems.phaseline import PhaselineStreams


@contextmanager
def own_engine(
    path: Path, *, chunk: int = 64, mode: str = "chunk", **options: Any
) -> Iterator[tuple[PhaselineStreams, Own]]:
    """One thread, streams and what only our engine tells; closed at the end."""
    engine = load(path, threads=1, chunk=chunk, mode=mode, **options)
    streams = PhaselineStreams(engine)
    try:
        kv_bytes = 4 if options.get("kv_type") == "f32" else 2
        yield streams, Own(streams.stepwise(), mode=mode, chunk=chunk, kv_bytes=kv_bytes)
    finally:
        engine.close()
