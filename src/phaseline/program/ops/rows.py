"""Operations that only choose rows: embedding lookup and the rows whose logits are wanted."""

from dataclasses import dataclass

from phaseline.files.base import TensorInfo
from phaseline.program.ir import Value
from phaseline.program.ops.base import Context, Cost, Work


@dataclass(frozen=True, eq=False, slots=True)
class Embed:
    """out[r] = scale * table[token of row r], plus positions[position of row r] where positions are learned."""

    table: TensorInfo  # (vocab, width)
    out: Value
    scale: float = 1.0
    positions: TensorInfo | None = None  # (context, width)

    def describe(self) -> str:
        scaled = f"{self.scale:g} * " if self.scale != 1 else ""
        learned = f" + embed({self.positions.name})" if self.positions else ""
        return f"{self.out.name} = {scaled}embed({self.table.name}){learned}"

    def weights(self) -> tuple[TensorInfo, ...]:
        return (self.table, *((self.positions,) if self.positions else ()))

    def inputs(self) -> tuple[Value, ...]:
        return ()

    def outputs(self) -> tuple[Value, ...]:
        return (self.out,)

    def cost(self, work: Work) -> Cost:
        return Cost(weight_bytes=sum(work.rows * w.nbytes / w.shape[0] for w in self.weights()))

    def reference(self, ctx: Context) -> None:
        rows = ctx.weights[self.table.name][ctx.tokens]  # (rows, width), a copy
        if self.scale != 1:
            rows = rows * rows.dtype.type(self.scale)
        if self.positions:
            rows = rows + ctx.weights[self.positions.name][ctx.positions]
        ctx.values[self.out] = rows


@dataclass(frozen=True, eq=False, slots=True)
class SelectRows:
    """out = the wanted rows of x; what follows runs on them alone."""

    x: Value
    out: Value

    def describe(self) -> str:
        return f"{self.out.name} = wanted_rows({self.x.name})"

    def weights(self) -> tuple[TensorInfo, ...]:
        return ()

    def inputs(self) -> tuple[Value, ...]:
        return (self.x,)

    def outputs(self) -> tuple[Value, ...]:
        return (self.out,)

    def cost(self, work: Work) -> Cost:
        return Cost()

    def reference(self, ctx: Context) -> None:
        ctx.values[self.out] = ctx.values[self.x][ctx.wanted]
