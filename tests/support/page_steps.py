"""Steps over pages in any order: what every kind of paged state is tested with."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phaseline.execute.base import Executor
from phaseline.program.step import Segment, Step, Want


def shuffled(slots: int, each: int, seed: int = 0) -> NDArray[np.int32]:
    """A page table (slots, each) whose pages lie anywhere in a pool of twice as many."""
    ids = np.random.default_rng(seed).permutation(2 * slots * each)[: slots * each]
    return np.ascontiguousarray(ids.reshape(slots, each), np.int32)


def mixed_steps(rng: np.random.Generator, vocab: int) -> Iterator[tuple[Step, list[list[int]]]]:
    """Steps over three slots, chunks and decodes mixed, with each segment's whole sequence so far."""
    histories: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for plan in ([(2, 45), (0, 33)], [(0, 31), (2, 1), (1, 17)], [(1, 1), (0, 1), (2, 1)], [(2, 18), (1, 14), (0, 9)]):
        segments = []
        for slot, n in plan:
            start, tokens = len(histories[slot]), rng.integers(0, vocab, n).tolist()
            histories[slot] += tokens
            segments.append(Segment(slot, start, tokens, Want.ALL))
        yield Step(segments), [list(histories[slot]) for slot, _ in plan]


def chunked(executor: Executor, tokens: Sequence[int], table: NDArray[np.int32], ends: Sequence[int]) -> NDArray[Any]:
    """The last row of each chunk, when the sequence enters in chunks that end at `ends`."""
    starts = [0, *ends[:-1]]
    return np.concatenate(
        [
            executor.forward(Step([Segment(0, start, tokens[start:end], Want.LAST)]), table)
            for start, end in zip(starts, ends, strict=True)
        ]
    )
