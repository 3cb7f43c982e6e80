"""A program made native: weights packed, memory planned, every step one call into the kernels."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phaseline import _native
from phaseline.errors import CapacityError, PhaselineError, UnsupportedError
from phaseline.execute.arena import plan_columns
from phaseline.execute.base import page_counts, page_matrices, step_lists
from phaseline.files.base import ModelFile, TensorInfo
from phaseline.files.quant import FORMATS
from phaseline.program.ir import Program, Rows, Value
from phaseline.program.ops import (
    Activation,
    Attend,
    DeltaAttend,
    Embed,
    Experts,
    Gate,
    HeadWeights,
    LatentAttend,
    LayerNorm,
    Linear,
    Norm,
    Normalise,
    Op,
    ResidualMix,
    Rope,
    RopeSpec,
    Route,
    SelectRows,
)
from phaseline.program.state import PagedKV, PagedLatent, Recurrent, SlidingKV, StateSpec
from phaseline.program.step import Step
from phaseline.state.pool import Pool

KV_TYPES: Mapping[str, np.dtype[Any]] = {"bf16": np.dtype(np.uint16), "f32": np.dtype(np.float32)}
MODES = ("chunk", "layer", "eager", "dispatch")
_ACTS: Mapping[Activation | None, _native.Act] = {
    None: _native.Act.NONE,
    Activation.SILU: _native.Act.SILU,
    Activation.GELU: _native.Act.GELU,
    Activation.SITU: _native.Act.SITU,
}


def best_level() -> str:
    """The widest instruction-set level this processor runs."""
    return _native.levels()[-1]


def check_level(level: str) -> str:
    """The level itself, or an error that says why it cannot run and which can."""
    runs = _native.levels()
    if level in runs:
        return level
    why = "this machine cannot run it" if level in _native.known_levels() else "there is no such level"
    raise UnsupportedError(f"instruction-set level {level!r}: {why} (runs here: {', '.join(runs)})")


def padded_state(spec: StateSpec) -> StateSpec:
    """A state group as the kernels lay it out: what lies innermost rounded up to whole vectors."""
    if isinstance(spec, PagedKV):
        return replace(spec, head_dim=-(-spec.head_dim // 16) * 16)
    if isinstance(spec, PagedLatent):
        return replace(spec, width=-(-spec.width // 32) * 32)
    if isinstance(spec, Recurrent):
        parts = ((name, (*outer, -(-inner // 16) * 16)) for name, (*outer, inner) in spec.parts)
        return replace(spec, parts=tuple(parts))
    raise UnsupportedError(f"no native kernel keeps {type(spec).__name__}")


def element_type(spec: StateSpec, kv_type: str) -> np.dtype[Any]:
    """What a state group's arrays hold: `kv_type` is for keys, values and latents; what is carried on is float32."""
    return np.dtype(np.float32) if isinstance(spec, Recurrent) else KV_TYPES[kv_type]


@dataclass(frozen=True, slots=True)
class ExpertReads:
    """What one mixture of experts read in a step: `distinct` experts, `reads` times the weights of one, their bytes."""

    op: int  # place in the program
    distinct: int
    reads: int
    bytes: int


def packed_bytes(weight: TensorInfo) -> int:
    """What a weight takes in memory once it is packed: some types are held in wider codes than in the file."""
    *rows, cols = weight.shape
    return _native.packed_bytes(weight.format.name, math.prod(rows), cols) if rows else 4 * cols


