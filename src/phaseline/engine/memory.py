"""What fits: weights, pages and streams in the memory there is, decided before anything is allocated."""

import math
from dataclasses import dataclass

from phaseline.errors import CapacityError
from phaseline.execute.host import available_memory
from phaseline.execute.native import KV_TYPES, NativeExecutor, packed_bytes, padded_state
from phaseline.files.base import TensorInfo
from phaseline.program.ir import Program

_GB = 2**30
_RESERVE = 256 << 20  # activations, logits, Python itself


@dataclass(frozen=True)
class Fit:
    """How a model sits in memory. Bytes, except where a name says tokens or pages."""

    memory: int  # what may be used
    weights: int
    kv_per_token: int
    context: int  # positions of the longest sequence
    pages: int  # of the pool
    page_size: int

    @property
    def tokens(self) -> int:
        """Positions of all sequences together."""
        return self.pages * self.page_size

    @property
    def streams(self) -> int:
        """Most sequences that hold the full context at once."""
        return self.tokens // self.context


def fit(
    program: Program,
    *,
    context: int | None = None,
    memory: int | None = None,
    kv_type: str = "bf16",
    max_running: int = 16,
    decoded: bool = False,
) -> Fit:
    """Size the page pool. Raises CapacityError, naming what would fit, where one full context does not.

    `context` defaults to the model's own, shortened to what fits; a stated one is kept or refused. `memory` is all
    that the engine may take, weights included; by default what the host says is available. The pool takes no more
    than `max_running` full contexts; its memory is touched only as pages are used. `decoded`: weights are held as
    float32 instead of packed.
    """
    size = NativeExecutor.page_size
    budget = available_memory() if memory is None else memory
    weights = sum((_float32_bytes if decoded else packed_bytes)(w) for w in program.weights().values())
    per_token = sum(padded_state(spec).elements(1) for spec in program.state) * KV_TYPES[kv_type].itemsize
    room = budget - weights - _RESERVE
    longest = max(0, room) // (per_token * size) * size  # tokens that whole pages can hold
    if context is not None and not 1 <= context <= program.context:
        raise CapacityError(f"context {context} is not possible: this model holds 1 to {program.context} positions")
    wanted = context or min(program.context, longest)
    if wanted < 1 or longest < wanted:
        least = -(-(weights + _RESERVE + per_token * size) // 2**20)
        cure = f"a context of {longest} tokens would fit" if longest else f"at least {least} MiB are needed"
        raise CapacityError(
            f"the model does not fit: weights {weights / _GB:.2f} GiB, {_RESERVE / _GB:.2f} GiB of working memory and "
            f"{(context or 1) * per_token / _GB:.2f} GiB of keys and values for a context of {context or 1} tokens, in "
            f"{budget / _GB:.2f} GiB; {cure}"
        )
    pages = min(longest // size, max_running * -(-wanted // size))
    return Fit(budget, weights, per_token, wanted, pages, size)


def _float32_bytes(weight: TensorInfo) -> int:
    return 4 * math.prod(weight.shape)
