"""What the paper calculator needs to know of a model: its weights by when they are read, and its keys and values."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from phaseline.errors import RequestError, UnsupportedError
from phaseline.lab.calculator import check_positive, distinct_experts
from phaseline.program.ir import Program, Rows
from phaseline.program.ops import Attend, DeltaAttend, Embed, Experts, LatentAttend, Span
from phaseline.program.state import Recurrent, SlidingKV, StateSpec

LATENT_NOTE = "latent attention runs absorbed in decode and expanded (for free) in prefill; its cache rows"
DELTA_NOTE = "the delta rule's own arithmetic is left out; its state is float32, read and written by each step"


@dataclass(frozen=True, slots=True)
class Weights:
    """Some of a model's weights: elements that products multiply, and the bytes that hold them."""

    params: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: "Weights") -> "Weights":
        return Weights(self.params + other.params, self.bytes + other.bytes)

    def __mul__(self, factor: float) -> "Weights":
        return Weights(self.params * factor, self.bytes * factor)


@dataclass(frozen=True)
class Shape:
    """A model's sizes.

    every_row: multiplied for each row. wanted: only for rows whose logits are wanted (the LM head). held: in memory, of
    which a row reads next to nothing (an input embedding). expert: one routed expert, in all its layers together, of
    `experts` with `active` per row. kv_bytes: keys and values of one position, None where not known. pair_flops and
    prefill_pair_flops: attention's FLOP per new row and position that it reads, in either phase; group and
    prefill_group: query heads that share a key head. context: most positions; window: positions that attention reaches
    back in some layers, `windowed` their share of all. stream_bytes: state of a stream whatever its length, which each
    step reads and writes. formats: the weights by the format that holds them, where that is known.
    """

    name: str
    every_row: Weights
    wanted: Weights
    held: Weights
    kv_bytes: float | None
    pair_flops: float
    prefill_pair_flops: float
    group: float
    prefill_group: float
    expert: Weights = Weights()
    experts: int = 0
    active: int = 0
    context: int | None = None
    window: int | None = None
    windowed: float = 1.0
    stream_bytes: float = 0.0
    formats: Mapping[str, Weights] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()

    @property
    def total(self) -> Weights:
        return self.shared + self.held + self.expert * self.experts

    @property
    def shared(self) -> Weights:
        """What a decode step reads whichever experts its rows choose."""
        return self.every_row + self.wanted

    @property
    def row(self) -> Weights:
        """What one row of a decode step reads and multiplies."""
        return self.shared + self.expert * self.active

    def read_bytes(self, rows: int) -> float:
        """Weight bytes that a step of `rows` rows reads, experts as expected under uniform routing."""
        touched = distinct_experts(self.experts, self.active, rows) if self.experts else 0.0
        return self.shared.bytes + touched * self.expert.bytes

    def reach(self, positions: int, rows: int = 0) -> float:
        """Positions that attention reads where `positions` are stored, on average over the layers: that of one row, or
        of a chunk whose `rows` last rows each reach back."""
        limited = positions if self.window is None else min(positions, self.window + rows)
        return positions + self.windowed * (limited - positions)

    def pairs(self, start: int, rows: int) -> float:
        """Query-key pairs of `rows` new rows behind `start` positions, causal and within the window where there is one,
        on average over the layers."""
        span = Span(start, rows, 0)
        return span.pairs() + self.windowed * (span.pairs(self.window) - span.pairs())


def shape_from_params(
    params: float,
    *,
    params_active: float | None = None,
    experts: int | None = None,
    experts_active: int | None = None,
    weight_bits: float = 16,
    kv_bytes_per_token: float | None = None,
    kv_element_bytes: float = 2,
    query_group: float = 1,
) -> Shape:
    """A model of which only sums are known. RequestError names what is impossible.

    params_active: what one row multiplies; the rest are routed experts. Their number and how many a row chooses decide
    what a batch reads; where they are not known, a step is held to read the active ones only.
    """
    active = params if params_active is None else params_active
    check_positive(params=params, params_active=active, weight_bits=weight_bits, query_group=query_group)
    if kv_bytes_per_token is not None:
        check_positive(kv_bytes_per_token=kv_bytes_per_token)
    if active > params:
        raise RequestError(f"params_active = {active:g}: it must be at most params = {params:g}")
    if (experts is None) != (experts_active is None) or (experts is not None and active == params):
        raise RequestError("experts, experts_active and params_active (below params) go together")
    assumptions = ["all active parameters are multiplied for every row"]
    every, held, expert = active, params - active, 0.0
    if experts is not None and experts_active is not None:
        if not 1 <= experts_active < experts:
            raise RequestError(f"experts_active = {experts_active}: it must be from 1 to below experts = {experts}")
        expert = (params - active) / (experts - experts_active)
        every, held = active - experts_active * expert, 0.0
        if every < 0:
            raise RequestError(f"params_active = {active:g}: {experts_active} of {experts} experts alone hold more")
    elif held:
        assumptions.append("how many experts a batch touches is not known: a step reads the active parameters only")
    if kv_bytes_per_token is None:
        assumptions.append("keys and values are not known: attention costs nothing")
    else:
        assumptions.append(f"query heads per key head: {query_group:g}; bytes per key or value: {kv_element_bytes:g}")
    size = weight_bits / 8
    # Each element stored is multiplied and added once for each query head that shares it.
    pair_flops = 2 * query_group * (kv_bytes_per_token or 0.0) / kv_element_bytes
    return Shape(
        name=f"{params / 1e9:.4g}B parameters",
        every_row=Weights(every, every * size),
        wanted=Weights(),
        held=Weights(held, held * size),
        kv_bytes=kv_bytes_per_token,
        pair_flops=pair_flops,
        prefill_pair_flops=pair_flops,
        group=query_group,
        prefill_group=query_group,
        expert=Weights(expert, expert * size),
        experts=experts or 0,
        active=experts_active or 0,
        assumptions=tuple(assumptions),
    )


