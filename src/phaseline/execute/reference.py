"""The specification: a program run operation by operation in numpy, in float32 or float64."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phaseline.execute.base import page_counts, page_matrices, step_lists
from phaseline.files.base import ModelFile
from phaseline.program.ir import Program
from phaseline.program.ops import Context
from phaseline.program.step import Step
from phaseline.state.pool import Pool


class ReferenceExecutor:
    """Slow and plain. Weights are decoded to `dtype` once; the state is kept in `dtype` as well."""

    page_size = 32

    def __init__(self, file: ModelFile, program: Program, pages: int | Sequence[int], dtype: Any = np.float32) -> None:
        self.program = program
        self._dtype = np.dtype(dtype)
        self._weights = {name: file.float32(name).astype(dtype, copy=False) for name in program.weights()}
        types = [dtype] * len(program.state)
        self._pool = Pool(program.state, page_counts(program, pages), self.page_size, types)

    def forward(self, step: Step, pages: NDArray[np.int32]) -> NDArray[Any]:
        tokens, segments, wanted = step_lists(step, self.program.context)
        positions = np.concatenate([np.arange(s.start, s.start + len(s.tokens), dtype=np.int32) for s in step.segments])
        ctx = Context(
            values={},
            weights=self._weights,
            tokens=np.array(tokens, np.int32),
            positions=positions,
            spans=segments,
            wanted=np.array(wanted, np.int32),
            pages=page_matrices(self.program, pages),
            state=self._pool.groups,
        )
        for op in self.program.ops:
            op.reference(ctx)
        return np.asarray(ctx.values[self.program.logits])

    def copy_pages(self, copies: Sequence[tuple[int, int, int]]) -> None:
        self._pool.copy_pages(copies)

    def close(self) -> None:
        self._weights = {}
