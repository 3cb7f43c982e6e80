"""A whole model in hand, and its logits by one executor or another."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phaseline.execute.base import Executor
from phaseline.execute.native import NativeExecutor
from phaseline.execute.reference import ReferenceExecutor
from phaseline.families import model_program
from phaseline.families.spec import ModelSpec
from phaseline.files.base import ModelFile
from phaseline.program.ir import Program
from phaseline.program.ops import Attend
from phaseline.program.state import PagedKV, Recurrent, SlidingKV
from phaseline.program.step import Segment, Step, Want


@dataclass(frozen=True)
class Model:
    file: ModelFile
    spec: ModelSpec
    program: Program

    def native(self, pages: int = 64, **options: Any) -> NativeExecutor:
        return NativeExecutor(self.file, self.program, pages, **options)

    def reference(self, pages: int = 64, dtype: Any = np.float32) -> ReferenceExecutor:
        return ReferenceExecutor(self.file, self.program, pages, dtype)


def open_model(file: ModelFile) -> Model:
    return Model(file, *model_program(file))


def half_windowed(program: Program, window: int) -> Program:
    """The program with its second layer reading a window only, from a state group of its own."""
    (whole,) = program.state
    assert isinstance(whole, PagedKV) and whole.layers == 2
    ops = [
        replace(op, layer=0, group=1, window=window) if isinstance(op, Attend) and op.layer == 1 else op
        for op in program.ops
    ]
    one = (1, whole.kv_heads, whole.head_dim)
    return replace(program, ops=ops, state=(PagedKV(*one), SlidingKV(*one, window)))


def logits(executor: Executor, tokens: Sequence[int], *, chunk: int | None = None, seed: int = 0) -> NDArray[Any]:
    """Logits of every position, (tokens, vocab), read in chunks; pages of the pool in an order drawn from `seed`."""
    pages = -(-len(tokens) // executor.page_size)
    order = np.random.default_rng(seed).permutation(pages)[None, :].astype(np.int32)
    chunk = chunk or len(tokens)
    parts = [
        executor.forward(
            Step([Segment(0, at, tokens[at : at + chunk], Want.ALL)]), page_table(executor.program, order, [turn])
        )
        for turn, at in enumerate(range(0, len(tokens), chunk))
    ]
    return np.concatenate(parts)


def page_table(program: Program, order: NDArray[np.int32], turns: Sequence[int]) -> NDArray[np.int32]:
    """The page table of every state group, (groups, slots, pages), from the pages of each slot, (slots, pages).

    Groups that carry a state alternate between two snapshots of a slot's own, after `turns` steps of it.
    """
    slots, pages = order.shape
    table = np.zeros((len(program.state), slots, max(pages, 2)), np.int32)
    table[:, :, :pages] = order
    for group, spec in enumerate(program.state):
        if isinstance(spec, Recurrent):
            for slot, turn in enumerate(turns):
                read, write = 2 * slot + (turn - 1) % 2, 2 * slot + turn % 2
                table[group, slot, :2] = read if turn else -1, write
    return table


def relative_error(actual: NDArray[Any], expected: NDArray[Any]) -> float:
    """max |difference| / max |logit|."""
    return float(np.abs(actual - expected).max() / np.abs(expected).max())
