"""What the engine asks of whoever runs a program."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from phaseline.errors import CapacityError
from phaseline.program.ir import Program
from phaseline.program.step import Step, Want


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


def step_lists(step: Step, context: int) -> tuple[list[int], list[tuple[int, int, int, int]], list[int]]:
    """The step's tokens, its segments as (slot, start, first row, rows), and the numbers of wanted rows.

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
        if s.want is Want.ALL:
            wanted += range(first, first + n)
        elif s.want is Want.LAST:
            wanted.append(first + n - 1)
        tokens.extend(s.tokens)
    return tokens, segments, wanted