def shape_from_program(
    program: Program, name: str, *, kv_element_bytes: float = 2, weight_bits: float | None = None
) -> Shape:
    """A model that can be loaded. Weights count as the file stores them, or as if in `weight_bits` each."""
    check_positive(weight_bits=1 if weight_bits is None else weight_bits)
    every, wanted, held, expert = Weights(), Weights(), Weights(), Weights()
    experts, active = _mixture(program)
    read = {w.name for op in program.ops if not isinstance(op, Embed) for w in op.weights()}
    counted: set[str] = set()
    for op in program.ops:
        for tensor in op.weights():
            if tensor.name in counted or (isinstance(op, Embed) and tensor.name in read):
                continue
            counted.add(tensor.name)
            size = math.prod(tensor.shape)
            params = size if len(tensor.shape) > 1 and not isinstance(op, DeltaAttend) else 0
            weights = Weights(params, tensor.nbytes if weight_bits is None else size * weight_bits / 8)
            if isinstance(op, Experts) and tensor in op.matrices:
                expert += weights * (1 / experts)
            elif isinstance(op, Embed):
                held += weights
            elif op.outputs()[0].rows is Rows.WANTED:
                wanted += weights
            else:
                every += weights
    window, windowed = _window(program)
    attends = [op for op in program.ops if isinstance(op, Attend)]
    latents = [op for op in program.ops if isinstance(op, LatentAttend)]
    plain = sum(4.0 * op.heads * op.head_dim for op in attends)
    group = max((op.heads / op.kv_heads for op in attends), default=1.0)
    carried = [spec for spec in program.state if isinstance(spec, Recurrent)]
    notes = [DELTA_NOTE] if carried else []
    stored = "as the file stores them" if weight_bits is None else f"in {weight_bits:g} bits each"
    return Shape(
        name=name,
        every_row=every,
        wanted=wanted,
        held=held,
        kv_bytes=sum(_elements(spec) for spec in program.state if spec not in carried) * kv_element_bytes,
        pair_flops=plain + sum(2.0 * op.heads * (op.c.width + op.rank) for op in latents),
        prefill_pair_flops=plain + sum(2.0 * (op.q.width + op.out.width) for op in latents),
        group=max(group, *(float(op.heads) for op in latents)) if latents else group,
        prefill_group=group,
        expert=expert,
        experts=experts,
        active=active,
        context=program.context,
        window=window,
        windowed=windowed,
        stream_bytes=4 * sum(map(_elements, carried)),
        assumptions=(
            f"weights are {stored}",
            f"{LATENT_NOTE if latents else 'keys and values'} take {kv_element_bytes:g} bytes an element, unpadded",
            *notes,
        ),
    )


def _mixture(program: Program) -> tuple[int, int]:
    """The experts of a program's sparse layers, and how many a row chooses; 0 and 0 without any."""
    kinds = {(op.gate.shape[0], op.chosen.width) for op in program.ops if isinstance(op, Experts)}
    if len(kinds) > 1:
        raise UnsupportedError(
            f"the calculator takes one number of experts and of those chosen, not {', '.join(map(str, sorted(kinds)))}"
        )
    return next(iter(kinds), (0, 0))


def _window(program: Program) -> tuple[int | None, float]:
    """The window of a program's sliding layers, None without any, and their share of all."""
    sliding = [spec for spec in program.state if isinstance(spec, SlidingKV)]
    if not sliding:
        return None, 1.0
    window, *others = {spec.window for spec in sliding}
    if others:
        raise UnsupportedError(f"the calculator takes one window, not {', '.join(map(str, sorted({window, *others})))}")
    return window, sum(map(_elements, sliding)) / sum(map(_elements, program.state))


def _elements(spec: StateSpec) -> int:
    """Elements that one position stores."""
    return sum(map(math.prod, spec.arrays(1).values()))
