"""What this machine allows each phase of the loaded model, measured before anything is served: it takes about a second,
in which nothing else may run, so only those who ask for it wait for it."""

from collections.abc import Iterator

from phaseline.bounds import bounds
from phaseline.engine.engine import Engine
from phaseline.errors import UnsupportedError
from phaseline.execute.native import KV_TYPES, NativeExecutor
from phaseline.machine import Machine
from phaseline.program.cost import decode_work, prefill_work, step_cost
from phaseline.serve.process.messages import PhaseCeilings

_ROUNDS = 3  # of which the best count
_LARGEST = 512 << 20  # bytes to read again and again: no cache holds more, so a larger footprint says the same


def phase_ceilings(engine: Engine, kv_type: str) -> PhaseCeilings:
    """Measure, and price the cheapest steps of each phase: no step of this model can be faster for its tokens.

    Raises UnsupportedError for an engine that does not run on this machine's kernels.
    """
    executor = engine.executor
    if not isinstance(executor, NativeExecutor):
        raise UnsupportedError("ceilings are of the kernels: numerics reference has none")
    program, scheduler, element = executor.program, engine.scheduler, KV_TYPES[kv_type].itemsize
    chunk = min(scheduler.chunk, scheduler.context - 1)
    prefill = prefill_work(chunk, kv_bytes=element)
    decode = {n: decode_work(0, streams=n, kv_bytes=element) for n in _doublings(scheduler.max_running)}
    footprints = [min(int(step_cost(program, work).bytes), _LARGEST) for work in (prefill, *decode.values())]
    machine = Machine(executor, [min(footprints), max(footprints)])
    best = machine.measure()
    for _ in range(_ROUNDS - 1):
        best = best.best(machine.measure())
    return PhaseCeilings(
        prefill=chunk / bounds(program, [prefill], best).seconds,
        decode=[(n, n / bounds(program, [work], best).seconds) for n, work in decode.items()],
    )


def _doublings(most: int) -> Iterator[int]:
    """1, 2, 4 and so on, and `most`."""
    n = 1
    while n < most:
        yield n
        n *= 2
    yield most
