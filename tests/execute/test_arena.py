"""The arena: whatever the program, no value is overwritten while somebody has yet to read it."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaseline.execute.arena import plan_columns
from phaseline.files.base import TensorInfo
from phaseline.files.quant import FORMATS
from phaseline.program.ir import Builder, Program, Rows, Value
from phaseline.program.ops import Embed, Op, SelectRows, linear
from phaseline.program.state import PagedKV

ROWS = 3
WIDTHS = (16, 24, 32, 48)


def weight(rows: int, cols: int) -> TensorInfo:
    return TensorInfo("w", (rows, cols), FORMATS["F32"], 4 * rows * cols)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Layers of products over any earlier values, some added to others, then a head of a few operations."""
    b = Builder({})
    values = [Value("x", Rows.TOKENS, draw(st.sampled_from(WIDTHS)))]
    b.add(Embed(weight(8, values[0].width), values[0]))

    def grow(count: int) -> None:
        for _ in range(count):
            x = draw(st.sampled_from(values[-6:]))
            residual = draw(st.none() | st.sampled_from(values[-6:]))
            if residual:
                values.extend(linear(b, x, [weight(residual.width, x.width)], "y", residual=residual))
            else:
                widths = draw(st.lists(st.sampled_from(WIDTHS), min_size=1, max_size=3))
                values.extend(linear(b, x, [weight(width, x.width) for width in widths], "abc"[: len(widths)]))

    for b.layer in range(draw(st.integers(1, 3))):
        grow(draw(st.integers(1, 5)))
    b.layer = -1
    grow(draw(st.integers(0, 2)))
    last = Value("last", Rows.WANTED, values[-1].width)
    b.add(SelectRows(values[-1], last))
    values[:] = [last]
    grow(draw(st.integers(0, 3)))
    (logits,) = linear(b, values[-1], [weight(8, values[-1].width)], ("logits",))
    return Program(b.ops, b.layers, (PagedKV(1, 1, 16),), logits, 8, 64)


@dataclass
class Memory:
    """The executor's arena, where each float knows whose it is: a value's rows lie side by side from its column."""

    program: Program
    columns: dict[Value, int]
    owners: dict[tuple[Rows, int], tuple[Value, int]] = field(default_factory=dict)

    def cells(self, value: Value, row: int) -> list[tuple[Rows, int]]:
        first = self.columns[value] * ROWS + row * value.width
        return [(value.rows, first + i) for i in range(value.width)]

    def run(self, op: Op, rows: range) -> None:
        """All rows of an operation at once: in no order, so that no output may touch an input."""
        for row in rows:
            for value in op.outputs():
                if value is not self.program.logits:
                    self.owners.update((cell, (value, row)) for cell in self.cells(value, row))
        for row in rows:
            for value in op.inputs():
                assert {self.owners.get(cell) for cell in self.cells(value, row)} == {(value, row)}, value.name


@settings(max_examples=80)
@given(programs())
def test_values_survive_until_their_last_reader(program: Program) -> None:
    memory = Memory(program, plan_columns(program))
    for op in program.ops:
        memory.run(op, range(ROWS))


@settings(max_examples=80)
@given(programs())
def test_values_survive_where_a_layer_runs_row_by_row(program: Program) -> None:
    memory = Memory(program, plan_columns(program))
    layers = list(dict.fromkeys(program.layers[1:-1]))
    groups = [[op for op, at in zip(program.ops, program.layers, strict=True) if at == layer >= 0] for layer in layers]
    memory.run(program.ops[0], range(ROWS))
    for ops in groups:
        for row in range(ROWS):
            for op in ops:
                memory.run(op, range(row, row + 1))
    for op in program.ops[1 + sum(map(len, groups)) :]:
        memory.run(op, range(ROWS))


def test_a_place_is_used_again_and_the_logits_have_none() -> None:
    """A chain needs room for two values, however long it is."""
    b = Builder({})
    x = Value("x", Rows.TOKENS, 32)
    b.add(Embed(weight(8, 32), x))
    for b.layer in range(6):
        (x,) = linear(b, x, [weight(32, 32)], ("x",))
    b.layer = -1
    last = Value("last", Rows.WANTED, 32)
    b.add(SelectRows(x, last))
    (logits,) = linear(b, last, [weight(8, 32)], ("logits",))
    columns = plan_columns(Program(b.ops, b.layers, (PagedKV(1, 1, 16),), logits, 8, 64))
    assert logits not in columns
    assert max(column for value, column in columns.items() if value.rows is Rows.TOKENS) == 32
    assert all(column % 16 == 0 for column in columns.values())


def test_the_simulation_notices_an_overlap() -> None:
    b = Builder({})
    x = Value("x", Rows.TOKENS, 32)
    b.add(Embed(weight(8, 32), x))
    (y,) = linear(b, x, [weight(32, 32)], ("y",))
    memory = Memory(Program(b.ops, b.layers, (PagedKV(1, 1, 16),), y, 8, 64), {x: 0})
    memory.run(b.ops[0], range(ROWS))
    memory.columns[y], memory.program = 16, Program(b.ops, b.layers, (PagedKV(1, 1, 16),), x, 8, 64)
    with pytest.raises(AssertionError):
        memory.run(b.ops[1], range(ROWS))
