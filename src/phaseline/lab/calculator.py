"""The paper calculator: intensities, least times and what fits, from sizes alone; pure functions.

Sizes are bytes, times seconds, rates FLOP/s and bytes per second of all chips together; a multiply and an add are two
FLOP. The formulas are those of the roofline (Williams et al. 2009) as Austin et al. 2025, "How to Scale Your Model",
apply it to inference. Every function raises RequestError for sizes that are not finite or have the wrong sign.
"""

import math
from dataclasses import dataclass

from phaseline.errors import RequestError
from phaseline.program import sparse


def mlp_intensity(batch: float, tokens: float, param_bytes: float = 2.0) -> float:
    """FLOP per byte of weights: `batch` x `tokens` rows share each parameter of `param_bytes`.

    That is the number of rows where a parameter has two bytes. The rows' own bytes are left out.
    """
    check_positive(batch=batch, tokens=tokens, param_bytes=param_bytes)
    return 2 * batch * tokens / param_bytes


def attention_intensity(context: float, tokens: float, group: float = 1) -> float:
    """FLOP per byte of attention in two-byte elements: S*T/(S+T) for S positions read by T new ones, times `group`.

    S/2 in prefill (S = T), about 1 in decode (T = 1), whatever the batch. `group` is the number of query heads that
    share a key head; the product is exact where S is much larger than group x T, and too high elsewhere.
    """
    check_positive(context=context, tokens=tokens, group=group)
    return group * context * tokens / (context + tokens)


def critical_batch(flops: float, bandwidth: float, param_bytes: float = 2.0) -> float:
    """Rows from which weight products are limited by arithmetic: peak over bandwidth, times bytes per parameter / 2."""
    check_positive(flops=flops, bandwidth=bandwidth, param_bytes=param_bytes)
    return flops / bandwidth * param_bytes / 2


def product_limit(rows: float, critical: float) -> str:
    """The limit of weight products over `rows` rows: bandwidth below the critical batch, compute from it on."""
    check_positive(rows=rows, critical=critical)
    return "compute" if rows >= critical else "bandwidth"


@dataclass(frozen=True, slots=True)
class StepBound:
    """Least seconds that each resource allows for the parts of one step."""

    product_compute: float
    product_read: float
    attention_compute: float
    attention_read: float
    launch: float

    @property
    def products(self) -> float:
        return max(self.product_compute, self.product_read)

    @property
    def attention(self) -> float:
        return max(self.attention_compute, self.attention_read)

    @property
    def seconds(self) -> float:
        """Products and attention one after the other, and never below the launch floor."""
        return max(self.launch, self.products + self.attention)

    @property
    def product_limit(self) -> str:
        return "compute" if self.product_compute >= self.product_read else "bandwidth"

    @property
    def attention_limit(self) -> str:
        return "compute" if self.attention_compute > self.attention_read else "bandwidth"


def step_bound(
    *,
    flops: float,
    bandwidth: float,
    product_flops: float,
    product_bytes: float,
    attention_flops: float = 0.0,
    attention_bytes: float = 0.0,
    attention_rate: float | None = None,
    launch: float = 0.0,
) -> StepBound:
    """The bound of a step that does `product_flops` over `product_bytes` of weights, and attends likewise.

    attention_rate: FLOP/s of attention where it computes in another type.
    """
    check_positive(flops=flops, bandwidth=bandwidth, product_flops=product_flops, product_bytes=product_bytes)
    _not_negative(attention_flops=attention_flops, attention_bytes=attention_bytes, launch=launch)
    return StepBound(
        product_flops / flops,
        product_bytes / bandwidth,
        attention_flops / (attention_rate or flops),
        attention_bytes / bandwidth,
        launch,
    )


def step_time(
    rows: float,
    params: float,
    *,
    flops: float,
    bandwidth: float,
    param_bytes: float = 2.0,
    attention_bytes: float = 0.0,
    launch: float = 0.0,
) -> float:
    """Least seconds of a step: attention bytes / W + max(2 * rows * params / F, param bytes / W), or the launch floor.

    rows: batch x new tokens. params: multiplied for each row, `param_bytes` each. attention_bytes: keys and values that
    all rows read. flops F and bandwidth W are of all chips together.
    """
    check_positive(rows=rows, params=params, param_bytes=param_bytes)
    return step_bound(
        flops=flops,
        bandwidth=bandwidth,
        product_flops=2 * rows * params,
        product_bytes=params * param_bytes,
        attention_bytes=attention_bytes,
        launch=launch,
    ).seconds


def kv_bytes(layers: int, kv_heads: int, head_dim: int, tokens: int = 1, element_bytes: float = 2.0) -> float:
    """Bytes of the keys and values of `tokens` positions."""
    check_positive(layers=layers, kv_heads=kv_heads, head_dim=head_dim, tokens=tokens, element_bytes=element_bytes)
    return 2 * layers * kv_heads * head_dim * tokens * element_bytes


def largest_batch(memory: float, weight_bytes: float, stream_bytes: float) -> int:
    """Streams of `stream_bytes` of keys and values that fit beside the weights; 0 where not even the weights do."""
    check_positive(memory=memory, weight_bytes=weight_bytes, stream_bytes=stream_bytes)
    return max(0, math.floor((memory - weight_bytes) / stream_bytes))


def decode_floor(weight_bytes: float, bandwidth: float) -> float:
    """Least seconds per token of one stream: every weight that a row needs is read once."""
    check_positive(weight_bytes=weight_bytes, bandwidth=bandwidth)
    return weight_bytes / bandwidth


def distinct_experts(experts: int, active: int, rows: float) -> float:
    """Experts that `rows` rows are expected to touch under uniform routing: as `program.sparse` counts them."""
    check_positive(experts=experts, active=active)
    _not_negative(rows=rows)
    if active > experts:
        raise RequestError(f"{active} active experts: there are only {experts}")
    return sparse.distinct_experts(experts, active, rows)


def amortisable_share(shared_bytes: float, expert_bytes: float, experts: int, active: int, rows: float) -> float:
    """Share of the weight bytes that reading `rows` rows at once saves over reading them one by one.

    shared_bytes: read for every row. expert_bytes: of one routed expert. Without overlap between the rows' experts the
    share stays below shared / (shared + active experts); uniform routing overlaps as `distinct_experts` says.
    """
    check_positive(expert_bytes=expert_bytes, rows=rows)
    _not_negative(shared_bytes=shared_bytes)
    together = shared_bytes + distinct_experts(experts, active, rows) * expert_bytes
    return 1 - together / (rows * (shared_bytes + active * expert_bytes))


def check_positive(**amounts: float) -> None:
    """RequestError names the first amount that is not finite and over 0."""
    for name, amount in amounts.items():
        if not (math.isfinite(amount) and amount > 0):
            raise RequestError(f"{name} = {amount}: it must be a finite number over 0")


def _not_negative(**amounts: float) -> None:
    for name, amount in amounts.items():
        if not (math.isfinite(amount) and amount >= 0):
            raise RequestError(f"{name} = {amount}: it must be a finite number, 0 or more")
