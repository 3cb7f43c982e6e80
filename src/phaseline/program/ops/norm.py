"""Norms: before a product, which the product's kernel applies itself, or as an operation of their own."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from phaseline.errors import UnsupportedError
from phaseline.files.base import TensorInfo
from phaseline.program.ir import Builder, Value
from phaseline.program.ops.base import Array, Context, Cost, Work


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019)."""

    weight: TensorInfo  # (width,)
    eps: float

    def describe(self, x: str) -> str:
        return f"rms_norm({x})"

    def weights(self) -> tuple[TensorInfo, ...]:
        return (self.weight,)

    def reference(self, x: Array, weights: Mapping[str, Array]) -> Array:
        scale = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + x.dtype.type(self.eps))
        return x / scale * weights[self.weight.name]  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """(x - mean(x)) / sqrt(var(x) + eps) * weight + bias (Ba, Kiros and Hinton 2016)."""

    weight: TensorInfo  # (width,)
    bias: TensorInfo  # (width,)
    eps: float

    def describe(self, x: str) -> str:
        return f"layer_norm({x})"

    def weights(self) -> tuple[TensorInfo, ...]:
        return (self.weight, self.bias)

    def reference(self, x: Array, weights: Mapping[str, Array]) -> Array:
        x = x - np.mean(x, axis=-1, keepdims=True)
        scale = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + x.dtype.type(self.eps))
        return x / scale * weights[self.weight.name] + weights[self.bias.name]  # type: ignore[no-any-return]


Norm = RMSNorm | LayerNorm


@dataclass(frozen=True, eq=False, slots=True)
class Normalise:
    """out = norm of each group of a row, a group being as wide as the norm's weight; plus `residual` if there is one.

    A head's width normalises per head, the row's own width the row.
    """

    x: Value
    out: Value
    norm: Norm
    residual: Value | None = None

    def describe(self) -> str:
        width = self.norm.weight.shape[0]
        body = self.norm.describe(self.x.name if width == self.x.width else f"{self.x.name} by {width}")
        return f"{self.out.name} = {self.residual.name + ' + ' if self.residual else ''}{body}"

    def weights(self) -> tuple[TensorInfo, ...]:
        return self.norm.weights()

    def inputs(self) -> tuple[Value, ...]:
        return (self.x, *((self.residual,) if self.residual else ()))

    def outputs(self) -> tuple[Value, ...]:
        return (self.out,)

    def cost(self, work: Work) -> Cost:
        rows = work.of(self.x)
        if rows == 0:
            return Cost()
        return Cost(flops=4 * rows * self.x.width, weight_bytes=sum(w.nbytes for w in self.weights()))

    def reference(self, ctx: Context) -> None:
        x = ctx.values[self.x]
        groups = x.reshape(len(x), -1, self.norm.weight.shape[0])  # (rows, groups, width of a group)
        y = self.norm.reference(groups, ctx.weights).reshape(x.shape)
        ctx.values[self.out] = ctx.values[self.residual] + y if self.residual else y


def normalise(b: Builder, x: Value, norm: Norm, name: str, *, residual: Value | None = None) -> Value:
    """Append a Normalise. Widths are checked here, so that an executor need not."""
    width = norm.weight.shape[0]
    if x.width % width:
        raise UnsupportedError(f"norm: {norm.weight.name} of width {width} does not divide rows of width {x.width}")
    if residual and (residual.width != x.width or residual.rows is not x.rows):
        raise UnsupportedError("norm: a residual needs the shape of what is normalised")
    out = Value(name, x.rows, x.width)
    b.add(Normalise(x, out, norm, residual))
    return out
