"""Rotary positions, and the ways of stretching them over longer contexts."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phaseline.files.base import TensorInfo
from phaseline.program.ir import Value
from phaseline.program.ops.base import Array, Context, Cost, Work


@dataclass(frozen=True, slots=True)
class Yarn:
    """Fast pairs keep their frequency, slow ones are divided by `factor`, those between are blended (Peng et al. 2023).

    A pair is fast if it turns at least `fast` times within `context` positions, slow at `slow` times. `magnitude`
    scales queries and keys alike, so that scores grow by its square.
    """

    factor: float
    context: int
    fast: float = 32.0
    slow: float = 1.0
    magnitude: float = 1.0

    def stretch(self, frequency: NDArray[np.float64], base: float) -> NDArray[np.float64]:
        """The frequencies of a head's pairs, (dims / 2,), after blending."""
        pairs = len(frequency)

        def pair_that_turns(times: float) -> float:
            return pairs * math.log(self.context / (times * 2 * math.pi)) / math.log(base)

        first = max(math.floor(pair_that_turns(self.fast)), 0)
        last = min(math.ceil(pair_that_turns(self.slow)), 2 * pairs - 1)
        slowness = np.clip((np.arange(pairs) - first) / max(0.001, last - first), 0, 1)
        return np.asarray(frequency * (1 - slowness) + frequency / self.factor * slowness)


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Pair i of the first `dims` entries of each head turns by position * base^(-2i/dims) (Su et al. 2021).

    Pair i is entries (2i, 2i+1), or (i, i + dims/2) with `halves`. stretch: every frequency is divided by it (linear
    scaling, Chen et al. 2023). factors: a tensor of shape (dims / 2,) whose entries divide the frequencies, as
    Llama 3's files carry it. yarn: see there.
    """

    dims: int
    base: float
    halves: bool = False
    stretch: float = 1.0
    factors: TensorInfo | None = None
    yarn: Yarn | None = None

    @property
    def magnitude(self) -> float:
        return self.yarn.magnitude if self.yarn else 1.0

    def frequencies(self, factors: Array | None) -> NDArray[np.float64]:
        """Radians per position of each pair, (dims / 2,). `factors`: the values of that tensor, if there is one."""
        frequency = self.base ** (-np.arange(0, self.dims, 2, dtype=np.float64) / self.dims) / self.stretch
        if factors is not None:
            frequency = frequency / factors.astype(np.float64)
        return self.yarn.stretch(frequency, self.base) if self.yarn else np.asarray(frequency)

    def describe(self) -> str:
        ways = [f"base {self.base:g}"]
        ways += ["halves"] if self.halves else []
        ways += [f"stretched {self.stretch:g}"] if self.stretch != 1 else []
        ways += ["by factors"] if self.factors else []
        ways += [f"yarn {self.yarn.factor:g}"] if self.yarn else []
        return ", ".join(ways)

    def rotate(self, x: Array, positions: Array, weights: Mapping[str, Array]) -> Array:
        """x, of shape (rows, heads, head size), turned."""
        y, dims = x.copy(), self.dims
        factors = weights[self.factors.name] if self.factors else None
        angle = (positions[:, None] * self.frequencies(factors))[:, None, :]  # (rows, 1, dims / 2), float64
        cos, sin = ((self.magnitude * turn(angle)).astype(x.dtype) for turn in (np.cos, np.sin))
        first: Any = np.s_[..., : dims // 2] if self.halves else np.s_[..., 0:dims:2]
        second: Any = np.s_[..., dims // 2 : dims] if self.halves else np.s_[..., 1:dims:2]
        y[first] = x[first] * cos - x[second] * sin
        y[second] = x[first] * sin + x[second] * cos
        return y


@dataclass(frozen=True, eq=False, slots=True)
class Rope:
    """Rotate the heads of a value. The output keeps the input's shape."""

    x: Value
    out: Value
    head_dim: int
    rope: RopeSpec

    def describe(self) -> str:
        return f"{self.out.name} = rope({self.x.name}, {self.rope.describe()})"

    def weights(self) -> tuple[TensorInfo, ...]:
        return (self.rope.factors,) if self.rope.factors else ()

    def inputs(self) -> tuple[Value, ...]:
        return (self.x,)

    def outputs(self) -> tuple[Value, ...]:
        return (self.out,)

    def cost(self, work: Work) -> Cost:
        return Cost(flops=3 * work.rows * self.x.width)

    def reference(self, ctx: Context) -> None:
        x = ctx.values[self.x]
        y = self.rope.rotate(x.reshape(len(x), -1, self.head_dim), ctx.positions, ctx.weights)
        ctx.values[self.out] = y.reshape(x.shape)
