"""Matrix products, with what the kernels do in the same pass: norm before; bias, activation, gate, residual after."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate

import numpy as np

from phaseline.errors import UnsupportedError
from phaseline.files.base import TensorInfo
from phaseline.program.ir import Builder, Value
from phaseline.program.ops.base import Array, Context, Cost, Work
from phaseline.program.ops.norm import Norm

PART = 16  # parts of one matrix's outputs are multiples of this: the kernels' panels


def silu(x: Array) -> Array:
    """x * sigmoid(x), without overflow for large negative x."""
    return x / (1 + np.exp(-np.maximum(x, -80)))  # type: ignore[no-any-return]


def gelu(x: Array) -> Array:
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) (Hendrycks and Gimpel 2016), as x * sigmoid(twice that)."""
    twice = x.dtype.type(2 * np.sqrt(2 / np.pi)) * (x + x.dtype.type(0.044715) * x * x * x)
    return x / (1 + np.exp(-np.maximum(twice, -80)))  # type: ignore[no-any-return]


def situ(x: Array) -> Array:
    """4 tanh(x / 4) sigmoid(x): silu that levels off (Kimi K3)."""
    return 4 * np.tanh(x / 4) / (1 + np.exp(-np.maximum(x, -80)))  # type: ignore[no-any-return]


class Activation(Enum):
    """What is applied to a product, element by element."""

    SILU = "silu"
    GELU = "gelu"
    SITU = "situ"

    def reference(self, x: Array) -> Array:
        return {Activation.SILU: silu, Activation.GELU: gelu, Activation.SITU: situ}[self](x)

    def gate(self, g: Array, u: Array) -> Array:
        """activation(g) * u, where u levels off as well under situ: 25 tanh(u / 25)."""
        if self is Activation.SITU:
            u = 25 * np.tanh(u / 25)
        return self.reference(g) * u


@dataclass(frozen=True, eq=False, slots=True)
class Linear:
    """outs = norm(x) @ matrices[i].T + biases[i], all sharing one prepared input.

    The outputs of all matrices, side by side, are cut into `outs`. gate: two matrices make one output,
    gate(first) * second, as `Activation.gate` has it. activation: applied to every output. residual:
    added to the single output, last.
    """

    x: Value
    norm: Norm | None
    matrices: tuple[TensorInfo, ...]  # each (outputs, inputs)
    outs: tuple[Value, ...]
    biases: tuple[TensorInfo, ...] = ()  # of each matrix, (outputs,); or none at all
    gate: Activation | None = None
    activation: Activation | None = None
    residual: Value | None = None

    def describe(self) -> str:
        x = self.norm.describe(self.x.name) if self.norm else self.x.name
        names = " | ".join(w.name for w in self.matrices)
        body = f"linear({x}, {names}{', bias' if self.biases else ''})"
        if self.gate:
            body = f"{self.gate.value}_gate({body})"
        if self.activation:
            body = f"{self.activation.value}({body})"
        if self.residual:
            body = f"{self.residual.name} + {body}"
        return f"{', '.join(o.name for o in self.outs)} = {body}"

    def weights(self) -> tuple[TensorInfo, ...]:
        return (*self.matrices, *self.biases, *(self.norm.weights() if self.norm else ()))

    def inputs(self) -> tuple[Value, ...]:
        return (self.x, *((self.residual,) if self.residual else ()))

    def outputs(self) -> tuple[Value, ...]:
        return self.outs

    def cost(self, work: Work) -> Cost:
        rows = work.of(self.x)
        if rows == 0:
            return Cost()
        products = sum(w.shape[0] * w.shape[1] for w in self.matrices)
        return Cost(flops=2 * rows * products, weight_bytes=sum(w.nbytes for w in self.weights()))

    def reference(self, ctx: Context) -> None:
        x = ctx.values[self.x]
        if self.norm:
            x = self.norm.reference(x, ctx.weights)
        ys = [x @ ctx.weights[w.name].T for w in self.matrices]  # each (rows, outputs)
        if self.biases:
            ys = [y + ctx.weights[b.name] for y, b in zip(ys, self.biases, strict=True)]
        y = self.gate.gate(ys[0], ys[1]) if self.gate else np.concatenate(ys, axis=1)
        if self.activation:
            y = self.activation.reference(y)
        if self.residual:
            y = ctx.values[self.residual] + y
        cuts = list(accumulate(out.width for out in self.outs))
        ctx.values.update(zip(self.outs, np.split(y, cuts[:-1], axis=1), strict=True))


def linear(
    b: Builder,
    x: Value,
    matrices: Sequence[TensorInfo],
    names: Sequence[str],
    *,
    widths: Sequence[int] | None = None,
    norm: Norm | None = None,
    biases: Sequence[TensorInfo] = (),
    gate: Activation | None = None,
    activation: Activation | None = None,
    residual: Value | None = None,
) -> tuple[Value, ...]:
    """Append a Linear and return its outputs, named `names`.

    widths: of the outputs of one matrix that holds several; without, each matrix makes one. All widths are checked
    here, so that an executor need not.
    """
    for w in matrices:
        if len(w.shape) != 2 or w.shape[1] != x.width:
            raise UnsupportedError(f"linear: {w.name} of shape {w.shape} cannot take an input of width {x.width}")
    for w, bias in zip(matrices, biases, strict=bool(biases)):
        if bias.shape != w.shape[:1]:
            raise UnsupportedError(f"linear: {bias.name} of shape {bias.shape} is no bias for {w.shape[0]} outputs")
    if gate and (len(matrices) != 2 or matrices[0].shape != matrices[1].shape or len(names) != 1):
        raise UnsupportedError("linear: a gate needs two weights of one shape and one output")
    if widths is None:
        widths = [w.shape[0] for w in matrices[: 1 if gate else None]]
    elif len(matrices) != 1 or sum(widths) != matrices[0].shape[0] or any(n % PART for n in widths[:-1]):
        raise UnsupportedError(f"linear: one matrix is cut into parts of multiples of {PART} outputs, not {widths}")
    outs = tuple(Value(n, x.rows, width) for n, width in zip(names, widths, strict=True))
    if residual and (len(outs) != 1 or residual.width != outs[0].width):
        raise UnsupportedError("linear: a residual needs one output of its own width")
    b.add(Linear(x, norm, tuple(matrices), outs, tuple(biases), gate, activation, residual))
    return outs
