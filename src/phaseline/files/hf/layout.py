"""How an architecture's settings and tensors are called in GGUF, and how its tensors are stored there."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phaseline.errors import FileFormatError

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """A rearrangement of a tensor's elements, whatever their type. `shape` raises FileFormatError if it cannot be."""

    shape: Callable[[Shape], Shape]
    apply: Callable[[NDArray[Any]], NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Rule:
    """Where a tensor goes: its name in GGUF, `*` for a layer's number; `change` is made to its values, in float32."""

    target: str
    move: Move | None = None
    change: Callable[[NDArray[np.float32]], NDArray[np.float32]] | None = None


Names = Mapping[str, str | Rule]


@dataclass(frozen=True)
class Layout:
    """One model. `keys`: its settings, the architecture's prefix left out.

    names: tensors as the folder has them, with `*` for numbers and without .weight or .bias, or whole names where they
    end otherwise; a second `*` counts experts, whose tensors are stacked. unused: whole names that hold nothing the
    model needs; spare_layers: as many layers behind the last that do not either. made: tensors of GGUF that no file
    holds, in float32. tied: the output matrix is the embedding.
    """

    arch: str
    keys: Mapping[str, Any]
    names: Names
    vocab: int
    tied: bool
    unused: frozenset[str] = frozenset()
    made: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    experts: int = 0
    spare_layers: int = 0

    def rule(self, name: str) -> Rule | None:
        """What becomes of a tensor, numbers in its name being `*`; None if the name is unknown."""
        stem, dot, suffix = name.rpartition(".")
        if name in self.names:
            stem, suffix = name, ""
        elif suffix not in ("weight", "bias"):
            return None
        found = self.names.get(stem)
        if found is None:
            return None
        rule = found if isinstance(found, Rule) else Rule(found)
        return replace(rule, target=rule.target + dot + suffix) if suffix else rule


TRANSPOSE = Move(lambda shape: shape[::-1], lambda values: values.T)


def neighbours(heads: int) -> Move:
    """Rows of query or key heads in the order that rotates neighbours, from one that rotates halves.

    Row i + j * half of a head (i < half) becomes row 2i + j.
    """

    def shape(shape: Shape) -> Shape:
        if shape[0] % (2 * heads):
            raise FileFormatError(f"{shape[0]} rows do not split into {heads} heads of an even size")
        return shape

    def apply(values: NDArray[Any]) -> NDArray[Any]:
        return values.reshape(heads, 2, values.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(values.shape)

    return Move(shape, apply)
