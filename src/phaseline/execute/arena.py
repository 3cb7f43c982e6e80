"""Where each activation of a program lives: planned once, so that a step allocates nothing."""

from itertools import groupby

from phaseline.program.ir import Program, Value


def plan_columns(program: Program) -> dict[Value, int]:
    """First float of each value within a row's share of the arena; values alive together do not overlap.

    First fit over live ranges in program order, for each kind of rows apart. The logits are not placed: their
    memory comes with each step.
    """
    ranges = live_ranges(program)
    columns: dict[Value, int] = {}
    for value, (birth, death) in ranges.items():
        neighbours = sorted(
            (columns[v], columns[v] + _padded(v))
            for v, (b, d) in ranges.items()
            if v in columns and v.rows is value.rows and b <= death and birth <= d
        )
        at = 0
        for start, end in neighbours:
            if at + _padded(value) <= start:
                break
            at = max(at, end)
        columns[value] = at
    return columns


def live_ranges(program: Program) -> dict[Value, tuple[int, int]]:
    """First and last operation that need each value, by order of birth; without the logits.

    A layer may be run one row at a time, all of its operations for a row before the next row's: a value that enters or
    leaves it must outlast it, whichever operation touches it last.
    """
    bounds: list[tuple[int, int]] = []  # of the layer around each operation
    for _, group in groupby(range(len(program.ops)), key=lambda i: program.layers[i]):
        members = list(group)
        bounds += [(members[0], members[-1])] * len(members)
    first: dict[Value, int] = {}
    last: dict[Value, int] = {}
    for i, op in enumerate(program.ops):
        for value in op.outputs():
            first.setdefault(value, i)
        for value in (*op.inputs(), *op.outputs()):
            last[value] = i
    ranges = {}
    for value, birth in first.items():
        death = last[value]
        if bounds[birth] != bounds[death]:
            birth, death = bounds[birth][0], bounds[death][1]
        if value is not program.logits:
            ranges[value] = (birth, death)
    return ranges


def _padded(value: Value) -> int:
    return -(-value.width // 16) * 16  # a cache line
