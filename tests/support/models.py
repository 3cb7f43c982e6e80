"""A whole model in hand, and its logits by one executor or another."""

from collections.abc import Sequence
from dataclasses import dataclass
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


def logits(executor: Executor, tokens: Sequence[int], *, chunk: int | None = None, seed: int = 0) -> NDArray[Any]:
    """Logits of every position, (tokens, vocab), read in chunks; pages of the pool in an order drawn from `seed`."""
    pages = -(-len(tokens) // executor.page_size)
    table = np.random.default_rng(seed).permutation(pages)[None, :].astype(np.int32)
    chunk = chunk or len(tokens)
    parts = [
        executor.forward(Step([Segment(0, at, tokens[at : at + chunk], Want.ALL)]), table)
        for at in range(0, len(tokens), chunk)
    ]
    return np.concatenate(parts)


def relative_error(actual: NDArray[Any], expected: NDArray[Any]) -> float:
    """max |difference| / max |logit|."""
    return float(np.abs(actual - expected).max() / np.abs(expected).max())
