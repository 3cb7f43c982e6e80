"""Where a step's time goes, operation by operation, in prefill and in decode."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from phaseline.lab.experiments.base import Progress
from phaseline.lab.op_groups import group_bounds, op_groups
from phaseline.lab.stats import interleave, median, spread
from phaseline.lab.steps import StepSize, step_bench
from phaseline.lab.systems.phaseline import PhaselineSystem
from phaseline.machine import Machine
from phaseline.program.cost import step_cost

_EMPTY = 5  # empty steps per round; the least of all is what launching costs
AGREE = 0.05  # of the step's time: the operations' sum lies at most so far from it


def measure_ops(
    system: PhaselineSystem,
    *,
    chunk: int = 512,
    context: int = 512,
    rounds: int = 5,
    kv_bytes: float = 2,
    seed: int = 0,
    progress: Progress = lambda done, total, label: None,
) -> dict[str, Any]:
    """The record's `ops` (a row for each phase and group of operations) and `op_steps` (a row for each phase).

    A prefill step reads the first chunk of a prompt, a decode step one token behind `context` positions; both are cut
    to what the engine's context holds. Rows hold every round's seconds; `step_s` are whole steps, timed unprofiled.
    """
    program, longest = system.executor.program, system.context - 1
    sizes = {"prefill": StepSize(min(chunk, longest)), "decode": StepSize(1, min(context, longest))}
    works = {phase: size.work(kv_bytes) for phase, size in sizes.items()}
    machine = Machine(system.executor, [int(step_cost(program, work).bytes) for work in works.values()])
    ceilings = machine.measure()
    steps: dict[str, list[float]] = {phase: [] for phase in sizes}
    profiled: dict[str, list[float]] = {phase: [] for phase in sizes}
    ops: dict[str, list[Any]] = {phase: [] for phase in sizes}
    with step_bench(system, list(sizes.values()), seed) as bench:
        for size in sizes.values():
            bench.seconds(size)  # warm-up
        empties = []
        for done, order in enumerate(interleave(list(sizes), rounds, seed)):
            progress(done, rounds, "operations")
            for phase in order:
                steps[phase].append(bench.seconds(sizes[phase]))
                whole, parts = bench.op_seconds(sizes[phase])
                profiled[phase].append(whole)
                ops[phase].append(parts)
            empties += [bench.empty_op_seconds() for _ in range(_EMPTY)]
            ceilings = ceilings.best(machine.measure())
    rows, totals, empty = [], [], np.min(empties, axis=0)
    for phase, size in sizes.items():
        sums = [float(parts.sum()) for parts in ops[phase]]
        totals.append(_agreement(phase, size, steps[phase], profiled[phase], sums))
        for group in op_groups(program):
            least = group_bounds(program, group, works[phase], ceilings, empty)
            seconds = [group.total(parts) for parts in ops[phase]]
            limit, fraction = least.limit(median(seconds))
            rows.append(
                {
                    "phase": phase,
                    "op": group.label,
                    "count": len(group.numbers),
                    "tokens": size.rows,
                    "context": size.start,
                    "seconds": seconds,
                    "median_s": median(seconds),
                    "spread_s": spread(seconds),
                    "share": median(seconds) / median(sums),
                    "flops": least.cost.flops,
                    "bytes": least.cost.bytes,
                    "bounds_s": {"compute": least.compute, "bandwidth": least.bandwidth, "launch": least.launch},
                    "limit": limit,
                    "fraction": fraction,
                }
            )
    return {"ops": rows, "op_steps": totals, "op_ceilings": ceilings.record()}


def _agreement(
    phase: str, size: StepSize, steps: list[float], profiled: list[float], sums: list[float]
) -> Mapping[str, Any]:
    """`ratio`: of the operations' sum to the very step they were taken from. `step_s`: steps without their clocks."""
    ratio = median([part / whole for part, whole in zip(sums, profiled, strict=True)])
    return {
        "phase": phase,
        "tokens": size.rows,
        "context": size.start,
        "step_s": steps,
        "profiled_s": profiled,
        "sum_s": sums,
        "ratio": ratio,
        "agrees": abs(ratio - 1) <= AGREE,
    }
