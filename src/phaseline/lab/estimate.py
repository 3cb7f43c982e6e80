"""A model's shape on some hardware: every figure of the paper calculator in one record, with what it assumes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from phaseline.errors import RequestError
from phaseline.lab.calculator import (
    StepBound,
    amortisable_share,
    attention_intensity,
    critical_batch,
    decode_floor,
    distinct_experts,
    largest_batch,
    step_bound,
)
from phaseline.lab.hardware import THIS, Hardware
from phaseline.lab.shapes import Shape

ROUTED_ROWS = (1, 8, 32, 64, 128, 512)  # chunk lengths for which the experts' share is told
_MOST_ROWS = 1 << 30


@dataclass(frozen=True)
class Case:
    """What is asked: positions stored by each stream, batches of decode, a chunk of prefill, the arithmetic's type, the
    least seconds of any step, and bytes of memory where not all may be used."""

    context: int
    batches: Sequence[int]
    chunk: int
    compute: str
    launch: float = 0.0
    memory: float | None = None


def estimate(shape: Shape, hardware: Hardware, case: Case) -> dict[str, Any]:
    """The record. Seconds, bytes, FLOP/s; null where the shape does not tell. RequestError for an impossible case."""
    _check(shape, case)
    flops, bandwidth = hardware.peak(case.compute), hardware.bandwidth
    memory = hardware.memory if case.memory is None else case.memory
    stream = None if shape.kv_bytes is None else shape.kv_bytes * shape.reach(case.context) + shape.stream_bytes
    most = None if stream is None else largest_batch(memory, shape.total.bytes, stream)
    critical = critical_batch(flops, bandwidth, shape.shared.bytes / shape.shared.params)
    steps = [_prefill(shape, hardware, case) | _fits(shape, memory, most, 1)]
    steps += [_decode(shape, hardware, case, batch) | _fits(shape, memory, most, batch) for batch in case.batches]
    alone = _decode(shape, hardware, case, 1)
    record = {
        "shape": {
            "params": shape.total.params,
            "params_per_row": shape.row.params,
            "weight_bytes": shape.total.bytes,
            "weight_bytes_per_row": shape.row.bytes,
            "query_group": shape.group,
            "window": shape.window,
            "formats": {name: {"params": w.params, "bytes": w.bytes} for name, w in shape.formats.items()},
        },
        "hardware": hardware.record() | {"memory": memory},
        "case": {"context": case.context, "chunk": case.chunk, "compute": case.compute, "launch_s": case.launch},
        "attention_intensity": {
            "prefill": attention_intensity(case.context, case.context, shape.prefill_group),
            "decode": attention_intensity(case.context, 1, shape.group),
            "decode_counted": None if shape.kv_bytes is None else shape.pair_flops / shape.kv_bytes,
        },
        "critical_batch": critical,
        "critical_batch_experts": critical * shape.experts / shape.active if shape.experts else None,
        "steps": steps,
        "kv": {
            "bytes_per_position": shape.kv_bytes,
            "fixed_bytes": shape.stream_bytes,
            "bytes_per_stream": stream,
        },
        "largest_batch": most,
        "decode_floor": {
            "seconds": decode_floor(shape.row.bytes, bandwidth),
            "tok_s": 1 / decode_floor(shape.row.bytes, bandwidth),
            "tok_s_at_context": alone["tok_s"],
        },
        "phase_ratio": steps[0]["tok_s"] / alone["tok_s"],
        "experts": _experts(shape) if shape.experts else None,
        "assumptions": _assumptions(shape, hardware, case),
    }
    return record | {"finding": _finding(record)}


def _check(shape: Shape, case: Case) -> None:
    longest = shape.context or _MOST_ROWS
    for name, value, high in (
        ("context", case.context, longest),
        ("chunk", case.chunk, _MOST_ROWS),
        *(("batch", batch, _MOST_ROWS) for batch in case.batches),
    ):
        if not 1 <= value <= high:
            raise RequestError(f"{name} = {value}: it must be a whole number from 1 to {high}")


def _decode(shape: Shape, hardware: Hardware, case: Case, batch: int) -> dict[str, Any]:
    positions = batch * shape.reach(case.context)
    bound = step_bound(
        flops=hardware.peak(case.compute),
        bandwidth=hardware.bandwidth,
        product_flops=2 * batch * shape.row.params,
        product_bytes=shape.read_bytes(batch),
        attention_flops=positions * shape.pair_flops,
        attention_rate=hardware.peak(hardware.attention),
        attention_bytes=positions * (shape.kv_bytes or 0.0) + 2 * batch * shape.stream_bytes,
        launch=case.launch,
    )
    return _step("decode", shape, bound, batch, 2 * batch * shape.row.params / shape.read_bytes(batch))


def _prefill(shape: Shape, hardware: Hardware, case: Case) -> dict[str, Any]:
    """The last chunk of a prompt as long as the context; only its last row's logits are wanted."""
    rows = min(case.chunk, case.context)
    start = case.context - rows
    every = shape.every_row.params + shape.active * shape.expert.params
    product_flops = 2 * (rows * every + shape.wanted.params)
    bound = step_bound(
        flops=hardware.peak(case.compute),
        bandwidth=hardware.bandwidth,
        product_flops=product_flops,
        product_bytes=shape.read_bytes(rows),
        attention_flops=shape.pairs(start, rows) * shape.prefill_pair_flops,
        attention_rate=hardware.peak(hardware.attention),
        attention_bytes=shape.reach(case.context, rows) * (shape.kv_bytes or 0.0) + 2 * shape.stream_bytes,
        launch=case.launch,
    )
    return _step("prefill", shape, bound, rows, product_flops / shape.read_bytes(rows))


