"""Where each activation of a program lives: planned once, so that a step allocates nothing."""

from phaseline.program.ir import Program, Rows, Value


def plan_columns(program: Program) -> dict[Value, int]:
    """First float of each value within a row's share of the arena; values alive together do not overlap.

    First fit over live ranges in program order, for each kind of rows apart. The logits are not placed: their
    memory comes with each step.
    """
    last_use: dict[Value, int] = {}
    for i, op in enumerate(program.ops):
        for value in (*op.inputs(), *op.outputs()):
            last_use[value] = i
    columns: dict[Value, int] = {}
    alive: dict[Rows, list[Value]] = {kind: [] for kind in Rows}
    for i, op in enumerate(program.ops):
        for value in op.outputs():
            if value is program.logits:
                continue
            # A value read for the last time by this very operation still holds its place while the operation runs.
            neighbours = sorted((columns[v], columns[v] + _padded(v)) for v in alive[value.rows] if last_use[v] >= i)
            at = 0
            for start, end in neighbours:
                if at + _padded(value) <= start:
                    break
                at = max(at, end)
            columns[value] = at
            alive[value.rows] = [v for v in alive[value.rows] if last_use[v] >= i] + [value]
    return columns


def _padded(value: Value) -> int:
    return -(-value.width // 16) * 16  # a cache line
