"""One attention over random queries, keys and values, and page tables for it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phaseline.program.ir import Program, Rows, Value
from phaseline.program.ops import Attend
from phaseline.program.state import PagedKV, SlidingKV
from support.bounds import BF16, attention_bound
from support.memory_file import MemoryFile
from support.small_programs import Small

TOKENS = 256  # tokens that bring numbers; one more, NOTHING, brings NaN
NOTHING = TOKENS
# Each kind of state: its type, whether keys and values are such that bf16 holds them, and an element's error.
KINDS = {"f32": ("f32", False, 0.0), "bf16": ("bf16", False, BF16), "bf16-lossless": ("bf16", True, 0.0)}
Floats = NDArray[np.float64]


@dataclass
class Attention:
    """One attention over random queries, keys and values: token t brings row t of each."""

    heads: int
    kv_heads: int
    dim: int
    lossless: bool = False  # keys and values that bf16 holds exactly
    seed: int = 0
    window: int | None = None

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.scale = self.dim**-0.5
        self.q = rng.normal(size=(TOKENS + 1, self.heads, self.dim)).astype(np.float32)
        self.k, self.v = rng.normal(size=(2, TOKENS + 1, self.kv_heads, self.dim)).astype(np.float32)
        for values in (self.k, self.v):
            if self.lossless:
                values.view(np.uint32)[...] &= 0xFFFF0000
            values[NOTHING] = np.nan
        self.q[NOTHING] = np.nan

    def program(self) -> tuple[MemoryFile, Program]:
        file = MemoryFile()
        state = (1, self.kv_heads, self.dim)
        small = Small(file, (PagedKV(*state) if self.window is None else SlidingKV(*state, self.window),))
        q, k, v = (small.input(n, t.reshape(len(t), -1)) for n, t in (("q", self.q), ("k", self.k), ("v", self.v)))
        out = Value("o", Rows.TOKENS, self.heads * self.dim)
        small.builder.add(Attend(q, k, v, out, 0, self.heads, self.kv_heads, self.dim, self.scale, window=self.window))
        return file, small.finish([out], TOKENS + 1)

    def bound(self, tokens: Sequence[int], rows: int, stored: float) -> Floats:
        """For the last `rows` positions of a sequence, (rows, heads * dim)."""
        q, k, v = (t[list(tokens)].astype(np.float64) for t in (self.q, self.k, self.v))
        return attention_bound(q[len(q) - rows :], k, v, self.scale, stored, self.window).reshape(rows, -1)
