"""A step: the rows that one pass over the program computes, as data.

Prefill and decode are two sizes of the same thing: a prefill chunk is a segment of many rows, a decode a
segment of one. Rows of all segments are concatenated in order, without padding.
"""

from collections.abc import Sequence
from enum import Enum

import msgspec


class Want(Enum):
    """Which rows of a segment get logits."""

    NONE = "none"  # an inner prefill chunk: nobody reads its rows
    LAST = "last"  # decode, or the last chunk of a prompt
    ALL = "all"  # perplexity, prompt log-probabilities


class Segment(msgspec.Struct, frozen=True):
    """`tokens` enter sequence `slot` at positions start .. start + len(tokens) - 1.

    `slot` is a row of the page table, whose pages must already cover those positions.
    """

    slot: int
    start: int
    tokens: Sequence[int]
    want: Want = Want.LAST

    @property
    def wanted(self) -> int:
        """Rows of this segment that get logits."""
        if self.want is Want.LAST:
            return 1
        return 0 if self.want is Want.NONE else len(self.tokens)


class Step(msgspec.Struct, frozen=True):
    """Segments run together. A slot appears at most once."""

    segments: Sequence[Segment]

    @property
    def rows(self) -> int:
        return sum(len(s.tokens) for s in self.segments)

    @property
    def wanted(self) -> int:
        return sum(s.wanted for s in self.segments)