class NativeExecutor:
    """Runs steps on the kernels of one instruction-set level.

    mode `chunk` runs a whole step in one call; `eager` makes one call per operation; `layer` keeps the layer loop
    outside and runs every operation on one row at a time; `dispatch` does that to routed experts alone, where rows are
    otherwise grouped by expert. All give the same bits.
    """

    page_size = _native.PAGE

    def __init__(
        self,
        file: ModelFile,
        program: Program,
        pages: int | Sequence[int],
        *,
        threads: int = 1,
        level: str | None = None,
        kv_type: str = "bf16",
        max_rows: int = 512,
        max_wanted: int | None = None,
        mode: str = "chunk",
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """`progress` is told how many bytes of weights are packed, of how many."""
        if kv_type not in KV_TYPES:
            raise UnsupportedError(f"key-value type {kv_type!r} is not supported (supported: {', '.join(KV_TYPES)})")
        if mode not in MODES:
            raise UnsupportedError(f"mode {mode!r} is not one of {', '.join(MODES)}")
        self.program = program
        self.level = check_level(level or best_level())
        self.mode = mode
        self.max_rows = max_rows
        self._process = os.getpid()
        try:
            self.team = _native.Team(threads)
        except RuntimeError as error:  # std::system_error
            raise CapacityError(f"{threads} threads cannot be created: {error}; ask for fewer with --threads") from None
        counts = page_counts(program, pages)
        types = [element_type(s, kv_type) for s in program.state]
        self._pool = Pool([padded_state(s) for s in program.state], counts, self.page_size, types)
        self._plan = _native.Plan(self.team, self.level, max_rows, max_wanted or max_rows)
        for spec, count in zip(program.state, counts, strict=True):
            window = spec.window if isinstance(spec, SlidingKV) else None
            self._plan.add_group(count, window, isinstance(spec, Recurrent))
        self._build(file, progress)

    def forward(self, step: Step, pages: NDArray[np.int32]) -> NDArray[np.float32]:
        return self._forward(step, pages, None)

    def profile(self, step: Step, pages: NDArray[np.int32]) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Logits, and the seconds of each operation."""
        seconds = np.zeros(len(self.program.ops))
        return self._forward(step, pages, seconds), seconds

    def empty_step(self) -> None:
        """Launch every operation over no rows: what is left of a step's time when there is no work."""
        self._forward(Step(()), np.empty((len(self.program.state), 0, 0), np.int32), None)

    def expert_reads(self) -> list[ExpertReads]:
        """Of each mixture of experts in the program, what the last step read."""
        found = []
        for number, op in enumerate(self.program.ops):
            if isinstance(op, Experts):
                distinct, reads = self._plan.expert_reads(number)
                found.append(ExpertReads(number, distinct, reads, reads * op.expert_bytes))
        return found

    def copy_pages(self, copies: Sequence[tuple[int, int, int]]) -> None:
        self._pool.copy_pages(copies)

    def close(self) -> None:
        del self._plan, self._pool, self.team

    def _forward(
        self, step: Step, pages: NDArray[np.int32], seconds: NDArray[np.float64] | None
    ) -> NDArray[np.float32]:
        if os.getpid() != self._process:
            raise PhaselineError("a forked process has none of its parent's threads: load the model after forking")
        tokens, segments, wanted = step_lists(step, self.program.context)
        if len(tokens) > self.max_rows:
            raise CapacityError(f"a step of {len(tokens)} rows exceeds the {self.max_rows} this executor was made for")
        logits = np.empty((len(wanted), self.program.vocab), np.float32)
        matrices = page_matrices(self.program, pages)
        self._plan.begin(tokens, segments, wanted, matrices, logits, self.program.vocab)
        ops = len(self.program.ops)
        if self.mode == "eager":
            for op in range(ops):
                self._plan.run(op, op + 1, seconds=seconds)
        else:
            self._plan.run(0, ops, self.mode == "layer", self.mode == "dispatch", seconds)
        return logits

    def _build(self, file: ModelFile, progress: Callable[[int, int], None]) -> None:
        columns = plan_columns(self.program)
        numbers: dict[Value, int] = {}
        for op in self.program.ops:
            for value in op.outputs():
                if value is self.program.logits:
                    numbers[value] = self._plan.add_output(value.width)
                else:
                    numbers[value] = self._plan.add_value(value.width, value.rows is Rows.WANTED, columns[value])
        weights = _Weights(file, self.team)
        total = sum(weight.nbytes for weight in self.program.weights().values())
        for op, layer in zip(self.program.ops, self.program.layers, strict=True):
            self._add(op, layer, numbers, weights)
            progress(min(weights.read, total), total)
        self._plan.seal()

    def _add(self, op: Op, layer: int, n: dict[Value, int], weights: "_Weights") -> None:
        if isinstance(op, Embed):
            positions = weights.matrix(op.positions.name) if op.positions else None
            self._plan.add_embed(weights.matrix(op.table.name), n[op.out], op.scale, positions, layer)
        elif isinstance(op, SelectRows):
            self._plan.add_select(n[op.x], n[op.out], layer)
        elif isinstance(op, Rope):
            self._plan.add_rope(n[op.x], n[op.out], op.head_dim, *weights.rotation(op.rope), layer)
        elif isinstance(op, Normalise):
            residual = n[op.residual] if op.residual else -1
            self._plan.add_normalise(n[op.x], n[op.out], weights.norm(op.norm), residual, layer)
        elif isinstance(op, Gate):
            self._plan.add_gate(n[op.x], n[op.gate], n[op.out], layer)
        elif isinstance(op, ResidualMix):
            mixed, weight = [n[v] for v in op.inputs()], weights.vector(op.weight.name)
            self._plan.add_residual_mix(mixed, n[op.out], weight, op.eps, layer)
        elif isinstance(op, Linear):
            norm = weights.norm(op.norm) if op.norm else None
            matrices = [weights.matrix(w.name) for w in op.matrices]
            biases = [weights.vector(b.name) for b in op.biases]
            outs = [n[o] for o in op.outs]
            residual = n[op.residual] if op.residual else -1
            gating, act = _ACTS[op.gate], _ACTS[op.activation]
            self._plan.add_linear(n[op.x], matrices, outs, norm, biases, gating, act, residual, layer)
        elif isinstance(op, Attend):
            memory = self._pool.groups[op.group]
            self._plan.add_attend(
                n[op.q], n[op.k], n[op.v], n[op.out], memory["keys"], memory["values"], op.group, op.layer,
                op.heads, op.kv_heads, op.head_dim, op.window, op.scale, layer,
            )  # fmt: skip
        elif isinstance(op, Route):
            r, bias = op.router, weights.vector(op.bias.name) if op.bias else []
            self._plan.add_route(
                n[op.logits], n[op.chosen], n[op.shares], bias, r.scores == "softmax",
                r.groups, r.kept_groups, r.group_best, r.renormalise, r.scale, layer,
            )  # fmt: skip
        elif isinstance(op, Experts):
            norm = weights.norm(op.norm) if op.norm else None
            gate, up, down = (weights.matrix(w.name) for w in op.matrices)
            self._plan.add_experts(
                gate, up, down, op.gate.shape[0], n[op.x], n[op.chosen], n[op.shares], n[op.out],
                norm, n[op.residual] if op.residual else -1, _ACTS[op.activation], layer,
            )  # fmt: skip
        elif isinstance(op, LatentAttend):
            rows = self._pool.groups[op.group]["rows"]
            frequencies, magnitude, halves = weights.rotation(op.rope) if op.rope else ([], 1.0, False)
            self._plan.add_latent(
                n[op.q], n[op.c], n[op.out], rows, op.group, op.layer, weights.heads(op.k_b), weights.heads(op.v_b),
                weights.norm(op.norm), frequencies, magnitude, halves, op.scale, layer,
            )  # fmt: skip
        elif isinstance(op, DeltaAttend):
            memory, decay = self._pool.groups[op.group], op.decay
            self._plan.add_delta(
                n[op.q], n[op.k], n[op.v], n[op.decay_input], n[op.beta], n[op.gate], n[op.out],
                memory["state"], memory["window"], op.group, op.layer,
                weights.taps(op.convolutions, op.heads), weights.vector(decay.rate.name),
                weights.vector(decay.shift.name), decay.lowest, op.unit_eps, weights.norm(op.norm), layer,
            )  # fmt: skip
        else:
            raise UnsupportedError(f"no native kernel runs {type(op).__name__}")


class _Weights:
    """Packs each tensor once, however many operations read it, and lets go of the file's pages behind it."""

    def __init__(self, file: ModelFile, team: _native.Team) -> None:
        self._file, self._team, self._store = file, team, _native.Store()
        self._matrices: dict[str, _native.Matrix] = {}
        self.read = 0  # bytes of matrices

    def matrix(self, name: str) -> _native.Matrix:
        if name not in self._matrices:
            info = self._file.tensors[name]
            raw = self._file.raw(name)
            self._matrices[name] = _native.pack(
                info.format.name, raw, info.shape[-1], self._team, self._store, info.format.codebook
            )
            self._file.release(name)
            self.read += info.nbytes
        return self._matrices[name]

    def rotation(self, rope: RopeSpec) -> tuple[list[float], float, bool]:
        """Frequencies, magnitude, and whether pairs are halves."""
        factors = np.array(self.vector(rope.factors.name)) if rope.factors else None
        return rope.frequencies(factors).tolist(), rope.magnitude, rope.halves

    def norm(self, norm: Norm) -> _native.Norm:
        bias = self.vector(norm.bias.name) if isinstance(norm, LayerNorm) else []
        return _native.Norm(self.vector(norm.weight.name), bias, norm.eps)

    def heads(self, weights: HeadWeights) -> list[_native.Matrix]:
        """One matrix for each head. To transpose, plain types move as they are; blocks are decoded to float32."""
        info = weights.tensor
        format, raw = info.format, self._file.raw(info.name)
        if weights.transposed and info.format.block > 1:
            format, raw = FORMATS["F32"], self._file.float32(info.name).reshape(len(raw), -1).view(np.uint8)
        if weights.transposed:
            raw = raw.view(np.dtype(f"V{raw.shape[1] // info.shape[-1]}"))  # whole elements
        parts = np.ascontiguousarray(weights.cut(raw)).view(np.uint8)  # (heads, outputs, bytes)
        cols = weights.shape[-1]
        matrices = [_native.pack(format.name, part, cols, self._team, self._store, format.codebook) for part in parts]
        self._file.release(info.name)
        self.read += info.nbytes
        return matrices

    def taps(self, convolutions: Sequence[TensorInfo], heads: int) -> NDArray[np.float32]:
        """Of several convolutions, (heads, convolutions, taps, dim)."""
        taps = convolutions[0].shape[-1]
        if taps > _native.MAX_TAPS:
            raise UnsupportedError(f"{convolutions[0].name}: {taps} taps, where kernels have up to {_native.MAX_TAPS}")
        each = [self._file.float32(w.name).reshape(heads, -1, taps) for w in convolutions]
        return np.ascontiguousarray(np.stack(each, axis=1).swapaxes(2, 3))

    def vector(self, name: str) -> list[float]:
        values: list[float] = self._file.float32(name).reshape(-1).tolist()
        return values
