"""What the engine asks of whoever runs a program."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from phaseline.errors import CapacityError
from phaseline.program.ir import Program
from phaseline.program.step import Segment, Step, Want


class Executor(Protocol):
    """Runs steps of one program over one pool of pages for each of its state groups."""

    program: Program
    page_size: int

    def forward(self, step: Step, pages: NDArray[np.int32]) -> NDArray[Any]:
        """Logits of the wanted rows, shape (step.wanted, vocab). `pages`: as `page_matrices` takes them."""

    def copy_pages(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """Copy whole pages: (group, source, destination)."""

    def close(self) -> None:
        """Give back threads and memory."""


def page_counts(program: Program, pages: int | Sequence[int]) -> list[int]:
    """Pages of each state group, one number for all of them or one for each."""
    return [pages] * len(program.state) if isinstance(pages, int) else list(pages)


def page_matrices(program: Program, pages: NDArray[np.int32]) -> NDArray[np.int32]:
    """The page table, shape (groups, slots, max pages). One of (slots, max pages) serves every group alike."""
    if pages.ndim == 3:
        return pages
    return np.ascontiguousarray(np.broadcast_to(pages, (len(program.state), *pages.shape)))


def step_arrays(step: Step, context: int) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """The step as arrays: tokens (rows,), segments (n, 4) of (slot, start, first row, rows), wanted row numbers.

    Raises CapacityError for a position past the model's `context`.
    """
    tokens: list[int] = []
    segments: list[tuple[int, int, int, int]] = []
    wanted: list[int] = []
    for s in step.segments:
        first, n = len(tokens), len(s.tokens)
        if s.start + n > context:
            raise CapacityError(f"position {s.start + n - 1} is past the model's context of {context}")
        segments.append((s.slot, s.start, first, n))
        wanted.extend(_wanted_rows(s, first, n))
        tokens.extend(s.tokens)
    return (
        np.array(tokens, np.int32),
        np.array(segments, np.int32).reshape(-1, 4),
        np.array(wanted, np.int32),
    )


def _wanted_rows(segment: Segment, first: int, n: int) -> range:
    if segment.want is Want.NONE:
        return range(0)
    return range(first, first + n) if segment.want is Want.ALL else range(first + n - 1, first + n)
