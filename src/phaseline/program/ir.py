"""A model as a program: a short list of coarse operations over symbolic rows.

Families build it once, at load; executors run it, the cost model prices it, `explain` prints it. No pass rewrites it:
the builder emits the coarse form, in the order in which it runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from phaseline.errors import FileFormatError
from phaseline.files.base import TensorInfo
from phaseline.program.state import StateSpec

if TYPE_CHECKING:
    from phaseline.program.ops import Op


class Rows(Enum):
    """What one row of a value stands for."""

    TOKENS = "tokens"  # every token of the step
    WANTED = "wanted"  # only rows whose logits someone reads


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """An activation of shape (rows of that kind, width), float32. Identity is by object."""

    name: str
    rows: Rows
    width: int


@dataclass(frozen=True, slots=True)
class Program:
    """What a step does. `layers` groups operations by layer: op i belongs to layer `layers[i]` (-1: none).

    `state` has a spec for each group of layers that share a page list.
    """

    ops: Sequence["Op"]
    layers: Sequence[int]
    state: Sequence[StateSpec]
    logits: Value
    vocab: int
    context: int

    def weights(self) -> Mapping[str, TensorInfo]:
        """Every weight once, by name; a tied table appears once."""
        return {w.name: w for op in self.ops for w in op.weights()}


@dataclass
class Builder:
    """Collects operations; each call checks shapes and returns the value it makes.

    `tensors` are the file's; every one must be used by the end, so that nothing in a file is ignored silently.
    """

    tensors: Mapping[str, TensorInfo]
    ops: list["Op"] = field(default_factory=list)
    layers: list[int] = field(default_factory=list)
    layer: int = -1
    _used: set[str] = field(default_factory=set)

    def weight(self, name: str, *shape: int) -> TensorInfo:
        """The file's tensor `name`, which must have exactly this shape."""
        info = self.tensors.get(name)
        if info is None:
            raise FileFormatError(f"tensor {name!r} is missing from the file")
        if info.shape != shape:
            raise FileFormatError(f"tensor {name!r} has shape {info.shape}, the model's settings ask for {shape}")
        self._used.add(name)
        return info

    def aligned(self, name: str, *shape: int) -> TensorInfo:
        """The same where files have more axes, of length one, before the last; or a plain vector for a column."""
        info = self.tensors.get(name)
        if info and info.shape and [n for n in info.shape if n > 1] == [n for n in shape if n > 1]:
            shape = info.shape if info.shape[-1] == shape[-1] or len(info.shape) == 1 else shape
        return self.weight(name, *shape)

    def has(self, name: str) -> bool:
        return name in self.tensors

    def add(self, op: "Op") -> None:
        self.ops.append(op)
        self.layers.append(self.layer)

    def unused(self) -> list[str]:
        """Tensors that no operation reads, sorted."""
        return sorted(set(self.tensors) - self._used)
