"""Single steps of our own engine, of any size, timed whole or operation by operation, beneath its scheduler."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phaseline.errors import CapacityError
from phaseline.lab.drive import timed
from phaseline.lab.metrics import chunk_schedule
from phaseline.lab.systems.phaseline import PhaselineSystem, carried_on
from phaseline.program.ops import Span, Work
from phaseline.program.step import Segment, Step, Want


@dataclass(frozen=True, slots=True)
class StepSize:
    """`streams` segments of `rows` tokens each, behind `start` positions that each of them has stored.

    A decode step has one row per stream. Logits are wanted of each stream's last row, or of all.
    """

    rows: int
    start: int = 0
    streams: int = 1
    all_rows: bool = False

    def work(self, kv_bytes: float) -> Work:
        """As the cost model sees it."""
        return Work([Span(self.start, self.rows, self.rows if self.all_rows else 1)] * self.streams, kv_bytes)


class StepBench:
    """Runs steps over streams whose state it has stored. Made by `step_bench`."""

    def __init__(
        self, system: PhaselineSystem, lengths: Sequence[int], slots: Sequence[int], pages: NDArray[np.int32], seed: int
    ) -> None:
        self._executor, self._slots, self._pages = system.executor, slots, pages
        rng, vocab = random.Random(seed), system.executor.program.vocab
        self.tokens = [[rng.randrange(vocab) for _ in range(length)] for length in lengths]

    def seconds(self, size: StepSize) -> float:
        """Time of one step."""
        step = self._step(size)
        return timed(lambda: self._executor.forward(step, self._pages))

    def op_seconds(self, size: StepSize) -> tuple[float, NDArray[np.float64]]:
        """Time of one step, and of each of its operations (operations,), which the kernels' own clock takes."""
        step, ops = self._step(size), np.zeros(0)

        def run() -> None:
            nonlocal ops
            _, ops = self._executor.profile(step, self._pages)

        return timed(run), ops

    def empty_op_seconds(self) -> NDArray[np.float64]:
        """Time of each operation over no rows (operations,)."""
        return self._executor.profile(Step(()), self._pages)[1]

    def store(self, positions: Sequence[int], chunk: int) -> None:
        """Fill the first positions of each stream, of which the first has most, for the steps that will read them.

        One prompt is read; the others get copies of its state, in pages of their own.
        """
        first, *others = self._slots
        program, pages, turn = self._executor.program, self._pages, 0
        for a, b in chunk_schedule(positions[0], chunk):
            step = Step([Segment(first, a, self.tokens[0][a:b], Want.NONE)])
            self._executor.forward(step, carried_on(program, pages, turn))
            turn += 1
        self._pages = carried_on(program, pages, turn)
        size = self._executor.page_size
        for slot, length in zip(others, positions[1:], strict=True):
            full = -(-length // size)
            held = self._pages[:, [first, slot], :full]  # (groups, 2, full)
            groups = [zip(*group, strict=True) for group in held.tolist()]
            self._executor.copy_pages([(g, *pair) for g, pairs in enumerate(groups) for pair in pairs])

    def _step(self, size: StepSize) -> Step:
        want, end = Want.ALL if size.all_rows else Want.LAST, size.start + size.rows
        streams = range(size.streams)
        return Step([Segment(self._slots[s], size.start, self.tokens[s][size.start : end], want) for s in streams])


@contextmanager
def step_bench(system: PhaselineSystem, sizes: Sequence[StepSize], seed: int = 0) -> Iterator[StepBench]:
    """A bench for steps of these sizes, on an engine that is idle meanwhile.

    Raises CapacityError where a step has more rows than the executor was made for, or the pool no room.
    """
    most = system.executor.max_rows
    for size in sizes:
        if size.rows * size.streams > most:
            raise CapacityError(f"a step of {size.rows * size.streams} rows: this engine was loaded for {most}")
    streams = range(max(size.streams for size in sizes))
    lengths = [max(z.start + z.rows for z in sizes if z.streams > s) for s in streams]
    stored = [max(z.start for z in sizes if z.streams > s) for s in streams]
    with system.slots(lengths) as (slots, pages):
        bench = StepBench(system, lengths, slots, pages, seed)
        bench.store(stored, most)
        yield bench
