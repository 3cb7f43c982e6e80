"""What joins several rows of one token: a gate, element by element, and Kimi K3's residual mix, as wholes."""

from dataclasses import dataclass

import numpy as np

from phaseline.errors import UnsupportedError
from phaseline.files.base import TensorInfo
from phaseline.program.ir import Builder, Value
from phaseline.program.ops.base import Context, Cost, Work

BANK = 8  # rows of earlier layers that a mix takes at most


@dataclass(frozen=True, eq=False, slots=True)
class Gate:
    """out = x * sigmoid(gate)."""

    x: Value
    gate: Value
    out: Value

    def describe(self) -> str:
        return f"{self.out.name} = {self.x.name} * sigmoid({self.gate.name})"

    def weights(self) -> tuple[TensorInfo, ...]:
        return ()

    def inputs(self) -> tuple[Value, ...]:
        return (self.x, self.gate)

    def outputs(self) -> tuple[Value, ...]:
        return (self.out,)

    def cost(self, work: Work) -> Cost:
        return Cost(flops=4 * work.rows * self.x.width)

    def reference(self, ctx: Context) -> None:
        ctx.values[self.out] = ctx.values[self.x] / (1 + np.exp(-ctx.values[self.gate]))


@dataclass(frozen=True, eq=False, slots=True)
class ResidualMix:
    """out = the average of the rows c of `bank` and of x, by the softmax of their scores (Kimi K3's residual).

    A row's score is sum(c / sqrt(mean(c^2) + eps) * weight); what is averaged is the rows as they are. The bank holds
    the rows that earlier layers began with: values of this step, so that nothing is kept from one token to the next.
    """

    bank: tuple[Value, ...]
    x: Value
    weight: TensorInfo  # (width,)
    eps: float
    out: Value

    def describe(self) -> str:
        banked = f"{len(self.bank)} banked row{'s' * (len(self.bank) > 1)}"
        return f"{self.out.name} = mix({self.x.name}, {banked})"

    def weights(self) -> tuple[TensorInfo, ...]:
        return (self.weight,)

    def inputs(self) -> tuple[Value, ...]:
        return (*self.bank, self.x)

    def outputs(self) -> tuple[Value, ...]:
        return (self.out,)

    def cost(self, work: Work) -> Cost:
        """Each row is squared, scored and added."""
        rows = work.of(self.x)
        if rows == 0:
            return Cost()
        return Cost(flops=6 * rows * self.x.width * len(self.inputs()), weight_bytes=self.weight.nbytes)

    def reference(self, ctx: Context) -> None:
        rows = np.stack([ctx.values[v] for v in self.inputs()])  # (sources, rows, width)
        scale = np.sqrt(np.mean(rows * rows, axis=-1, keepdims=True) + rows.dtype.type(self.eps))
        score = (rows / scale) @ ctx.weights[self.weight.name]  # (sources, rows)
        p = np.exp(score - score.max(axis=0))
        ctx.values[self.out] = np.einsum("sr,srw->rw", p / p.sum(axis=0), rows)


def gate(b: Builder, x: Value, by: Value) -> Value:
    """Append a Gate."""
    if (by.width, by.rows) != (x.width, x.rows):
        raise UnsupportedError(f"gate: {by.name} of width {by.width} is none for {x.name} of width {x.width}")
    out = Value(x.name, x.rows, x.width)
    b.add(Gate(x, by, out))
    return out


def residual_mix(b: Builder, bank: tuple[Value, ...], x: Value, weight: TensorInfo, eps: float, name: str) -> Value:
    """Append a ResidualMix; x itself where the bank is empty. Shapes are checked here, so that an executor need not."""
    if not bank:
        return x
    if len(bank) > BANK:
        raise UnsupportedError(f"residual mix: a bank of {len(bank)} rows is not supported; supported: up to {BANK}")
    if weight.shape != (x.width,) or any((c.width, c.rows) != (x.width, x.rows) for c in bank):
        raise UnsupportedError(f"residual mix: {weight.name} and the bank need the width of what is mixed, {x.width}")
    out = Value(name, x.rows, x.width)
    b.add(ResidualMix(bank, x, weight, eps, out))
    return out