def _step(phase: str, shape: Shape, bound: StepBound, rows: int, intensity: float) -> dict[str, Any]:
    known = shape.kv_bytes is not None
    return {
        "phase": phase,
        "rows": rows,
        "product_flops_per_byte": intensity,
        "product_limit": bound.product_limit,
        "products_s": bound.products,
        "attention_limit": bound.attention_limit if known else None,
        "attention_s": bound.attention if known else None,
        "launch_bound": bound.launch > bound.products + bound.attention,
        "step_s": bound.seconds,
        "tok_s": rows / bound.seconds,
    }


def _fits(shape: Shape, memory: float, most: int | None, batch: int) -> dict[str, bool]:
    return {"fits": shape.total.bytes <= memory if most is None else batch <= most}


def _experts(shape: Shape) -> dict[str, Any]:
    """What chunking can win; the LM head stands aside, since a prompt wants one row's logits either way."""
    shared, routed = shape.every_row.bytes, shape.active * shape.expert.bytes

    def at(rows: int) -> dict[str, Any]:
        distinct = distinct_experts(shape.experts, shape.active, rows)
        return {
            "rows": rows,
            "distinct": distinct,
            "most": min(shape.active * rows, shape.experts),
            "bytes": shared + distinct * shape.expert.bytes,
            "amortisable": amortisable_share(shared, shape.expert.bytes, shape.experts, shape.active, rows),
        }

    return {
        "experts": shape.experts,
        "active": shape.active,
        "shared_bytes": shared,
        "routed_bytes": routed,
        "shared_fraction": shared / (shared + routed),
        "rows": [at(rows) for rows in ROUTED_ROWS],
    }


def _assumptions(shape: Shape, hardware: Hardware, case: Case) -> list[str]:
    rates = "rates are measured on this machine" if hardware.name == THIS else "peaks are the vendor's, dense"
    chips = [f"{hardware.count} chips share work, weights and state evenly; what they send each other costs nothing"]
    routing = ["each row chooses its experts uniformly and on its own; real routing is skewed: measure the union too"]
    return [
        f"{rates} ({hardware.source})",
        f"products compute in {case.compute} whatever the weights are stored in, attention in {hardware.attention}",
        *(chips if hardware.count > 1 else ()),
        *shape.assumptions,
        *(routing if shape.experts else ()),
        "a step is its products, then its attention; each takes the longer of its arithmetic and its reading",
        f"a step takes at least {case.launch * 1e3:g} ms to launch" if case.launch else "launching costs nothing",
        f"each stream holds {case.context} positions; a decode step wants every row's logits, a prompt only its last",
        "activations take no memory and move no bytes; all memory is for weights, keys and values",
    ]


def _finding(record: dict[str, Any]) -> str:
    decodes = [step for step in record["steps"] if step["phase"] == "decode"]
    ends = decodes[:1] + decodes[1:][-1:]
    floor = record["decode_floor"]
    return "; ".join(
        [
            *(_sentence(step) for step in ends),
            f"one stream gets at most {_figure(floor['tok_s_at_context'])} tok/s, and prefill in chunks of "
            f"{record['case']['chunk']} at most {_figure(record['phase_ratio'])} times that",
        ]
    )


def _sentence(step: dict[str, Any]) -> str:
    least = f"batch {step['rows']}: at least {_figure(step['step_s'] * 1e3)} ms"
    if step["launch_bound"]:
        return f"{least}, launch-bound"
    parts = [f"{step['product_limit']}-bound products {_figure(step['products_s'] * 1e3)} ms"]
    if step["attention_s"] is not None:
        parts.append(f"{step['attention_limit']}-bound attention {_figure(step['attention_s'] * 1e3)} ms")
    return f"{least} ({' + '.join(parts)})"


def _figure(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"
