"""What fits: weights, pages and streams in the memory there is, decided before anything is allocated."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from phaseline.errors import CapacityError
from phaseline.execute.host import available_memory
from phaseline.execute.native import NativeExecutor, element_type, packed_bytes, padded_state
from phaseline.files.base import TensorInfo
from phaseline.program.ir import Program
from phaseline.program.state import Recurrent, StateSpec
from phaseline.state.lists import most_held
from phaseline.state.snapshots import HELD

_GB = 2**30
_RESERVE = 256 << 20  # activations, logits, Python itself
_KEPT = 1  # snapshots of a recurrent group to resume from, for each sequence that runs


@dataclass(frozen=True)
class GroupFit:
    """One state group: bytes of a page, and how many there are of it."""

    spec: StateSpec
    page_bytes: int
    pages: int = 0


@dataclass(frozen=True)
class Fit:
    """How a model sits in memory. Bytes, except where a name says otherwise."""

    memory: int  # what may be used
    weights: int
    context: int  # positions of the longest sequence
    chunk: int  # most positions by which a sequence grows at once
    page_size: int
    groups: Sequence[GroupFit]

    @property
    def pages(self) -> list[int]:
        """Pages of each state group."""
        return [group.pages for group in self.groups]

    def stream(self, context: int) -> int:
        """Bytes of state that one sequence of so many positions takes at most, in whole pages."""
        return sum(g.page_bytes * self.held(g, context) for g in self.groups)

    def streams(self, context: int) -> int:
        """Most sequences of so many positions that have room at once."""
        return (self.memory - self.weights - _RESERVE) // self.stream(context)

    def held(self, group: GroupFit, context: int) -> int:
        """Most pages of a group that one sequence of so many positions holds at once."""
        if isinstance(group.spec, Recurrent):
            return HELD
        return most_held(group.spec, context, self.chunk, self.page_size)


def fit(
    program: Program,
    *,
    context: int | None = None,
    memory: int | None = None,
    kv_type: str = "bf16",
    max_running: int = 16,
    chunk: int = 512,
    decoded: bool = False,
) -> Fit:
    """Size the page pool of each state group. Raises CapacityError, naming what would fit, where one full context
    does not.

    `context` defaults to the model's own, shortened to what fits beside what `max_running` sequences hold in groups
    that forget, or fewer where their snapshots would take over half; a stated one is kept or refused. `memory` is all
    that the engine may take, weights included; by default what the host says is available. Groups that keep everything
    have as many pages as the memory allows, up to `max_running` full contexts; those that forget as many, up to what
    `max_running` sequences hold while they read `chunk` tokens at once, or fewer sequences where the context leaves no
    room for so many. Memory is touched only as pages are used. `decoded`: weights are held as float32, not packed.
    """
    size = NativeExecutor.page_size
    budget = available_memory() if memory is None else memory
    weights = sum((_float32_bytes if decoded else packed_bytes)(w) for w in program.weights().values())
    groups = [
        GroupFit(
            spec, sum(map(math.prod, padded_state(spec).arrays(size).values())) * element_type(spec, kv_type).itemsize
        )
        for spec in program.state
    ]
    room = budget - weights - _RESERVE

    def pages(group: GroupFit, most: int, seats: int) -> int:
        """Pages of a group when those that keep everything have `most`, and others enough for `seats` sequences."""
        if isinstance(group.spec, Recurrent):
            return seats * (HELD + _KEPT)
        return min(most, seats * most_held(group.spec, max(most, 1) * size, chunk, size))

    def has_room(most: int, seats: int) -> bool:
        return sum(group.page_bytes * pages(group, most, seats) for group in groups) <= room

    if context is not None and not 1 <= context <= program.context:
        raise CapacityError(f"context {context} is not possible: this model holds 1 to {program.context} positions")
    snapshots = sum(group.page_bytes * pages(group, 1, 1) for group in groups if isinstance(group.spec, Recurrent))
    apart = 1 if context else max(1, _largest(lambda seats: seats <= max_running and 2 * seats * snapshots <= room))
    longest = _largest(lambda most: has_room(most, apart)) * size
    wanted = context or min(program.context, longest)
    if wanted < 1 or longest < wanted:
        least = -(-(weights + _RESERVE + sum(group.page_bytes * pages(group, 1, 1) for group in groups)) // 2**20)
        cure = f"a context of {longest} tokens would fit" if longest else f"at least {least} MiB are needed"
        asked = Fit(budget, weights, wanted, chunk, size, groups).stream(context or 1)
        raise CapacityError(
            f"the model does not fit: weights {weights / _GB:.2f} GiB, {_RESERVE / _GB:.2f} GiB of working memory and "
            f"{asked / _GB:.2f} GiB of state for a context of {context or 1} tokens, in {budget / _GB:.2f} GiB; {cure}"
        )
    full = -(-wanted // size)
    seats = _largest(lambda seats: seats <= max_running and has_room(full, seats))
    most = _largest(lambda most: most <= max_running * full and has_room(most, seats))
    chosen = [GroupFit(group.spec, group.page_bytes, pages(group, most, seats)) for group in groups]
    return Fit(budget, weights, wanted, chunk, size, chosen)


def _largest(holds: Callable[[int], bool]) -> int:
    """The largest number, from 0 to 2^40, up to which `holds` is true."""
    low, high = 0, 1 << 40
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _float32_bytes(weight: TensorInfo) -> int:
    return 4 * math.prod(weight.shape)
