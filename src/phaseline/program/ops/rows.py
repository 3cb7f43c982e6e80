"""Operations that only choose rows: embedding lookup and the rows whose logits are wanted."""

from dataclasses import dataclass

from phaseline.files.base import TensorInfo
from phaseline.program.ir import Value
from phaseline.program.ops.base import Context, Cost, Work


@dataclass(frozen=True, eq=False, slots=True)
class Embed:
    """out[r] = table[token of row r]."""

    table: TensorInfo  # (vocab, width)
    out: Value

    def describe(self) -> str:
        return f"{self.out.name} = embed({self.table.name})"

    def weights(self) -> tuple[TensorInfo, ...]:
        return (self.table,)

    def inputs(self) -> tuple[Value, ...]:
        return ()

    def outputs(self) -> tuple[Value, ...]:
        return (self.out,)

    def cost(self, work: Work) -> Cost:
        return Cost(weight_bytes=work.rows * self.table.nbytes / self.table.shape[0])

    def reference(self, ctx: Context) -> None:
        ctx.values[self.out] = ctx.weights[self.table.name][ctx.tokens].copy()


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
