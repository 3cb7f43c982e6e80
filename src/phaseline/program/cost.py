"""Price a program for a step: FLOPs and bytes per operation, and what a sequence costs in memory."""

from phaseline.program.ir import Program
from phaseline.program.ops.base import Cost, Span, Work


def prefill_work(tokens: int, *, start: int = 0, kv_bytes: float = 2, all_rows: bool = False) -> Work:
    """One chunk of `tokens` rows of one prompt, of which the last is wanted (or all)."""
    return Work([Span(start, tokens, tokens if all_rows else 1)], kv_bytes)


def decode_work(context: int, *, streams: int = 1, kv_bytes: float = 2) -> Work:
    """One token for each of `streams` sequences that hold `context` positions before it."""
    return Work([Span(context, 1, 1)] * streams, kv_bytes)


def op_costs(program: Program, work: Work) -> list[Cost]:
    """Cost of each operation, in order."""
    return [op.cost(work) for op in program.ops]


def step_cost(program: Program, work: Work) -> Cost:
    """Cost of the whole step."""
    return sum(op_costs(program, work), Cost())


def prompt_cost(program: Program, prompt: int, chunk: int, *, kv_bytes: float = 2) -> Cost:
    """Cost of reading a prompt in pieces of `chunk` tokens; only its very last row is wanted."""
    total = Cost()
    for start in range(0, prompt, chunk):
        n = min(chunk, prompt - start)
        total += step_cost(program, Work([Span(start, n, int(start + n == prompt))], kv_bytes))
    return total


def weight_bytes(program: Program) -> int:
    """Bytes of all weights as the file stores them."""
    return sum(w.nbytes for w in program.weights().values())
