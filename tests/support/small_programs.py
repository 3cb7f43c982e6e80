"""Programs of a few operations over tables of known inputs, and what they compute on any executor."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phaseline.execute.base import Executor
from phaseline.execute.native import NativeExecutor
from phaseline.execute.reference import ReferenceExecutor
from phaseline.program.ir import Builder, Program, Rows, Value
from phaseline.program.ops import Embed, SelectRows, linear
from phaseline.program.state import PagedKV, StateSpec
from phaseline.program.step import Segment, Step, Want
from support.memory_file import MemoryFile


@dataclass
class Small:
    """A program under construction. Inputs are embeddings: token t of a step brings row t of each table."""

    file: MemoryFile
    state: Sequence[StateSpec] = (PagedKV(1, 1, 16),)
    builder: Builder = field(init=False)

    def __post_init__(self) -> None:
        self.builder = Builder(self.file.tensors)

    def input(self, name: str, table: NDArray[Any]) -> Value:
        """The rows of `table`, exact in float32."""
        value = Value(name, Rows.TOKENS, table.shape[1])
        self.builder.add(Embed(self.file.add(name, table), value))
        return value

    def finish(self, outs: Sequence[Value], tokens: int) -> Program:
        """Show the wanted rows of `outs` side by side as logits, at least `tokens` wide so that many tokens exist.

        Each is moved to its columns by a float32 product with a 0-1 matrix, which is exact: 1 * y and zeros. One that
        is wide enough alone needs none.
        """
        width = max(tokens, sum(out.width for out in outs))
        logits: Value | None = None
        column = 0
        if len(outs) == 1 and outs[0].width == width:
            logits = Value("logits", Rows.WANTED, width)
            self.builder.add(SelectRows(outs[0], logits))
            outs = ()
        for i, out in enumerate(outs):
            wanted = Value(out.name, Rows.WANTED, out.width)
            self.builder.add(SelectRows(out, wanted))
            place = np.zeros((width, out.width), np.float32)
            place[column : column + out.width] = np.eye(out.width)
            column += out.width
            (logits,) = linear(self.builder, wanted, [self.file.add(f"place{i}", place)], ("logits",), residual=logits)
        assert logits is not None
        return Program(self.builder.ops, self.builder.layers, self.state, logits, width, 1 << 20)


def split(logits: NDArray[Any], outs: Sequence[Value]) -> list[NDArray[Any]]:
    """The columns of each of `outs`."""
    return np.split(logits, np.cumsum([out.width for out in outs]), axis=1)[: len(outs)]


def native(file: MemoryFile, program: Program, *, pages: int = 1, **options: Any) -> NativeExecutor:
    """An executor whose state holds NaN wherever nothing has been stored yet."""
    executor = NativeExecutor(file, program, pages, **options)
    for group in executor._pool.groups:
        for array in group.values():
            array.view(np.uint8).fill(0xFF)  # NaN as bf16 and as float32
    return executor


def reference(file: MemoryFile, program: Program, *, pages: int = 1) -> ReferenceExecutor:
    return ReferenceExecutor(file, program, pages, np.float64)


def run(executor: Executor, tokens: Sequence[int], *, start: int = 0, pages: NDArray[np.int32] | None = None) -> Any:
    """Logits of all rows of one segment of slot 0."""
    if pages is None:
        pages = np.zeros((1, -(-(start + len(tokens)) // 32)), np.int32)
    return executor.forward(Step([Segment(0, start, tokens, Want.ALL)]), pages)


def same_bits(a: NDArray[np.float32], b: NDArray[np.float32]) -> bool:
    return a.shape == b.shape and np.array_equal(a.view(np.uint32), b.view(np.uint32))


def assert_levels_agree(results: Mapping[str, NDArray[np.float32]]) -> None:
    """Levels with fused multiply-adds give the same bits, as far as they run; the portable one rounds these twice."""
    fused = [result for level, result in results.items() if level != "portable"]
    assert all(same_bits(result, fused[0]) for result in fused[1:])
